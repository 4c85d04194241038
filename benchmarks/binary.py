"""Bi-GCN on bits against the same layers in float32: time, bytes of weights, and whether predictions agree.

    python -m benchmarks.binary [--quick]

One thread, CPU time, best of several runs. ``layer 1`` multiplies the features: packed once beforehand on one side, a
dense float32 matrix on the other. ``layer 2`` multiplies hidden numbers, and taking their signs and packing them is
part of its time. The float side is torch's x W + b with full-precision weights. Agreement is that of the trained
model's packed inference with its float emulation. ``--quick`` takes Cora and writes nothing; else the numbers go to
results/performance/binary.json.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numba
import torch

from benchmarks.published import data_root
from benchmarks.run import GRAPHS, save, table
from spikegcl import noise
from spikegcl.baselines.bi_gcn import METHOD, BiGCN, binarise_features
from spikegcl.baselines.binary import Binarised, BinaryLinear, PackedLinear, packed
from spikegcl.datasets import load_dataset, make_split
from spikegcl.propagate import Operator, make_operator, plain_torch, propagate

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 3
EPOCHS = 5  # of training before predictions are compared


def best(call: Callable[[], Any]) -> float:
    """Milliseconds of the fastest call after one that is not counted."""
    call()
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        call()
        times.append(1000 * (time.process_time() - started))
    return min(times)


def measure(name: str) -> dict[str, Any]:
    graph = load_dataset(name, data_root())
    settings = METHOD.settings_for("paper", name)
    model = BiGCN(graph.num_features, graph.num_classes, settings, 0)
    operator, inputs = make_operator(graph, model.operator_kind), binarise_features(graph, "column")
    train = torch.from_numpy(make_split(graph, 0).train)
    labels = torch.from_numpy(graph.labels)[train]
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.lr)
    for epoch in range(EPOCHS):
        optimiser.zero_grad()
        logits = model(operator, inputs, settings.dropout, noise.derive(0, epoch))
        torch.nn.functional.cross_entropy(logits[train], labels).backward()
        optimiser.step()
    with torch.inference_mode():
        bits = packed(model)(operator, inputs)
        hidden = model.first(inputs)
        layers = [
            measure_layer(model.first, inputs, dense(graph)),
            measure_layer(model.second, hidden, hidden),
        ]
        emulated = emulate(model, operator, inputs)
    return {
        "graph": name,
        "nodes": graph.num_nodes,
        "layers": layers,
        "weight_bytes": {
            "packed": sum(part.ones.nbytes for part in packed(model).modules() if isinstance(part, PackedLinear)),
            "float": sum(layer.weight.nbytes for layer in (model.first, model.second)),
        },
        "same_predictions": int((bits.argmax(1) == emulated.argmax(1)).sum()),
        "largest_difference": float((bits - emulated).abs().max()),
    }


def emulate(model: BiGCN, operator: Operator, inputs: Binarised) -> torch.Tensor:
    """The model with every sign and scale as a float: only the products with weights differ from the packed one."""
    with plain_torch():
        first = model.first(inputs)
    return propagate(operator, model.second(propagate(operator, first)))


def dense(graph: Any) -> torch.Tensor:
    return torch.from_numpy(graph.features.toarray() if graph.is_sparse else graph.features)


def measure_layer(layer: BinaryLinear, x: torch.Tensor | Binarised, floats: torch.Tensor) -> dict[str, Any]:
    bits = PackedLinear(layer)
    return {
        "shape": list(layer.weight.shape),
        "packed_ms": best(lambda: bits(x)),
        "float_ms": best(lambda: torch.addmm(layer.bias, floats, layer.weight)),
    }


def draw(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        cells = [row["graph"]]
        for layer in row["layers"]:
            width_in, width_out = layer["shape"]
            cells.append(f"{row['nodes']} x {width_in} x {width_out}")
            cells.append(f"{layer['packed_ms']:.2f} / {layer['float_ms']:.2f} ms")
            cells.append(f"{layer['float_ms'] / layer['packed_ms']:.1f}x")
        cells.append(f"{row['weight_bytes']['float'] / row['weight_bytes']['packed']:.1f}x")
        cells.append(f"{row['same_predictions']} / {row['nodes']}")
        lines.append(cells)
    header = ["", "layer 1", "bits / float32", "faster", "layer 2", "bits / float32", "faster", "weights", "agree"]
    return table("Bi-GCN on bits, one thread", header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Cora only; nothing is written")
    quick = parser.parse_args().quick
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    rows = [measure(name) for name in (GRAPHS[:1] if quick else GRAPHS)]
    if not quick:
        save("binary", rows)
    print(draw(rows))


if __name__ == "__main__":
    main()
