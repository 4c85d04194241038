"""The run folder: settings, model, codes, metrics and log, whole or not there; report.html is drawn into it."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import spikegcl
from spikegcl.checkpoint import load_model, model_hash, save_model
from spikegcl.codes import Codes, open_codes
from spikegcl.config import Config, from_mapping
from spikegcl.errors import RunError, SpikeGCLError, WriteError
from spikegcl.files import locked, write_text
from spikegcl.resume import FOLDER, drop_checkpoints, holds_work
from spikegcl.settings import toml_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spikegcl.baselines import Fitted
    from spikegcl.graph import Graph
    from spikegcl.model import SpikeGCL
    from spikegcl.settings import Settings
    from spikegcl.training import Epoch, Trained

log = logging.getLogger("spikegcl")


FILES = ("config.toml", "model.safetensors", "codes.arrow", "metrics.json", "log.jsonl")  # that are a run of SpikeGCL
FLOATS = ("embedding", "predictions")  # what methods that make no codes leave in a run folder, as .npy


@dataclass(frozen=True)
class Source:
    """Where a graph came from: a dataset's name, or the files it was read from (absolute paths)."""

    name: str | None = None
    edges: str | None = None
    features: str | None = None
    labels: str | None = None
    split: str | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(Path(file) for file in (self.edges, self.features, self.labels, self.split) if file is not None)


@contextlib.contextmanager
def new_run(path: Path, *, force: bool = False, resume: bool = False) -> Iterator[Path]:
    """Yield a folder to fill; it appears as ``path`` only when the block ends well.

    An existing ``path`` is an error unless it is empty or ``force`` says to replace it, and then only a run folder is.
    Until it is whole the folder is a hidden sibling, ``.NAME.unfinished``. It outlives a block that was interrupted if
    it holds a checkpoint or a finished seed (:mod:`spikegcl.resume`); such a one is taken up with ``resume``, discarded
    with ``force``, and an error else.
    """
    path = path.resolve() if path.is_symlink() else path  # what a link stands for is replaced, not the link
    if path.resolve() == Path.cwd():
        raise RunError(f"{path} is the folder this is started in; give the name of a folder inside it")
    occupied, is_run = path.exists() and (not path.is_dir() or any(path.iterdir())), (path / "config.toml").is_file()
    if occupied and not (force and is_run):
        advice = "choose another name" + (" or add --force" if is_run else ", it is not a run folder")
        raise RunError(f"{path} exists already; {advice}")
    partial = path.with_name(f".{path.name}.unfinished")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with locked(partial, RunError):
            for leftover in partial.rglob(".*"):  # of a process that was killed while writing it
                leftover.unlink()
            if not resume:
                _clear(partial, force)
            elif not holds_work(partial):
                log.info("%s has no unfinished run: starting from the beginning", path)
            try:
                yield partial
                if path.exists():
                    shutil.rmtree(path)
                partial.replace(path)
                shutil.rmtree(path / FOLDER, ignore_errors=True)
            except SpikeGCLError as error:
                if not isinstance(error, (RunError, WriteError)):  # wrong data or settings: it would end there again
                    drop_checkpoints(partial)
                raise
            finally:
                if holds_work(partial):
                    log.warning("what was trained is kept in %s; the same command with --resume continues it", partial)
                else:
                    shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise RunError(f"cannot write the run folder {path}: {error}") from None


def _clear(partial: Path, force: bool) -> None:
    """Empty the folder of an unfinished run."""
    if holds_work(partial) and not force:
        raise RunError(f"{partial} holds an unfinished run; add --resume to continue it or --force to start again")
    for entry in partial.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def write_run(folder: Path, graph: Graph, trained: Trained, source: Source, *, seed: int, preset: str) -> None:
    """Write one trained seed into a run folder."""
    run = {"preset": preset, "seed": seed, "epoch": trained.epoch, "calibrated": trained.given.threshold == 0}
    _write_common(folder, graph, source, run, trained.config, trained.history)
    save_model(trained.model, folder / "model.safetensors", graph.columns)
    make_codes(trained.codes, graph, trained.model).save(folder / "codes.arrow")


def read_metrics(folder: Path) -> dict[str, Any]:
    """What all seeds of a finished run gave."""
    try:
        metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text("utf-8"))
        metrics["rows"][0]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{folder} has no metrics.json that can be read ({error}); train again") from None
    return metrics


