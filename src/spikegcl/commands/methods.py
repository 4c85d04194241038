"""spikegcl methods."""

from __future__ import annotations

import json

from spikegcl.commands.common import Json, console, table


def methods(json_: Json = False) -> None:
    """Methods that `spikegcl train --method` runs, with the marks of the paper's tables.

    U unsupervised, S spiking, B binary. Any unsupervised method that is not binary also exists as NAME+sign.
    """
    from spikegcl.baselines import find_method, method_names

    marks = ("unsupervised", "spiking", "binary")
    rows = [
        {"name": method.name, "title": method.title, **{mark: getattr(method, mark) for mark in marks}}
        for method in map(find_method, method_names())
    ]
    if json_:
        print(json.dumps(rows))
        return
    listing = table("name", "title", "U", "S", "B")
    for row in rows:
        listing.add_row(row["name"], row["title"], *("yes" if row[mark] else "" for mark in marks))
    console().print(listing)
