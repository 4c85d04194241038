"""Foreign graphs: round trips through networkx, PyG and scipy, and what is merged, ignored or refused."""

from __future__ import annotations

import logging

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from spikegcl.errors import FeatureError, GraphError, LabelError
from spikegcl.foreign import from_networkx, from_pyg, from_scipy, to_networkx, to_pyg, to_scipy
from spikegcl.graph import Graph, Split, build_graph


def edges_of(graph: Graph) -> set[tuple]:
    """Undirected edges by id, the lower node index first."""
    coo = sp.triu(graph.adjacency).tocoo()
    return {(graph.ids[u], graph.ids[v]) for u, v in zip(coo.row, coo.col, strict=True)}


@pytest.fixture(params=["dense", "sparse", "bare"])
def full_graph(request):
    features = {"dense": np.arange(10.0).reshape(5, 2), "sparse": np.eye(5, 9), "bare": None}[request.param]
    return build_graph(
        [[0, 1, 3], [1, 2, 0]],
        features,
        num_nodes=5,
        weights=[1, 2, 0.5],
        ids=["a", "b", "c", "d", "e"],
        labels=["x", "y", "", "x", "y"],
        split=Split([0, 1], [4], [3]),
    )


def test_networkx_round_trip(full_graph):
    foreign = to_networkx(full_graph)
    assert foreign.nodes["e"]["split"] == "val"
    assert "y" not in foreign.nodes["c"]
    assert foreign.edges["a", "d"]["weight"] == 0.5
    again = from_networkx(foreign, None if full_graph.features is None else "x", labels="y")
    assert again.hash == full_graph.hash
    assert again.classes == ("x", "y")
    assert again.labels.tolist() == [0, 1, -1, 0, 1]


def test_networkx_nodes_of_any_kind():
    graph = from_networkx(nx.Graph([(("t", 1), "b"), ("b", 3)]))
    assert edges_of(graph) == {("('t', 1)", "b"), ("b", "3")}
    assert from_networkx(nx.Graph([(5, 3)])).ids.tolist() == [5, 3]
    with pytest.raises(GraphError, match="'1' occurs more than once"):
        from_networkx(nx.Graph([(1, "1"), ("a", 1)]))


def test_networkx_direction_parallel_edges_and_weights():
    foreign = nx.MultiDiGraph([(0, 1, {"weight": 2}), (1, 0, {"weight": 3}), (1, 2)])
    assert from_networkx(foreign).adjacency.toarray().tolist() == [[0, 3, 0], [3, 0, 1], [0, 1, 0]]
    assert from_networkx(foreign, weight=None).weights is None
    foreign.add_edge(0, 2, weight="heavy")
    with pytest.raises(GraphError, match="edge attribute 'weight' is not a number"):
        from_networkx(foreign)


def test_networkx_attributes():
    foreign = nx.path_graph(3)
    nx.set_node_attributes(foreign, {0: 1.5, 1: 2, 2: 3}, "age")
    nx.set_node_attributes(foreign, {0: 4, 2: 1}, "group")
    graph = from_networkx(foreign, "age", labels="group")
    assert graph.features.tolist() == [[1.5], [2], [3]]
    assert (graph.labels.tolist(), graph.classes) == ([4, -1, 1], None)
    assert from_networkx(foreign, np.ones((3, 2))).num_features == 2
    with pytest.raises(FeatureError, match=r"1 nodes have no attribute 'group', e\.g\. 1"):
        from_networkx(foreign, "group")
    foreign.nodes[1]["age"] = [1, 2]
    with pytest.raises(FeatureError, match="'age' is not a vector of one length"):
        from_networkx(foreign, "age")


@pytest.mark.parametrize("dense", [True, False])
def test_pyg_round_trip(full_graph, dense):
    data = to_pyg(full_graph, dense=dense)
    data.validate()
    assert data.num_edges == full_graph.num_edges
    if full_graph.features is not None:
        assert data.x.layout == (torch.sparse_csr if full_graph.is_sparse and not dense else torch.strided)
    again = from_pyg(data)
    assert (again.hash, again.classes, again.columns) == (full_graph.hash, full_graph.classes, full_graph.columns)
    assert again.labels.tolist() == full_graph.labels.tolist()
    assert again.split.hash == full_graph.split.hash


def test_pyg_shares_no_memory():
    graph = build_graph([[0], [1]], np.ones((2, 2)))
    to_pyg(graph).x.zero_()
    assert graph.features.all()


def test_pyg_details(caplog):
    edges = torch.tensor([[0, 1], [1, 2]])
    with caplog.at_level(logging.INFO, "spikegcl"):
        graph = from_pyg(
            Data(
                x=torch.ones(4, 2, dtype=torch.bfloat16, requires_grad=True),
                edge_index=edges,
                edge_attr=torch.ones(2, 3),
                y=torch.tensor([[1], [0], [2], [1]]),
                train_mask=torch.tensor([True, False, False, False]),
            )
        )
    assert (graph.num_nodes, graph.labels.tolist(), graph.split.train.tolist()) == (4, [1, 0, 2, 1], [0])
    assert len(graph.split.test) == 0
    assert "ignored edge_attr of 2 edges" in caplog.text
    with pytest.raises(GraphError, match="no edge_index"):
        from_pyg(Data(x=torch.ones(2, 2)))
    with pytest.raises(LabelError, match=r"val_mask has shape \(3, 2\) for 3 nodes; choose one split"):
        from_pyg(Data(edge_index=edges, num_nodes=3, val_mask=torch.ones(3, 2, dtype=torch.bool)))


def test_scipy_round_trip(full_graph):
    adjacency = to_scipy(full_graph)
    again = from_scipy(adjacency, full_graph.features, ids=full_graph.ids, labels=full_graph.labels)
    assert again.hash == full_graph.hash
    adjacency.data[:] = 7
    assert full_graph.weights.max() == 2
    with pytest.raises(GraphError, match=r"got ndarray; make a sparse matrix of it with scipy\.sparse\.csr_array"):
        from_scipy(np.ones((2, 2)))
