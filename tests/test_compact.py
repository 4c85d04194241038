"""The compact preset: components as inputs, channels with fixed firing rates, and everything codes are used for."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from spikegcl import export
from spikegcl.baselines import find_method
from spikegcl.bits import unpack
from spikegcl.checkpoint import load_model, save_model
from spikegcl.closed_forms import FEW_COMPONENTS, SINGLE_RATE, SINGLE_SHARES, fit_channels, fit_itq, fit_medians
from spikegcl.components import FAR, OWN, PPR, blank_components, fit_components
from spikegcl.config import MARGIN, Config, fit_to_graph, preset, unread
from spikegcl.datasets import load_dataset, make_split
from spikegcl.energy import count, energies
from spikegcl.errors import ConfigError, FeatureError
from spikegcl.estimate import Machine, Work, estimate
from spikegcl.estimator import SpikeGCLEmbedder
from spikegcl.floors import projection
from spikegcl.graph import build_graph
from spikegcl.objectives import Clustering, Clusters
from spikegcl.probes import linear_probe
from spikegcl.protocol import run_seed
from spikegcl.session import Session
from spikegcl.sources import SMOOTH, Source, Sources, choose_sources, deviations, fit_sources
from spikegcl.structural import structural_features
from spikegcl.training import embed_graph, train

COMPACT = preset("compact", "")
ONE = COMPACT.replace(bits=64, propagation="pagerank")  # one source


@pytest.fixture(scope="module")
def graph():
    return load_dataset("sbm:nodes=600,classes=4,num_features=200,active=8")


@pytest.fixture(scope="module")
def trained(graph):
    return train(graph, ONE, seed=0)


@pytest.mark.parametrize(
    ("bits", "steps", "channels"),
    [(256, 8, 32), (64, 2, 32), (100, 4, 25), (20, 1, 20), (127, 1, 127), (3, 1, 3), (1031, 1, 1031), (1028, 4, 257)],
)
def test_channels_are_the_divisor_nearest_to_the_configured_ones_and_not_far_below(graph, bits, steps, channels):
    settled = fit_to_graph(COMPACT.replace(bits=bits), graph)
    assert (settled.steps, settled.channels) == (steps, channels)


@pytest.mark.parametrize("channels", [32, 64])
def test_multiples_of_eight_bits_have_the_divisor_nearest_to_the_configured_channels(graph, channels):
    for bits in (*range(8, 4097, 8), *(2**power for power in range(21))):
        divisors = [count for count in range(1, 2049) if bits % count == 0]
        nearest = min(divisors, key=lambda count: abs(np.log(count / channels)))
        settled = fit_to_graph(COMPACT.replace(bits=bits, channels=channels), graph)
        assert (settled.steps, settled.channels) == (bits // nearest, nearest)


def test_bits_make_no_more_steps_than_there_are_columns_for_them():
    narrow = build_graph([[0], [1]], np.ones((2, 3)))
    settled = fit_to_graph(Config(bits=256), narrow)
    assert (settled.steps, settled.channels) == (2, 128)


# Another value of every setting that some model of components does not read, or reads in training alone.
OTHER = {
    "activation": "relu", "edge_drop": 0.6, "dropout": 0.5, "margin": 0.5, "head_width": 8, "shuffle": False,
    "weight_decay": 0.5, "block": 2, "patience": 1, "threshold": 2.0, "firing_rate": 0.2, "reset": "zero", "lr": 0.1,
}  # fmt: skip


def small_codes(**settings):
    """Codes of a small graph in four steps, which a neuron with memory links."""
    graph = load_dataset("sbm:nodes=80,classes=3,num_features=30,degree=6")
    return train(graph, COMPACT.replace(steps=4, channels=4, **settings)).codes


@pytest.mark.parametrize(
    "given", [{}, {"epochs": 2}, {"tau": 2.0}, {"neuron": "IF"}, {"objective": "margin", "epochs": 2}]
)
def test_settings_that_are_not_read_change_no_code(given):
    others = {name: OTHER[name] for name in unread(COMPACT.replace(**given))}
    assert np.array_equal(small_codes(**given, **others), small_codes(**given))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"epochs": 2}, "lr"),
        ({"tau": 2.0}, "threshold"),
        ({"neuron": "IF"}, "reset"),
        ({"tau": 2.0, "threshold": 0.0}, "firing_rate"),
        ({"neuron": "PLIF", "objective": "margin", "epochs": 2, "lr": 0.1}, "threshold"),
        *(({"objective": "margin", "epochs": 2, "lr": 0.1}, name) for name in sorted(MARGIN - {"block"})),
    ],
)
def test_settings_that_are_read_change_codes(given, name):
    assert name not in unread(COMPACT.replace(**given))
    assert not np.array_equal(small_codes(**{**given, name: OTHER[name]}), small_codes(**given))


def fires_as_planned(codes, bits=64, single=8):
    """Every eighth bit fires at a fifth of the nodes, the others at half."""
    rates = unpack(codes, bits).mean(0)
    fifth = np.abs(rates - 0.2) <= 1 / len(codes)
    return fifth.sum() == single and (np.abs(rates[~fifth] - 0.5) <= 1 / len(codes)).all()


def test_every_bit_fires_at_its_share_of_the_training_nodes(trained):
    assert fires_as_planned(trained.codes)
    first = unpack(trained.codes, 64)[:, :32].mean(0)  # the first step alone is a code of the same kind
    assert (first < 0.3).sum() == 4


def test_codes_of_one_seed_are_the_same_and_survive_a_file(graph, trained, tmp_path):
    assert np.array_equal(train(graph, ONE, seed=0).codes, trained.codes)
    save_model(trained.model, tmp_path / "m.safetensors", None)
    assert np.array_equal(embed_graph(load_model(tmp_path / "m.safetensors")[0], graph), trained.codes)


def test_a_component_that_touches_nobody_flips_no_bit(graph, trained):
    other = load_dataset("sbm:nodes=97,classes=2,num_features=200,active=8")
    edges, more = (np.stack(one.adjacency.nonzero()) for one in (graph, other))
    both = build_graph(
        np.concatenate([edges, more + graph.num_nodes], 1),
        np.concatenate([graph.features.toarray(), other.features.toarray()]),
    )
    assert np.array_equal(embed_graph(trained.model, both)[: graph.num_nodes], trained.codes)


def test_the_random_projection_stands_features_far_from_zero():
    digits = load_dataset("digits")
    far = replace(digits, features=digits.features + np.float32(1e5))
    flipped = np.unpackbits(projection(digits, 64, 0) ^ projection(far, 64, 0)).mean()
    assert flipped < 0.1  # what float32 loses of the sums; half would be another code


def test_digits_in_16_bits_beat_a_random_projection_of_as_many():
    digits = load_dataset("digits")
    split = make_split(digits, 0)
    codes = train(digits, COMPACT.replace(bits=16), seed=0).codes
    found, floor = (
        linear_probe(packed, digits.labels, split, kind="logreg", bits=16).test_accuracy
        for packed in (codes, projection(digits, 16, 0))
    )
    assert found > floor + 0.01


def test_training_lowers_the_loss_and_leaves_firing_rates_in_place(graph):
    config = ONE.replace(epochs=4)
    longer = train(graph, config, seed=0)
    assert longer.history[-1].loss < 0.8 * longer.history[0].loss
    assert len(longer.history[0].gradient_norms) == longer.model.steps
    assert fires_as_planned(longer.codes)
    assert np.array_equal(train(graph, config, seed=0).codes, longer.codes)


def test_the_cluster_loss_is_the_mean_cross_entropy_of_linear_maps(graph):
    objective = Clusters(Session(graph, COMPACT.replace(bits=64, epochs=1), 0))
    current = objective._current(objective.inputs)
    loss = objective._loss(current, np.arange(graph.num_nodes))
    assert float(loss.detach()) == pytest.approx(1.0)  # maps that are zero predict uniformly: log K / log K
    assert current.mean(0).abs().max() < 1e-4


def test_memberships_are_a_softmax_of_squared_distances():
    found = Clustering(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), 5.0).memberships(torch.tensor([[3.0, 0.0, 99.0]]))
    weights = np.exp([-9 / 5, -16 / 5])
    assert found.numpy() == pytest.approx(weights[None] / weights.sum())


def test_a_single_column_channel_follows_its_column():
    """With all components the channel is the column itself, so it fires exactly where the column is largest."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((50, 3)).astype(np.float32) * [3, 2, 1]
    axes = np.linalg.qr(rng.standard_normal((3, 3)))[0].astype(np.float32)
    components = replace(blank_components(3, 3), directions=axes)
    directions, rates = fit_channels(Sources((components,), 3), scores, min(SINGLE_SHARES))
    columns = scores @ axes.T
    widest = np.argsort(-columns.var(0))
    assert np.allclose(scores @ directions[:, rates == np.float32(SINGLE_RATE)], columns[:, widest], atol=1e-5)


