"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from commands import FAST, call, options
from spikegcl.datasets import load_dataset
from spikegcl.graph import build_graph
from spikegcl.readers import write_graph

# The same examples on every machine; HYPOTHESIS_PROFILE=default draws new ones to look for more.
settings.register_profile("fixed", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the raw benchmark files: ``SPIKEGCL_DATA``, else ``../shared/data`` beside the repository."""
    named = os.environ.get("SPIKEGCL_DATA")
    root = Path(named).expanduser() if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not root.is_dir():
        pytest.skip(f"needs the benchmark files, and {root} does not exist; name their folder in SPIKEGCL_DATA")
    return root


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in a fresh folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: (call(*arguments), *capsys.readouterr())


@pytest.fixture(scope="session")
def community():
    """A graph of 400 nodes with string ids, class names and named sparse columns."""
    graph = load_dataset("sbm:nodes=400,classes=4,num_features=64")
    return build_graph(
        graph.adjacency,
        graph.features,
        labels=[f"class {label}" for label in graph.labels],
        ids=[f"node {number}" for number in range(400)],
        columns=[f"word {number}" for number in range(64)],
    )


@pytest.fixture(scope="session")
def files(community, tmp_path_factory):
    """The first 300 nodes of ``community``, as a graph and as files."""
    graph = community.subgraph(np.arange(300))
    return graph, write_graph(graph, tmp_path_factory.mktemp("graph"))


@pytest.fixture(scope="session")
def trained_run(files, tmp_path_factory):
    """A run folder that ``spikegcl train`` made of ``files``. It is everybody's: copy it to change it."""
    folder = tmp_path_factory.mktemp("run") / "run"
    assert call("train", *options(files[1]), *FAST, "-o", folder) == 0
    return folder
