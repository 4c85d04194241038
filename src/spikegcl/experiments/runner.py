"""Run cells, each in a process of its own, within budgets of time and memory, and append their rows."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import psutil

from spikegcl.experiments.rows import DONE, FAILED, STOPPED
from spikegcl.protocol import CHANGED, code_state, versions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spikegcl.experiments import Cell
    from spikegcl.experiments.rows import Rows
    from spikegcl.training import Epoch

POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0  # for a cell that has sent its result to clean up
NEVER = float("inf")
PRELOADED = ["spikegcl.datasets", "spikegcl.kernels", "spikegcl.probes", "spikegcl.protocol", "spikegcl.baselines"]

# Cells are forked from a server that has the libraries loaded and nothing else of this process in its memory.
_fresh = multiprocessing.get_context("forkserver")
_fresh.set_forkserver_preload(PRELOADED)


@dataclass(frozen=True)
class Budget:
    """``jobs`` processes at a time; ``minutes`` for all cells together; ``cell_minutes`` and ``cell_gb`` for each.

    With ``share`` a cell beside others may take an equal part of ``cell_gb``; if it needs more, it runs again alone,
    after the others.
    """

    jobs: int = 1
    minutes: float = NEVER
    cell_minutes: float = NEVER
    cell_gb: float = NEVER
    share: bool = False


class Monitor:
    """Hears what happens; this one does nothing about it."""

    def started(self, cell: Cell) -> None: ...

    def ended(self, cell: Cell, row: dict[str, Any] | None) -> None:
        """``row`` is None where the budget has no time left, or another seed was stopped meanwhile."""


def run_cells(
    cells: Sequence[Cell],
    rows: Rows,
    budget: Budget | None = None,
    *,
    data_root: Path | None = None,
    monitor: Monitor | None = None,
) -> None:
    """Make the rows that are missing. When the budget is used up, what still runs is ended and leaves no row."""
    budget, monitor = budget or Budget(), monitor or Monitor()
    versions()  # kept from now on: what cells read is the code of this moment
    code = code_state()
    deadline = time.monotonic() + 60 * budget.minutes
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list has a number for each level of nesting
    threads = int(asked) if asked.isdecimal() and int(asked) else max(1, (os.cpu_count() or 1) // budget.jobs)
    waiting = deque(missing(cells, rows))
    alone: deque[Cell] = deque()  # cells that need more memory than a share of it
    running: list[_Process] = []
    cell_gb = budget.cell_gb / (budget.jobs if budget.share else 1)
    try:
        while waiting or running or alone:
            if not waiting and not running:
                waiting.append(alone.popleft())
            while waiting and len(running) < budget.jobs:
                cell = waiting.popleft()
                if rows.status(cell) or time.monotonic() + 60 * _expected_minutes(cell, rows) > deadline:
                    monitor.ended(cell, None)
                    continue
                running.append(_Process(cell, data_root, threads))
                monitor.started(cell)
            wait([process.pipe for process in running], timeout=POLL_SECONDS)
            for process in list(running):
                if outcome := process.outcome(budget):
                    running.remove(process)
                    row = _describe(process.cell) | {"threads": threads, "minutes": process.minutes} | outcome
                    if code_state() not in ("", code):
                        row["versions"] = {**versions(), "commit": versions()["commit"].removesuffix(CHANGED) + CHANGED}
                    if "versions" in row.get("result", ()):
                        row["result"]["versions"] = row["versions"]
                    rows.append(row)
                    monitor.ended(process.cell, row)
                elif time.monotonic() > deadline:
                    running.remove(process)
                    process.end()
                    monitor.ended(process.cell, None)
                elif len(running) > 1 and process.memory_gb() > cell_gb:
                    running.remove(process)
                    process.end()
                    alone.append(process.cell)
    finally:
        for process in running:
            process.end()


def missing(cells: Sequence[Cell], rows: Rows) -> list[Cell]:
    """Cells that have to be run, each once."""
    return list({(cell.hash, cell.seed): cell for cell in cells if rows.status(cell) is None}.values())


def _expected_minutes(cell: Cell, rows: Rows) -> float:
    """The longest another seed took; 0 if there is none."""
    return max((row["minutes"] for row in rows.find(cell) if row["status"] == DONE), default=0.0)


def _describe(cell: Cell) -> dict[str, Any]:
    return {
        "cell": cell.hash,
        "seed": cell.seed,
        "measure": cell.measure.__name__,
        "dataset": cell.dataset,
        "method": cell.method,
        "preset": cell.preset,
        "settings": cell.settings,
        "options": cell.options,
        "quick": cell.quick,
        "revision": cell.revision,
        "versions": versions(),
    }


class _Process:
    """A cell at work. It sends one JSON document: its result, or the reason there is none."""

    def __init__(self, cell: Cell, data_root: Path | None, threads: int) -> None:
        self.cell = cell
        self.epochs = _fresh.Value("q", 0, lock=False)
        self.pipe, far_end = _fresh.Pipe(duplex=False)
        arguments = (cell, data_root, threads, self.epochs, far_end)
        self.process = _fresh.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        far_end.close()
        self.start = time.monotonic()

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.start) / 60

    def outcome(self, budget: Budget) -> dict[str, Any] | None:
        """What goes into the row, or None while the cell is at work and within its budget."""
        if self.pipe.poll():
            try:
                outcome: dict[str, Any] = json.loads(self.pipe.recv())
                self.process.join(GRACE_SECONDS)
            except EOFError:
                self.process.join()
                outcome = {"status": FAILED, "reason": _cause_of_death(self.process.exitcode)}
            self.end()
            return outcome
        if self.minutes > budget.cell_minutes:
            return self.stop(f"stopped after {budget.cell_minutes:g} min")
        if (used := self.memory_gb()) > budget.cell_gb:
            return self.stop(f"stopped at {used:.1f} GB, above its {budget.cell_gb:g} GB")
        return None

    def memory_gb(self) -> float:
        try:
            return float(psutil.Process(self.process.pid).memory_info().rss / 2**30)
        except psutil.NoSuchProcess:
            return 0.0

    def stop(self, reason: str) -> dict[str, Any]:
        """End it, and say how far it got and what it would have taken."""
        self.end()
        return {"status": STOPPED, **_extrapolate(reason, self.minutes, self.epochs.value, self.cell.settings)}

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _extrapolate(reason: str, minutes: float, done: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The time so far, stretched from the epochs done to all of them.

    >>> _extrapolate("stopped after 5 min", 5.0, 20, {"epochs": 200})
    {'reason': 'stopped after 5 min at epoch 20 of 200; all would take about 50 min', 'estimate_minutes': 50.0}
    """
    if "epochs" in settings:
        reason += f" at epoch {done} of {settings['epochs']}"
    if not done:
        return {"reason": reason, "estimate_minutes": None}
    estimate = minutes * settings["epochs"] / done
    return {"reason": f"{reason}; all would take about {estimate:.0f} min", "estimate_minutes": estimate}


def _cause_of_death(code: int | None) -> str:
    if code is not None and code < 0:
        advice = "; probably out of memory" if -code == signal.SIGKILL else ""
        return f"the process was ended by {signal.Signals(-code).name}{advice}"
    return f"the process ended with code {code} and no result"


def _work(cell: Cell, data_root: Path | None, threads: int, epochs: Any, pipe: Connection) -> None:
    """The life of a cell's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which ends its cells
    threading.Thread(target=_die_with_parent, daemon=True).start()

    def on_epoch(epoch: Epoch) -> None:
        epochs.value = epoch.epoch

    try:
        from spikegcl.datasets import load_dataset
        from spikegcl.experiments.threads import use_threads

        with use_threads(threads):
            graph = load_dataset(cell.dataset, data_root)
            outcome = {"status": DONE, "result": cell.measure(cell, graph, on_epoch, **cell.options)}
        pipe.send(json.dumps(outcome))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        pipe.send(json.dumps({"status": FAILED, "reason": reason, "traceback": traceback.format_exc()}))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
