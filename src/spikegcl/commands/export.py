"""spikegcl export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from spikegcl.commands.common import Json, keep_inputs

SUFFIXES = {"nir": ".nir", "onnx": ".onnx", "faiss": ".faiss", "npy": ".npy"}


def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    to: Annotated[str, typer.Option(help="nir, onnx, faiss or npy.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write (default: in the run).")] = None,
    json_: Json = False,
) -> None:
    """Write a run's codes or model for another tool: NIR, ONNX, faiss or numpy."""
    from spikegcl.export import FORMATS, export_faiss, export_nir, export_npy, export_onnx, ids_path
    from spikegcl.runs import open_run

    if to not in FORMATS:
        raise typer.BadParameter(f"{to!r} is unknown; choose one of {', '.join(FORMATS)}", param_hint="--to")
    opened = open_run(run)
    path = output or run / f"{'model' if to in ('nir', 'onnx') else 'codes'}{SUFFIXES[to]}"
    for file in (path, ids_path(path)) if to in ("npy", "faiss") else (path,):
        keep_inputs(file, opened)
    if to in ("nir", "onnx"):
        written = (export_nir if to == "nir" else export_onnx)(opened.model()[0], path)
    else:
        written = (export_npy if to == "npy" else export_faiss)(opened.codes(), path)
    files = [str(file) for file in written]
    print(json.dumps({"run": str(run), "to": to, "files": files}) if json_ else "wrote " + " and ".join(files))
