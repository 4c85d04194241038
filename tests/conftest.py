"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the raw benchmark files: ``SPIKEGCL_DATA``, else ``../shared/data`` beside the repository."""
    named = os.environ.get("SPIKEGCL_DATA")
    root = Path(named).expanduser() if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not root.is_dir():
        pytest.skip(f"needs the benchmark files, and {root} does not exist; name their folder in SPIKEGCL_DATA")
    return root
