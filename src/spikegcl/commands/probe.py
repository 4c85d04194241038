"""spikegcl probe."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikegcl.commands.common import DataRoot, Json, Labels, SplitFile, console, labelled, load_source, percent, table
from spikegcl.commands.train import Probe
from spikegcl.errors import RunError, SpikeGCLError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from spikegcl.codes import Codes
    from spikegcl.graph import Graph, Split
    from spikegcl.runs import Run, Source

    Packed = NDArray[np.uint8]

log = logging.getLogger("spikegcl")

BY_LABELS = ("linear", "knn", "clustering", "retrieval")
WITH_SPLIT = {"linear", "knn"}
TASKS = (*BY_LABELS, "link")
FLOORS = {"untrained": "untrained", "ppr-itq": "ppr-itq", "projection": "random"}  # headings that fit 80 columns


def probe(
    run: Annotated[Path, typer.Argument(help="Run folder or code file.")],
    labels: Labels = None,
    split: SplitFile = None,
    probe: Probe = "logreg",
    tasks: Annotated[
        str,
        typer.Option(
            help="What to judge, with commas between: linear, knn, clustering, retrieval, link. "
            "link trains the run's settings anew, without the held-out edges, once a seed; it needs a run folder."
        ),
    ] = ",".join(BY_LABELS),
    seeds: Annotated[int, typer.Option(min=1, help="How many splits, starts and samples to average over.")] = 1,
    floors: Annotated[
        bool,
        typer.Option(help="Judge floors beside the codes of a run: untrained encoder, random projection, closed form."),
    ] = True,
    data_root: DataRoot = None,
    json_: Json = False,
) -> None:
    """What codes are worth: classify, cluster and retrieve by them, and predict links, beside their floors."""
    from spikegcl.codes import open_codes
    from spikegcl.probes import PROBES
    from spikegcl.runs import open_run

    if probe not in PROBES:
        raise typer.BadParameter(f"{probe!r} is unknown; choose {' or '.join(PROBES)}", param_hint="--probe")
    chosen = [task.strip() for task in tasks.split(",") if task.strip()]
    if not chosen or (unknown := [task for task in chosen if task not in TASKS]):
        named = f"{unknown[0]!r} is unknown" if chosen else "no task is named"
        raise typer.BadParameter(f"{named}; choose from {', '.join(TASKS)}", param_hint="--tasks")
    opened = open_run(run) if run.is_dir() else None
    codes = open_codes(run) if opened is None else opened.codes()
    by_labels, graph = [task for task in BY_LABELS if task in chosen], None
    own_labels = labels is None and bool(by_labels)
    if opened is not None and ("link" in chosen or (own_labels and _may_have_labels(opened.source))):
        selects = "validation" in (opened.config.select, opened.config.stop)  # training anew does, too
        graph = _read_again(opened, codes.ids, data_root, labels=own_labels or selects)

    document: dict[str, Any] = {"codes": str(run), "bits": codes.bits, "seeds": list(range(seeds))}
    results: dict[str, Any] = {}
    if by_labels:
        judged = _with_labels(graph, codes, labels, split)
        if split is None and labels is not None and opened is not None and not WITH_SPLIT.isdisjoint(by_labels):
            judged = replace(judged, split=_own_split(opened, judged, graph, data_root))
        if "retrieval" in by_labels and len(chosen) > 1 and (reason := _too_few(judged)):
            log.warning("retrieval skipped: %s", reason)
            by_labels.remove("retrieval")
            results["retrieval"] = {"skipped": reason}
        splits = _splits(judged, by_labels, range(seeds), given=split is not None)
        results |= _judge(codes.packed, codes.bits, judged, by_labels, probe, splits)
        below = _floors(opened, graph, codes.bits, data_root) if floors and opened and by_labels else {}
        for floor, packed in below.items():
            found = _judge(packed, codes.bits, judged, by_labels, probe, splits)
            for task in by_labels:
                results[task].setdefault("floors", {})[floor] = found[task]
    if "linear" in results:
        document |= {"probe": probe, **results.pop("linear")}
    if "link" in chosen:
        results["link"] = _link(opened, graph, range(seeds), floors)
    document["tasks"] = results
    if json_:
        print(json.dumps(document))
    else:
        _print_table(document)


def _with_labels(graph: Graph | None, codes: Codes, labels: Path | None, split: Path | None) -> Graph:
    """Labels by the given file, else the run's own and with them its split; ``split`` takes the place of that."""
    from spikegcl.readers import read_split

    if labels is not None or graph is None or graph.labels is None:
        return labelled(codes, labels, split)
    return graph if split is None else replace(graph, split=read_split(split, graph.ids))


