"""1-bit node codes for graphs, without labels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spikegcl.codes import Codes, open_codes
    from spikegcl.config import Config
    from spikegcl.conversion import convert
    from spikegcl.datasets import load_dataset
    from spikegcl.estimator import SpikeGCLEmbedder
    from spikegcl.graph import Graph, build_graph
    from spikegcl.probes import linear_probe
    from spikegcl.readers import read_graph
    from spikegcl.search import Index
    from spikegcl.structural import structural_features
    from spikegcl.training import embed_graph, train

__version__ = "0.1.0"

__all__ = [
    "Codes",
    "Config",
    "Graph",
    "Index",
    "SpikeGCLEmbedder",
    "build_graph",
    "convert",
    "embed_graph",
    "linear_probe",
    "load_dataset",
    "open_codes",
    "read_graph",
    "structural_features",
    "train",
]

# Where each public name lives: it is loaded when first asked for, so that `import spikegcl` and `spikegcl --help` do
# not wait for torch.
_HOME = {
    "Codes": "codes",
    "Config": "config",
    "Graph": "graph",
    "Index": "search",
    "SpikeGCLEmbedder": "estimator",
    "build_graph": "graph",
    "convert": "conversion",
    "embed_graph": "training",
    "linear_probe": "probes",
    "load_dataset": "datasets",
    "open_codes": "codes",
    "read_graph": "readers",
    "structural_features": "structural",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
