"""What lets a killed training go on: checkpoints of the seed at hand and the rows of the seeds that are finished.

All of it lies in one folder inside the unfinished run (:func:`spikegcl.runs.new_run`), gone when the run is whole:

    run.json                        what is being trained: a graph, settings, ...; another one cannot continue it
    rows.json                       result rows of the finished seeds
    seed-S-epoch-E.safetensors      checkpoints of the seed at hand, the newest two

Random numbers are functions of seed and epoch (noise.py), so weights, the optimiser's state and the epoch are all that
a later epoch depends on, and a continued training ends in the same codes, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spikegcl.errors import RunError
from spikegcl.files import write_text, written_atomically
from spikegcl.training import Epoch

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from spikegcl.graph import Graph
    from spikegcl.model import SpikeGCL
    from spikegcl.objectives import Objective
    from spikegcl.settings import Settings
    from spikegcl.training import Progress

log = logging.getLogger("spikegcl")

FOLDER = "unfinished"
SCORES = ("best", "since", "kept_epoch", "kept_score")  # of Progress, beside weights and history
FORMAT = "spikegcl-checkpoint"


class Unfinished:
    """The state of a run that is not whole yet, in ``run / "unfinished"``.

    ``identity`` says what is trained (:func:`identify`). A state left by an earlier process is taken up if it has the
    same identity and refused otherwise. ``seconds`` as for :class:`Checkpoints`.
    """

    def __init__(self, run: Path, identity: dict[str, Any], seconds: float) -> None:
        self.folder = run / FOLDER
        self.rows: list[dict[str, Any]] = []
        self.checkpoints = Checkpoints(self.folder, seconds)
        if holds_work(run):
            _check_identity(_read_json(self.folder / "run.json"), identity)
            if (self.folder / "rows.json").exists():
                self.rows = _read_json(self.folder / "rows.json")
        else:
            self.folder.mkdir(exist_ok=True)
            write_text(self.folder / "run.json", json.dumps(identity))

    def finish_seed(self, row: dict[str, Any]) -> None:
        """Keep the row of the seed at hand, whose checkpoints are of no more use."""
        self.rows.append(row)
        write_text(self.folder / "rows.json", json.dumps(self.rows))
        drop_checkpoints(self.folder.parent)


def holds_work(run: Path) -> bool:
    """Whether an unfinished run has anything worth continuing: a checkpoint or a finished seed."""
    return (run / FOLDER / "rows.json").exists() or any((run / FOLDER).glob("seed-*.safetensors"))


def drop_checkpoints(run: Path) -> None:
    """Forget the seed at hand; finished ones stay."""
    for path in (run / FOLDER).glob("seed-*.safetensors"):
        path.unlink()


def identify(graph: Graph, settings: Settings, **others: Any) -> dict[str, Any]:
    """Everything the result of a run depends on, as JSON values."""
    import torch

    import spikegcl

    labels = None if graph.labels is None else hashlib.sha256(graph.labels.tobytes()).hexdigest()[:12]
    split = None if graph.split is None else graph.split.hash
    versions = {"spikegcl": spikegcl.__version__, "torch": torch.__version__}
    return {"graph": graph.hash, "labels": labels, "split": split, **others, **asdict(settings), **versions}


class Checkpoints:
    """States of training in a folder. A checkpoint counts once it was read back; then all but the newest two go."""

    def __init__(self, folder: Path, seconds: float) -> None:
        """At most one checkpoint every ``seconds``; 0 means after each epoch."""
        self.folder, self.seconds = folder, seconds
        self._last = time.monotonic()

    def save(self, seed: int, model: SpikeGCL, objective: Objective, progress: Progress) -> None:
        """Write a checkpoint if it is time for one."""
        if time.monotonic() - self._last < self.seconds:
            return
        state = {name: getattr(progress, name) for name in (*SCORES, "seconds")}
        state["history"] = [asdict(epoch) for epoch in progress.history]
        tensors = {"model": model.state_dict(), "objective": objective.state()}
        if progress.kept_epoch != len(progress.history):
            tensors["kept"] = progress.kept
        named = {f"{part}/{name}": value for part in tensors for name, value in tensors[part].items()}
        path = self.folder / f"seed-{seed}-epoch-{len(progress.history):06d}.safetensors"
        try:
            _write(path, named, state)
        except OSError as error:
            before = [path.name for path in self._paths(seed)[-1:]]
            size = sum(value.nbytes for value in named.values()) / 1e6
            raise RunError(
                f"cannot write the checkpoint {path}: {error}. Free {size:.1f} MB or more and train with --resume: "
                + (f"{before[0]} is whole" if before else "there is no earlier one, this seed starts again")
            ) from None
        _read(path)
        for old in self._paths(seed)[:-2]:
            old.unlink()
        self._last = time.monotonic()

    def restore(self, seed: int, model: SpikeGCL, objective: Objective, progress: Progress) -> None:
        """Put everything back to where the newest whole checkpoint of this seed has it; without one change nothing."""
        paths = self._paths(seed)
        for path in reversed(paths):
            try:
                tensors, state = _read(path)
            except RunError as error:
                log.warning("%s; going back to the checkpoint before it", error)
                path.unlink()
                continue
            parts: dict[str, dict[str, Tensor]] = {"model": {}, "objective": {}, "kept": {}}
            for name, value in tensors.items():
                part, _, rest = name.partition("/")
                parts[part][rest] = value
            progress.history = [Epoch(**epoch) for epoch in state["history"]]
            for name in SCORES:
                setattr(progress, name, state[name])
            progress.seconds.update(state["seconds"])
            progress.kept = parts["kept"] or parts["model"]
            model.load_state_dict(parts["model"])
            objective.restore(parts["objective"], len(progress.history))
            log.info("continuing seed %d after epoch %d", seed, len(progress.history))
            return
        if paths:
            log.warning("no checkpoint of seed %d is whole; training it from the beginning", seed)

    def _paths(self, seed: int) -> list[Path]:
        """Checkpoints of a seed, oldest first."""
        return sorted(self.folder.glob(f"seed-{seed}-epoch-*.safetensors"))


def _write(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(state)
    meta = {"format": FORMAT, "state": text, "checksum": _checksum(tensors, text)}
    with written_atomically(path) as temporary:
        temporary.write_bytes(save(tensors, meta))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state of a checkpoint, found whole."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise RunError(f"{path} is damaged ({error})") from None
    if meta.get("format") != FORMAT or meta.get("checksum") != _checksum(tensors, meta.get("state", "")):
        raise RunError(f"{path} is damaged (its content does not match its checksum)")
    return tensors, json.loads(meta["state"])


def _checksum(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + value.numpy().tobytes())
    return digest.hexdigest()


def _check_identity(then: dict[str, Any], now: dict[str, Any]) -> None:
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if names:
        differing = ", ".join(f"{name} ({then.get(name)} then, {now.get(name)} now)" for name in names)
        raise RunError(
            f"the unfinished run is another one, it differs in {differing}; "
            "resume with what it was started with, or start again with --force instead of --resume"
        )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}); start again with --force instead of --resume") from None