def _too_few(judged: Graph) -> str:
    """Why nothing can be retrieved, if so."""
    from spikegcl.tasks import RETRIEVED

    known = 0 if judged.labels is None else int((judged.labels >= 0).sum())
    return f"it looks for {RETRIEVED} other labelled nodes; there are {known} in all" if known <= RETRIEVED else ""


def _own_split(run: Run, judged: Graph, graph: Graph | None, data_root: Path | None) -> Split | None:
    """The split that the graph of a run came with, if it did, can still be read and suits the labels of ``judged``.

    ``graph`` is that of the run, if it has been read already.
    """
    from spikegcl.datasets import make_split
    from spikegcl.prepared import is_prepared
    from spikegcl.probes import check_labels
    from spikegcl.readers import read_split

    source = run.source
    try:
        if source.split is not None:
            own: Split | None = read_split(source.split, judged.ids)
        elif source.name is not None or (source.edges is not None and is_prepared(source.edges)):
            graph = graph or _read_again(run, judged.ids, data_root, labels=False)
            own = None if graph is None else graph.split
        else:
            return None
        if own is not None:
            check_labels(judged.labels, make_split(replace(judged, split=own)), judged.num_nodes)
    except SpikeGCLError as error:
        log.warning("the run's own split is not used, others are drawn: %s", error)
        return None
    return own


def _may_have_labels(source: Source) -> bool:
    from spikegcl.prepared import is_prepared

    return bool(source.name or source.labels or (source.edges and is_prepared(source.edges)))


def _read_again(run: Run, ids: NDArray[Any], data_root: Path | None, *, labels: bool) -> Graph | None:
    """The graph of a run with the features it came with, if the run says where it came from.

    The files of ``labels`` and split are read only if they are wanted.
    """
    import numpy as np

    from spikegcl.datasets import load_dataset
    from spikegcl.readers import read_graph

    source: Source = run.source
    if source.name is not None:
        graph = load_dataset(source.name, data_root)
    elif source.edges is not None:
        known = {"labels": source.labels, "split": source.split} if labels else {}
        graph = read_graph(source.edges, features=source.features, **known)
    else:
        return None
    if not np.array_equal(graph.ids, ids):
        raise RunError(
            f"the nodes of {source.name or source.edges} are not those of the codes in {run.path}: the graph has "
            "changed since; train again, or give --labels with the code file"
        )
    return graph


def _floors(run: Run, graph: Graph | None, bits: int, data_root: Path | None) -> dict[str, Packed]:
    """Codes without learning at the bits of a run, by name; none where its graph is not what it was.

    ``graph`` is that of the run, if it has been read already.
    """
    from spikegcl import floors
    from spikegcl.structural import structural_features

    try:
        graph = graph or load_source(run.source, data_root)
        graph = structural_features(graph) if graph.features is None else graph
    except SpikeGCLError as error:
        log.warning("floors skipped: %s", error)
        return {}
    if graph.hash != run.graph_hash:
        log.warning("floors skipped: the graph has changed since the run was trained")
        return {}
    with console(stderr=True).status("floors"):
        return floors.below(graph, run.given, bits, run.seed)


def _splits(judged: Graph, tasks: Sequence[str], seeds: range, *, given: bool) -> dict[int, Split | None]:
    """The split of every seed, if some task needs one; made once, for what it has to say about small classes."""
    from spikegcl.datasets import make_split

    if WITH_SPLIT.isdisjoint(tasks):
        return dict.fromkeys(seeds)
    drawn = "drawn by the seed, a tenth of every class to train, a tenth to choose; --split takes another"
    log.info("split: %s", drawn if judged.split is None else "as given" if given else "the run's own")
    return {seed: make_split(judged, seed) for seed in seeds}


