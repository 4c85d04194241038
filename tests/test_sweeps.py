"""What the tables and figures of SpikeGCL's ablations show of made-up rows, and what their measures return."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from spikegcl.datasets import load_dataset, make_split
from spikegcl.experiments import (
    Choice,
    blocks,
    cka,
    convergence,
    few_labels,
    find_experiment,
    gradients,
    measures,
    sweeps,
    theorem,
    thresholds,
    time_steps,
)
from spikegcl.experiments.drawings import write_drawings
from spikegcl.experiments.rows import Rows
from synthetic import result, write_row

CHOICE = Choice(datasets=("photo",), quick=True, seeds=1)


@pytest.fixture
def rows(tmp_path):
    return Rows(tmp_path / "rows.jsonl")


def fill(rows, name, choice=CHOICE, **more):
    """A made-up result for every cell; two seeds a point apart, and at best half a second an epoch."""
    cells = find_experiment(name).cells(choice)
    for cell in cells:
        if cell.measure == measures.pace:
            write_row(rows, cell, {"epoch_seconds": 0.5})
            write_row(rows, cell, {"epoch_seconds": 0.9}, seed=1)
    for number, cell in enumerate(cell for cell in cells if cell.measure != measures.pace):
        for seed in range(2):
            accuracy = 0.8 + 0.01 * number + 0.01 * seed
            write_row(rows, cell, result(accuracy, 0.75, bits=960, **more), seed)


def names(drawings):
    return [drawing.name for drawing in drawings]


def test_time_steps_have_a_curve_for_every_method_and_four_panels(rows, tmp_path):
    joules = {"paper-spikes": 1e-6, "paper-full": 2e-6, "all-ops": 3e-6}
    fill(rows, "time-steps", energy=joules, peak_mb=512.0)
    drawings = find_experiment("time-steps").draw(CHOICE, rows)
    assert names(drawings) == ["time-steps", "time-steps-spikegcl", "time-steps-photo"]
    table = drawings[0]
    assert len(table.lines) == len(time_steps.METHODS) * len(time_steps.QUICK_STEPS)
    first = table.records[0]
    assert (first["dataset"], first["method"], first["T"], first["seeds"]) == ("photo", "spikegcl", 5, 2)
    assert first["test accuracy (%)"] == pytest.approx(80.5)
    assert first["untrained (%)"] == pytest.approx(75)
    assert (first["peak memory (GB)"], first["energy, all-ops (mJ)"]) == pytest.approx((0.5, 3e-3))
    assert table.lines[0][4] == "80.50 ± 0.71"
    assert first["seconds per epoch"] == 0.5
    pytest.importorskip("matplotlib")
    assert len(write_drawings(drawings, tmp_path)) == 3 + 2 * 2


@pytest.mark.parametrize("method", time_steps.METHODS)
def test_an_epoch_is_timed_in_a_short_training(method):
    graph = load_dataset("sbm:nodes=120,num_features=32,classes=4")
    choice = Choice(datasets=(graph.name,), methods=(method,), quick=True, seeds=1)
    (cell, *_) = [cell for cell in time_steps.cells(choice) if cell.measure == measures.pace]
    epochs = []
    found = cell.measure(cell, graph, epochs.append, **cell.options)
    assert len(epochs) == cell.settings["epochs"] == sweeps.PACE_EPOCHS
    assert 0 < found["epoch_seconds"] < 10


def test_the_grid_of_time_steps_is_the_papers():
    cells = time_steps.cells(Choice(seeds=1))
    assert Counter(cell.measure for cell in cells) == {measures.accuracy: 5 * 4 * 6, measures.pace: 5 * 4 * 6}
    assert {cell.settings["steps"] for cell in cells} == {5, 10, 15, 20, 25, 30}
    assert time_steps.cells(Choice(methods=("dgi",))) == []


def test_thresholds_show_sparsity_and_what_training_adds(rows, tmp_path):
    fill(rows, "thresholds")
    table, figure = find_experiment("thresholds").draw(CHOICE, rows)
    assert [record["threshold"] for record in table.records] == list(thresholds.QUICK_THRESHOLDS)
    assert table.records[0]["sparsity (% zeros)"] == pytest.approx(60)
    assert table.records[0]["gain (points)"] == pytest.approx(5.5)
    pytest.importorskip("matplotlib")
    write_drawings([figure], tmp_path)


def test_gradients_are_shown_by_step_for_each_neuron_and_training(rows, tmp_path):
    fill(rows, "gradients", gradient_norms=[4.0, 2.0, 1.0], training_mb=7.0)
    table, figure = find_experiment("gradients").draw(CHOICE, rows)
    assert [(r["neuron"], r["training"]) for r in table.records] == [
        (neuron, training) for neuron in gradients.NEURONS for training in gradients.TRAININGS
    ]
    assert [table.records[0][step] for step in ("first step", "middle step", "last step")] == [4, 2, 1]
    assert table.records[0]["first / last"] == 4
    pytest.importorskip("matplotlib")
    write_drawings([figure], tmp_path)


def test_block_lengths_end_with_the_whole_sequence_and_share_rows_with_gradients(rows, tmp_path):
    full = [cell for cell in blocks.cells(Choice(datasets=("photo",), seeds=1)) if cell.settings["neuron"] == "IF"]
    assert [cell.settings["block"] for cell in full] == [1, 2, 4, 8, gradients.END_TO_END]  # of 15 steps
    shared = {cell.hash for cell in gradients.cells(CHOICE)} & {cell.hash for cell in blocks.cells(CHOICE)}
    assert len(shared) == len(blocks.NEURONS) * len(gradients.TRAININGS)
    fill(rows, "blocks", gradient_norms=[4.0, 1.0], training_mb=7.0)
    table, figure = find_experiment("blocks").draw(CHOICE, rows)
    assert [record["B"] for record in table.records] == [1, 4, 15, 1, 4, 15]
    assert (table.records[0]["gradient norm, step 1"], table.records[0]["training memory (MB)"]) == (4, 7)
    pytest.importorskip("matplotlib")
    write_drawings([figure], tmp_path)


def test_without_rows_there_is_a_table_and_no_figure(rows):
    for name in ("time-steps", "thresholds", "convergence", "gradients", "cka", "blocks", "few-labels"):
        assert names(find_experiment(name).draw(CHOICE, rows)) == [name]


def test_convergence_shows_epochs_and_seconds(rows, tmp_path):
    fill(rows, "convergence")
    table, figure = find_experiment("convergence").draw(CHOICE, rows)
    assert [record["epochs"] for record in table.records] == list(convergence.QUICK_EPOCHS) * len(convergence.METHODS)
    assert table.records[0]["seconds per epoch"] == 0.5
    measured = [cell for cell in convergence.cells(CHOICE) if cell.measure == measures.accuracy]
    spiking = [cell for cell in measured if cell.method == "spikegcl"]
    assert {(cell.settings["select"], cell.settings["epochs"]) for cell in spiking} == {
        ("last", epochs) for epochs in convergence.QUICK_EPOCHS
    }
    pytest.importorskip("matplotlib")
    write_drawings([figure], tmp_path)


def test_cka_compares_the_own_step_with_the_others(rows, tmp_path):
    matrices = {"trained": [[0.9, 0.1], [0.3, 0.7]], "untrained": [[0.2, 0.4], [0.2, 0.6]]}
    write_row(rows, cka.cka_cell("photo", CHOICE), result(0.9, 0.8, bits=960, cka=matrices))
    table, figure = find_experiment("cka").draw(CHOICE, rows)
    trained, untrained = table.records
    assert (trained["own step"], trained["other steps"], trained["own step first (%)"]) == pytest.approx(
        (0.8, 0.2, 100)
    )
    assert (untrained["own step first (%)"], untrained["own group first (%)"]) == (50, 100)
    pytest.importorskip("matplotlib")
    write_drawings([figure], tmp_path)


def test_few_labels_show_methods_beside_the_floors_of_spikegcl(rows, tmp_path):
    points = {
        place: {"spikegcl": 0.5 + 0.1 * at, "untrained": 0.4, "projection": 0.3}
        for at, place in enumerate(few_labels.PLACES)
    }
    write_row(rows, few_labels.few_labels_cell("spikegcl", "photo", CHOICE), {"points": points})
    floats = {place: {"dgi": 0.6, "dgi+sign": 0.55, "untrained": 0.1} for place in few_labels.PLACES}
    write_row(rows, few_labels.few_labels_cell("dgi", "photo", CHOICE), {"points": floats})
    table, figure = find_experiment("few-labels").draw(CHOICE, rows)
    assert [list(line) for line in table.lines[:2]] == [
        ["photo", "spikegcl", "50.0 (1)", "60.0 (1)", "70.0 (1)", "80.0 (1)"],
        ["photo", "untrained", *["40.0 (1)"] * 4],
    ]
    assert [line[1] for line in table.lines] == ["spikegcl", "untrained", "projection", "dgi", "dgi+sign"]
    pytest.importorskip("matplotlib")
    write_drawings([figure], tmp_path)


def test_no_label_chooses_what_few_labels_judge():
    cells = {cell.method: cell for cell in few_labels.cells(CHOICE)}
    assert cells["spikegcl"].settings["select"] == "last"
    assert cells["ppr-itq"].settings["bits"] == 960
    assert few_labels.cells(Choice(methods=("gcn",))) == []


def test_a_thinned_split_has_few_training_nodes_of_each_class_and_the_same_others():
    graph = load_dataset("sbm:nodes=400,classes=4")
    split = make_split(graph, 0)
    thin, more = (measures.thin(split, graph.labels, count, key=7) for count in (2, 5))
    assert np.bincount(graph.labels[thin.train]).tolist() == [2] * 4
    assert set(thin.train) < set(more.train) < set(split.train)
    assert thin.test is not None and (thin.test == split.test).all() and (thin.val == split.val).all()


def test_the_theorem_is_judged_case_by_case(rows, tmp_path):
    def case(kind, steps, error, fails, layers=2):
        return {"kind": kind, "nodes": 9, "layers": layers, "width": 4, "steps": steps, "degree": 3.0, "ratio": 2.0,
                "low": -0.5, "high": 0.9, "error": error, "bound": 0.5, "fails": fails}  # fmt: skip

    cases = [case("positive", 4, 0.4, []), case("positive", 8, 0.2, []), case("signed", 4, 0.9, ["membrane"])]
    cases.append(case("positive", 8, 0.001, [], layers=1))  # of another depth: it says nothing about the exponent
    write_row(rows, theorem.random_cell("photo", CHOICE), {"kappa": 2.0, "cases": cases})
    point = {"error": 0.5, "bound": 1.0, "mean error": 0.1, "mean target": 0.3, "low": -9.0, "high": 2.0,
             "fails": ["membrane"], "test accuracy, rates": 0.8, "test accuracy, network": 0.9}  # fmt: skip
    write_row(rows, theorem.trained_cell("photo", CHOICE), {"points": {"4": point, "64": point}})
    summary, failures, networks, figure = find_experiment("theorem").draw(CHOICE, rows)
    one, positive, signed = summary.records
    assert (one["layers"], one["cases"], one["exponent"]) == (1, 1, None)
    assert (positive["cases"], positive["all hold"], positive["of these within"], positive["exponent"]) == (2, 2, 2, -1)
    assert (signed["all hold"], signed["membrane fails"], signed["of these beyond"]) == (0, 1, 1)
    assert summary.notes[0].startswith("4 random cases, kappa = 2. All assumptions hold in 3 of them; in 3 of these")
    assert [(one["fails"], one["error / bound"]) for one in failures.records] == [("membrane", 1.8)]
    assert [one["T"] for one in networks.records] == [4, 64]
    pytest.importorskip("matplotlib")
    write_drawings([figure], tmp_path)


def test_the_theorem_has_hundreds_of_cases_even_with_one_seed():
    assert theorem.random_cell("cora", CHOICE).options["cases"] >= 200


@pytest.mark.parametrize("name", ["gradients", "cka", "few-labels", "theorem"])
def test_measures_of_a_tiny_graph_can_be_drawn(rows, tmp_path, name):
    methods = () if name == "theorem" else ("spikegcl",)
    choice = Choice(datasets=("sbm:nodes=120,num_features=32,classes=4",), methods=methods, quick=True, seeds=1)
    graph = load_dataset(choice.datasets[0])
    experiment = find_experiment(name)
    for cell in experiment.cells(choice)[:2]:
        options = {**cell.options, "cases": 20} if "cases" in cell.options else cell.options
        found = cell.measure(cell, graph, lambda epoch: None, **options)
        write_row(rows, cell, json.loads(json.dumps(found)))
    table = experiment.draw(choice, rows)[0]
    assert table.records
    assert "" not in {text for line in table.lines for text in line[:2]}


def test_a_stopped_cell_is_named_under_the_table(rows):
    stopped = [cell for cell in time_steps.cells(CHOICE) if cell.measure == measures.accuracy][-1]
    write_row(rows, stopped, None, status="stopped", reason="stopped at 9 GB")
    table = find_experiment("time-steps").draw(CHOICE, rows)[0]
    assert f"{stopped.method} on photo at {stopped.settings['steps']}: stopped at 9 GB." in table.notes