@pytest.mark.parametrize(("bits", "expected"), [(63, 0), (64, 8), (127, 15), (128, 32), (512, 128)])
def test_longer_codes_have_more_single_columns(bits, expected):
    scores = np.random.default_rng(0).standard_normal((40, 160)).astype(np.float32)
    components = replace(blank_components(160, 160), directions=np.eye(160, dtype=np.float32))
    assert np.sum(fit_channels(Sources((components,), 3), scores, bits)[1] == np.float32(SINGLE_RATE)) == expected


@pytest.mark.parametrize("columns", [1, 2, FEW_COMPONENTS - 1, FEW_COMPONENTS])
def test_rotations_of_few_components_fire_at_several_shares(columns):
    scores = np.random.default_rng(0).standard_normal((50, columns)).astype(np.float32)
    components = replace(blank_components(columns, columns), directions=np.eye(columns, dtype=np.float32))
    rates = fit_channels(Sources((components,), 3), scores, 64)[1]
    rotated = rates[rates != np.float32(SINGLE_RATE)]
    assert len(np.unique(rotated)) == (1 if columns >= FEW_COMPONENTS else -(-len(rotated) // columns))
    assert np.isclose(rotated.mean(), 0.5, atol=0.1)
    assert rotated.min() >= 0.05
    assert rotated.max() <= 0.95


def test_one_real_column_gives_codes_that_tell_values_apart():
    rng = np.random.default_rng(0)
    graph = build_graph(rng.integers(0, 200, (400, 2)), rng.standard_normal((200, 1)))
    codes = train(graph, COMPACT.replace(bits=64), seed=0).codes
    assert len(np.unique(codes, axis=0)) > 30


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("kind", ["flags", "amounts"])
def test_few_columns_are_no_text_and_keep_their_values(columns, kind):
    """As words, rows of unit length, one column has two codes: the feature is there or not."""
    rng = np.random.default_rng(0)
    values = (rng.random((200, columns)) < 0.2) * (1.0 if kind == "flags" else rng.integers(1, 90, (200, columns)))
    values = values[np.argsort(values[:, 0])]  # neighbours are alike, so that features are propagated
    sources = rng.integers(0, 170, 800)
    edges = np.column_stack([sources, sources + rng.integers(1, 30, 800)])
    config = COMPACT.replace(propagation="pagerank")
    codes, doubled = (train(build_graph(edges, given), config, seed=0).codes for given in (values, 2 * values))
    assert len(np.unique(codes, axis=0)) == len(np.unique(doubled, axis=0)) > 50


def test_words_that_all_nodes_but_one_have_still_tell_it_apart():
    features = np.ones((50, 9), np.float32)
    features[0] = 0
    codes = train(build_graph(np.empty((0, 2), int), features), COMPACT.replace(bits=64), seed=0).codes
    assert (codes[0] != codes[1]).any()


@pytest.mark.parametrize("value", [1.0, 0.3], ids=["words", "real"])
def test_features_that_tell_no_nodes_apart_are_named(graph, value, caplog):
    alike = replace(graph, features=np.full((graph.num_nodes, 9), value, np.float32))
    codes = train(alike, COMPACT.replace(propagation="none"), seed=0).codes
    assert "all nodes have the same code" in caplog.text
    assert (codes == codes[0]).all()


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_a_membrane_with_memory_also_fires_at_its_share(graph, tau):
    assert fires_as_planned(train(graph, ONE.replace(tau=tau), seed=0).codes)


def test_energy_and_nir_replay(graph, trained):
    operations = count(trained.model, graph, trained.codes)
    named = {layer.name: layer for layer in operations.layers}
    components = trained.model.encoder.groups.columns
    assert named["components"].products == graph.num_nodes * graph.num_features * components
    assert named["components"].aggregation == 10 * (graph.num_edges + graph.num_nodes) * components
    assert operations.spikes == int(unpack(trained.codes, 64).sum())
    assert energies(operations)["paper-spikes"] == pytest.approx(3.7e-12 * operations.spikes)
    currents = export.currents(trained.model, graph)
    spikes = currents >= np.float32(trained.config.threshold)  # memoryless: what the exported LIF with tau = 1 does
    assert np.array_equal(spikes.reshape(graph.num_nodes, -1), unpack(trained.codes, 64).astype(bool))
    assert export.nir_graph(trained.model).nodes


@pytest.mark.parametrize(
    "make",
    [
        lambda: load_dataset("digits"),
        lambda: structural_features(build_graph(np.random.default_rng(0).integers(0, 80, (2, 300)), num_nodes=80)),
        lambda: load_dataset("sbm:nodes=300,classes=3,num_features=40,homophily=0.1"),
        lambda: build_graph(np.zeros((2, 0), int), np.random.default_rng(0).standard_normal((30, 5))),
    ],
    ids=["dense", "structure only", "heterophily", "no edges"],
)
def test_one_setting_works_on_every_kind_of_graph(make):
    graph = make()
    trained = train(graph, COMPACT.replace(bits=64), seed=0)
    rates = unpack(trained.codes, 64).mean(0)
    assert len(trained.codes) == graph.num_nodes
    assert ((rates > 0) & (rates < 1)).all()
    assert 0.3 < rates.mean() < 0.6


def test_an_estimate_grows_with_bits_and_counts_the_model_that_is_trained(graph, trained):
    machine = Machine(Work(*([1e-9] * len(fields(Work)))), startup=0.1, resident_mb=100.0)
    small, large = (estimate(graph, COMPACT.replace(bits=bits), machine) for bits in (64, 1024))
    assert small.parameters == sum(p.numel() for p in trained.model.parameters())
    assert (small.bits, small.codes_mb) == (64, graph.num_nodes * 8 / 1e6)
    assert small.peak_mb < large.peak_mb
    assert small.seconds_total < large.seconds_total


@pytest.mark.parametrize(("homophily", "chosen", "other"), [(0.8, PPR, OWN), (0.0, OWN, PPR)])
def test_features_are_propagated_only_where_neighbours_are_alike_and_that_is_better(homophily, chosen, other):
    graph = load_dataset(f"sbm:nodes=3000,classes=4,homophily={homophily}")

    def accuracy(scores):
        values = fit_itq(scores, 64).apply(scores)
        codes = fit_medians(values).apply(values)
        return linear_probe(codes, graph.labels, make_split(graph, 0), kind="logreg", bits=64).val_accuracy

    found = fit_sources(graph, 128)[0]
    assert found.parts[-1].propagation == chosen
    assert ("no more alike" in " ".join(found.describe())) is (chosen == OWN)
    better, worse = (accuracy(fit_components(graph, 128, propagation=one)[1]) for one in (chosen, other))
    assert better > worse + 0.05


def with_numbers(graph, columns, strength):
    """Gaussian columns, whose means differ by class with deviation ``strength``."""
    rng = np.random.default_rng(1)
    means = strength * rng.standard_normal((graph.num_classes, columns))[graph.labels]
    return graph.with_features((means + rng.standard_normal(means.shape)).astype(np.float32))


@pytest.mark.parametrize(
    ("columns", "strength", "edges", "source"),
    [(2, 0, "degree=8,homophily=0.8", Source(FAR, structural=True)), (32, 0.15, "degree=20", Source(SMOOTH))],
    ids=["no features to speak of", "weak features"],
)
def test_half_of_the_bits_read_what_tells_hidden_edges_much_better(columns, strength, edges, source):
    graph = with_numbers(load_dataset(f"sbm:nodes=1500,classes=4,{edges}"), columns, strength)
    chosen = choose_sources(graph)
    assert chosen[0] == source
    assert len(chosen) == 2

    def accuracy(**changes):
        codes = train(graph, COMPACT.replace(bits=64, **changes)).codes
        return linear_probe(codes, graph.labels, make_split(graph, 0), kind="logreg", bits=64).val_accuracy

    base = "none" if chosen[1].propagation == OWN else "pagerank"
    assert accuracy() > accuracy(propagation=base) + 0.2


def test_two_sources_survive_a_file_and_are_counted(tmp_path):
    graph = with_numbers(load_dataset("sbm:nodes=600,classes=4,degree=12,homophily=0.8"), 2, 0)
    trained = train(graph, COMPACT.replace(bits=65), seed=0)
    sources = trained.model.inputs
    assert [share for *_, share in sources.shares(65)] == [33, 32]
    assert sources.read_structure
    assert "half of the bits" in sources.describe()[-1]
    save_model(trained.model, tmp_path / "m.safetensors", None)
    assert np.array_equal(embed_graph(load_model(tmp_path / "m.safetensors")[0], graph), trained.codes)
    names = [layer.name for layer in count(trained.model, graph, trained.codes).layers]
    assert {"sketch", "components", "components 2"} < set(names)
    renamed = replace(graph, ids=np.array([f"n{number}" for number in range(600)]))
    with pytest.raises(FeatureError, match="by its node ids"):
        embed_graph(trained.model, renamed, known=graph.ids)


@pytest.fixture(scope="module")
def mixed():
    """A graph half of whose bits read the structure, and its model."""
    graph = with_numbers(load_dataset("sbm:nodes=600,classes=4,degree=12,homophily=0.8"), 2, 0)
    return graph, train(graph, COMPACT.replace(bits=256), seed=0)


def test_bits_of_two_sources_are_spread_over_the_steps_and_fire_at_their_shares(mixed):
    trained = mixed[1]
    encoder, structure = trained.model.encoder, trained.model.inputs.shares(256)[0][1]
    weight = encoder.first.weight.detach().view(trained.model.steps, encoder.groups.columns, -1)
    reads = (weight[:, structure] != 0).any(1).sum(1)  # channels of every step that read the structure
    assert reads.tolist() == [16] * trained.model.steps
    rates = unpack(trained.codes, 256).mean(0)
    assert ((rates > 0) & (rates < 1)).all()


def test_two_sources_go_through_parts_onnx_and_the_estimator(mixed, tmp_path):
    graph, trained = mixed
    assert np.array_equal(train(graph, COMPACT.replace(bits=256, parts=4), seed=0).codes, trained.codes)
    assert np.array_equal(embed_graph(trained.model, graph, parts=3), trained.codes)
    onnxruntime = pytest.importorskip("onnxruntime")
    export.export_onnx(trained.model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (codes,) = session.run(["codes"], export.onnx_inputs(trained.model, graph))
    assert np.unpackbits(codes ^ trained.codes).mean() < 1e-4
    named = replace(graph, ids=np.array([f"n{number}" for number in range(600)]))
    embedder = SpikeGCLEmbedder(bits=64)
    assert np.array_equal(embedder.fit_transform(named), embedder.transform(named))


def test_moved_rows_and_far_new_nodes_leave_the_codes_of_two_sources(mixed):
    graph, trained = mixed
    order = np.random.default_rng(0).permutation(600)
    assert np.array_equal(embed_graph(trained.model, graph.subgraph(order), known=graph.ids), trained.codes[order])
    rows, columns = graph.adjacency.nonzero()
    more = np.stack([np.append(rows, [600, 601]), np.append(columns, [601, 602])])
    both = build_graph(more, np.vstack([graph.features, np.zeros((3, 2), np.float32)]))
    assert np.array_equal(embed_graph(trained.model, both, known=graph.ids)[:600], trained.codes)


def test_a_graph_of_other_nodes_is_named_where_bits_read_the_structure(mixed, caplog):
    graph, trained = mixed
    embed_graph(trained.model, graph, known=graph.ids)
    assert "mean nothing" not in caplog.text
    embed_graph(trained.model, replace(graph, ids=graph.ids + 600), known=graph.ids)
    assert "mean nothing" in caplog.text


def test_features_that_are_the_same_everywhere_get_no_bits_beside_the_structure():
    graph = load_dataset("sbm:nodes=600,classes=4,degree=12,homophily=0.8")
    same = graph.with_features(np.full((600, 9), 0.3, np.float32))
    assert choose_sources(same) == (Source(FAR, structural=True),)
    trained = train(same, COMPACT.replace(bits=64), seed=0)
    rates = unpack(trained.codes, 64).mean(0)
    assert ((rates > 0) & (rates < 1)).all()
    assert trained.model.num_features == 9
    assert "all bits" in " ".join(trained.model.inputs.describe())


def test_one_bit_has_one_source_and_parameters_are_those_of_the_model(mixed):
    assert len(fit_sources(mixed[0], 1)[0].parts) == 1
    judged = run_seed(mixed[0], COMPACT.replace(bits=64), 0)
    assert judged.row["parameters"] == sum(p.numel() for p in judged.trained.model.parameters())
    assert set(judged.row["floors"]) == {"untrained", "ppr-itq", "projection"}


def test_structure_of_few_linked_nodes_is_not_asked():
    graph = load_dataset("sbm:nodes=300,classes=3,degree=12,homophily=0.9")
    rows, columns = graph.adjacency.nonzero()
    features = np.random.default_rng(0).standard_normal((900, 2), dtype=np.float32)
    assert len(choose_sources(build_graph(np.stack([rows, columns]), features[:300]))) == 2
    assert len(choose_sources(build_graph(np.stack([rows, columns]), features, num_nodes=900))) == 1


def test_the_unit_of_weights_decides_nothing():
    graph = load_dataset("sbm:nodes=600,classes=4,degree=12,homophily=0.8")
    weights = np.where(np.add(*graph.adjacency.nonzero()) % 2, 1.0, 3.0)
    edges = np.stack(graph.adjacency.nonzero())
    graphs = [build_graph(edges, graph.features, weights=weights * unit) for unit in (1, 1e-18, 1e18)]
    values = np.random.default_rng(0).standard_normal((600, 8), dtype=np.float32)
    first, *others = (deviations(one, values) for one in graphs)
    assert others == pytest.approx([first, first], rel=1e-3)


def test_degrees_alone_are_no_structure():
    """Hubs share neighbours by chance: the ends of random edges do too."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        ends = np.repeat(np.arange(1500), np.minimum(rng.pareto(1.2, 1500) + 1, 200).astype(int) * 2)
        rng.shuffle(ends)
        graph = build_graph(ends[: len(ends) // 2 * 2].reshape(2, -1), rng.standard_normal((1500, 16)), num_nodes=1500)
        assert choose_sources(graph) == (Source(OWN),)


def test_structural_columns_go_further_than_features():
    graph = load_dataset("sbm:nodes=1000,classes=4,degree=4,homophily=0.8")
    edges = structural_features(replace(graph, features=None, columns=None))
    assert choose_sources(edges) == (Source(FAR),)
    config = COMPACT.replace(bits=64)

    def accuracy(**changes):
        codes = train(edges, config.replace(**changes)).codes
        return linear_probe(codes, graph.labels, make_split(graph, 0), kind="logreg", bits=64).val_accuracy

    assert accuracy() > accuracy(propagation="pagerank") + 0.05


@pytest.mark.parametrize(("asked", "hops"), [("pagerank", 10), ("hops", 2), ("none", 0)])
def test_a_propagation_that_is_asked_for_is_used_and_named(asked, hops):
    graph = load_dataset("sbm:nodes=300,classes=4")
    fitted = find_method("compact").fit(graph, COMPACT.replace(propagation=asked), seed=0)
    assert [part.propagation.hops for part in fitted.trained.model.inputs.parts] == [hops]
    assert "as asked" in " ".join(fitted.notes)
    with pytest.raises(ConfigError, match="inputs = components"):
        Config(propagation=asked)


def test_nodes_without_words_and_neighbours_leave_no_bit_constant():
    graph = load_dataset("sbm:nodes=200,classes=4,num_features=64,active=8")
    blank = np.zeros((300, 64), np.float32)  # sixty per cent of the nodes have one and the same value everywhere
    features = np.concatenate([graph.features.toarray(), blank])
    rows, columns = graph.adjacency.nonzero()
    both = build_graph(np.stack([rows, columns]), features)
    rates = unpack(train(both, COMPACT.replace(bits=32), seed=0).codes, 32).mean(0)
    assert ((rates > 0) & (rates < 1)).all()


def test_features_at_the_ends_of_float32_are_scaled_or_refused():
    graph = load_dataset("sbm:nodes=200,classes=4,num_features=64,active=8")
    small = np.random.default_rng(0).normal(size=(200, 12)).astype(np.float32)
    small[:, 3] *= 1e-39
    codes = train(build_graph(graph.adjacency, small), COMPACT.replace(bits=32), seed=0).codes
    assert unpack(codes, 32).any()
    with pytest.raises(FeatureError, match="divide them by a constant"):
        train(build_graph(graph.adjacency, graph.features * np.float32(1e30)), COMPACT.replace(bits=32), seed=0)


def test_edges_that_say_nothing_of_the_features_are_not_followed():
    """Chance decides the sign of the likeness; half of these graphs would be propagated without a margin."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        edges = rng.integers(0, 500, (2, 1500))
        graph = build_graph(edges, rng.standard_normal((500, 16), dtype=np.float32))
        assert choose_sources(graph) == (Source(OWN),)


def test_a_constant_column_has_no_bit(graph):
    dense = np.asarray(graph.features.todense() if graph.is_sparse else graph.features)[:, :12]
    constant = build_graph(graph.adjacency, np.column_stack([dense, np.full(len(dense), 7, np.float32)]))
    components, scores = fit_components(constant, 13)
    assert components.leading_columns(13, scores.var(0)).shape[1] == 12
    ones = unpack(train(constant, COMPACT.replace(bits=64)).codes, 64).mean(0)
    assert ((ones > 0) & (ones < 1)).all()


def test_a_new_node_with_a_strange_value_is_named(caplog):
    graph = load_dataset("digits")
    model = train(graph, COMPACT).model
    embed_graph(model, graph)
    assert "deviations" not in caplog.text
    features = graph.features.copy()
    features[7, 30] = 1e6
    embed_graph(model, graph.with_features(features))
    assert "1 nodes have a feature 1000 deviations" in caplog.text