def _judge(
    packed: Packed, bits: int, judged: Graph, tasks: Sequence[str], probe: str, splits: dict[int, Split | None]
) -> dict[str, Any]:
    """Results by task, over the seeds: of the split for classifiers, of the starts or the sample for the others."""
    from spikegcl.probes import REPEATS, linear_probe, majority_accuracy
    from spikegcl.tasks import clustering, knn_probe, retrieval

    rows: dict[str, list[dict[str, Any]]] = {task: [] for task in tasks}
    for seed, split in splits.items():
        if "linear" in rows and split is not None:
            fitted = linear_probe(packed, judged.labels, split, kind=probe, bits=bits, seed=seed, repeats=REPEATS)
            accuracy = {"test_accuracy": fitted.test_accuracy, "val_accuracy": fitted.val_accuracy}
            rows["linear"].append({**accuracy, "chance": majority_accuracy(judged.labels, split)})
        if "knn" in rows and split is not None:
            rows["knn"].append(asdict(knn_probe(packed, judged.labels, split, bits=bits)))
        if "clustering" in rows:
            rows["clustering"].append(asdict(clustering(packed, judged.labels, bits=bits, seed=seed)))
        if "retrieval" in rows:
            rows["retrieval"].append(asdict(retrieval(packed, judged.labels, bits=bits, seed=seed)))
    return {task: _over_seeds(found) for task, found in rows.items()}


def _link(run: Run | None, graph: Graph | None, seeds: range, floors: bool) -> dict[str, Any]:
    if run is None or graph is None:
        reason = (
            "link prediction trains anew without the held-out edges, which takes "
            + ("a run folder; this is a code file" if run is None else "the graph; this run does not say where it is")
        )  # fmt: skip
        log.warning("link skipped: %s", reason)
        return {"skipped": reason}
    from spikegcl.links import link_prediction

    if graph.features is not None and graph.hash != run.graph_hash:
        log.warning("the graph has changed since the run was trained; links are predicted in the graph as it is now")
    rows = []
    for seed in seeds:
        with console(stderr=True).status(f"seed {seed}: training without the held-out edges"):
            found = asdict(link_prediction(graph, run.config, seed=seed, with_floors=floors))
        rows.append({**found.pop("trained"), **found})
    return _over_seeds(rows)


def _over_seeds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and deviation of every measure; whole numbers (a chosen k, a count) seed by seed."""
    from spikegcl.protocol import spread

    merged: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, dict):
            merged[name] = _over_seeds(values)
        else:
            merged[name] = values if isinstance(first, int) else spread(values)
    return merged


def _print_table(document: dict[str, Any]) -> None:
    """A row a measure: of the codes, of each floor there is, and by chance."""
    tasks, many = document["tasks"], len(document["seeds"]) > 1
    floors = [name for name in FLOORS if any(name in task.get("floors", ()) for task in (document, *tasks.values()))]
    rows = table("task", "measure", "codes", *(FLOORS[floor] for floor in floors), "chance")

    def share(value: dict[str, float]) -> str:
        return percent(value, len(document["seeds"]))

    def score(value: dict[str, float]) -> str:
        return f"{value['mean']:.3f}" + f" ± {value['std']:.3f}" * many

    def add(task: str, measure: str, result: dict[str, Any], key: str, show: Callable[..., str], chance: str) -> None:
        below = (result.get("floors", {}).get(floor) for floor in floors)
        rows.add_row(task, measure, *("" if one is None else show(one[key]) for one in (result, *below)), chance)

    if "probe" in document:
        name = f"linear ({document['probe']})"
        add(name, "test accuracy", document, "test_accuracy", share, share(document["chance"]))
    if knn := tasks.get("knn"):
        nearest = ", ".join(map(str, sorted(set(knn["k"]))))
        add(f"kNN (k = {nearest})", "test accuracy", knn, "test_accuracy", share, share(knn["chance"]))
    if clustering := tasks.get("clustering"):
        add(f"{clustering['clusters'][0]} clusters", "NMI", clustering, "nmi", score, "")
        add("", "ARI", clustering, "ari", score, "0")
    if "k" in (found := tasks.get("retrieval", {})):
        add("retrieval", f"precision@{found['k'][0]}", found, "precision", share, share(found["chance"]))
    link = tasks.get("link", {})
    for scores in ("hamming", "logreg") if "hamming" in link else ():
        result = {**link[scores], "floors": {name: below[scores] for name, below in link["floors"].items()}}
        add(f"link ({scores})", "AUC", result, "auc", score, "0.5")
        add("", "AP", result, "ap", score, "0.5")
    count = len(document["seeds"])
    console().print(f"{document['codes']}: {document['bits']} bits, {count} seed{'s' * (count > 1)}")
    if rows.row_count:
        console().print(rows)
    for name, task in tasks.items():
        if "skipped" in task:
            console().print(f"{name}: skipped, {task['skipped']}")
