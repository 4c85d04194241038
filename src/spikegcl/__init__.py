"""1-bit node codes for graphs, without labels."""

from __future__ import annotations

import os

# torch and numba bring an OpenMP pool each, and an idle pool that spins steals the cores from the other one. Let idle
# threads sleep soon (measured: a training epoch is 3 times faster). It has to be set before either is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__version__ = "0.1.0"
