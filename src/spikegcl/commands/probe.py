"""spikegcl probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from spikegcl.commands.common import DataRoot, Json, Labels, SplitFile, labelled, load_source, percent
from spikegcl.commands.train import Probe


def probe(
    run: Annotated[Path, typer.Argument(help="Run folder or code file.")],
    labels: Labels = None,
    split: SplitFile = None,
    probe: Probe = "logreg",
    seeds: Annotated[int, typer.Option(min=1, help="How many splits to average over.")] = 1,
    data_root: DataRoot = None,
    json_: Json = False,
) -> None:
    """How well a linear classifier reads the labels off the codes."""
    from spikegcl import protocol
    from spikegcl.codes import open_codes
    from spikegcl.datasets import make_split
    from spikegcl.probes import PROBES, REPEATS, linear_probe
    from spikegcl.runs import open_run

    if probe not in PROBES:
        raise typer.BadParameter(f"{probe!r} is unknown; choose {' or '.join(PROBES)}", param_hint="--probe")
    if run.is_dir():
        opened = open_run(run)
        codes, source = opened.codes(), opened.source
        if labels is None and (source.name or source.labels):
            judged = load_source(source, data_root)
        else:
            judged = labelled(codes, labels, split)
    else:
        codes = open_codes(run)
        judged = labelled(codes, labels, split)
    results = [
        linear_probe(
            codes.packed,
            judged.labels,
            make_split(judged, seed),
            kind=probe,
            bits=codes.bits,
            seed=seed,
            repeats=REPEATS,
        )
        for seed in range(seeds)
    ]
    document = {
        "codes": str(run),
        "probe": probe,
        "bits": codes.bits,
        "seeds": list(range(seeds)),
        "test_accuracy": protocol.spread(result.test_accuracy for result in results),
        "val_accuracy": protocol.spread(result.val_accuracy for result in results),
    }
    if json_:
        print(json.dumps(document))
    else:
        print(f"{probe} probe on {codes.bits} bits: test accuracy {percent(document['test_accuracy'])}")
