"""The rows of all experiments in one file: a JSON object a line, only ever appended to."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from spikegcl.experiments import Cell

log = logging.getLogger("spikegcl")

DONE, FAILED, STOPPED = "done", "failed", "stopped"


class Rows:
    """Rows by cell and seed; of several for the same one the last that is done counts, or if none is, the last.

    ===========  ==============================================================================================
    ``cell``     the hash of the cell; ``seed``, ``measure``, ``dataset``, ``method``, ``preset``, ``settings``,
                 ``options``, ``quick`` and ``revision`` are the cell itself, ``versions`` what ran it
    ``status``   done, failed (it raised or died) or stopped (it would have exceeded a budget)
    ``minutes``  how long its process ran, with ``threads`` of its own
    ``result``   of a done cell: what the measure returned
    ``reason``   of a failed or stopped one; ``estimate_minutes`` what it would have taken, where that is known
    ===========  ==============================================================================================
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, dict[int, dict[str, Any]]] = {}  # by cell, then by seed
        text = path.read_text("utf-8", errors="replace") if path.exists() else ""
        for number, line in enumerate(text.splitlines(), 1):
            try:
                row = json.loads(line)
                self._keep(row)
            except (json.JSONDecodeError, KeyError, TypeError):
                log.warning("line %d of %s is no whole row; its cell counts as not run", number, path)

    def append(self, row: dict[str, Any]) -> None:
        """Add a row and wait until the disk has it. One write, so that processes may share the file."""
        self._keep(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b", buffering=0) as file:
            file.write(b"" if _ends_in_newline(file.fileno()) else b"\n")
            file.write(json.dumps(row).encode() + b"\n")
            os.fsync(file.fileno())

    def find(self, cell: Cell) -> list[dict[str, Any]]:
        """The rows of a cell, whatever became of them, by seed."""
        return [row for _, row in sorted(self._rows.get(cell.hash, {}).items())]

    def results(self, cell: Cell) -> list[dict[str, Any]]:
        """What was measured, by seed."""
        return [row["result"] for row in self.find(cell) if row["status"] == DONE]

    def status(self, cell: Cell) -> str | None:
        """What became of the cell; None if it is to be run. If another seed was stopped, this one counts as stopped."""
        rows = self._rows.get(cell.hash, {})
        if cell.seed in rows:
            return str(rows[cell.seed]["status"])
        return STOPPED if any(row["status"] == STOPPED for row in rows.values()) else None

    def forget(self, cells: Iterable[Cell], *, done: bool) -> None:
        """Treat these cells as not run: those that failed or were stopped, and with ``done`` all. The file stays."""
        for cell in cells:
            for row in self.find(cell):
                if row["status"] == STOPPED or (row["seed"] == cell.seed and (done or row["status"] == FAILED)):
                    del self._rows[row["cell"]][row["seed"]]

    def _keep(self, row: dict[str, Any]) -> None:
        seeds = self._rows.setdefault(row["cell"], {})
        if row["status"] == DONE or row["seed"] not in seeds or seeds[row["seed"]]["status"] != DONE:
            seeds[row["seed"]] = row


def _ends_in_newline(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
