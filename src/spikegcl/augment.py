"""The corrupted view: edges dropped, feature columns shuffled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spikegcl import noise
from spikegcl.encoder import View
from spikegcl.features import Columns, Features

if TYPE_CHECKING:
    from spikegcl.groups import Groups
    from spikegcl.propagate import Operator


def clean_view(operator: Operator, features: Features, groups: Groups, *, drop: float = 0.0, key: int = 0) -> View:
    """The graph as it is, apart from dropout: the positive view, and with ``drop`` 0 the view that is embedded."""
    columns = Columns(groups.order, noise.derive(key, "input"), drop)
    return View(operator, features, columns, key, drop)


def corrupt(
    operator: Operator, features: Features, groups: Groups, *, edge_drop: float, shuffle: bool, drop: float, key: int
) -> View:
    """The negative view: a share ``edge_drop`` of the undirected edges gone, columns permuted over all groups.

    With X~ = X[:, perm], the columns of group t are perm[order[t]]; nothing is copied.
    """
    order = groups.order
    if shuffle:
        order = torch.randperm(groups.columns, generator=noise.generator(key, "shuffle")).numpy()[order]
    columns = Columns(order, noise.derive(key, "input"), drop)
    return View(operator.drop_edges(edge_drop, noise.derive(key, "edges")), features, columns, key, drop)
