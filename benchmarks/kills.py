"""One training run, killed by SIGKILL again and again and resumed each time, against the same run left alone.

    python -m benchmarks.kills [--graph digits] [--epochs 60] [--kills 20]

Every second kill strikes while a checkpoint is being written, the others at random moments. The numbers go to
results/scale/kills.json, with what a checkpoint costs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.run import ROOT
from spikegcl import cli, protocol, resume
from spikegcl.config import Config
from spikegcl.datasets import load_dataset
from spikegcl.training import train

if TYPE_CHECKING:
    from collections.abc import Callable

OUTPUT = ROOT / "results/scale/kills.json"


def start(arguments: list[str], log: Path) -> int:
    """Run ``spikegcl`` in a process of its own, forked so that it need not load everything again; its id."""
    child = os.fork()
    if child:
        return child
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["spikegcl", *arguments]
    code = 1
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        os._exit(code)


def finish(child: int, log: Path) -> None:
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit(f"a run failed:\n{log.read_text()}")


class Watched:
    """The folder of an unfinished run, seen from outside."""

    def __init__(self, run: Path) -> None:
        self.state = run.with_name(f".{run.name}.unfinished") / resume.FOLDER

    def names(self) -> set[str]:
        return {path.name for path in self.state.iterdir()} if self.state.is_dir() else set()

    def epoch(self) -> int:
        """Epoch of the newest checkpoint."""
        return max((int(name[13:19]) for name in self.names() if name.startswith("seed-0-epoch-")), default=0)

    def half_written(self) -> set[str]:
        return {name for name in self.names() if name.startswith(".seed-")}


def wait(child: int, condition: Callable[[], bool]) -> None:
    """Return as soon as the condition holds."""
    while not condition():
        if os.waitpid(child, os.WNOHANG)[0]:
            raise SystemExit("the run was over before it could be killed; take more epochs")
        time.sleep(0.0005)


def kill(child: int, watched: Watched, during_save: bool, rng: random.Random) -> dict[str, Any]:
    """Let the child make some progress, then kill it; what was seen."""
    first, before, begun = watched.epoch(), watched.half_written(), time.perf_counter()
    wanted = rng.randint(0, 3)
    wait(child, lambda: watched.epoch() >= first + wanted)
    if during_save:
        wait(child, lambda: bool(watched.half_written() - before))
    else:
        time.sleep(rng.random() * ((time.perf_counter() - begun) / wanted if wanted else 1))
    os.kill(child, signal.SIGKILL)
    if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        raise SystemExit("the run was over before it could be killed; take more epochs")
    seen = {"resumed_after_epoch": first, "killed_after_epoch": watched.epoch()}
    return {**seen, "half_written": bool(watched.half_written() - before)}


def checkpoint_cost(graph_name: str, epochs: int) -> dict[str, float]:
    """Milliseconds and bytes of a checkpoint (median), and of an epoch beside it."""
    spent: list[float] = []

    class Timed(resume.Checkpoints):
        def save(self, *arguments: Any) -> None:
            begun = time.perf_counter()
            super().save(*arguments)
            spent.append(1000 * (time.perf_counter() - begun))

    with tempfile.TemporaryDirectory() as folder:
        trained = train(load_dataset(graph_name), Config(epochs=epochs), checkpoints=Timed(Path(folder), 0))
        size = max(path.stat().st_size for path in Path(folder).iterdir())
    own = [1000 * epoch.seconds - cost for epoch, cost in zip(trained.history[1:], spent, strict=False)]
    return {"bytes": size, "save_ms": statistics.median(spent), "epoch_ms": statistics.median(own)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="digits")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "log"
        command = [
            "train",
            options.graph,
            "--set",
            f"epochs={options.epochs}",
            "--checkpoint-seconds",
            "0",
            "--no-report",
        ]
        finish(start([*command, "-o", str(folder / "whole")], log), log)
        killed, watched = folder / "killed", Watched(folder / "killed")
        again = [*command, "-o", str(killed), "--resume"]
        kills = [kill(start(again, log), watched, bool(number % 2), rng) for number in range(options.kills)]
        finish(start(again, log), log)
        same = (killed / "codes.arrow").read_bytes() == (folder / "whole" / "codes.arrow").read_bytes()
    result = {
        "graph": options.graph,
        "epochs": options.epochs,
        "kills": len(kills),
        "half_written_checkpoints": sum(seen["half_written"] for seen in kills),
        "identical_codes": same,
        "checkpoint": checkpoint_cost(options.graph, min(options.epochs, 20)),
        "versions": protocol.versions(),
        "moments": kills,
    }
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "moments"}, indent=1))


if __name__ == "__main__":
    main()
