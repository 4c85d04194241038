"""spikegcl datasets."""

from __future__ import annotations

import json

from spikegcl.commands.common import DataRoot, Json, console, table


def datasets(data_root: DataRoot = None, json_: Json = False) -> None:
    """Named graphs, their sizes, and whether their files are at hand."""
    from dataclasses import asdict

    from spikegcl.datasets import DATASETS, available

    rows = [{**asdict(info), "available": available(name, data_root)} for name, info in DATASETS.items()]
    if json_:
        print(json.dumps(rows, default=str))
        return
    listing = table("name", "title", "nodes", "edges", "features", "classes", "split", "at hand")
    for row in rows:
        sizes = [f"{row[key]:,}" if row[key] else "any" for key in ("nodes", "edges", "features", "classes")]
        listing.add_row(row["name"], row["title"], *sizes, row["split"], "yes" if row["available"] else "no")
    console().print(listing)
