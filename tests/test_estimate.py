"""The estimate follows the graph and the settings, and is near a training that really happens."""

from __future__ import annotations

import json
import time
from dataclasses import fields

import numpy as np
import pytest
import torch

from spikegcl.config import Config, preset
from spikegcl.datasets import load_dataset
from spikegcl.errors import GraphError
from spikegcl.estimate import Machine, Work, count_bytes, count_work, estimate, probe_machine
from spikegcl.graph import build_graph
from spikegcl.groups import make_groups
from spikegcl.model import SpikeGCL
from spikegcl.objectives import Margin
from spikegcl.session import Session

ONES = Machine(Work(*(1.0 for _ in fields(Work))), startup=10.0, resident_mb=100.0)


def graph(nodes=300, features=20):
    return load_dataset(f"sbm:nodes={nodes},classes=3,num_features={features}")


def model(of, **settings):
    config = Config(**{"steps": 4, "channels": 8, **settings})
    return SpikeGCL(config, make_groups(of, config.steps))


def test_sizes_are_exact():
    found = estimate(graph(), Config(steps=5, channels=7, epochs=3), ONES)
    assert (found.nodes, found.features, found.bits, found.steps) == (300, 20, 35, 5)
    assert found.codes_mb == 300 * 5 / 1e6
    assert found.float_mb == 300 * 35 * 4 / 1e6
    assert found.parameters == sum(p.numel() for p in model(graph(), steps=5, channels=7).parameters())
    assert found.seconds_train == found.seconds_prepare + 3 * found.seconds_epoch


def test_work_of_one_embedding_is_what_the_operations_say():
    from spikegcl.energy import measure

    of = graph()
    one = model(of)
    work, operations = count_work(one, of, backward=False), measure(one, of)
    assert work.products == sum(layer.products for layer in operations.layers[:2])
    assert work.edges == operations.layers[1].aggregation  # P X is kept, so only the second layer goes over the edges
    assert work.fired == 300 * one.bits


def test_columns_that_are_read_in_place_are_not_counted_as_copies():
    of = graph()
    session = Session(of, preset("compact", of.name).replace(bits=64), 0, "cpu")
    assert count_work(session.model, session.graph, backward=False).gathered == 0
    assert count_work(model(of, dropout=0.5), of, backward=True).gathered > 0


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ({}, {"layers": 3}),
        ({}, {"channels": 16}),
        ({}, {"encoder": "sage"}),
        ({}, {"encoder": "gat"}),
        ({"dropout": 0.0}, {"dropout": 0.5}),
    ],
    ids=str,
)
def test_more_to_do_takes_longer(smaller, larger):
    of = graph()
    few, many = (
        count_work(model(of, **settings), of, backward=True).seconds(ONES.rates) for settings in (smaller, larger)
    )
    assert few < many


def test_memory_grows_with_the_graph_but_not_with_the_steps():
    small, large = graph(300), graph(600)
    assert count_bytes(model(small), small) < count_bytes(model(large), large)
    # Steps beyond a chunk are not alive together: what grows is parameters and one byte a bit, not activations.
    wide = graph(20_000, 64)
    few, many = (count_bytes(model(wide, steps=steps, channels=64), wide) for steps in (8, 32))
    assert many < 1.3 * few


def test_validation_embeds_every_epoch():
    last, chosen = (
        estimate(graph(), Config(steps=4, channels=8, epochs=9, select=select), ONES)
        for select in ("last", "validation")
    )
    assert chosen.seconds_embed == pytest.approx(10 * last.seconds_embed)


def test_probe_predicts_an_epoch_within_a_factor_of_four():
    """Looser than benchmarks/estimate.py, and three tries: a neighbour may take the machine during either part."""
    of = graph(8000, 256)
    config = Config(steps=8, threshold=1.0)
    objective = Margin(Session(of, config, 0))
    objective.epoch(1)
    ratios = []
    for epoch in (2, 3, 4):
        machine = probe_machine(0.3)
        assert all(getattr(machine.rates, field.name) >= 0 for field in fields(Work))
        assert machine.resident_mb > 50
        start = time.perf_counter()
        objective.epoch(epoch)
        ratios.append(estimate(of, config, machine).seconds_epoch / (time.perf_counter() - start))
        if 1 / 4 < ratios[-1] < 4:
            return
    pytest.fail(f"estimated / measured: {ratios}")


def test_command(run, tmp_path):
    code, out, _ = run("estimate", "digits", "--set", "epochs=7", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["epochs"], document["bits"], document["nodes"]) == (7, 256, 1797)
    assert {"peak_mb", "seconds_epoch", "seconds_train", "seconds_embed", "codes_mb", "available_mb"} <= set(document)
    code, out, _ = run("estimate", "digits")
    assert code == 0
    assert "one epoch" in out
    (tmp_path / "edges.csv").write_text("a,b\nb,c\nc,d\n")
    assert run("estimate", "edges.csv", "--set", "steps=4", "--json")[0] == 0
    assert run("estimate", "digits", "--set", "steps")[0] == 2
    assert run("estimate", "digits", "--set", "nonsense=1")[0] == 1
    assert run("estimate", "digits", "--preset", "paper")[0] == 1
    assert run("estimate", "digits", "--preset", "contrastive", "--set", "layers=3", "--json")[0] == 0


def test_one_node_is_an_error_before_the_machine_is_probed(monkeypatch):
    monkeypatch.setattr("spikegcl.estimate.probe_machine", lambda: pytest.fail("probed"))
    with pytest.raises(GraphError, match="the graph has one node"):
        estimate(build_graph([], np.ones((1, 4))), Config())


def test_command_knows_one_node_before_it_probes(run, tmp_path, monkeypatch):
    monkeypatch.setattr("spikegcl.estimate.probe_machine", lambda **_: pytest.fail("probed"))
    (tmp_path / "edges.csv").write_text("a,a\n")
    code, _, err = run("estimate", "edges.csv")
    assert (code, "the graph has one node" in err) == (1, True)


def test_probing_leaves_the_random_numbers_of_others_alone():
    state = torch.get_rng_state()
    probe_machine(seconds=0.01)
    assert torch.equal(torch.get_rng_state(), state)
