"""Curves and panels: what tables and figures of sweeps show of synthetic rows."""

from __future__ import annotations

import pytest

from spikegcl.experiments import Choice, blocks, find_experiment, gradients, thresholds, time_steps
from spikegcl.experiments.drawings import write_drawings
from spikegcl.experiments.rows import Rows
from synthetic import result, write_row

CHOICE = Choice(datasets=("photo",), quick=True, seeds=1)


@pytest.fixture
def rows(tmp_path):
    return Rows(tmp_path / "rows.jsonl")


def fill(rows, name, choice=CHOICE, **more):
    """A made-up result for every cell; two seeds a point apart."""
    for number, cell in enumerate(find_experiment(name).cells(choice)):
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
    assert table.lines[0][4] == "80.5 ± 0.71"
    pytest.importorskip("matplotlib")
    assert len(write_drawings(drawings, tmp_path)) == 3 + 2 * 2


def test_the_grid_of_time_steps_is_the_papers():
    cells = time_steps.cells(Choice(seeds=1))
    assert len(cells) == 5 * 4 * 6
    assert {cell.settings["steps"] for cell in cells} == {5, 10, 15, 20, 25, 30}
    assert time_steps.cells(Choice(methods=("dgi",))) == []


def test_thresholds_show_sparsity_and_what_training_adds(rows, tmp_path):
    fill(rows, "thresholds")
    table, figure = find_experiment("thresholds").draw(CHOICE, rows)
    assert [record["threshold"] for record in table.records] == list(thresholds.QUICK_THRESHOLDS)
    assert table.records[0]["sparsity (% zeros)"] == pytest.approx(60)
    assert table.records[0]["gain of training (points)"] == pytest.approx(5.5)
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
    assert (table.records[0]["gradient, first step"], table.records[0]["training memory (MB)"]) == (4, 7)
    pytest.importorskip("matplotlib")
    write_drawings([figure], tmp_path)


def test_without_rows_there_is_a_table_and_no_figure(rows):
    for name in ("time-steps", "thresholds", "gradients", "blocks"):
        assert names(find_experiment(name).draw(CHOICE, rows)) == [name]
