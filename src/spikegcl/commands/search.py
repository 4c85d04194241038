"""spikegcl search."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikegcl.commands.common import Json, console, table

if TYPE_CHECKING:
    from spikegcl.codes import Codes
    from spikegcl.search import Index
    from spikegcl.shards import ShardedIndex, Shards


def search(
    codes: Annotated[
        list[Path],
        typer.Argument(help="Code file, run folder, saved index or manifest of shards; several are searched as one."),
    ],
    id_: Annotated[list[str] | None, typer.Option("--id", help="Node to search from; repeat for several.")] = None,
    query: Annotated[
        Path | None, typer.Option(help="Code file, run folder or manifest whose nodes to search from.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours per node.")] = 10,
    index: Annotated[str | None, typer.Option(help="flat (exact), hnsw or ivf (approximate). Default: flat.")] = None,
    rescore: Annotated[str, typer.Option(help="none, or rate: weigh bits by how much their firing varies.")] = "none",
    json_: Json = False,
) -> None:
    """The nodes with the nearest codes, by Hamming distance."""
    from spikegcl.search import KINDS

    if (id_ is None) == (query is None):
        raise typer.BadParameter("give either --id or --query", param_hint="--id / --query")
    if index not in (None, *KINDS):
        raise typer.BadParameter(f"{index!r} is unknown; choose {', '.join(KINDS)}", param_hint="--index")
    if rescore not in ("none", "rate"):
        raise typer.BadParameter(f"{rescore!r} is unknown; choose none or rate", param_hint="--rescore")
    searched = _open_index(codes, index)
    asked: Any = _typed(searched.codes, id_ or []) if query is None else _open(query)[:]
    if query is not None:
        _warn_of_other_model(searched.codes, asked)
    found = searched.search(asked, k, rescore=rescore)
    names = asked if query is None else asked.ids.tolist()
    results = [
        {"query": name, "neighbours": [{"id": key, "distance": far} for key, far in zip(keys, distances)]}
        for name, keys, distances in zip(names, found.ids.tolist(), found.distances.tolist())
    ]
    if json_:
        about = {"codes": [*map(str, codes)], "nodes": len(searched.codes), "bits": searched.codes.bits, "k": k}
        print(json.dumps({**about, "index": searched.kind, "rescore": rescore, "results": results}))
    else:
        _print(results, searched.codes.bits, rescore)


def _open(path: Path) -> Codes | Shards:
    from spikegcl.codes import open_codes
    from spikegcl.runs import open_run
    from spikegcl.shards import open_shards

    if path.is_dir():  # the codes of any method; without any, the run says what it has
        return open_codes(path / "codes.arrow") if (path / "codes.arrow").is_file() else open_run(path).codes()
    return open_shards(path) if path.suffix == ".json" else open_codes(path)


def _open_index(paths: list[Path], kind: str | None) -> Index | ShardedIndex:
    """One index, or one a shard; a saved index as it is, unless another kind is asked for."""
    from spikegcl.codes import Codes
    from spikegcl.search import Index
    from spikegcl.shards import ShardedIndex

    indexes: list[Index] = []
    for path in paths:
        if (path / "index.json").is_file():
            saved = Index.open(path)
            indexes.append(saved if kind in (None, saved.kind) else Index.build(saved.codes, kind or "flat"))
        else:
            opened = _open(path)
            parts = (opened,) if isinstance(opened, Codes) else opened.parts
            indexes += [Index.build(part, kind or "flat") for part in parts]
    if len(indexes) == 1:
        return indexes[0]
    joined = ShardedIndex.of(indexes)
    joined.codes.check_ids()
    return joined


def _typed(codes: Codes | Shards, ids: list[str]) -> list[Any]:
    """Ids from the command line, as numbers where the codes have numbers."""
    if codes[:0].ids.dtype.kind != "i":
        return ids
    return [int(key) if re.fullmatch("-?(0|[1-9][0-9]*)", key) else key for key in ids]


def _warn_of_other_model(codes: Codes | Shards, query: Codes) -> None:
    import logging

    if codes.info.get("model") != query.info.get("model"):
        logging.getLogger("spikegcl").warning(
            "the queries come from another model than the codes: distances between them mean little"
        )


def _print(results: list[dict[str, Any]], bits: int, rescore: str) -> None:
    shown = table("query", "neighbour", "distance" if rescore == "none" else "weighted distance")
    for result in results:
        for rank, neighbour in enumerate(result["neighbours"]):
            far = neighbour["distance"]
            name = str(result["query"]) if rank == 0 else ""
            shown.add_row(name, str(neighbour["id"]), f"{far}" if rescore == "none" else f"{far:.2f}")
    console().print(shown)
    what = "differing bits" if rescore == "none" else "differing bits, weighed by how much their firing varies,"
    console().print(f"distances are {what} of {bits}", style="dim")
