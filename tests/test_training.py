"""Training: determinism, what it learns from, early stopping, selection, calibration, memory of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikegcl import floors
from spikegcl.baselines import find_method
from spikegcl.checkpoint import model_hash
from spikegcl.config import Config, preset
from spikegcl.datasets import load_dataset, make_split
from spikegcl.errors import ConfigError, FeatureError, LabelError, TrainingError
from spikegcl.graph import build_graph
from spikegcl.propagate import plain_torch
from spikegcl.protocol import firing, run_seed, summarise
from spikegcl.runs import Source, open_run, write_run
from spikegcl.session import Session
from spikegcl.structural import structural_features
from spikegcl.training import embed_graph, train

SMALL = Config(steps=4, channels=16, epochs=3, threshold=0.05)


@pytest.fixture(scope="module")
def graph():
    return load_dataset("sbm:nodes=400,classes=4,num_features=32")


@pytest.mark.parametrize("neuron", ["IF", "LIF", "PLIF"])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_every_encoder_and_neuron_learns(graph, encoder, neuron):
    """The loss falls: scores of the graph and of its corruption move apart."""
    trained = train(graph, SMALL.replace(encoder=encoder, neuron=neuron, epochs=25, margin=1.0, tau=1.5), seed=0)
    losses = [epoch.loss for epoch in trained.history]
    assert np.mean(losses[-3:]) < 0.97 * losses[0]


@pytest.mark.parametrize("channels", [5, 16])  # products of few columns are a case of their own (features.NARROW)
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_codes_do_not_depend_on_the_order_in_which_training_keeps_the_nodes(graph, encoder, channels):
    session = Session(graph, SMALL.replace(encoder=encoder, channels=channels), 0)
    session.warm_up(2)
    assert not np.array_equal(session.whole.nodes, np.arange(graph.num_nodes))
    assert np.array_equal(session.embed(), embed_graph(session.model, graph))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_warming_up_moves_the_statistics_that_passes_through_all_layers_move(graph, layers, monkeypatch):
    quick, whole = (Session(graph, SMALL.replace(layers=layers), 0) for _ in range(2))
    start = {name: value.clone() for name, value in quick.model.encoder.named_buffers()}
    monkeypatch.setattr(whole.model.encoder, "watch", whole.model.encoder.currents)
    for session in (quick, whole):
        session.warm_up(2)
    for (name, moved), (_, expected) in zip(
        quick.model.encoder.named_buffers(), whole.model.encoder.named_buffers(), strict=True
    ):
        assert torch.equal(moved, expected)
        assert not torch.equal(moved, start[name])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_same_seed_same_bits_other_seed_other_bits(graph, layers):
    config = SMALL.replace(layers=layers)
    first, again, other = (train(graph, config, seed=seed).codes for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_labels_of_test_nodes_change_nothing(graph):
    split = make_split(graph, 0)
    labels = graph.labels.copy()
    labels[split.test] = (labels[split.test] + 1) % 4
    config = SMALL.replace(select="validation")
    codes = [train(g, config, seed=0, split=split).codes for g in (graph, graph.with_labels(labels))]
    assert np.array_equal(*codes)


def test_without_selection_labels_are_not_needed(graph):
    unlabelled = build_graph(graph.adjacency, graph.features)
    assert np.array_equal(train(unlabelled, SMALL, seed=0).codes, train(graph, SMALL, seed=0).codes)
    with pytest.raises(LabelError, match="select=last"):
        train(unlabelled, SMALL.replace(select="validation"))


def test_selection_keeps_the_epoch_with_the_best_validation_accuracy(graph):
    seen = []
    trained = train(
        graph, SMALL.replace(select="validation", epochs=4), split=make_split(graph, 0), on_epoch=seen.append
    )
    accuracies = [epoch.val_accuracy for epoch in seen]
    assert trained.epoch == 1 + int(np.argmax(accuracies))
    assert [epoch.epoch for epoch in trained.history] == [1, 2, 3, 4]


def test_early_stopping_on_the_loss(graph):
    trained = train(graph, SMALL.replace(stop="loss", patience=1, epochs=50, lr=0.0, dropout=0.0), seed=0)
    assert len(trained.history) < 50


def test_stopping_on_the_loss_does_not_listen_to_accuracy(graph):
    config = SMALL.replace(stop="loss", patience=3, epochs=40, margin=1.0, lr=0.01)
    alone, judged = (
        train(graph, config.replace(select=select), seed=0, split=make_split(graph, 0))
        for select in ("last", "validation")
    )
    assert [epoch.loss for epoch in alone.history] == [epoch.loss for epoch in judged.history]
    accuracies = [epoch.val_accuracy for epoch in judged.history]
    assert judged.epoch == 1 + int(np.argmax(accuracies))


@pytest.mark.parametrize("threshold", [0.0, 0.05], ids=["calibrated", "given"])
def test_training_that_learns_nothing_ends_at_the_untrained_floor(graph, threshold, tmp_path):
    config = SMALL.replace(threshold=threshold, lr=0.0, weight_decay=0.0)
    trained = train(graph, config, seed=0)
    floor = floors.untrained(graph, trained.given, 0)
    assert np.array_equal(trained.codes, floor)
    assert np.array_equal(find_method("untrained").fit(graph, config, seed=0).codes, floor)
    write_run(tmp_path, graph, trained, Source(), seed=0, preset="contrastive")
    assert np.array_equal(floors.untrained(graph, open_run(tmp_path).given, 0), floor)


def test_every_step_may_read_all_columns(graph):
    config = SMALL.replace(grouping="all", threshold=0.0)
    for batch_norm in (True, False):
        assert len(train(graph, config.replace(batch_norm=batch_norm), seed=0).history) == 3
    session = Session(graph, config, 0)
    columns = session.whole.negative(1).columns.order
    assert len(columns) == 4 * 32
    assert sorted(set(columns.tolist())) == list(range(32))


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("compact", {"grouping": "chunk"}, "grouping = all"),
        ("compact", {"layers": 2}, "layers = 1"),
        ("compact", {"encoder": "gcn"}, "encoder = linear"),
        ("contrastive", {"objective": "clusters"}, "inputs = components"),
        ("contrastive", {"encoder": "linear"}, "inputs = components"),
    ],
)
def test_settings_that_do_not_work_together(name, changes, reason):
    with pytest.raises(ConfigError, match=reason):
        preset(name, "").replace(**changes)


def test_gradient_norms_have_one_value_a_step_and_are_those_of_autograd(graph, monkeypatch):
    config = SMALL.replace(epochs=1, margin=1.0)
    norms = train(graph, config).history[0].gradient_norms
    assert len(norms) == 4
    assert all(norm > 0 for norm in norms)
    with plain_torch():
        assert train(graph, config).history[0].gradient_norms == pytest.approx(norms, rel=1e-3)
    monkeypatch.setattr("spikegcl.model.CHUNK_FLOATS", 1)
    assert train(graph, config).history[0].gradient_norms == pytest.approx(norms, rel=1e-3)


def test_training_that_diverges_says_so(graph):
    with pytest.raises(TrainingError, match="not finite after epoch"):
        train(graph, SMALL.replace(lr=1e6, weight_decay=1e6, epochs=20))
    with pytest.raises(ConfigError, match="lr"):
        SMALL.replace(lr=1e38)


@pytest.mark.parametrize("changes", [{"threshold": 0.5}, {"grouping": "random"}, {"neuron": "IF"}, {"reset": "zero"}])
def test_models_that_give_other_codes_have_another_hash(graph, changes):
    config = SMALL.replace(epochs=0, neuron="LIF")
    first, other = (train(graph, one).model for one in (config, config.replace(**changes)))
    assert model_hash(first) != model_hash(other)
    assert model_hash(first) == model_hash(train(graph, config.replace(lr=0.5, select="last")).model)


def test_run_folders_of_files_with_any_name_open_again(graph, tmp_path):
    source = Source(edges="data \U0001f4ca \x7f/e.csv")
    write_run(tmp_path, graph, train(graph, SMALL), source, seed=0, preset="contrastive")
    assert open_run(tmp_path).source == source


def test_features_are_required(graph):
    with pytest.raises(FeatureError, match="structural_features"):
        train(build_graph(graph.adjacency), SMALL)


def test_more_steps_than_columns_is_an_error(graph):
    with pytest.raises(ConfigError, match="lower steps"):
        train(graph, SMALL.replace(steps=33))


@pytest.mark.parametrize(
    "name",
    ["digits", "sbm:nodes=600,classes=3,num_features=12", "sbm:nodes=500,num_features=300,active=20,homophily=0.2"],
)
def test_default_preset_fires_between_20_and_60_percent_with_few_dead_bits(name):
    trained = train(load_dataset(name), preset("default", name), seed=0)
    seen = firing(trained.codes, trained.model.bits)
    assert 0.2 <= seen["firing_rate"] <= 0.6
    assert seen["dead_bits"] + seen["constant_bits"] <= 0.05 * trained.model.bits


def test_structural_features_tell_communities_apart_and_follow_the_ids():
    graph = load_dataset("sbm:nodes=600,classes=4,degree=20,homophily=0.9")
    bare = build_graph(graph.adjacency, labels=graph.labels, ids=[f"n{i}" for i in range(600)])
    featured = structural_features(bare, 32)
    order = np.random.default_rng(0).permutation(600)
    moved = structural_features(bare.subgraph(order), 32)
    np.testing.assert_allclose(moved.features, featured.features[order], atol=1e-5)
    judged = run_seed(featured, Config(epochs=3), 0)
    assert judged.row["test_accuracy"] > 0.6


def test_rows_carry_everything_a_number_depends_on(graph):
    rows = [run_seed(graph, SMALL, seed).row for seed in (0, 1)]
    for key in ("method", "dataset", "seed", "split", "config", "graph", "probe", "bits", "parameters", "versions"):
        assert rows[0][key] is not None, key
    assert rows[0]["split"] != rows[1]["split"]
    summary = summarise(rows)
    values = [row["test_accuracy"] for row in rows]
    assert summary["test_accuracy"]["mean"] == pytest.approx(np.mean(values))
    assert summary["test_accuracy"]["std"] == pytest.approx(np.std(values, ddof=1))
    assert set(summary["floors"]) == {"untrained", "projection"}


def test_parameter_count_is_the_published_formula(data_root):
    """Authors' model on Cora (methods of the paper): dH + nH + 2d + 2H + H^2 + H + HO + 1."""
    session = Session(load_dataset("cora", data_root), preset("paper", "cora"), 0)
    d, n, h, o = 1433, 63, 64, 2
    assert sum(p.numel() for p in session.model.parameters()) == d * h + n * h + 2 * d + 2 * h + h * h + h + h * o + 1
