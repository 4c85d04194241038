"""Models as files: safetensors, written atomically, with everything needed to embed a graph again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING

import torch

from spikegcl.config import from_mapping
from spikegcl.errors import RunError
from spikegcl.files import written_atomically
from spikegcl.groups import Groups
from spikegcl.model import SpikeGCL

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = "spikegcl-model"
VERSION = 3
INPUTS = "inputs."  # names of the arrays that make the encoder's inputs


# Settings that decide codes beside tensors and groups; others decide only how a model was found.
DECIDING = ("encoder", "activation", "batch_norm", "neuron", "threshold", "tau", "reset")


def model_hash(model: SpikeGCL) -> str:
    """Twelve hex digits over all that decides codes: weights, statistics, groups, and how they are used."""
    constants = None if model.inputs is None else model.inputs.constants()
    settings = [getattr(model.config, name) for name in DECIDING]
    digest = hashlib.sha256(json.dumps([settings, constants]).encode())
    for name, value in sorted(_tensors(model).items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()[:12]


def save_model(model: SpikeGCL, path: Path, columns: tuple[str, ...] | None = None, **beside: str) -> None:
    """Write weights, statistics, groups and settings. ``columns`` are the names of the feature columns, if any.

    What else the file is to hold as metadata is given as ``beside``.
    """
    from safetensors.torch import save

    meta = {
        "format": FORMAT,
        "version": VERSION,
        "config": dataclasses.asdict(model.config),
        "columns": columns,
        "inputs": None if model.inputs is None else model.inputs.constants(),
    }
    with written_atomically(path) as temporary:  # a single key: safetensors writes several in any order
        temporary.write_bytes(save(_tensors(model), {"spikegcl": json.dumps(meta), **beside}))


def load_model(path: Path) -> tuple[SpikeGCL, tuple[str, ...] | None]:
    """The model of a file and the names of its feature columns."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise RunError(f"there is no model file {path}; is this a run folder made by `spikegcl train`?")
    try:
        with safe_open(str(path), "pt") as file:
            meta = json.loads((file.metadata() or {}).get("spikegcl", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if meta.get("format") != FORMAT or meta.get("version") != VERSION:
            raise RunError(
                f"{path} is not a model of this release (format {meta.get('format')}, version {meta.get('version')})"
            )
        groups = Groups(tensors.pop("groups.order").numpy(), tensors.pop("groups.bounds").numpy())
        arrays = {name: tensors.pop(name).numpy() for name in list(tensors) if name.startswith(INPUTS)}
        model = SpikeGCL(from_mapping(meta["config"]), groups)
        if arrays:
            from spikegcl.sources import Sources

            named = {name.removeprefix(INPUTS): array for name, array in arrays.items()}
            model.inputs = Sources.restore(named, meta["inputs"])
        model.load_state_dict(tensors)
        columns = meta["columns"]
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise RunError(f"{path} cannot be read as a model: {error}; train again or restore the file") from None
    return model, None if columns is None else tuple(columns)


def _tensors(model: SpikeGCL) -> dict[str, torch.Tensor]:
    """Weights, statistics, groups and what makes the inputs, on the CPU."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    arrays = {} if model.inputs is None else model.inputs.arrays()
    tensors |= {INPUTS + name: torch.from_numpy(array) for name, array in arrays.items()}
    groups = model.encoder.groups
    tensors["groups.order"] = torch.from_numpy(groups.order).long()
    tensors["groups.bounds"] = torch.from_numpy(groups.bounds).long()
    return tensors
