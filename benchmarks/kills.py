"""One training run, killed by SIGKILL again and again and resumed each time, against the same run left alone.

    python -m benchmarks.kills [--graph digits] [--epochs 60] [--kills 20]

Every second kill strikes while a checkpoint is being written, at a random byte of it; the others strike at random
moments of CPU time, so that a busy machine changes nothing. The numbers go to results/scale/kills.json, with what a
checkpoint costs.
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
import threading
import time
from functools import partial
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
# Limits of what a killed process may do: CPU time as a share of the whole run, and checkpoints.
SHARE, CHECKPOINTS = 0.08, 2


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(seconds: float) -> None:
    """Kill this process when it has used so much more CPU time."""
    end = time.process_time() + seconds

    def watch() -> None:
        while time.process_time() < end:
            time.sleep(0.001)
        die()

    threading.Thread(target=watch, daemon=True).start()


def die_saving(number: int, share: float) -> None:
    """Kill this process when it has written this share of its ``number``-th checkpoint."""
    whole, left = Path.write_bytes, [number]

    def write_bytes(path: Path, data: bytes) -> int:
        if path.name.startswith(".seed-"):
            left[0] -= 1
            if left[0] == 0:
                whole(path, data[: int(share * len(data))])
                die()
        return whole(path, data)

    Path.write_bytes = write_bytes  # type: ignore[assignment, method-assign]


def start(arguments: list[str], log: Path, doom: Callable[[], None] | None = None) -> int:
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
        if doom is not None:
            doom()
        cli.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        os._exit(code)


def finish(child: int, log: Path) -> float:
    """Wait for the end of a run; its seconds of CPU time."""
    _, status, used = os.wait4(child, 0)
    if status != 0:
        raise SystemExit(f"a run failed:\n{log.read_text()}")
    return used.ru_utime + used.ru_stime


def newest(run: Path) -> int:
    """Epoch of the newest checkpoint of an unfinished run."""
    state = run.with_name(f".{run.name}.unfinished") / resume.FOLDER
    return max((int(path.stem.rpartition("-")[2]) for path in state.glob("seed-0-epoch-*")), default=0)


def checkpoint_cost(graph_name: str, epochs: int) -> dict[str, float]:
    """Bytes of a checkpoint, CPU milliseconds of writing it (median), and those of an epoch with all around it."""
    spent: list[float] = []

    class Timed(resume.Checkpoints):
        def save(self, *arguments: Any) -> None:
            begun = time.process_time()
            super().save(*arguments)
            spent.append(1000 * (time.process_time() - begun))

    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        train(load_dataset(graph_name), Config(epochs=epochs), checkpoints=Timed(Path(folder), 0))
        total = 1000 * (time.process_time() - begun)
        size = max(path.stat().st_size for path in Path(folder).iterdir())
    return {"bytes": size, "save_ms": statistics.median(spent), "epoch_ms": (total - sum(spent)) / epochs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="digits")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "log"
        command = ["train", options.graph, "--preset", "contrastive", "--set", f"epochs={options.epochs}"]
        command += ["--checkpoint-seconds", "0", "--no-report"]
        whole, killed = folder / "whole", folder / "killed"
        seconds = finish(start([*command, "-o", str(whole)], log), log)
        again, kills = [*command, "-o", str(killed), "--resume"], []
        for number in range(options.kills):
            before, saving = newest(killed), bool(number % 2)
            doom = (
                partial(die_saving, rng.randint(1, CHECKPOINTS), rng.random())
                if saving
                else partial(die_after, rng.random() * SHARE * seconds)
            )
            if os.waitpid(start(again, log, doom), 0)[1] != signal.SIGKILL:
                raise SystemExit(f"the run ended before it was killed:\n{log.read_text()}")
            kills.append({"saving": saving, "resumed_after_epoch": before, "killed_after_epoch": newest(killed)})
        finish(start(again, log), log)
        same = (killed / "codes.arrow").read_bytes() == (whole / "codes.arrow").read_bytes()
    result = {
        "graph": options.graph,
        "epochs": options.epochs,
        "kills": len(kills),
        "kills_while_saving": sum(seen["saving"] for seen in kills),
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
