"""New nodes: when codes of old nodes stay identical, how columns are matched, what `spikegcl embed` reports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from commands import FAST, options
from spikegcl.augment import clean_view
from spikegcl.codes import Codes, open_codes
from spikegcl.config import Config, preset
from spikegcl.datasets import load_dataset
from spikegcl.errors import CodesError, FeatureError
from spikegcl.features import Features
from spikegcl.graph import build_graph
from spikegcl.inductive import compare_codes, match_columns, training_order
from spikegcl.propagate import make_operator
from spikegcl.readers import write_graph
from spikegcl.structural import structural_features
from spikegcl.training import embed_graph, train

SMALL = Config(steps=4, channels=16, epochs=2, threshold=0.05)
ENCODERS = ("gcn", "sage", "gat")


def edge_list(graph):
    return np.stack([np.repeat(np.arange(graph.num_nodes), graph.degrees), graph.indices])


def grown(graph, count, edges):
    """``graph`` with ``count`` more nodes of random features and the given edges (2 x M) besides its own."""
    more = np.random.default_rng(count).random((count, graph.num_features), dtype=np.float32)
    features = sp.vstack([sp.csr_array(graph.features), sp.csr_array(more * (more > 0.8) if graph.is_sparse else more)])
    return build_graph(np.concatenate([edge_list(graph), edges], 1), features)


def currents(model, graph):
    """What enters the neuron, N x steps*channels: it shows changes too small to flip a bit."""
    view = clean_view(make_operator(graph, model.encoder.operator_kind), Features(graph), model.encoder.groups)
    model.eval()
    with torch.no_grad():
        return model.encoder.currents(view, 0, model.steps).dense().numpy()


# ------------------------------------------------------------------------------------ codes of old nodes


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("name", ["sbm:nodes=400,classes=4,num_features=64", "digits"])
def test_a_component_that_touches_nobody_flips_no_bit(name, encoder):
    """However large: 20000 nodes make the model take fewer steps at a time than in training."""
    graph = load_dataset(name)
    trained = train(graph, SMALL.replace(encoder=encoder))
    for count in (1, 7, 500, 20_000):
        own = graph.num_nodes + np.random.default_rng(0).integers(0, count, (2, 3 * count))
        codes = embed_graph(trained.model, grown(graph, count, own))
        assert np.array_equal(codes[: graph.num_nodes], trained.codes), count


PATH = 60


def path_graph(features, extra=(), weights=None):
    edges = np.concatenate(
        [np.stack([np.arange(PATH - 1), np.arange(1, PATH)]), np.array(extra, int).reshape(2, -1)], 1
    )
    return build_graph(edges, features, weights=weights)


def changed_distances(model, before, after, touched):
    """Distances (on the path) from the touched nodes at which currents differ."""
    nodes = np.flatnonzero((currents(model, before) != currents(model, after)).any(1))
    return {int(min(abs(node - end) for end in touched)) for node in nodes}


@pytest.fixture(scope="module")
def path_features():
    return np.random.default_rng(0).normal(size=(PATH, 16)).astype(np.float32)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_how_far_a_change_reaches(path_features, encoder, layers):
    """The radii of docs/new-nodes.md: features L hops; edges L hops in gcn (because of degrees), else L - 1."""
    before = path_graph(path_features)
    trained = train(before, SMALL.replace(encoder=encoder, layers=layers, steps=2, epochs=1))
    radius = layers if encoder == "gcn" else layers - 1

    edge = path_graph(path_features, [[25], [45]])
    assert changed_distances(trained.model, before, edge, (25, 45)) == set(range(radius + 1))
    assert np.array_equal(embed_graph(trained.model, edge)[: 25 - radius], trained.codes[: 25 - radius])

    weights = np.ones(PATH - 1)
    weights[30] = 3.0
    heavier = path_graph(path_features, weights=weights)
    expected = set() if encoder == "gat" else set(range(radius + 1))
    assert changed_distances(trained.model, before, heavier, (30, 31)) == expected

    other = path_features.copy()
    other[30] += 5
    assert changed_distances(trained.model, before, path_graph(other), (30,)) == set(range(layers + 1))


@pytest.mark.parametrize("layers", [1, 2])
def test_structural_columns_reach_three_hops_further(layers):
    before = structural_features(path_graph(None))
    trained = train(before, SMALL.replace(layers=layers, epochs=1))
    after = path_graph(None, [[25], [45]])
    nodes = np.flatnonzero((embed_graph(trained.model, after, before.columns) != trained.codes).any(1))
    distances = {int(min(abs(node - 25), abs(node - 45))) for node in nodes}
    assert distances
    assert max(distances) <= layers + 3
    reached = changed_distances(trained.model, before, structural_features(after), (25, 45))
    assert max(reached) == layers + 3


CHAIN = 300


def chain(features, linked=1, new=False):
    """Nodes linked to the next ``linked`` ones; with ``new`` one more, which hangs on the middle."""
    pairs = [np.stack([np.arange(CHAIN - hop), np.arange(hop, CHAIN)]) for hop in range(1, linked + 1)]
    edges = np.concatenate([*pairs, *([[[CHAIN // 2], [CHAIN]]] if new else [])], 1)
    graph = build_graph(edges, None if features is None else features[: CHAIN + new])
    return structural_features(graph) if features is None else graph


@pytest.mark.parametrize(
    ("propagation", "columns", "linked", "reads"),
    [
        ("pagerank", 16, 1, 10),
        ("hops", 16, 1, 2),
        ("none", 16, 1, 0),
        ("auto", 16, 4, 5),  # half of the bits read features after many hops
        ("auto", 16, 2, 13),  # half of the bits read the structure
        ("auto", 0, 1, 13),
    ],
)
def test_compact_reads_as_many_hops_as_its_propagation(propagation, columns, linked, reads):
    """The hops of docs/new-nodes.md: of an added node, inputs of codes show that far, and no code farther away."""
    features = np.random.default_rng(0).normal(size=(CHAIN + 1, columns)).astype(np.float32) if columns else None
    before, after = (chain(features, linked, new) for new in (False, True))
    trained = train(before, preset("compact", "").replace(bits=64, propagation=propagation))
    inputs, codes = trained.model.inputs, embed_graph(trained.model, after, before.columns)
    distance = -(-np.abs(np.arange(CHAIN) - CHAIN // 2) // linked)
    moved = (inputs.apply(after)[:CHAIN] != inputs.apply(before)).any(1)
    assert set(distance[moved].tolist()) == (set(range(reads + 1)) if reads else set())
    far = distance > reads
    assert np.array_equal(codes[:CHAIN][far], trained.codes[far])


@pytest.mark.parametrize(("propagation", "reads"), [("pagerank", 10), ("hops", 2), ("none", 0)])
def test_compact_reads_features_as_far_as_its_propagation(propagation, reads):
    features = np.random.default_rng(0).normal(size=(CHAIN, 16)).astype(np.float32)
    model = train(chain(features), preset("compact", "").replace(bits=64, propagation=propagation)).model
    other = features.copy()
    other[CHAIN // 2] += 5
    moved = np.flatnonzero((model.inputs.apply(chain(other)) != model.inputs.apply(chain(features))).any(1))
    assert set(np.abs(moved - CHAIN // 2).tolist()) == set(range(reads + 1))


def test_a_new_neighbour_may_flip_bits_nearby_only(community):
    trained = train(community, SMALL)
    codes = embed_graph(trained.model, grown(community, 1, np.array([[400], [0]])))
    near = {0} | set(community.indices[community.indptr[0] : community.indptr[1]].tolist())
    for node in list(near):
        near |= set(community.indices[community.indptr[node] : community.indptr[node + 1]].tolist())
    flipped = set(np.flatnonzero((codes[:400] != trained.codes).any(1)).tolist())
    assert flipped
    assert flipped <= near


@pytest.mark.parametrize("structural", [False, True])
def test_the_order_of_rows_does_not_matter_when_training_ids_are_known(community, structural):
    graph = build_graph(community.adjacency, None if structural else community.features)
    ready = structural_features(graph, 32) if structural else graph
    trained = train(ready, SMALL)
    order = np.random.default_rng(0).permutation(400)
    moved = embed_graph(trained.model, graph.subgraph(order), ready.columns, known=graph.ids)
    assert np.array_equal(moved, trained.codes[order])


def test_training_order_puts_old_nodes_first_and_leaves_a_kept_order_alone():
    known = np.array(["c", "a", "b"], object)
    assert training_order(np.array(["x", "a", "b", "c", "y"], object), known).tolist() == [3, 1, 2, 0, 4]
    assert training_order(np.array(["x", "c", "b", "y"], object), known) is None
    assert training_order(np.array([3, 1, 2]), np.array(["1", "2", "3"], object)).tolist() == [1, 2, 0]


# ------------------------------------------------------------------------------------------ comparing codes


def test_compare_codes_counts_nodes_and_bits():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (6, 13))
    before = Codes.from_bits(bits[:5], ids=list("abcde"))
    after_bits = bits[[5, 3, 1, 0]]
    after_bits[1, [0, 12]] ^= 1
    change = compare_codes(before, Codes.from_bits(after_bits, ids=list("xdba")))
    assert (change.nodes_new, change.nodes_old, change.nodes_gone) == (1, 3, 2)
    assert (change.nodes_flipped, change.bits_flipped) == (1, 2)
    assert change.share_flipped == pytest.approx(2 / 39)


def test_compare_codes_without_common_nodes_and_of_other_widths():
    before = Codes.from_bits(np.ones((2, 3)), ids=[1, 2])
    assert compare_codes(before, Codes.from_bits(np.ones((1, 3)), ids=["z"])).share_flipped == 0
    assert compare_codes(before, Codes.from_bits(np.ones((1, 3)), ids=["2"])).nodes_old == 1
    with pytest.raises(CodesError, match="cannot be compared"):
        compare_codes(before, Codes.from_bits(np.ones((2, 4)), ids=[1, 2]))


# ---------------------------------------------------------------------------------------- matching columns


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_are_matched_by_name_in_any_order(sparse):
    rng = np.random.default_rng(0)
    features = rng.random((20, 12)).astype(np.float32) * (rng.random((20, 12)) < (0.2 if sparse else 1))
    names = [f"f{i}" for i in range(12)]
    order = rng.permutation(12)
    edges = [[0], [1]]
    moved = build_graph(edges, features[:, order], columns=[names[i] for i in order])
    assert moved.is_sparse == sparse
    matched = match_columns(moved, names, 12)
    expected = build_graph(edges, features, columns=names)
    assert matched.by == "name"
    assert matched.graph.hash == expected.hash
    assert match_columns(expected, names, 12).graph is expected

    fewer = build_graph(edges, np.hstack([features[:, 2:], features[:, :1]]), columns=[*names[2:], "stranger"])
    with pytest.raises(FeatureError, match=r"2 of the model's 12 feature columns are missing: f0, f1;.*--fill-missing"):
        match_columns(fewer, names, 12)
    filled = match_columns(fewer, names, 12, fill_missing="zero")
    assert (filled.missing, filled.unknown) == (("f0", "f1"), ("stranger",))
    values = filled.graph.features.toarray() if filled.graph.is_sparse else filled.graph.features
    assert not values[:, :2].any()
    np.testing.assert_array_equal(values[:, 2:], features[:, 2:])


def test_columns_without_names_are_matched_by_count():
    graph = build_graph([[0], [1]], np.ones((2, 3)))
    assert match_columns(graph, None, 3).by == "count"
    assert match_columns(graph, ["a", "b", "c"], 3).by == "count"
    with pytest.raises(FeatureError, match="trained on 4 feature columns, this graph has 3"):
        match_columns(graph, None, 4)


def test_columns_that_cannot_be_matched_are_errors():
    names = [f"f{i}" for i in range(30)]
    graph = build_graph([[0], [1]], np.ones((2, 1)), columns=["other"])
    with pytest.raises(FeatureError, match=r"f9 and 20 more; add them$"):
        match_columns(graph, names, 30, fill_missing="zero")
    with pytest.raises(FeatureError, match="this graph has none"):
        match_columns(build_graph([[0], [1]]), names, 30)


def test_structural_columns_refuse_ids_of_another_kind():
    graph = build_graph([[0, 1], [1, 2]], ids=["1", "2", "x"])
    columns = structural_features(graph, 8).columns
    assert match_columns(graph, columns, 8).by == "structure"
    with pytest.raises(FeatureError, match="integers in training but are strings here"):
        match_columns(graph, columns, 8, known=np.array([1, 2]))


# -------------------------------------------------------------------------------------------- the command


@pytest.fixture
def new(run, community, tmp_path):
    """Arguments that name another part of ``community``, back to front: 20 nodes of the run are gone, 100 are new."""
    paths = write_graph(community.subgraph(np.arange(20, 400)[::-1]), tmp_path / "new")
    return options(paths, labels=None)


def test_embed_says_which_nodes_are_new_and_which_bits_flipped(run, trained_run, new):
    code, out, _ = run("embed", trained_run, *new, "--json")
    document = json.loads(out)
    assert code == 0
    change = document["change"]
    assert (change["nodes_new"], change["nodes_old"], change["nodes_gone"]) == (100, 280, 20)
    before, after = open_codes(trained_run / "codes.arrow"), open_codes("codes.arrow")
    kept = [key for key in after.ids if int(key.split()[1]) < 300]
    flips = (before.select(kept).to_numpy() != after.select(kept).to_numpy()).sum(1)
    assert change["bits_flipped"] == flips.sum() > 0
    assert change["nodes_flipped"] == (flips > 0).sum()
    assert change["share_flipped"] == pytest.approx(flips.sum() / (280 * 32))
    assert document["columns"] == {"matched_by": "name", "missing": [], "unknown": []}
    assert document["graph_changed"] is True

    code, out, _ = run("embed", trained_run, *new)
    assert code == 0
    assert "100 new, 280 old, 20 gone" in out
    assert f"{change['bits_flipped']} bits flipped" in out


def test_embed_matches_columns_by_name_and_names_the_missing(run, trained_run, community, tmp_path):
    order = np.random.default_rng(0).permutation(64)
    dense = community.features.toarray()
    moved = build_graph(
        community.adjacency,
        np.hstack([dense[:, order], np.ones((400, 1))]),
        ids=community.ids,
        columns=[*(community.columns[i] for i in order), "stranger"],
    )
    files = write_graph(moved, tmp_path / "moved")
    code, out, err = run("embed", trained_run, *options(files, labels=None), "--json", "-o", "a.arrow")
    assert code == 0
    assert json.loads(out)["columns"]["unknown"] == ["stranger"]
    plain = write_graph(community, tmp_path / "plain")
    assert run("embed", trained_run, *options(plain, labels=None), "-o", "b.arrow")[0] == 0
    assert np.array_equal(open_codes("a.arrow").packed, open_codes("b.arrow").packed)

    lacking = build_graph(community.adjacency, dense[:, 2:], ids=community.ids, columns=community.columns[2:])
    files = write_graph(lacking, tmp_path / "lacking")
    command = ["embed", trained_run, *options(files, labels=None), "--json", "-o", "c.arrow"]
    code, out, err = run(*command)
    assert (code, out) == (1, "")
    assert "2 of the model's 64 feature columns are missing: word 0, word 1" in err
    code, out, _ = run(*command, "--fill-missing", "zero")
    assert code == 0
    assert json.loads(out)["columns"]["missing"] == ["word 0", "word 1"]


def test_embed_computes_structural_columns_for_runs_trained_on_edges_alone(run, files, tmp_path):
    edges = files[1]["edges"]
    assert run("train", edges, *FAST, "--no-report", "-o", "bare")[0] == 0
    lines = edges.read_text()
    apart = tmp_path / "apart.csv"
    apart.write_text(lines + "\n".join(f'"a{i}","a{i + 1}"' for i in range(50)) + "\n")
    code, out, _ = run("embed", "bare", apart, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["columns"]["matched_by"] == "structure"
    assert document["change"]["nodes_new"] == 51
    assert document["change"]["bits_flipped"] == 0
    code, out, _ = run("embed", "bare", "--json")
    assert json.loads(out)["graph_changed"] is False
    assert json.loads(out)["change"]["bits_flipped"] == 0


def test_embed_writes_damaged_codes_again_as_the_error_says(run, trained_run):
    shutil.copytree(trained_run, "r")
    codes = Path("r/codes.arrow")
    whole = codes.read_bytes()
    codes.write_bytes(whole[:-1000])
    code, _, err = run("search", "r", "--id", "node 0")
    assert code == 1 and "`spikegcl embed RUN -o r/codes.arrow`" in err
    assert run("embed", "r", "-o", "r/codes.arrow")[0] == 0
    assert codes.read_bytes() == whole


def test_embed_does_not_put_codes_of_another_graph_in_the_place_of_damaged_ones(run, trained_run, new):
    shutil.copytree(trained_run, "r")
    Path("r/codes.arrow").write_bytes(b"broken")
    code, _, err = run("embed", "r", *new, "-o", "r/codes.arrow")
    assert code == 1 and "choose another --output" in err


def test_embed_repairs_lost_codes_and_refuses_half_a_graph(run, trained_run, new):
    shutil.copytree(trained_run, "r")
    Path("r/codes.arrow").unlink()
    code, out, _ = run("embed", "r", "-o", "r/codes.arrow", "--json")
    assert code == 0
    assert json.loads(out)["change"] is None
    code, out, _ = run("embed", "r", "--json")
    assert json.loads(out)["change"]["bits_flipped"] == 0
    edges, *features = new
    assert run("embed", "r", *features)[0] == 2
    assert run("embed", "r", edges, "--fill-missing", "mean")[0] == 2
    code, _, err = run("embed", "r", edges)
    assert code == 1
    assert "trained on 64 feature columns" in err


def test_columns_called_by_number_are_matched_in_any_order():
    """A reader does not keep 0, 1, 2, ... in order: it is how a table without names is written."""
    features = np.arange(12, dtype=np.float32).reshape(3, 4) + 1
    turned = ["3", "2", "1", "0"]
    matched = match_columns(build_graph([[0], [1]], features[:, ::-1], columns=turned), None, 4)
    assert matched.by == "name"
    assert (matched.graph.features == features).all()
    assert (match_columns(build_graph([[0], [1]], features), turned, 4).graph.features == features[:, ::-1]).all()


def test_embed_replaces_neither_its_inputs_nor_the_codes_of_the_run(run, files, trained_run, tmp_path):
    shutil.copytree(trained_run, tmp_path / "r")
    before = (tmp_path / "r" / "codes.arrow").read_bytes()
    for output in (tmp_path / "r" / "codes.arrow", files[1]["edges"]):
        code, _, err = run("embed", "r", files[1]["edges"], "--features", files[1]["features"], "-o", output)
        assert code == 1
        assert "choose another --output" in err
    assert (tmp_path / "r" / "codes.arrow").read_bytes() == before
