"""Operations are counted right, and the rules give the energies that can be worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spikegcl.baselines import Shape, find_method
from spikegcl.bits import pack
from spikegcl.config import Config, preset
from spikegcl.datasets import DATASETS, load_dataset
from spikegcl.energy import (
    RULES,
    Constants,
    Layer,
    Operations,
    binary_layer,
    count,
    count_spikes,
    dense_layer,
    energies,
    energy,
    measure,
    table,
)
from spikegcl.errors import ConfigError
from spikegcl.groups import make_groups
from spikegcl.model import SpikeGCL
from spikegcl.training import embed_graph, train

UNITS = Constants(mac=1.0, sop=1000.0)


@pytest.fixture(scope="module")
def graph():
    return load_dataset("sbm:nodes=120,classes=3,num_features=20")


def test_rules_charge_what_they_say():
    operations = Operations((Layer("a", 2, 3, 5), Layer("b", spikes=7)), spiking=True)
    expected = {"paper-spikes": 7000.0, "paper-full": 7005.0, "all-ops": 7005.0}
    assert energies(operations, UNITS) == expected
    floats = Operations((Layer("a", 2, 3),))
    assert energies(floats, UNITS) == dict.fromkeys(RULES, 5.0)
    with pytest.raises(ConfigError, match="unknown energy rule"):
        energy(operations, "guess")
    with pytest.raises(ConfigError, match="not negative"):
        Constants(mac=-1.0)


def test_layers_add_up_to_the_whole(graph):
    operations = measure(train(graph, Config(steps=4, channels=8, epochs=1)).model, graph)
    rows = table(operations)
    for rule in RULES:
        assert sum(row["joules"][rule] for row in rows) == pytest.approx(energy(operations, rule))


@pytest.mark.parametrize("channels", [8, 12])
def test_spikes_are_those_of_the_codes(channels):
    spikes = np.random.default_rng(0).random((30, 5, channels)) < 0.3
    packed = pack(spikes.reshape(30, -1))
    assert count_spikes(packed, 5, channels) == tuple(spikes.sum((0, 2)).tolist())


@pytest.mark.parametrize(("encoder", "channels", "moved"), [("gcn", 8, 20), ("gcn", 2, 8), ("sage", 8, 20)])
def test_operations_of_a_pass(graph, encoder, channels, moved):
    """Four groups of five columns: 20 columns travel, or 4 x channels where these are fewer."""
    model = train(graph, Config(steps=4, channels=channels, epochs=1, encoder=encoder)).model
    operations = measure(model, graph)
    first, second, neuron = operations.layers
    entries, matrices = (graph.num_edges, 2) if encoder == "sage" else (graph.num_edges + 120, 1)
    assert first == Layer("layer 1", matrices * 120 * 20 * channels, entries * moved, 4 * 120 * 20)
    assert second == Layer("layer 2", matrices * 120 * 4 * channels**2, 4 * entries * channels)
    assert neuron == Layer(
        "neuron", 120 * 4 * channels, spikes=int(np.unpackbits(embed_graph(model, graph), axis=1).sum())
    )
    assert operations.spikes == sum(operations.spikes_per_step) == neuron.spikes


def test_components_cost_the_same_whoever_reads_them():
    """The lengths of rows are propagated too, and every step encodes each component once."""
    graph = load_dataset("sbm:nodes=120,classes=3,num_features=20,homophily=1,signal=1")  # alike: it is propagated
    compact, other = preset("compact", "").replace(bits=64), find_method("ppr-itq")
    model = train(graph, compact).model
    lengths, components, first, _ = measure(model, graph).layers
    entries = graph.num_edges + 120
    assert lengths == Layer("row lengths", 0, 10 * entries * 20)
    assert components == Layer("components", 120 * 20 * 20, 10 * entries * 20, 120 * 20)
    assert first == Layer("layer 1", 120 * 2 * 20 * 32, 0, 2 * 120 * 20)
    counted = other.operations(Shape.of(graph), other.settings().replace(bits=64))
    assert counted.layers[:2] == (lengths, components)


def test_attention_costs_more_than_the_plain_sum(graph):
    packed = np.zeros((120, 4), np.uint8)
    macs = {}
    for encoder in ("gcn", "gat"):
        config = Config(steps=4, channels=8, encoder=encoder, layers=3)
        macs[encoder] = count(SpikeGCL(config, make_groups(graph, 4)), graph, packed).macs
    assert macs["gat"] > macs["gcn"]


def test_published_figures_for_computers():
    """methods.md 18.3: .081 mJ at rate 1 by spikes alone, 1.21 mJ of encoding, 16.8 mJ of graph convolutions."""
    info, config = DATASETS["computers"], preset("paper", "computers")
    nodes, edges, width, steps, hidden = info.nodes, info.edges, info.features, config.steps, config.channels
    spikes = Operations((Layer("neuron", encoding=steps * nodes * width, spikes=nodes * steps * hidden),), spiking=True)
    assert 1e3 * energy(spikes, "paper-spikes") == pytest.approx(0.0814, abs=5e-5)
    assert 1e3 * (energy(spikes, "paper-full") - energy(spikes, "paper-spikes")) == pytest.approx(1.21, abs=5e-3)
    first = dense_layer("layer 1", nodes, edges, width, hidden, columns=steps * hidden)
    second = dense_layer("layer 2", nodes * steps, edges * steps, hidden, hidden)
    assert 1e3 * energy(Operations((first, second))) == pytest.approx(16.8, abs=0.05)


@pytest.mark.parametrize(("name", "printed"), [("computers", 17), ("photo", 9), ("cs", 152), ("physics", 352)])
def test_the_printed_ccassg_row_follows_from_its_products(name, printed):
    """methods.md 18.4: N (d 256 + 256^2) multiply-accumulates, no aggregation."""
    info = DATASETS[name]
    layers = (dense_layer("1", info.nodes, 0, info.features, 256), dense_layer("2", info.nodes, 0, 256, 256))
    assert 1e3 * energy(Operations(layers)) == pytest.approx(printed, rel=0.03)


def test_one_bit_layers_by_the_papers_formula():
    layer = binary_layer("1", nodes=10, edges=30, width_in=64, width_out=4)
    assert energy(Operations((layer,)), constants=UNITS) == 10 * 64 * 4 / 64 + 2 * 10 * 4 + 30 * 4


def test_columns_are_matched_by_name(graph):
    names = [f"column {number}" for number in range(20)]
    named = graph.with_features(graph.features, names)
    turned = graph.with_features(graph.features[:, ::-1], names[::-1])
    model = train(named, preset("compact", "").replace(bits=64)).model
    assert measure(model, turned, names).spikes_per_step == measure(model, named, names).spikes_per_step


def test_command(run, trained_run):
    code, out, _ = run("energy", trained_run, "--mac", 1, "--sop", 2, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["joules"]["paper-spikes"] == pytest.approx(2e-12 * document["spikes"])
    assert document["joules"]["all-ops"] == pytest.approx(1e-12 * document["macs"] + 2e-12 * document["spikes"])
    assert len(document["spikes_per_step"]) == 4
    metrics = json.loads((trained_run / "metrics.json").read_text())
    assert document["firing_rate"] == pytest.approx(metrics["firing_rate"])
    code, out, _ = run("energy", trained_run)
    assert code == 0
    assert all(word in out for word in ("components", "layer 1", "neuron", "paper-full", "firing rate"))
    assert run("energy", trained_run, "--mac", -1)[0] == 2
