"""Rows that no training made: what the tests of tables and figures draw from."""

from __future__ import annotations

from spikegcl.experiments.rows import DONE


def write_row(rows, cell, result, seed=0, status=DONE, **more):
    rows.append({"cell": cell.hash, "seed": seed, "status": status, "minutes": 1.0, "result": result, **more})


def result(test, untrained=None, **more):
    """A row of ``protocol.run_seed``; ``bits`` make it one of codes."""
    floors = (
        {} if untrained is None else {"untrained": {"test_accuracy": untrained}, "projection": {"test_accuracy": 0.5}}
    )
    firing = {"firing_rate": 0.4, "dead_bits": 0, "constant_bits": 0} if "bits" in more else {}
    return {
        "dataset": "cora", "method": "m", "seed": 0, "select": "last", "probe": "own", "test_accuracy": test,
        "val_accuracy": test, "floors": floors, "energy": {}, "parameters": 7, "peak_mb": 10.0,
        "seconds": {"train": 2.0, "embed": 0.0, "probe": 0.0}, **firing, **more,
    }  # fmt: skip


def column(table, heading):
    """The texts of a column, by those of the first."""
    return {line[0]: line[list(table.columns).index(heading)] for line in table.lines}
