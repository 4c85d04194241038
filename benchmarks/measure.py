"""One measurement in a process of its own, printed as JSON: seconds and memory of one side on one graph.

python -m benchmarks.measure ours|edge_index|sparse DATASET [--repeats 5] [--set key=value ...]
"""

from __future__ import annotations

import argparse
import json
import time

import psutil

from benchmarks.published import data_root


def graph_and_config(name: str, settings: list[str]):
    from spikegcl.config import Config, preset
    from spikegcl.datasets import load_dataset

    if name == "arxiv-topology":
        import numpy as np

        graph = load_dataset("ogbn-arxiv", data_root(), features=False)
        features = np.random.default_rng(0).standard_normal((graph.num_nodes, 128), dtype=np.float32)
        graph, config = graph.with_features(features), preset("paper", "ogbn-arxiv")
    else:
        graph = load_dataset(name, data_root())
        config = Config(threshold=0.05) if name.startswith("sbm") else preset("paper", name)
    pairs = dict(setting.split("=") for setting in settings)
    return graph, config.replace(**pairs, select="last")


def timed(function, repeats: int, warm: bool = False) -> list[float]:
    """Seconds of each call after one that is not counted (compilation, first touch of memory) unless ``warm``."""
    if not warm:
        function()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return seconds


def measure(side: str, name: str, repeats: int, settings: list[str]) -> dict:
    import torch

    from spikegcl.memory import peak_mb, reuse_freed_memory
    from spikegcl.objectives import Margin
    from spikegcl.protocol import versions
    from spikegcl.session import Session

    if side != "ours":
        from benchmarks.paper_loop import PaperLoop

    libraries = psutil.Process().memory_info().rss / 2**20
    graph, config = graph_and_config(name, settings)
    if side == "ours":
        reuse_freed_memory()
        session = Session(graph, config, 0)
        objective, embed = Margin(session), session.embed

        def epoch() -> None:
            objective.epoch(1)
    else:
        model = PaperLoop(config, graph, side)
        optimiser, embed = torch.optim.AdamW(model.parameters(), lr=config.lr), model.embed

        def epoch() -> None:
            model.train_epoch(optimiser)

    return {
        "side": side,
        "graph": name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "steps": config.steps,
        "epoch_seconds": timed(epoch, repeats),
        "embed_seconds": timed(embed, repeats, warm=side != "ours"),
        "libraries_mb": libraries,
        "peak_mb": peak_mb(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["ours", "edge_index", "sparse"])
    parser.add_argument("graph")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    print(json.dumps(measure(options.side, options.graph, options.repeats, options.set)))


if __name__ == "__main__":
    main()
