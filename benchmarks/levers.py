"""What was tried to make an epoch faster, each lever against the plainest alternative in the same run.

python -m benchmarks.levers [--graphs computers,physics,arxiv-topology]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys

import numpy as np
import scipy.sparse as sp
import torch
from numba import njit, prange
from scipy.sparse.csgraph import reverse_cuthill_mckee

from benchmarks.measure import graph_and_config, timed
from benchmarks.run import RESULTS, ROOT, save, table
from spikegcl import kernels, model, session
from spikegcl.fused import Affine, activate
from spikegcl.memory import reuse_freed_memory
from spikegcl.objectives import Margin
from spikegcl.propagate import Operator, make_operator, plain_torch
from spikegcl.session import Session

WIDTH = 64


@njit(parallel=True, fastmath=True)
def edge_by_edge(indptr, indices, values, x, out):
    """The product as one writes it first."""
    for i in prange(out.shape[0]):
        for c in range(x.shape[1]):
            out[i, c] = np.float32(0)
        for e in range(indptr[i], indptr[i + 1]):
            for c in range(x.shape[1]):
                out[i, c] += values[e] * x[indices[e], c]


def four_edges(read):
    """The product of four edges at a time, as ours but without asking for rows ahead; ``read`` gives x[row, column]."""

    @njit(parallel=True, fastmath=True)
    def product(indptr, indices, values, x, out):
        for i in prange(out.shape[0]):
            begin, end = indptr[i], indptr[i + 1]
            whole = begin + (end - begin) // 4 * 4
            for c in range(x.shape[1]):
                out[i, c] = np.float32(0)
            for e in range(begin, whole, 4):
                v0, v1, v2, v3 = values[e], values[e + 1], values[e + 2], values[e + 3]
                j0, j1, j2, j3 = indices[e], indices[e + 1], indices[e + 2], indices[e + 3]
                for c in range(x.shape[1]):
                    out[i, c] += v0 * read(x, j0, c) + v1 * read(x, j1, c) + v2 * read(x, j2, c) + v3 * read(x, j3, c)
            for e in range(whole, end):
                for c in range(x.shape[1]):
                    out[i, c] += values[e] * read(x, indices[e], c)

    return product


@njit(inline="always")
def read_float(x, row, column):
    return x[row, column]


@njit(inline="always")
def read_bfloat16(x, row, column):
    """x holds the upper 16 bits."""
    return np.uint32(np.uint32(x[row, column]) << np.uint32(16)).view(np.float32)


def milliseconds(function, repeats: int = 9) -> float:
    return 1000 * statistics.median(timed(function, repeats))


def arrays(operator: Operator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return operator.indptr.numpy(), operator.indices.numpy(), operator.values.numpy()


def reordered(operator: Operator, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    size = (operator.num_nodes, operator.num_nodes)
    indptr, indices, values = arrays(operator)
    moved = sp.csr_array((values, indices, indptr), shape=size)[order][:, order].tocsr()
    moved.sort_indices()
    return moved.indptr.astype(np.int64), moved.indices.astype(np.int32), moved.data


def products(name: str) -> dict:
    """One sparse product, 64 columns, by every way tried (ms)."""
    graph, _ = graph_and_config(name, [])
    operator = make_operator(graph)
    own = arrays(operator)
    size = (graph.num_nodes, graph.num_nodes)
    x = torch.randn(graph.num_nodes, WIDTH)
    out = torch.empty_like(x)
    xs, outs = x.numpy(), out.numpy()
    library = torch.sparse_csr_tensor(operator.indptr.int(), operator.indices, operator.values, size)
    coo = library.to_sparse_coo().coalesce()
    upper = (xs.view(np.uint32) >> 16).astype(np.uint16)
    rcm = reordered(operator, reverse_cuthill_mckee(graph.adjacency.astype(np.int8).tocsr(), symmetric_mode=True))
    degree = reordered(operator, np.argsort(-graph.degrees, kind="stable"))
    plain, half = four_edges(read_float), four_edges(read_bfloat16)
    return {
        "graph": name,
        "torch COO": milliseconds(lambda: torch.sparse.mm(coo, x), 3),
        "torch CSR int32 (MKL)": milliseconds(lambda: torch.addmm(out, library, x, beta=0, out=out)),
        "numba, edge by edge": milliseconds(lambda: edge_by_edge(*own, xs, outs)),
        "numba, four edges": milliseconds(lambda: plain(*own, xs, outs)),
        "the same, rows asked for ahead (ours)": milliseconds(lambda: kernels.spmm(*own, xs, outs)),
        "ours, nodes in RCM order": milliseconds(lambda: kernels.spmm(*rcm, xs, outs)),
        "ours, nodes by degree": milliseconds(lambda: kernels.spmm(*degree, xs, outs)),
        "bfloat16 gathers": milliseconds(lambda: half(*own, upper, outs)),
    }


def activations(name: str) -> dict:
    """Activation, dropout and batch statistics of 64 columns in one pass: plain torch, compiled, our kernel (ms)."""
    graph, _ = graph_and_config(name, [])
    x = torch.randn(graph.num_nodes, WIDTH)
    ones, zeros = torch.ones(graph.num_nodes), torch.zeros(WIDTH)

    def ours() -> None:
        activate(Affine(x.clone(), ones, zeros, zeros), "elu", [1], 0.5, WIDTH)

    def plain(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.nn.functional.dropout(torch.nn.functional.elu(x * ones[:, None] + zeros), 0.5)
        return h, *torch.var_mean(h, dim=0, correction=0)

    compiled = torch.compile(plain)
    compiled(x)
    return {
        "graph": name,
        "plain torch": milliseconds(lambda: plain(x)),
        "torch.compile": milliseconds(lambda: compiled(x)),
        "one pass by hand (ours)": milliseconds(ours),
    }


def epoch_ms(
    name: str, *, plain: bool = False, chunk: int | None = None, keep: bool = True, reorder: bool = True
) -> float:
    if keep:
        reuse_freed_memory()
    if not reorder:
        session.local_order = lambda graph: np.arange(graph.num_nodes)
    before = model.CHUNK_FLOATS
    model.CHUNK_FLOATS = chunk or before
    graph, config = graph_and_config(name, [])
    with plain_torch() if plain else contextlib.nullcontext():
        objective = Margin(Session(graph, config, 0))
        result = milliseconds(lambda: objective.epoch(1), 3)
    model.CHUNK_FLOATS = before
    return result


def isolated(call: str, **environment: str) -> float:
    """An epoch in a process of its own, for settings that are read at start."""
    script = f"from benchmarks.levers import epoch_ms; print(epoch_ms({call}))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, env={**os.environ, **environment},
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return float(done.stdout)


def epochs(name: str) -> dict:
    """A whole epoch with one thing changed (ms)."""
    return {
        "graph": name,
        "ours": isolated(f"'{name}'"),
        "plain torch instead of kernels": isolated(f"'{name}', plain=True"),
        "one step at a time": isolated(f"'{name}', chunk=1"),
        "four times as many steps at a time": isolated(f"'{name}', chunk=2**23"),
        "memory returned to the system, small pages": isolated(f"'{name}', keep=False"),
        "nodes in the graph's own order": isolated(f"'{name}', reorder=False"),
        "idle threads sleep soon": isolated(f"'{name}'", GOMP_SPINCOUNT="1000"),
    }


def draw(title: str, rows: list[dict], base: str) -> str:
    names = [key for key in rows[0] if key != "graph"]
    shown = [[name, *(f"{row[name]:.1f} ({row[name] / row[base]:.2f}x)" for row in rows)] for name in names]
    return table(title, ["", *(row["graph"] for row in rows)], shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", default="computers,physics,arxiv-topology")
    options = parser.parse_args()
    sparse = [products(name) for name in options.graphs.split(",")]
    whole = [epochs(name) for name in ("cora", "computers")]
    passes = [activations(name) for name in options.graphs.split(",")]
    save("levers", {"products": sparse, "activations": passes, "epochs": whole})
    text = draw("One sparse product, 64 columns, in ms", sparse, "the same, rows asked for ahead (ours)")
    text += "\n" + draw("Activation, dropout and statistics, in ms", passes, "one pass by hand (ours)")
    text += "\n" + draw("One training epoch, in ms", whole, "ours")
    (RESULTS / "levers.md").write_text(text)
    print(text)
    print(json.dumps({"threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