def finished(folder: Path, identity: dict[str, Any], seeds: int) -> dict[str, Any] | None:
    """The metrics of a run that is complete and was made of the same graph by the same settings; None if it is not."""
    if not (folder / "metrics.json").is_file():
        return None
    metrics = read_metrics(folder)
    same = metrics.get("identity") == identity and len(metrics["rows"]) == seeds
    return metrics if same else None


def write_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """Write what all seeds gave into a run folder."""
    write_text(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")


def write_method_run(
    folder: Path, graph: Graph, fitted: Fitted, source: Source, *, method: str, seed: int, preset: str
) -> None:
    """Write what any other method made of a seed: codes.arrow, or embedding.npy or predictions.npy by row.

    Rows are in the order of the graph; ids.npy has their ids.
    """
    run = {"method": method, "preset": preset, "seed": seed, "epoch": fitted.epoch}
    _write_common(folder, graph, source, run, fitted.settings, fitted.history)
    if fitted.codes is not None and fitted.bits is not None:
        info = {"model": method, "graph": graph.hash}
        Codes(fitted.codes, graph.ids, 1, fitted.bits, info).save(folder / "codes.arrow")
        return
    for name in FLOATS:
        if (values := getattr(fitted, name)) is not None:
            np.save(folder / f"{name}.npy", values, allow_pickle=False)
    ids = graph.ids if graph.ids.dtype.kind in "iu" else graph.ids.astype(str)
    np.save(folder / "ids.npy", ids, allow_pickle=False)


def _write_common(
    folder: Path, graph: Graph, source: Source, run: dict[str, Any], settings: Settings, history: list[Epoch]
) -> None:
    """config.toml and log.jsonl, which every run folder has beside metrics.json."""
    tables = {
        "run": {"version": spikegcl.__version__, **run},
        "graph": {"hash": graph.hash, **{key: value for key, value in asdict(source).items() if value is not None}},
    }
    text = "".join(
        f"[{table}]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items()) + "\n"
        for table, values in tables.items()
    )
    write_text(folder / "config.toml", text + "[settings]\n" + settings.to_toml())
    write_text(folder / "log.jsonl", "".join(json.dumps(asdict(epoch)) + "\n" for epoch in history))


def make_codes(packed: Any, graph: Graph, model: SpikeGCL) -> Codes:
    """Packed bits with the graph's ids and what the file format wants to know about their origin."""
    info = {"threshold": repr(model.config.threshold), "model": model_hash(model), "graph": graph.hash}
    return Codes(packed, graph.ids, model.steps, model.channels, info)


@dataclass(frozen=True)
class Run:
    """A finished run folder, opened. ``calibrated``: training chose the threshold of ``config``."""

    path: Path
    config: Config
    source: Source
    seed: int
    graph_hash: str
    calibrated: bool = False

    @property
    def given(self) -> Config:
        """The settings before training settled them, as far as an untrained encoder differs by them."""
        return self.config.replace(threshold=0.0) if self.calibrated else self.config

    @property
    def metrics(self) -> dict[str, Any]:
        return read_metrics(self.path)

    def codes(self) -> Codes:
        return open_codes(self.path / "codes.arrow")

    def model(self) -> tuple[SpikeGCL, tuple[str, ...] | None]:
        return load_model(self.path / "model.safetensors")


def open_run(path: Path | str) -> Run:
    """Open a run folder; its parts are read when asked for."""
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"there is no run folder {path}; make one with `spikegcl train ... -o {path}`")
    try:
        tables = tomllib.loads((path / "config.toml").read_text("utf-8"))
        if "method" in tables["run"]:
            made = [
                str(path / name)
                for name in ("codes.arrow", *(f"{name}.npy" for name in FLOATS))
                if (path / name).is_file()
            ]
            raise RunError(
                f"{path} is a run of {tables['run']['method']}, and this needs one of SpikeGCL; "
                f"what it made is in {', '.join(made) or 'no file'}"
            )
        place = {key: value for key, value in tables["graph"].items() if key != "hash"}
        run = tables["run"]
        return Run(
            path, from_mapping(tables["settings"]), Source(**place), run["seed"], tables["graph"]["hash"],
            run.get("calibrated", False),
        )  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError) as error:  # TOML that is none, text that is not UTF-8
        raise RunError(
            f"{path} is not a complete run folder ({type(error).__name__}: {error}); train again or restore its files"
        ) from None
