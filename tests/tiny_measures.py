"""Measures for cells of the runner's tests: importable by the process of a cell, and quick to import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import torch

from spikegcl.bits import linear
from spikegcl.memory import peak_mb


def visit(cell, graph, on_epoch, *, visits, seconds=0.0):
    """Leave a line in the file ``visits``, so that a test can count how often a cell was run."""
    with Path(visits).open("a") as file:
        file.write(f"{cell.method}{cell.seed}\n")
    time.sleep(seconds)
    return {"nodes": graph.num_nodes, "points": {8: 0.1 + 0.2}}


def crash(cell, graph, on_epoch):
    raise ValueError("no such luck")


def die(cell, graph, on_epoch):
    os.kill(os.getpid(), signal.SIGKILL)


def no_json(cell, graph, on_epoch):
    return {"value": object()}


def linger(cell, graph, on_epoch):
    for epoch in range(1, 10_000):
        on_epoch(SimpleNamespace(epoch=epoch))
        time.sleep(0.01)
    return {}


def hoard(cell, graph, on_epoch, *, seconds=100.0):
    kept = np.ones(2**26)  # half a gigabyte
    time.sleep(seconds)
    return {"value": float(kept[0])}


def peak(cell, graph, on_epoch):
    return {"peak_mb": peak_mb()}


def threads(cell, graph, on_epoch):
    """Threads of numba and torch after a kernel has run, in a forward pass and in a backward pass."""
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append((numba.get_num_threads(), torch.get_num_threads()))
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append((numba.get_num_threads(), torch.get_num_threads()))
            return grad

    linear(np.zeros((100, 8), np.uint8), np.zeros((64, 3), np.float32))
    Look.apply(torch.ones(3, requires_grad=True)).sum().backward()
    return {"threads": seen}
