"""Settings other than those of a preset: validation accuracy to choose by, test accuracy to explain a cell.

    python -m benchmarks.choices gcn photo "" "row_normalise=false" "row_normalise=false,weight_decay=0.0" [--seeds 1]

Every text changes the settings of the preset; "" changes nothing. ``--select train`` keeps the epoch that is best on
the training nodes, in effect one of the last: what a supervised method is worth if nothing is held out to stop it.
``--split stratified`` takes the random split in the ratio 1:1:8 on a graph that has a split of its own. A row a run
goes to results/choices/rows.jsonl and all are drawn into the README beside it; finished runs are not repeated. Presets
are chosen by validation accuracy alone.

An embedding is also judged by the paper's probe, on raw values, and by logistic regression on rows of unit length, the
probe of many publications: what a printed value may owe to its protocol.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tomllib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch

from benchmarks.published import data_root
from benchmarks.run import ROOT, table
from spikegcl.baselines import find_method
from spikegcl.datasets import load_dataset, make_split
from spikegcl.protocol import judge, spread, versions

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESULTS = ROOT / "results" / "choices"
ROWS = RESULTS / "rows.jsonl"
HEAD = """# Other settings than those of a preset

Made by `python -m benchmarks.choices`, a row a line. `changed` is relative to the preset at that commit; `epoch` is the
one kept, of all that were run. The usual split is the one the graph came with, or else stratified in the ratio 1:1:8.
Presets are chosen by the validation column alone; the test column is there to say why a cell of a table is off. An
embedding has two other test accuracies: `paper's probe` on raw values, and `unit rows`, logistic regression after every
row was brought to unit length. Seconds are those of a busy machine.
"""
ACCURACIES = {
    "val_accuracy": "validation",
    "test_accuracy": "test",
    "paper_probe": "paper's probe",
    "unit_rows": "unit rows",
}
KEY = ("method", "dataset", "preset", "changes", "settings", "select", "split")


def parse(changes: str) -> dict[str, Any]:
    """
    >>> parse("lr=0.01,row_normalise=false")
    {'lr': 0.01, 'row_normalise': False}
    """
    return tomllib.loads(changes.replace(",", "\n"))


def measure(row: dict[str, Any], seed: int) -> dict[str, Any]:
    graph, method = load_dataset(row["dataset"], data_root()), find_method(row["method"])
    settings, split = method.settings().replace(**row["settings"]), make_split(graph, seed, row["split"])
    given = SimpleNamespace(train=split.train, val=split.train) if row["select"] == "train" else split
    fitted = method.fit(graph, settings, seed=seed, split=given, on_epoch=None, device="cpu")
    made = {**row, "seed": seed, "epochs": len(fitted.history), "epoch": fitted.epoch}
    made |= judge(fitted, graph, split, "logreg", seed)
    if fitted.embedding is not None:
        unit = dataclasses.replace(fitted, embedding=unit_rows(fitted.embedding))
        made["paper_probe"] = judge(fitted, graph, split, "paper", seed)["test_accuracy"]
        made["unit_rows"] = judge(unit, graph, split, "logreg", seed)["test_accuracy"]
    return {**made, "seconds": round(fitted.seconds["train"], 1), "commit": versions()["commit"]}


def unit_rows(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length 1; a row of zeros stays one.

    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), np.float32(1e-12))


def read() -> list[dict[str, Any]]:
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    return [{"split": None, **json.loads(line)} for line in lines]  # rows made before there was a choice have none


def draw(rows: list[dict[str, Any]]) -> str:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row[name] for name in KEY]), []).append(row)
    lines = []
    for group in sorted(groups.values(), key=lambda group: (group[0]["method"], group[0]["dataset"])):
        first, cells = group[0], []
        for name in ACCURACIES:
            if name not in first:
                cells.append("-")
                continue
            found = spread(row[name] for row in group)
            cells.append(f"{100 * found['mean']:.1f}" + (f" ± {100 * found['std']:.1f}" if len(group) > 1 else ""))
        seeds = " ".join(str(row["seed"]) for row in group)
        names = [first["method"], first["dataset"], first["preset"], first["changes"] or "-", first["select"]]
        names.append(first["split"] or "usual")
        length = f"{first['epoch']} of {first['epochs']}"
        lines.append([*names, seeds, *cells, length, f"{first['seconds']:.0f}", first["commit"]])
    header = ["method", "graph", "preset", "changed", "kept by", "split", "seeds", *ACCURACIES.values()]
    header += ["epoch", "seconds", "commit"]
    return f"{HEAD}\n{table('Accuracy in %', header, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method")
    parser.add_argument("dataset")
    parser.add_argument("changes", nargs="*")
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--select", choices=("validation", "train"), default="validation")
    parser.add_argument("--split", choices=("own", "stratified"))
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_intermixed_args()
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    start = find_method(options.method).settings_for(options.preset, options.dataset)
    for changes in options.changes:
        row = {"method": options.method, "dataset": options.dataset, "preset": options.preset}
        row |= {"changes": changes, "select": options.select, "split": options.split}
        row["settings"] = dataclasses.asdict(start.replace(**parse(changes)))
        for seed in range(options.seeds):
            if not any({**row, "seed": seed}.items() <= known.items() for known in read()):
                made = measure(row, seed)
                with ROWS.open("a") as file:
                    file.write(json.dumps(made) + "\n")
                shown = {name: made[name] for name in ("changes", "seed", "val_accuracy", "test_accuracy", "epoch")}
                print(json.dumps({**shown, "seconds": made["seconds"]}), flush=True)
    (RESULTS / "README.md").write_text(draw(read()))


if __name__ == "__main__":
    main()
