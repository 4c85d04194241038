"""The graph: every check of build_graph, and the laws its canonical form obeys."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.errors import FeatureError, GraphError, LabelError
from spikegcl.graph import SPARSE_BELOW, Graph, Split, build_graph, check_features, encode_labels

TRIANGLE = np.array([[0, 1, 2], [1, 2, 0]])


def edge_set(graph: Graph) -> set[tuple[int, int]]:
    coo = graph.adjacency.tocoo()
    return set(zip(coo.row.tolist(), coo.col.tolist(), strict=True))


def test_edges_are_symmetrised_and_sorted():
    graph = build_graph([[2, 0], [1, 2]])
    assert edge_set(graph) == {(1, 2), (2, 1), (0, 2), (2, 0)}
    assert graph.indptr.tolist() == [0, 1, 2, 4]
    assert graph.indices.tolist() == [2, 2, 0, 1]
    assert (graph.indptr.dtype, graph.indices.dtype) == (np.int64, np.int32)
    assert (graph.num_nodes, graph.num_edges) == (3, 4)
    assert graph.degrees.tolist() == [1, 1, 2]


def test_rows_of_pairs_are_accepted_too():
    assert build_graph(TRIANGLE.T).hash == build_graph(TRIANGLE).hash
    assert edge_set(build_graph(np.array([[0, 1], [0, 2], [0, 3]]))) == {(0, 1), (1, 0), (0, 2), (2, 0), (0, 3), (3, 0)}


def test_duplicates_and_self_loops_are_removed_with_their_counts(caplog):
    with caplog.at_level(logging.INFO, "spikegcl"):
        graph = build_graph([[0, 1, 0, 1, 1], [1, 0, 1, 1, 2]])
    assert edge_set(graph) == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert "removed 1 self-loops" in caplog.text
    assert "4 edge lines describe 2 undirected edges" in caplog.text


def test_largest_weight_of_a_repeated_edge_wins_in_both_directions():
    graph = build_graph([[0, 1, 1], [1, 0, 2]], weights=[0.5, 2.0, 3.0])
    assert graph.adjacency.toarray().tolist() == [[0, 2, 0], [2, 0, 3], [0, 3, 0]]
    assert graph.weights is not None
    assert graph.weights.dtype == np.float32


def test_edges_of_weight_zero_are_removed_with_their_count(caplog):
    with caplog.at_level(logging.INFO, "spikegcl"):
        graph = build_graph([[0, 1, 2, 2], [1, 2, 2, 3]], weights=[2, 0, 0, 0])
    assert graph.hash == build_graph([[0], [1]], weights=[2], num_nodes=4).hash
    assert "removed 1 self-loops" in caplog.text
    assert "removed 2 edges of weight 0" in caplog.text


def test_stored_zeros_of_an_adjacency_are_no_edges():
    adjacency = sp.csr_array(([1.0, 0.0], ([0, 1], [1, 2])), shape=(3, 3))
    assert build_graph(adjacency).hash == build_graph([[0], [1]], num_nodes=3).hash


def test_unit_weights_are_no_weights():
    assert build_graph(TRIANGLE, weights=[1, 1, 1]).weights is None


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_bad_weight_is_named(weight):
    with pytest.raises(GraphError, match=r"edge 1 has weight (nan|inf|-1\.0)"):
        build_graph(TRIANGLE, weights=[1.0, weight, 1.0])


def test_weights_must_match_edges():
    with pytest.raises(GraphError, match="2 weights for 3 edges"):
        build_graph(TRIANGLE, weights=[1.0, 1.0])


def test_sparse_adjacency_gives_structure_and_weights():
    adjacency = sp.csr_array(np.array([[0, 2.0, 0], [0, 0, 1.0], [0, 0, 0]]))
    assert build_graph(adjacency).hash == build_graph([[0, 1], [1, 2]], weights=[2.0, 1.0]).hash
    assert build_graph(adjacency != 0).hash == build_graph([[0, 1], [1, 2]]).hash


def test_adjacency_takes_no_other_weights():
    with pytest.raises(GraphError, match="holds its own weights"):
        build_graph(sp.csr_array(np.ones((2, 2))), weights=[1.0, 2.0])


def test_adjacency_must_be_square():
    with pytest.raises(GraphError, match="square, got 2 x 3"):
        build_graph(sp.csr_array(np.ones((2, 3))))


def test_adjacency_gives_the_number_of_nodes():
    assert build_graph(sp.csr_array(([1.0], ([0], [1])), shape=(5, 5))).num_nodes == 5


@pytest.mark.parametrize("rows", [4, 6])
def test_features_and_adjacency_of_different_sizes(rows):
    adjacency = sp.csr_array(([1.0], ([0], [1])), shape=(5, 5))
    with pytest.raises(FeatureError, match=f"{rows} feature rows for 5 nodes"):
        build_graph(adjacency, np.ones((rows, 2)))


def test_number_of_nodes_other_than_that_of_the_adjacency():
    with pytest.raises(GraphError, match="num_nodes = 3, but the adjacency has 2 rows; leave it out"):
        build_graph(sp.csr_array(np.ones((2, 2))), num_nodes=3)


@pytest.mark.parametrize("edges", [np.zeros((3, 4), int), np.zeros(5, int), np.zeros((1, 3), int)])
def test_edges_of_a_wrong_shape(edges):
    with pytest.raises(GraphError, match=r"2 x M or M x 2.*got shape"):
        build_graph(edges)


def test_edges_must_be_integers():
    with pytest.raises(GraphError, match=r"integer node indices, got float64; read files with spikegcl\.readers"):
        build_graph([[0.0], [1.0]])


@pytest.mark.parametrize(("edges", "bad"), [([[0], [5]], "5"), ([[-1], [0]], "-1")])
def test_index_out_of_range_is_named(edges, bad):
    with pytest.raises(GraphError, match=f"name node {bad}, but nodes run from 0 to 2"):
        build_graph(edges, np.ones((3, 2)))


@pytest.mark.parametrize("features", [None, np.zeros((0, 3))])
def test_graph_without_nodes(features):
    with pytest.raises(GraphError, match="no nodes"):
        build_graph(np.zeros((2, 0), int), features)


def test_graph_without_edges_is_a_graph():
    graph = build_graph([], num_nodes=3)
    assert (graph.num_nodes, graph.num_edges, graph.degrees.tolist()) == (3, 0, [0, 0, 0])


def test_more_nodes_than_32_bits():
    with pytest.raises(GraphError, match="do not fit 32-bit"):
        build_graph([[0], [1]], num_nodes=2**31)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, np.asfortranarray, sp.csr_array, sp.csc_array, sp.lil_array])
def test_feature_that_is_not_finite_is_named_by_row_and_column(kind, bad):
    values = np.arange(1.0, 13).reshape(3, 4)
    values[2, 1] = bad
    with pytest.raises(FeatureError, match=r"row 2, column 1 is (nan|inf|-inf)"):
        build_graph(TRIANGLE, kind(values))


def test_feature_that_overflows_float32_is_named():
    with pytest.raises(FeatureError, match="row 1, column 0 is inf"):
        build_graph(TRIANGLE, np.array([[1.0], [1e39], [2.0]]))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones((4, 2)), "4 feature rows for 3 nodes"),
        (np.ones(3), r"one row per node, got shape \(3,\)"),
        (np.ones((3, 0)), "no columns"),
        (np.full((3, 1), "a"), "must be numbers, got <U1"),
        (sp.csr_array(np.ones((3, 2), complex)), "must be numbers, got complex128"),
    ],
)
def test_features_that_do_not_fit(features, message):
    with pytest.raises(FeatureError, match=message):
        build_graph(TRIANGLE, features, num_nodes=3)


def test_features_may_be_nested_lists():
    assert build_graph(TRIANGLE, [[1, 2], [3, 4], [5, 6]]).num_features == 2


def matrix_with_share(share: float) -> np.ndarray:
    values = np.zeros(400, np.float32)
    values[: int(400 * share)] = np.arange(1, int(400 * share) + 1)
    return np.random.default_rng(0).permutation(values).reshape(20, 20)


@pytest.mark.parametrize("share", [0.01, SPARSE_BELOW - 0.01, SPARSE_BELOW, 0.9])
def test_one_content_has_one_representation_and_hash(share):
    dense = matrix_with_share(share)
    graphs = [
        build_graph([[0], [1]], kind(dense))
        for kind in (np.asarray, np.asfortranarray, np.float64, sp.csr_array, sp.csc_array, sp.coo_array, sp.dok_array)
    ]
    assert {graph.is_sparse for graph in graphs} == {share < SPARSE_BELOW}
    assert len({graph.hash for graph in graphs}) == 1
    stored = graphs[0].features
    assert stored.dtype == np.float32
    assert np.array_equal(stored.toarray() if graphs[0].is_sparse else stored, dense)


def test_repeated_and_explicit_zero_entries_do_not_count():
    rows, columns = np.zeros(8, int), np.array([0] * 4 + [1] * 4)
    features = sp.coo_array((np.array([1.0] * 4 + [0.0] * 4), (rows, columns)), shape=(2, 4))
    canonical = np.array([[4.0, 0, 0, 0], [0, 0, 0, 0]])
    graph = build_graph([[0], [1]], features)
    assert graph.is_sparse
    assert graph.features.nnz == 1
    assert graph.hash == build_graph([[0], [1]], canonical).hash


def test_checking_sparse_features_leaves_the_argument_alone():
    features = sp.coo_array((np.array([1.0, 1.0]), ([0, 0], [1, 1])), shape=(2, 20))
    check_features(features, 2)
    assert features.nnz == 2


def test_ids():
    assert build_graph(TRIANGLE).ids.tolist() == [0, 1, 2]
    assert build_graph(TRIANGLE, ids=[7, -3, 5]).ids.dtype == np.int64
    assert build_graph(TRIANGLE, ids=["a", 1, (2, 3)]).ids.tolist() == ["a", "1", "(2, 3)"]
    assert build_graph(TRIANGLE, ids=[1, 2, 2**64]).ids.tolist() == ["1", "2", str(2**64)]


def test_ids_must_be_one_per_node_and_unique():
    with pytest.raises(GraphError, match="2 ids for 3 nodes"):
        build_graph(TRIANGLE, ids=["a", "b"])
    with pytest.raises(GraphError, match="'1' occurs more than once"):
        build_graph(TRIANGLE, ids=[1, "1", "b"])


def test_names_of_a_table_are_kept():
    table = pd.DataFrame({"b": [1.0, 2, 3], "a": [0.5, 0, 1]})
    assert build_graph(TRIANGLE, table).columns == ("b", "a")
    assert build_graph(TRIANGLE, table, columns=["x", "y"]).columns == ("x", "y")
    assert build_graph(TRIANGLE, table.set_axis([0, 1], axis=1)).columns is None


def test_columns_of_a_table_may_be_of_several_kinds():
    table = pd.DataFrame({"a": [0.5, 2, 3], "b": [True, False, True], "c": pd.array([1, 2, 3], "Int64")})
    assert build_graph(TRIANGLE, table).features.tolist() == [[0.5, 1, 1], [2, 0, 2], [3, 1, 3]]


@pytest.mark.parametrize(("kind", "missing"), [("Int64", pd.NA), ("boolean", None), ("Float32", np.nan)])
def test_missing_cell_of_a_table_is_named(kind, missing):
    table = pd.DataFrame({"a": [0.5, 2, 3], "b": pd.array([1, missing, 0], kind)})
    with pytest.raises(FeatureError, match="row 1, column 1 is nan"):
        build_graph(TRIANGLE, table)


@pytest.mark.parametrize("column", [["x", "y", "z"], pd.to_datetime(["2020"] * 3), [1j, 0, 0]])
def test_column_that_is_no_number_is_named(column):
    with pytest.raises(FeatureError, match=r"feature column 'b' is .*; turn it into numbers or leave it out"):
        build_graph(TRIANGLE, pd.DataFrame({"a": [0.5, 2, 3], "b": column}))


def test_column_names():
    features = np.ones((3, 2))
    assert build_graph(TRIANGLE, features, columns=["a", "b"]).columns == ("a", "b")
    with pytest.raises(FeatureError, match="3 column names for 2"):
        build_graph(TRIANGLE, features, columns=["a", "b", "c"])
    with pytest.raises(FeatureError, match="unique"):
        build_graph(TRIANGLE, features, columns=["a", "a"])


@pytest.mark.parametrize(
    ("labels", "values", "classes"),
    [
        ([2, 0, -5], [2, 0, -1], None),
        ([True, False, True], [1, 0, 1], None),
        ([1.0, np.nan, 3.0], [1, -1, 3], None),
        ([10**12, -1, 7], [1, -1, 0], ("7", "1000000000000")),
        ([1990, 1992, 1990], [0, 1, 0], ("1990", "1992")),
        (["b", "", "a"], [1, -1, 0], ("a", "b")),
        (np.array(["x", None, "x"], object), [0, -1, 0], ("x",)),
        ([0.5, 1.5, np.nan], [0, 1, -1], ("0.5", "1.5")),
    ],
)
def test_labels_are_encoded(labels, values, classes):
    encoded, names = encode_labels(labels, 3)
    assert encoded.tolist() == values
    assert encoded.dtype == np.int64
    assert names == classes


def test_number_of_classes():
    assert build_graph(TRIANGLE).num_classes == 0
    assert build_graph(TRIANGLE, labels=[0, 4, -1]).num_classes == 5
    assert build_graph(TRIANGLE, labels=["a", "b", "a"]).num_classes == 2


@pytest.mark.parametrize("labels", [[0, 1], [[0], [1], [2]]])
def test_labels_must_be_one_per_node(labels):
    with pytest.raises(LabelError, match=r"one value per node.*for 3 nodes"):
        build_graph(TRIANGLE, labels=labels)


def test_split_is_sorted_disjoint_and_hashed():
    split = Split([3, 1], [0], [2])
    assert split.train.tolist() == [1, 3]
    assert split.hash == Split([1, 3], [0], [2]).hash
    assert len({split.hash, Split([1], [0, 3], [2]).hash, Split([1], [3, 0], []).hash}) == 3
    with pytest.raises(LabelError, match="disjoint"):
        Split([0, 1], [1], [])
    with pytest.raises(LabelError, match="disjoint"):
        Split([0, 0], [1], [])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_a_split_takes_masks(kind):
    masks = [[False, True, False, True], [True, False, False, False], [False, False, True, False]]
    assert Split(*map(kind, masks)).hash == Split([1, 3], [0], [2]).hash


def test_masks_of_a_split_are_as_long_as_the_graph():
    with pytest.raises(LabelError, match=r"lengths \[2, 3\]"):
        Split([True, False], [False, True, False], [])
    with pytest.raises(LabelError, match="for 2 nodes, and the graph has 4"):
        build_graph([[0, 1], [2, 3]], num_nodes=4, split=Split([True, False], [False, True], []))


@pytest.mark.parametrize("part", [np.ones((3, 2), bool), np.arange(4).reshape(2, 2), 3])
def test_part_of_a_split_has_one_dimension(part):
    with pytest.raises(LabelError, match="the val part has shape"):
        Split([], part, [])


@pytest.mark.parametrize(
    ("split", "part", "bad"),
    [
        (Split([0, 3], [1], [2]), "train", 3),
        (Split([0], [1, 7, 9], []), "val", 7),
        (Split([0], [1], [-1, 2]), "test", -1),
    ],
)
def test_split_outside_the_graph_is_named(split, part, bad):
    message = f"the {part} part of the split names node {bad}, but nodes run from 0 to 2; give the positions"
    with pytest.raises(LabelError, match=message):
        build_graph(TRIANGLE, split=split)
    with pytest.raises(LabelError, match=message):
        build_graph(TRIANGLE).with_labels([0, 1, 1], split)


def test_split_may_be_partial_or_reach_the_last_node():
    for split in (Split([], [], []), Split([2], [], []), Split([0], [1], [2])):
        assert build_graph(TRIANGLE, split=split).split is split


def test_with_features_and_with_labels_return_checked_copies():
    graph = build_graph(TRIANGLE)
    assert graph.with_features(np.ones((3, 2)), ["a", "b"]).columns == ("a", "b")
    assert graph.features is None
    with pytest.raises(FeatureError, match="2 feature rows for 3 nodes"):
        graph.with_features(np.ones((2, 2)))
    split = Split([0], [1], [2])
    labelled = graph.with_labels(["b", "a", "b"], split)
    assert (labelled.labels.tolist(), labelled.classes, labelled.split) == ([1, 0, 1], ("a", "b"), split)
    with pytest.raises(LabelError, match="one value per node"):
        graph.with_labels([1])


@pytest.mark.parametrize("share", [0.05, 0.9])
def test_subgraph_equals_the_graph_built_from_the_same_content(share):
    generator = np.random.default_rng(1)
    edges = generator.integers(0, 20, (2, 60))
    graph = build_graph(
        edges, matrix_with_share(share), weights=generator.choice([1, 2], 60), ids=range(100, 120), labels=range(20)
    )
    nodes = np.array([7, 3, 12, 0, 19])
    sub = graph.subgraph(nodes)
    same = build_graph(
        sp.csr_array(graph.adjacency.toarray()[np.ix_(nodes, nodes)]),
        matrix_with_share(share)[nodes],
        ids=100 + nodes,
    )
    assert sub.hash == same.hash
    assert sub.labels.tolist() == nodes.tolist()


def test_subgraph_takes_the_canonical_form_of_its_own_content():
    features = np.zeros((20, 4))
    features[3] = features[7] = 1
    weights = np.array([1.0, 5.0])
    graph = build_graph([[3, 0], [7, 1]], features, weights=weights)
    sub = graph.subgraph([3, 7])
    assert graph.is_sparse
    assert not sub.is_sparse
    assert sub.weights is None
    assert sub.hash == build_graph([[0], [1]], np.ones((2, 4)), ids=[3, 7]).hash


@pytest.mark.parametrize("nodes", [[], [0, 0], [-1], [3]])
def test_subgraph_needs_distinct_known_nodes(nodes):
    with pytest.raises(GraphError, match=r"distinct node indices in 0\.\.2"):
        build_graph(TRIANGLE).subgraph(nodes)


def test_split_is_dropped_by_subgraph():
    assert build_graph(TRIANGLE, split=Split([0], [1], [2])).subgraph([0, 1]).split is None


def test_hash_sees_structure_weights_features_and_ids_but_not_the_name():
    features = np.eye(3, 5)
    base = build_graph(TRIANGLE, features)
    others = [
        build_graph(TRIANGLE[:, :2], features),
        build_graph(TRIANGLE, features, weights=[1, 1, 2]),
        build_graph(TRIANGLE, features * 2),
        build_graph(TRIANGLE, np.eye(3, 6)),
        build_graph(TRIANGLE),
        build_graph(TRIANGLE, features, ids=[0, 1, 3]),
    ]
    assert len({graph.hash for graph in [base, *others]}) == 7
    assert build_graph(TRIANGLE, features, name="other").hash == base.hash


def test_repr_counts():
    text = repr(build_graph(TRIANGLE, np.ones((3, 2)), labels=[0, 1, 1], name="t"))
    assert text == "Graph(t: 3 nodes, 3 undirected edges, 2 dense features, 2 classes)"


def test_repr_says_weighted_where_weights_differ_from_one():
    assert "3 undirected weighted edges" in repr(build_graph(TRIANGLE, weights=[1, 1, 2]))


node = st.integers(0, 9)
weighted_edges = st.lists(st.tuples(node, node, st.sampled_from([0.5, 1.0, 2.0])), min_size=1, max_size=30)


@settings(deadline=None, derandomize=True)
@given(weighted_edges, st.data())
def test_order_direction_and_repeats_of_edges_do_not_matter(edges, data):
    order = data.draw(st.permutations(range(len(edges))))
    repeats = data.draw(st.lists(st.sampled_from(edges), max_size=10))
    flips = data.draw(st.lists(st.booleans(), min_size=len(edges) + len(repeats), max_size=len(edges) + len(repeats)))
    changed = [
        (v, u, w) if flip else (u, v, w)
        for (u, v, w), flip in zip([edges[i] for i in order] + repeats, flips, strict=True)
    ]

    def graph(rows: list[tuple[int, int, float]]) -> Graph:
        source, target, weights = zip(*rows, strict=True)
        return build_graph([source, target], num_nodes=10, weights=weights)

    assert graph(changed).hash == graph(edges).hash


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(node, node), max_size=30))
def test_adjacency_is_symmetric_without_loops(edges):
    adjacency = build_graph(np.array(edges, int).reshape(-1, 2).T, num_nodes=10).adjacency.toarray()
    expected = np.zeros((10, 10))
    for u, v in edges:
        if u != v:
            expected[u, v] = expected[v, u] = 1
    assert np.array_equal(adjacency, expected)


def test_ids_and_nodes_in_tensors_and_masks():
    ids = torch.tensor([10, 20, 30])
    assert build_graph([[0, 1, 1], [1, 2, 2]], ids=ids, num_nodes=3).ids.tolist() == [10, 20, 30]
    with pytest.raises(GraphError, match="flatnonzero"):
        build_graph([[0, 1, 1], [1, 2, 2]], num_nodes=3).subgraph(np.array([True, False, True]))


def test_two_edges_are_sources_above_targets_and_that_is_said(caplog):
    caplog.set_level("INFO")
    assert build_graph([[0, 1], [2, 3]]).adjacency.toarray()[[0, 1], [2, 3]].tolist() == [1, 1]
    assert "sources above targets" in caplog.text
