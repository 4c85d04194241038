"""Graphs of other libraries <-> Graph: networkx, PyG, scipy."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from spikegcl.errors import FeatureError, GraphError, LabelError
from spikegcl.graph import PARTS, Graph, Split, build_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

log = logging.getLogger("spikegcl")


def from_networkx(
    graph: Any, features: Any = None, *, labels: str | None = None, weight: str | None = "weight"
) -> Graph:
    """A networkx graph of N nodes, in the order of ``graph.nodes``; directions and parallel edges are merged.

    ``features`` is the name of a node attribute (a number or a vector of length d on every node) or a matrix N x d.
    ``labels`` names a node attribute, unlabelled where missing; ``weight`` an edge attribute, 1 where missing.
    Integer nodes stay integers, all other node objects become strings.
    """
    index = {node: position for position, node in enumerate(graph.nodes)}
    links = list(graph.edges(data=weight, default=1.0))
    try:
        weights = np.array([link[2] for link in links], np.float32)
    except (TypeError, ValueError) as error:
        raise GraphError(f"edge attribute {weight!r} is not a number on every edge: {error}") from error
    return build_graph(
        np.array([[index[link[0]] for link in links], [index[link[1]] for link in links]], np.int64),
        _attribute_matrix(graph, features) if isinstance(features, str) else features,
        num_nodes=len(index),
        weights=weights,
        ids=list(index),
        labels=None if labels is None else _label_array([value for _, value in graph.nodes(data=labels)]),
        name=graph.name or "graph",
    )


def to_networkx(graph: Graph) -> Any:
    """An undirected ``networkx.Graph`` over the ids, as far as the graph has them with these attributes.

    Edges: ``weight``. Nodes: ``x`` (float32 vector of length d), ``y`` (class name, or integer without names; absent
    where unlabelled) and ``split`` (train, val or test).
    """
    import networkx

    result = networkx.Graph(name=graph.name)
    ids = graph.ids.tolist()
    result.add_nodes_from(ids)
    upper = sp.triu(graph.adjacency).tocoo()
    for source, target, weight in zip(upper.row.tolist(), upper.col.tolist(), upper.data.tolist(), strict=True):
        result.add_edge(ids[source], ids[target], **({} if graph.weights is None else {"weight": weight}))
    for row, node in enumerate(result.nodes.values()):
        if graph.features is not None:
            node["x"] = _dense(graph.features[[row]])[0]
        if graph.labels is not None and graph.labels[row] >= 0:
            node["y"] = int(graph.labels[row]) if graph.classes is None else graph.classes[graph.labels[row]]
    for part in PARTS if graph.split is not None else ():
        for row in getattr(graph.split, part):
            result.nodes[ids[row]]["split"] = part
    return result


def from_pyg(data: Any, *, name: str = "graph") -> Graph:
    """A PyG ``Data`` of N nodes: ``edge_index`` (2 x M), ``x`` (N x d, dense or sparse), ``y`` (N), ``train_mask`` ...

    Weights are ``edge_weight`` (M). ``ids`` and ``classes`` are taken over as :func:`to_pyg` writes them. Tensors may
    live on any device.
    """
    if getattr(data, "edge_index", None) is None:
        raise GraphError("the Data object has no edge_index; use from_scipy for an adjacency matrix")
    if getattr(data, "edge_attr", None) is not None:
        log.info("ignored edge_attr of %d edges; only edge_weight is a weight", len(data.edge_attr))
    labels = None if getattr(data, "y", None) is None else _numpy(data.y)
    if labels is not None and labels.shape[1:] == (1,):
        labels = labels[:, 0]
    if labels is not None and getattr(data, "classes", None) is not None:
        labels = np.array([*data.classes, ""], object)[labels]
    return build_graph(
        _numpy(data.edge_index),
        None if getattr(data, "x", None) is None else _numpy(data.x),
        num_nodes=data.num_nodes,
        weights=None if getattr(data, "edge_weight", None) is None else _numpy(data.edge_weight),
        ids=getattr(data, "ids", None),
        labels=labels,
        split=_split_of_masks(data),
        name=name,
    )


def to_pyg(graph: Graph, *, dense: bool = True) -> Any:
    """A PyG ``Data`` on the CPU that shares no memory with ``graph``, with what the graph has of the following.

    ``edge_index`` (2 x 2E, both directions), ``edge_weight`` (2E), ``x`` (N x d), ``y`` (N, -1 where unlabelled),
    ``train_mask``, ``val_mask``, ``test_mask`` (N, bool), ``ids`` and ``classes`` (lists). ``x`` is a dense tensor,
    which every PyG layer takes; ``dense=False`` keeps sparse features as a torch CSR tensor.
    """
    import torch
    from torch_geometric.data import Data

    links = np.stack([np.repeat(np.arange(graph.num_nodes), graph.degrees), graph.indices])
    data = Data(edge_index=torch.tensor(links), num_nodes=graph.num_nodes, ids=graph.ids.tolist())
    if graph.weights is not None:
        data.edge_weight = torch.tensor(graph.weights)
    if graph.is_sparse and not dense:
        starts, columns = torch.tensor(graph.features.indptr), torch.tensor(graph.features.indices.astype(np.int64))
        values = torch.tensor(graph.features.data)
        data.x = torch.sparse_csr_tensor(starts, columns, values, graph.features.shape, check_invariants=True)
    elif graph.features is not None:
        data.x = torch.tensor(_dense(graph.features))
    if graph.labels is not None:
        data.y = torch.tensor(graph.labels)
    if graph.classes is not None:
        data.classes = list(graph.classes)
    for part in PARTS if graph.split is not None else ():
        data[f"{part}_mask"] = torch.tensor(np.isin(np.arange(graph.num_nodes), getattr(graph.split, part)))
    return data


def from_scipy(
    adjacency: Any, features: Any = None, *, labels: Any = None, ids: Any = None, name: str = "graph"
) -> Graph:
    """A scipy sparse adjacency (N x N; its values are the weights) with features (N x d), labels (N) and ids (N)."""
    if not sp.issparse(adjacency):
        raise GraphError(f"got {type(adjacency).__name__}; make a sparse matrix of it with scipy.sparse.csr_array")
    return build_graph(adjacency, features, labels=labels, ids=ids, name=name)


def to_scipy(graph: Graph) -> sp.csr_array:
    """A copy of the symmetric adjacency (N x N, float32). Features need no conversion: see ``graph.features``."""
    return graph.adjacency.copy()


def _dense(features: Any) -> Any:
    return features.toarray() if sp.issparse(features) else features


def _attribute_matrix(graph: Any, attribute: str) -> NDArray[np.float32]:
    """A node attribute of a networkx graph as a matrix N x d."""
    lacking = [node for node, value in graph.nodes(data=attribute) if value is None]
    if lacking:
        raise FeatureError(f"{len(lacking)} nodes have no attribute {attribute!r}, e.g. {lacking[0]!r}; set it on all")
    try:
        values = np.array([value for _, value in graph.nodes(data=attribute)], np.float32)
    except (TypeError, ValueError) as error:
        raise FeatureError(f"attribute {attribute!r} is not a vector of one length on all nodes: {error}") from error
    return values[:, None] if values.ndim == 1 else values


def _label_array(values: Sequence[Any]) -> NDArray[Any]:
    if all(value is None or isinstance(value, (int, np.integer)) for value in values):
        return np.array([-1 if value is None else value for value in values], np.int64)
    return np.array(["" if value is None else str(value) for value in values], object)


def _split_of_masks(data: Any) -> Split | None:
    masks = [getattr(data, f"{part}_mask", None) for part in PARTS]
    for part, mask in zip(PARTS, masks, strict=True):
        if mask is not None and tuple(mask.shape) != (data.num_nodes,):
            raise LabelError(f"{part}_mask has shape {tuple(mask.shape)} for {data.num_nodes} nodes; choose one split")
    if all(mask is None for mask in masks):
        return None
    return Split(*(np.zeros(0, np.int64) if mask is None else np.flatnonzero(_numpy(mask)) for mask in masks))


def _numpy(tensor: Any) -> Any:
    """A torch tensor as a numpy array or, if it is sparse, as scipy CSR."""
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()
    if str(tensor.layout) == "torch.strided":
        return tensor.numpy()
    tensor = tensor.to_sparse_coo().coalesce()
    return sp.csr_array((tensor.values().numpy(), tuple(tensor.indices().numpy())), shape=tuple(tensor.shape))
