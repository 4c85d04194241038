"""Graphs a model was not trained on: match their columns to the model's, keep their order, count what changed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse as sp

from spikegcl import bits
from spikegcl.errors import CodesError, FeatureError
from spikegcl.structural import structural_features

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spikegcl.codes import Codes
    from spikegcl.graph import Graph

log = logging.getLogger("spikegcl")

SHOWN = 10  # names listed in a message before it says how many more there are


@dataclass(frozen=True, eq=False)
class Matched:
    """A graph whose feature columns are the model's, and how they were found.

    ``by`` is ``name``, ``count`` (one side has no names) or ``structure`` (computed from the edges, as in training).
    ``missing`` are columns of the model filled with zeros, ``unknown`` columns of the graph left out.
    """

    graph: Graph
    by: Literal["name", "count", "structure"]
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def _numbered(names: Sequence[str] | None, others: Sequence[str] | None, width: int) -> Sequence[str] | None:
    """``names``; or 0, 1, 2, ... if there are none and the ``others`` are these numbers in any order.

    Numbers in order are how a table without names is written, so they are not kept; in another order they are names.
    """
    numbers = tuple(map(str, range(width)))
    return numbers if names is None and others is not None and sorted(others) == sorted(numbers) else names


def match_columns(
    graph: Graph,
    columns: Sequence[str] | None,
    width: int,
    *,
    fill_missing: Literal["zero"] | None = None,
    known: NDArray[Any] | None = None,
) -> Matched:
    """Bring the features of ``graph`` (N x any) into the ``width`` columns of a model, called ``columns`` if named.

    With names on both sides columns are matched by name in any order, otherwise by count. Missing columns are an error
    unless ``fill_missing`` is ``zero``; unknown ones are left out, and the log says which. A model of structural
    columns gets them computed when the graph has no features; ``known``, the ids of its training nodes, then serves to
    refuse ids of another kind, because the columns are a function of the ids.
    """
    if graph.features is None:
        if not _are_structural(columns):
            raise FeatureError(f"the model was trained on {width} feature columns and this graph has none; give them")
        check_ids(graph, known)
        return Matched(_with_structure(graph, width, known), "structure")
    columns, own = _numbered(columns, graph.columns, width), _numbered(graph.columns, columns, graph.num_features)
    if own is not graph.columns:
        graph = replace(graph, columns=tuple(own or ()))
    if columns is None or graph.columns is None:
        if graph.num_features != width:
            raise FeatureError(
                f"the model was trained on {width} feature columns, this graph has {graph.num_features}; "
                "give the same columns in the same order, or name them on both sides"
            )
        return Matched(graph, "count")
    if tuple(columns) == graph.columns:
        return Matched(graph, "name")
    place = {name: position for position, name in enumerate(graph.columns)}
    missing = tuple(name for name in columns if name not in place)
    wanted = set(columns)
    unknown = tuple(name for name in graph.columns if name not in wanted)
    if missing and (fill_missing is None or len(missing) == width):
        advice = "" if len(missing) == width else ", or fill them with zeros (--fill-missing zero)"
        raise FeatureError(
            f"{len(missing)} of the model's {width} feature columns are missing: {_listed(missing)}; add them{advice}"
        )
    if missing:
        log.warning("%d missing feature columns are taken as zero: %s", len(missing), _listed(missing))
    if unknown:
        log.info("%d feature columns unknown to the model are ignored: %s", len(unknown), _listed(unknown))
    # One column of zeros behind the others stands for all that are missing.
    take = np.array([place.get(name, graph.num_features) for name in columns])
    if graph.is_sparse:
        own = graph.features.tocsc()
        shape = (graph.num_nodes, graph.num_features + 1)
        features = sp.csc_array((own.data, own.indices, np.append(own.indptr, own.nnz)), shape=shape)[:, take]
    else:
        features = np.pad(graph.features, ((0, 0), (0, 1)))[:, take]
    return Matched(graph.with_features(features, columns), "name", missing, unknown)


def check_ids(graph: Graph, known: NDArray[Any] | None) -> None:
    """For models that read the structure, which follow from the ids: are they those of the training nodes, ``known``?

    An error if they are of another kind, a warning if few of these nodes are here.
    """
    if known is None:
        return
    if _kind(known) != _kind(graph.ids):
        raise FeatureError(
            "the model reads the structure of the graph by its node ids, and ids were "
            f"{_kind(known)} in training but are {_kind(graph.ids)} here; write them the same way"
        )
    if 2 * len(_common(graph.ids, known)[0]) < min(len(known), graph.num_nodes):
        log.warning(
            "most of these nodes were not there in training, and bits that read the structure mean nothing for them; "
            "for graphs of other nodes train with --set propagation=pagerank, hops or none"
        )


def training_order(ids: NDArray[Any], known: NDArray[Any]) -> NDArray[np.int64] | None:
    """Positions in ``ids`` (N) that put the nodes of ``known`` first and in their order, the others behind.

    None when ``ids`` already has the known nodes in that order. Sums over neighbours run in node order, so keeping it
    keeps every rounding of the training pass.
    """
    mine, theirs = _common(ids, known)
    first = mine[np.argsort(theirs)]
    if (np.diff(first) > 0).all():
        return None
    others = np.ones(len(ids), bool)
    others[first] = False
    return np.concatenate([first, np.flatnonzero(others)])


@dataclass(frozen=True)
class Change:
    """What became of the nodes of one code file in another, by id.

    ``bits_flipped`` counts differing bits of the nodes in both, ``share_flipped`` divides it by all bits of these,
    ``nodes_flipped`` counts nodes with at least one.
    """

    nodes_new: int
    nodes_old: int
    nodes_gone: int
    nodes_flipped: int
    bits_flipped: int
    share_flipped: float


def compare_codes(before: Codes, after: Codes) -> Change:
    """Nodes that are new, still there or gone, and the bits that flipped in those still there.

    >>> from spikegcl.codes import Codes
    >>> before = Codes.from_bits(np.array([[1, 0, 1], [0, 0, 0]]), ids=["a", "b"])
    >>> after = Codes.from_bits(np.array([[1, 1, 1], [1, 1, 1]]), ids=["c", "a"])
    >>> compare_codes(before, after)
    Change(nodes_new=1, nodes_old=1, nodes_gone=1, nodes_flipped=1, bits_flipped=1, share_flipped=0.3333333333333333)
    """
    if (before.steps, before.channels) != (after.steps, after.channels):
        raise CodesError(
            f"codes of {before.steps} x {before.channels} bits cannot be compared with {after.steps} x {after.channels}"
        )
    mine, theirs = _common(after.ids, before.ids)
    flipped = bits.popcount(after.packed[mine] ^ before.packed[theirs])
    total, count = int(flipped.sum()), len(mine)
    return Change(
        nodes_new=len(after) - count,
        nodes_old=count,
        nodes_gone=len(before) - count,
        nodes_flipped=int(np.count_nonzero(flipped)),
        bits_flipped=total,
        share_flipped=total / (count * before.bits) if count else 0.0,
    )


def _common(ids: NDArray[Any], others: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the ids in both, in either array; integers and strings meet as text."""
    if ids.dtype.kind != others.dtype.kind:
        ids, others = (np.array([str(key) for key in keys], dtype=object) for keys in (ids, others))
    _, mine, theirs = np.intersect1d(ids, others, assume_unique=True, return_indices=True)
    return mine, theirs


def _are_structural(columns: Sequence[str] | None) -> bool:
    """Whether these are the names that :func:`structural_features` gives; a model file records them."""
    if columns is None:
        return False
    return tuple(columns) == (*(f"sketch{column}" for column in range(len(columns) - 1)), "log_degree")


def _with_structure(graph: Graph, width: int, known: NDArray[Any] | None) -> Graph:
    """Structural columns as training would compute them: nodes in training order while they are."""
    order = None if known is None else training_order(graph.ids, known)
    if order is None:
        return structural_features(graph, width)
    moved = structural_features(graph.subgraph(order), width)
    return graph.with_features(moved.features[np.argsort(order)], moved.columns)


def _kind(ids: NDArray[Any]) -> str:
    return "integers" if ids.dtype.kind in "iu" else "strings"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
