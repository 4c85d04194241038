"""Experiments: rows that are never lost or repeated, cells that fail alone, tables that show exactly what rows say."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tiny_measures
from spikegcl.baselines import find_method, method_names
from spikegcl.energy import RULES
from spikegcl.errors import ConfigError, PresetMissingError
from spikegcl.experiments import (
    Cell,
    Choice,
    ablations,
    accuracy,
    choose_settings,
    efficiency,
    experiment_names,
    few_labels,
    find_experiment,
    frontier,
    learning_gain,
    measures,
    method_cell,
    paper,
    runner,
)
from spikegcl.experiments.drawings import Figure, Table, write_drawings, write_page
from spikegcl.experiments.rows import DONE, FAILED, STOPPED, Rows
from spikegcl.experiments.runner import Budget, Monitor, run_cells
from spikegcl.memory import peak_mb
from synthetic import column, result, write_row

GRAPH = "sbm:nodes=200"


@pytest.fixture
def rows(tmp_path):
    return Rows(tmp_path / "rows.jsonl")


@pytest.fixture
def visits(tmp_path):
    return tmp_path / "visits"


class Starts(Monitor):
    def __init__(self):
        self.cells = []

    def started(self, cell):
        self.cells.append(cell)


def visit_cell(visits, **options):
    return Cell(tiny_measures.visit, GRAPH, "visit", options={"visits": str(visits), **options})


# Rows ---------------------------------------------------------------------------------------------------------------


def test_a_row_that_was_cut_off_costs_that_row_only(rows, visits, caplog):
    cells = visit_cell(visits).seeded(3)
    write_row(rows, cells[0], {"value": 0})
    with rows.path.open("a") as file:
        file.write('{"cell": "' + cells[1].hash)
    write_row(rows, cells[2], {"value": 2}, seed=2)
    again = Rows(rows.path)
    assert "line 2" in caplog.text
    assert [again.status(cell) for cell in cells] == [DONE, None, DONE]
    assert again.results(cells[0]) == [{"value": 0}, {"value": 2}]


def test_processes_that_share_the_file_lose_nothing(rows, visits):
    other = Rows(rows.path)
    cell = visit_cell(visits)
    for seed in range(6):
        write_row(rows if seed % 2 else other, cell, {"value": seed}, seed)
    assert [result["value"] for result in Rows(rows.path).results(cell)] == list(range(6))


def test_the_last_row_of_a_cell_counts_and_what_is_forgotten_stays_in_the_file(rows, visits):
    cell, other = visit_cell(visits).seeded(2)
    write_row(rows, cell, {"value": 1})
    write_row(rows, other, {"value": 9}, seed=1)
    rows.forget([cell], done=False)
    assert rows.status(cell) == DONE
    rows.forget([cell], done=True)
    assert (rows.status(cell), rows.status(other)) == (None, DONE)
    write_row(rows, cell, {"value": 2})
    assert [result["value"] for result in Rows(rows.path).results(cell)] == [2, 9]
    assert len(rows.path.read_text().splitlines()) == 3


def test_a_hash_depends_on_all_that_decides_the_row_and_nothing_else():
    base = {
        "measure": tiny_measures.visit,
        "dataset": "cora",
        "method": "gcn",
        "settings": {"a": 1},
        "options": {"b": 2},
        "revision": 1,
    }
    other = {
        "measure": tiny_measures.die,
        "dataset": "photo",
        "method": "gat",
        "settings": {"a": 2},
        "options": {"b": 3},
        "revision": 2,
    }
    assert len({Cell(**base).hash, *(Cell(**{**base, key: other[key]}).hash for key in base)}) == 7
    assert Cell(**base).hash == Cell(**base, seed=3, preset="paper", changes={"a": 1}).hash


# Runner -------------------------------------------------------------------------------------------------------------


def test_finished_cells_are_never_run_again(rows, visits):
    cell = visit_cell(visits)
    run_cells(cell.seeded(2) * 2, rows, Budget(jobs=2))
    first = rows.path.read_text()
    again = Rows(rows.path)
    run_cells(cell.seeded(3), again)
    assert sorted(visits.read_text().split()) == ["visit0", "visit1", "visit2"]
    assert again.path.read_text().startswith(first)
    assert again.results(cell) == Rows(rows.path).results(cell) == [{"nodes": 200, "points": {"8": 0.1 + 0.2}}] * 3


def test_cells_side_by_side_share_the_cores(rows, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cell = Cell(tiny_measures.threads, GRAPH)
    run_cells([cell], rows)
    assert rows.results(cell) == [{"threads": [[1, 1], [1, 1]]}]


def test_the_peak_memory_of_a_cell_is_its_own(rows):
    ballast = np.ones(2**26)  # half a gigabyte
    cell = Cell(tiny_measures.peak, GRAPH)
    run_cells([cell], rows)
    assert rows.results(cell)[0]["peak_mb"] < peak_mb() - ballast.nbytes / 2**20


def test_a_cell_that_fails_is_recorded_and_the_others_go_on(rows, visits):
    crash, die, no_json = (
        Cell(measure, GRAPH) for measure in (tiny_measures.crash, tiny_measures.die, tiny_measures.no_json)
    )
    good = visit_cell(visits)
    run_cells([crash, die, no_json, good], rows, Budget(jobs=2))
    assert [rows.status(cell) for cell in (crash, die, no_json, good)] == [FAILED, FAILED, FAILED, DONE]
    assert rows.find(crash)[0]["reason"] == "ValueError: no such luck"
    assert "tiny_measures.py" in rows.find(crash)[0]["traceback"]
    assert "SIGKILL" in rows.find(die)[0]["reason"]
    assert "not JSON serializable" in rows.find(no_json)[0]["reason"]
    rows.forget([crash], done=False)
    assert rows.status(crash) is None


@pytest.mark.parametrize(
    ("measure", "budget", "reason"),
    [
        (tiny_measures.linger, Budget(cell_minutes=0.05), r"stopped after 0.05 min at epoch \d+ of 9999"),
        (tiny_measures.hoard, Budget(cell_gb=0.3), r"stopped at 0.\d GB, above its 0.3 GB at epoch 0 of 9999"),
    ],
)
def test_a_cell_beyond_its_budget_is_stopped_with_its_other_seeds(rows, measure, budget, reason):
    cells = Cell(measure, GRAPH, settings={"epochs": 9999}).seeded(2)
    run_cells(cells, rows, budget)
    (row,) = rows.find(cells[0])
    assert row["status"] == STOPPED
    assert re.match(reason, row["reason"])
    assert rows.status(cells[1]) == STOPPED


def test_a_cell_that_needs_more_than_its_share_of_memory_runs_again_alone(rows):
    cell, starts = Cell(tiny_measures.hoard, GRAPH, options={"seconds": 2.0}), Starts()
    run_cells(cell.seeded(2), rows, Budget(jobs=2, cell_gb=1.1, share=True), monitor=starts)
    assert [rows.status(one) for one in cell.seeded(2)] == [DONE, DONE]
    assert 2 < len(starts.cells) <= 4


def test_a_cell_beside_no_other_may_take_all_memory(rows):
    cell, starts = Cell(tiny_measures.hoard, GRAPH, options={"seconds": 2.0}), Starts()
    run_cells([cell], rows, Budget(jobs=2, cell_gb=1.1, share=True), monitor=starts)
    assert (rows.status(cell), starts.cells) == (DONE, [cell])


def test_rows_of_code_that_changed_meanwhile_say_so(rows, visits, monkeypatch):
    states = iter(["before", "after"])
    monkeypatch.setattr(runner, "code_state", lambda: next(states))
    cell = visit_cell(visits)
    run_cells([cell], rows)
    assert rows.find(cell)[0]["versions"]["commit"].endswith("+changes")


def test_the_budget_of_a_run_ends_it_and_leaves_no_row(rows, visits):
    started = time.monotonic()
    run_cells(Cell(tiny_measures.linger, GRAPH).seeded(3), rows, Budget(jobs=2, minutes=0.03))
    assert time.monotonic() - started < 60
    assert not rows.path.exists()


def test_a_cell_known_to_take_longer_than_what_is_left_is_not_started(rows, visits):
    cell = visit_cell(visits)
    write_row(rows, cell, {}, seed=7)  # took a minute
    run_cells(cell.seeded(1), rows, Budget(minutes=0.5))
    assert not visits.exists()


def test_a_failed_repetition_hides_no_finished_row(rows):
    cell = Cell(tiny_measures.visit, GRAPH)
    write_row(rows, cell, {"points": 1})
    rows.forget([cell], done=True)
    write_row(rows, cell, None, status=STOPPED, reason="stopped after 5 min")
    assert rows.status(cell) == STOPPED
    again = Rows(rows.path)
    assert (again.status(cell), again.results(cell)) == (DONE, [{"points": 1}])


def test_killed_in_the_middle_it_loses_and_repeats_nothing(rows, visits):
    cell = visit_cell(visits, seconds=2)
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from spikegcl.experiments import Cell
from spikegcl.experiments.rows import Rows
from spikegcl.experiments.runner import run_cells
from tiny_measures import visit
if __name__ == "__main__":
    cell = Cell(visit, {cell.dataset!r}, {cell.method!r}, options={cell.options!r})
    run_cells(cell.seeded(3), Rows(Path({str(rows.path)!r})))
"""
    program = rows.path.with_name("program.py")
    program.write_text(script)
    process = subprocess.Popen([sys.executable, str(program)])
    deadline = time.monotonic() + 300
    while not (visits.exists() and "visit1" in visits.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not psutil.wait_procs(children, timeout=60)[1], "a cell outlived the runner"
    saved = rows.path.read_text()
    assert saved.count("\n") == 1
    again = Rows(rows.path)
    run_cells(cell.seeded(3), again)
    assert again.path.read_text().startswith(saved)
    assert len(again.results(cell)) == 3
    assert visits.read_text().split() == ["visit0", "visit1", "visit1", "visit2"]  # 1 was under way when it was killed


# Drawings -----------------------------------------------------------------------------------------------------------


def test_a_table_in_three_formats(tmp_path):
    table = Table("t", "A_title", ["a", "b %"], [["x|y", "1 ± 2"]], [{"a": "x", "b": 1.5, "c": None}], ["A note."])
    paths = write_drawings([table], tmp_path)
    assert [path.name for path in paths] == ["t.md", "t.csv", "t.tex"]
    assert paths[0].read_text() == "# A_title\n\n| a | b % |\n| --- | --- |\n| x\\|y | 1 ± 2 |\n\n- A note.\n"
    assert paths[1].read_text() == "a,b,c\nx,1.5,\n"
    assert paths[2].read_text() == (
        "\\begin{table}\n\\centering\n\\caption{A\\_title. A note.}\n\\begin{tabular}{ll}\n\\toprule\n"
        "a & b \\% \\\\\n\\midrule\nx|y & 1 $\\pm$ 2 \\\\\n\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )


def test_figures_have_the_same_bytes_every_time(tmp_path):
    pytest.importorskip("matplotlib")
    figure = Figure("f", lambda canvas: canvas.subplots().plot([1, 2], [3, 4]))
    first = [path.read_bytes() for path in write_drawings([figure], tmp_path)]
    assert [path.name for path in write_drawings([figure], tmp_path)] == ["f.svg", "f.png"]
    assert first == [path.read_bytes() for path in write_drawings([figure], tmp_path)]


def test_a_page_has_tables_with_lines_and_figures_that_exist(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "here.png").touch()
    full, empty = (Table(name, f"Title {name}", ["a"], lines, []) for name, lines in (("x", [["1"]]), ("y", [])))
    figures = [Figure(name, lambda canvas: None) for name in ("here", "absent")]
    write_page(tmp_path / "docs" / "page.md", [full, empty, *figures], tmp_path / "figures")
    text = (tmp_path / "docs" / "page.md").read_text()
    assert text.endswith("\n## Title x\n\n| a |\n| --- |\n| 1 |\n\n![here](../figures/here.png)\n")


# What the paper prints ----------------------------------------------------------------------------------------------

SOURCE = Path(__file__).resolve().parents[2] / "shared" / "paper.tex"
LABELS = {
    "table1": "tab:node_clas",
    "table2": "tab:efficiency",
    "table3": "tab:dataset",
    "table4": "tab:node_clas_citation",
    "table5": "tab:efficiency_full",
}
COLUMNS = {"ogbn-arxiv": "arxiv", "ogbn-mag": "mag"}


def printed_rows(label):
    """The heading and the rows of a table of the paper's source, as plain text."""
    tables = re.findall(r"\\begin\{table\}.*?\\end\{table\}", SOURCE.read_text(), flags=re.DOTALL)
    (table,) = [table for table in tables if f"\\label{{{label}}}" in table]
    top, middle, bottom = (table.index(rule) for rule in ("\\toprule", "\\midrule", "\\bottomrule"))
    heading = re.findall(r"\\textbf\{(\w\w+)\}", table[top:middle]) or re.findall(r"[A-Z]\w+", table[top:middle])
    rows = [[plain(cell) for cell in line.split("&")] for line in table[middle:bottom].split("\\\\")]
    return [name.lower() for name in heading if name != "Methods"], [row for row in rows if len(row) > 1]


def plain(cell):
    cell = re.sub(r"\\midrule|~?\\cite\{.*?\}|\\color\{\w+\}|\\colorbox\{\w+\}|\\textbf|\\%|\\#|\^\\dagger", "", cell)
    for command, text in (("\\ours", "SpikeGCL"), ("\\cmark", "x"), ("\\pm", " ± "), ("Binary GNN", "BinaryGNN")):
        cell = cell.replace(command, text)
    return re.sub(r"[${}_]", "", cell).strip()


@pytest.mark.skipif(not SOURCE.exists(), reason="needs the paper's source")
@pytest.mark.parametrize("table", LABELS)
def test_every_printed_value_is_the_papers(table):
    heading, rows = printed_rows(LABELS[table])
    assert [COLUMNS.get(name, name) for name in paper.datasets(table)] == heading
    ours = dict(paper.values()[table])
    del ours["datasets"]
    if "energy" in ours:  # the paper prints the two side by side
        assert list(ours["parameters"]) == list(ours["energy"])
        pairs = {name: zip(ours["parameters"][name], ours["energy"][name]) for name in ours["energy"]}
        ours = {name: [text for pair in pairs[name] for text in pair] for name in pairs}
    titles = {name: title for name, (title, _) in paper.methods().items()}
    found = [(titles.get(name, name.partition("-")[0].capitalize()), texts) for name, texts in ours.items()]
    assert found == [(row[0], row[-len(found[0][1]) :]) for row in rows]
    if table in paper.ACCURACY_TABLES:
        marks = {row[0]: "".join(mark for mark, text in zip("USB", row[1:4]) if text) for row in rows}
        assert marks == dict(paper.methods().values())


@pytest.mark.skipif(not SOURCE.exists(), reason="needs the paper's source")
@pytest.mark.parametrize(
    ("table", "label"), [("table6", "tab:encoder"), ("table7", "tab:neurons"), ("table8", "tab:reset")]
)
def test_every_printed_ablation_is_the_papers(table, label):
    heading, rows = printed_rows(label)
    assert [COLUMNS.get(name, name) for name in paper.datasets(table)] == heading
    ours = {name: texts for name, texts in paper.values()[table].items() if name != "datasets"}
    names = [re.sub(r".*\((.*)\)", r"\1", row[0]).replace("PILF", "PLIF").replace("-reset + ", "-") for row in rows]
    assert ours == {name: row[1:] for name, row in zip(names, rows, strict=True)}


def test_methods_have_the_printed_marks():
    names = {title: name for name, (title, _) in paper.methods().items()}
    for method in map(find_method, method_names()):
        if method.title in names:
            has = (method.unsupervised, method.spiking, method.binary)
            marks = "".join(mark for mark, own in zip("USB", has) if own)
            assert method.name == names[method.title]
            assert paper.methods()[method.name] == (method.title, marks)


@given(st.floats(0.01, 1e5), st.integers(0, 3))
@example(0.15, 1)
def test_verdicts_on_values_that_were_cut_off_or_rounded(value, digits):
    unit = 10**-digits
    cut, rounded = (f"{math.floor(value / unit + half + 1e-9) * unit:.{digits}f}" for half in (0, 0.5))
    if float(cut) > 0:
        assert paper.verdict(cut, value) == "equal"
    if float(rounded) > 0:
        assert paper.verdict(rounded, value) in ("equal", "rounding")
    far = f"{2 * value + 2 * unit:.{digits}f}"
    assert paper.verdict(far, value) == "no rule found"


# Experiments --------------------------------------------------------------------------------------------------------


def test_an_accuracy_table_shows_printed_ours_and_floor(rows):
    choice = Choice()
    gcn, dgi = (accuracy.accuracy_cell(name, "cora", choice) for name in ("gcn", "dgi"))
    write_row(rows, gcn, result(0.86))
    write_row(rows, gcn, result(0.88), seed=1)
    write_row(rows, dgi, result(0.85, 0.8, dimensions=512))
    stopped = accuracy.accuracy_cell("dgi", "pubmed", choice)
    write_row(rows, stopped, None, status=STOPPED, reason="stopped after 9 min")
    (table,) = find_experiment("citation").draw(choice, rows)
    cora = column(table, "cora")
    assert cora["GCN"] == "86.1 ± 0.2 / 87.0 ± 1.4 (2) / -"
    assert cora["DGI"] == "86.3 ± 0.2 / 85.0 (1) / 80.0"
    assert column(table, "pubmed")["DGI"] == "86.2 ± 0.1 / see note"
    assert "DGI on pubmed: stopped after 9 min." in table.notes
    assert "Of 2 cells of float methods with rows, 2 within 1.5 points of the printed value." in table.notes
    assert len(table.lines) == 16
    assert [line[1:4] for line in table.lines if line[0] in ("GCN", "BANE", "SpikeGCL")] == [
        ["", "", ""], ["x", "", "x"], ["x", "x", "x"]
    ]  # fmt: skip
    records = {(row["method"], row["dataset"]): row for row in csv.DictReader(io.StringIO(table.csv()))}
    assert records["gcn", "cora"]["seeds"] == "2"
    assert float(records["gcn", "cora"]["accuracy"]) == pytest.approx(0.87)
    assert float(records["dgi", "cora"]["untrained"]) == 0.8
    assert records["ggd", "citeseer"]["paper"] == "75.5 ± 0.1"


def test_a_random_projection_stands_beside_supervised_methods(rows):
    write_row(rows, accuracy.accuracy_cell("gcn", "cora", Choice()), result(0.86))
    compact = method_cell(measures.accuracy, "compact", "cora", Choice(), {"bits": accuracy.FLOOR_BITS})
    write_row(
        rows, compact, {**result(0.9, 0.5, bits=accuracy.FLOOR_BITS), "floors": {"projection": {"test_accuracy": 0.75}}}
    )
    (table,) = find_experiment("citation").draw(Choice(), rows)
    assert column(table, "cora")["GCN"] == "86.1 ± 0.2 / 86.0 (1) / 75.0"


def test_equal_settings_are_those_of_the_paper_whatever_preset_named_them(rows):
    write_row(rows, accuracy.accuracy_cell("dgi", "cora", Choice(preset="cpu")), result(0.85, 0.8, dimensions=512))
    (table,) = find_experiment("citation").draw(Choice(preset="cpu"), rows)
    assert not any("preset cpu" in note for note in table.notes)


def test_a_table_shows_rows_of_another_preset_rather_than_none(rows):
    cpu, paper_ = (accuracy.accuracy_cell("bgrl", "cora", Choice(preset=name)) for name in ("cpu", "paper"))
    write_row(rows, cpu, result(0.85, 0.8, dimensions=512))
    (table,) = find_experiment("citation").draw(Choice(preset="paper"), rows)
    assert column(table, "cora")["BGRL"] == "87.3 ± 0.1 / 85.0 (1) / 80.0"
    assert "BGRL on cora: settings are those of preset cpu." in table.notes
    write_row(rows, paper_, result(0.87, 0.8, dimensions=512))
    (table,) = find_experiment("citation").draw(Choice(preset="paper"), rows)
    assert column(table, "cora")["BGRL"] == "87.3 ± 0.1 / 87.0 (1) / 80.0"


def test_a_chosen_dataset_is_shown_beside_those_of_the_table(rows):
    (table,) = find_experiment("table1").draw(Choice(datasets=("cora",)), rows)
    assert list(table.columns[4:]) == [*paper.datasets("table1"), "cora"]
    assert column(table, "cora")["GGD"].startswith("86.2 ± 0.2 / ")


def test_settings_come_from_the_first_preset_that_has_the_dataset():
    gcn = find_method("gcn")
    hidden = {("cpu", "cora"): 1, ("paper", "cora"): 2, ("paper", "photo"): 3, ("default", "cora"): 4}

    def preset(name, dataset):
        if (name, dataset) not in hidden and name != "default":
            raise PresetMissingError("none")
        return gcn.settings(hidden=hidden.get((name, dataset), 5))

    method = dataclasses.replace(gcn, preset=preset)
    asked = [("cora", "cpu"), ("cora", "paper"), ("photo", "cpu"), ("cs", "cpu"), ("cora", "default")]
    found = [choose_settings(method, *one) for one in asked]
    assert [(name, settings.hidden) for name, settings in found] == [
        ("cpu", 1), ("paper", 2), ("paper", 3), ("default", 5), ("default", 4)
    ]  # fmt: skip


@pytest.mark.parametrize("dataset", ["photo", "cora"])  # the published settings for Cora have few epochs anyway
def test_quick_cells_have_few_epochs_and_rows_of_their_own(dataset):
    full, quick = (accuracy.accuracy_cell("spikegcl", dataset, Choice(quick=quick)) for quick in (False, True))
    assert quick.settings == {**full.settings, "epochs": 5}
    assert quick.hash != full.hash


def test_the_probe_is_no_part_of_a_supervised_cell():
    hashes = {
        method: {accuracy.accuracy_cell(method, "cora", Choice(probe=probe)).hash for probe in ("logreg", "paper")}
        for method in ("gcn", "dgi")
    }
    assert (len(hashes["gcn"]), len(hashes["dgi"])) == (1, 2)


def test_the_printed_density_row_belongs_to_other_graphs(rows):
    (table,) = find_experiment("datasets").draw(Choice(), rows)
    owners = {record["dataset"]: record["printed for"] for record in table.records}
    assert owners["computers"] == "cora"
    assert owners["ogbn-arxiv"] == "ogbn-arxiv"
    assert sum(graph == owner for graph, owner in owners.items()) == 2
    assert all(record["same as printed"] == "yes" for record in table.records)


def test_every_printed_cell_of_the_efficiency_tables_gets_a_verdict(rows):
    parameters, energy, spikes, _ = find_experiment("efficiency").draw(Choice(data_root=rows.path.parent), rows)
    assert (len(parameters.records), len(energy.records)) == (87, 90)
    kinds = {re.sub(r" by .*", "", record["verdict"]) for table in (parameters, energy) for record in table.records}
    assert kinds == {"equal", "rounding", "differs", "no rule found", "features not available here"}
    assert len(spikes.records) == 9 and all(0 < record["rate needed (%)"] < 100 for record in spikes.records)
    verdicts = {(r["method"], r["dataset"]): r["verdict"] for r in parameters.records}
    assert verdicts["average-gcl", "computers"] == "equal"
    assert verdicts["average-gcl", "physics"].startswith("differs by -0.2")  # 3897.7 is printed as 3906.0


def test_printed_rows_that_no_settings_give_follow_from_formulas(rows):
    parameters, energy, *_ = find_experiment("efficiency").draw(Choice(), rows)
    by = {(r["method"], r["dataset"]): r for r in energy.records}
    assert by["sugrl", "physics"]["verdict"] == "equal" and by["sugrl", "physics"]["by"] == "256 N d + 128 E"
    assert by["cca-ssg", "computers"]["by"].startswith("all-ops")  # 17.8 has the printed digits, 16.6 is closer
    assert by["dgi", "physics"]["verdict"] == "no rule found"
    sizes = {r["dataset"]: r["verdict"] for r in parameters.records if r["method"] == "spikegcl"}
    assert len(sizes) == 6 and set(sizes.values()) == {"equal"}


def test_energies_of_spiking_methods_are_means_over_trained_rows(rows):
    choice = Choice()
    cell = accuracy.accuracy_cell("spikegcl", "computers", choice)
    for seed, joules in enumerate((0.030e-3, 0.046e-3)):
        prices = {"paper-spikes": joules, "paper-full": 1.2e-3, "all-ops": 15e-3}
        write_row(rows, cell, {"energy": prices, "firing_rate": 0.25 + 0.5 * seed, "parameters": 7}, seed)
    _, energy, spikes, every = find_experiment("efficiency").draw(choice, rows)
    entries = [r for r in energy.records if (r["method"], r["dataset"]) == ("spikegcl", "computers")]
    assert [(r["printed"], r["verdict"]) for r in entries] == [("0.03", "equal"), ("0.038", "equal")]
    assert entries[0]["by"] == "paper-spikes, paper"
    assert entries[0]["paper-spikes"] == pytest.approx(0.038)
    assert spikes.records[0]["rate (%)"] == pytest.approx(50)
    assert column(every, "computers")["SpikeGCL"] == "0.038 / 1.200 / 15.000"
    assert [(record["method"], record["seeds"], record["parameters"]) for record in every.records] == [
        ("spikegcl", 2, 7)
    ]


@pytest.mark.parametrize(("joules", "text"), [((1, 1, 2), "1.000 / 1.000 / 2.000"), ((1, 1, 1), "1.000")])
def test_one_energy_stands_for_all_rules_only_where_they_agree(rows, joules, text):
    cell = accuracy.accuracy_cell("gcn", "photo", Choice())
    write_row(rows, cell, {"energy": dict(zip(RULES, [one / 1e3 for one in joules])), "parameters": 7})
    *_, every = find_experiment("efficiency").draw(Choice(), rows)
    assert column(every, "photo")["GCN"] == text


def test_only_spiking_methods_are_trained_for_the_efficiency_tables():
    chosen = efficiency.cells(Choice(seeds=1, methods=("spikegcl", "dgi")))
    assert {(cell.method, cell.dataset) for cell in chosen} == {
        ("spikegcl", dataset) for dataset in paper.datasets("table5")
    }


def test_codes_of_the_frontier_have_the_asked_width():
    for bits in frontier.BITS:
        settings = frontier.code_cell("cora", bits, Choice()).settings
        assert settings["steps"] * settings["channels"] == bits
        assert settings["channels"] <= 64 and settings["steps"] >= 8


def test_a_frontier_is_drawn_from_codes_floors_and_signed_floats(rows):
    choice = Choice(quick=True)
    for bits in frontier.QUICK_BITS:
        write_row(rows, frontier.code_cell("cora", bits, choice), result(0.7, 0.6, bits=bits))
    compact = method_cell(measures.accuracy, "compact", "cora", choice, {"bits": 64})
    write_row(rows, compact, result(0.75, 0.7, bits=64))
    signed = method_cell(measures.signs, "dgi", "cora", choice, bits=list(frontier.QUICK_BITS))
    for seed, value in enumerate((0.8, 0.9)):
        write_row(rows, signed, {"points": {"64": {"test_accuracy": value}}}, seed)
    table, gain, _, figure = frontier.draw(choice, rows)
    assert [list(line) for line in table.lines] == [
        ["cora", "spikegcl", "70.0 (1)", "70.0 (1)"],
        ["cora", "untrained", "60.0 (1)", "60.0 (1)"],
        ["cora", "projection", "50.0 (1)", "50.0 (1)"],
        ["cora", "compact", "75.0 (1)", ""],
        ["cora", "dgi+sign", "85.0 ± 7.1 (2)", ""],
    ]
    assert figure.name == "frontier-cora"
    assert [list(line) for line in gain.lines] == [
        ["cora", "+15.0 (untrained, 1)", ""],
        ["mean", "+15.0", ""],
    ]


def test_compact_and_a_floor_stand_beside_the_printed_values(rows):
    for method, probe, value in (("compact", "logreg", 0.9), ("compact", "paper", 0.8), ("ppr-itq", "logreg", 0.85)):
        cell = method_cell(measures.accuracy, method, "cora", Choice(probe=probe), {"bits": 512})
        write_row(rows, cell, result(value, 0.5, bits=512))
    (table,) = [drawn for drawn in frontier.draw(Choice(), rows) if drawn.name == "frontier-printed"]
    (line,) = table.lines
    assert list(line) == [
        "cora", "87.4 (4032 bits)", "88.0 (SUGRL)", "", "90.0 (1)", "", "80.0 (1)", "85.0 (1)"
    ]  # fmt: skip
    assert [record["probe"] for record in table.records] == ["logreg", "paper", "logreg"]


def test_a_frontier_of_compact_has_the_cells_of_the_table_beside_the_printed_values():
    cells = frontier.cells(Choice(datasets=("cora",), methods=("compact",), seeds=1))
    made = [(cell.options["probe"], cell.settings["bits"]) for cell in cells]
    assert made == [("logreg", bits) for bits in frontier.BITS] + [("paper", 512)]


def test_compact_is_compared_with_the_best_floor_over_the_seeds_both_have():
    curves = {
        "compact": {64: {0: 0.1, 1: 0.8, 2: 0.9}, 32: {0: 0.5}},
        "itq": {64: {1: 0.7, 2: 0.9, 3: 0.9}},
        "projection": {64: {0: 0.3, 1: 0.6, 2: 0.7}},
        "ppr-itq": {64: {7: 0.95}},
    }
    (record,) = frontier._gains("cora", curves)
    assert (record["bits"], record["floor"], record["seeds"]) == (64, "itq", 2)
    assert record["gain"] == pytest.approx(5)


def test_a_mean_gain_is_one_over_all_graphs_or_none():
    ahead = {"floor": "itq", "seeds": 3}
    gains = [{"dataset": name, "bits": 64, "gain": gain, **ahead} for name, gain in (("cora", 1.0), ("photo", 2.0))]
    gains.append({"dataset": "cora", "bits": 128, "gain": 4.0, **ahead})
    (table,) = frontier._gain_table(gains, [64, 128])
    assert list(table.lines[-1]) == ["mean", "+1.5", ""]


def test_the_printed_point_of_a_frontier_is_inside_the_axes():
    plt = pytest.importorskip("matplotlib.pyplot")
    canvas = plt.figure()
    frontier._figure("cora", {"compact": {64: {0: 0.5}, 128: {0: 0.6}}}).paint(canvas)
    (axes,) = canvas.axes
    low, high = axes.get_ylim()
    assert low < 50 and paper.number(paper.accuracy("spikegcl", "cora")) < high


def test_a_floor_that_is_chosen_as_a_method_is_counted_once():
    choice = Choice(datasets=("cora",), methods=("compact", "projection", "untrained"))
    assert frontier._chosen(choice) == ["compact"]
    assert few_labels._methods(choice) == ["compact"]


def test_a_stopped_cell_does_not_hide_the_rows_of_another_preset(rows):
    cpu, paper_ = (accuracy.accuracy_cell("grace", "cs", Choice(preset=name)) for name in ("cpu", "paper"))
    write_row(rows, cpu, result(0.9, 0.8, dimensions=512))
    write_row(rows, paper_, None, status=STOPPED, reason="stopped after 5 min")
    (table,) = find_experiment("table1").draw(Choice(), rows)
    assert column(table, "cs")["GRACE"] == "92.9 ± 0.0 / 90.0 (1) / 80.0"


def test_a_cell_with_a_stopped_seed_still_says_whose_settings_it_has(rows):
    cell = accuracy.accuracy_cell("grace", "cs", Choice(preset="cpu"))
    write_row(rows, cell, result(0.9, 0.8, dimensions=512))
    write_row(rows, cell, None, seed=1, status=STOPPED, reason="stopped after 5 min")
    (table,) = find_experiment("table1").draw(Choice(preset="cpu"), rows)
    assert "GRACE on cs: stopped after 5 min; settings are those of preset cpu." in table.notes


def test_the_default_preset_of_an_experiment_is_the_papers_model_on_any_graph():
    settings = method_cell(measures.accuracy, "spikegcl", "digits", Choice(preset="default")).settings
    assert settings == method_cell(measures.accuracy, "spikegcl", "digits", Choice()).settings
    assert settings["inputs"] == "features"


@pytest.mark.parametrize(
    ("name", "variant", "printed"),
    [
        ("encoders", "SAGE", "91.4 ± 0.3"),
        ("neurons", "LIF", "92.9 ± 0.1"),
        ("resets", "zero-PLIF", "92.5 ± 0.3"),
        ("grouping", "cluster", "-"),
    ],
)
def test_an_ablation_shows_each_variant_beside_the_printed_one(rows, name, variant, printed):
    choice = Choice(datasets=("photo",), seeds=1)
    ablation = next(one for one in ablations.ABLATIONS if one.name == name)
    cells = ablation.cells(choice)
    assert len({cell.hash for cell in cells}) == len(ablation.variants)
    write_row(rows, ablation.cell(variant, "photo", choice), result(0.9, 0.85, bits=960, firing_rate=0.3))
    (table,) = find_experiment(name).draw(choice, rows)
    photo = column(table, "photo")
    assert photo[variant] == f"{printed} / 90.0 (1) / 85.0"
    missing = (" / not run", " / features not available here")
    assert all(text.endswith(missing) for other, text in photo.items() if other != variant)
    (record,) = [one for one in table.records if one["accuracy"] is not None]
    assert (record["variant"], record["firing_rate"], record["untrained"]) == (variant, 0.3, 0.85)


def test_the_published_variant_is_the_row_of_the_accuracy_tables():
    choice = Choice()
    published = accuracy.accuracy_cell("spikegcl", "photo", choice).hash
    own = {"encoders": "GCN", "neurons": "PLIF", "resets": "subtract-PLIF", "grouping": "chunk"}
    assert {one.cell(own[one.name], "photo", choice).hash for one in ablations.ABLATIONS} == {published}


def test_a_gain_is_judged_seed_by_seed():
    found = learning_gain.gain([result(0.80, 0.79), result(0.90, 0.87)])
    half = 12.7062047 * math.sqrt(2) / math.sqrt(2)  # Student's t of one degree, deviation sqrt(2), two seeds
    assert found["gain"] == pytest.approx(2)
    assert (found["from"], found["to"]) == pytest.approx((2 - half, 2 + half))
    assert learning_gain.gain([result(0.80, 0.79)])["from"] is None


def test_names():
    for name in experiment_names():
        assert find_experiment(name).name == name
    with pytest.raises(ConfigError, match="frontier"):
        find_experiment("table9")


# The command --------------------------------------------------------------------------------------------------------


def test_reproduce_runs_draws_and_goes_on(run, tmp_path):
    command = [
        "reproduce",
        "table1",
        "--methods",
        "gcn",
        "--datasets",
        "sbm:nodes=200",
        "--quick",
        "--resume",
        "--json",
    ]
    code, out, _ = run(*command, "--seeds", 1)
    document = json.loads(out)
    assert (code, document["cells"]) == (0, {"done": 1})
    text = Path(document["rows"]).read_text()
    row = json.loads(text)
    assert row["settings"]["epochs"] == 5
    assert row["result"]["test_accuracy"] > 0.125
    assert " (1) / -" in (tmp_path / "results/quick/table1.md").read_text()
    code, out, _ = run(*command, "--seeds", 1)
    assert (code, out, Path(document["rows"]).read_text()) == (0, json.dumps(document) + "\n", text)
    code, out, _ = run(*command, "--draw-only")
    assert (code, json.loads(out)["cells"], len(json.loads(out)["files"])) == (0, {}, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9"], "choose one of datasets"),
        (["table1", "--preset", "papre"], "choose one of paper"),
        (["table1", "--methods", "gcm"], "no method is called 'gcm'"),
        (["table1", "--datasets", "corra", "--methods", "gcn"], "no dataset is called 'corra'"),
        (["datasets", "--datasets", "corra", "--draw-only"], "no dataset is called 'corra'"),
        (["table1", "--datasets", "cora", "--data-root", "nowhere"], "not at hand: cora; give --data-root"),
    ],
)
def test_wrong_choices_are_explained(run, arguments, message):
    code, _, err = run("reproduce", *arguments)
    assert code > 0
    assert message in " ".join(err.replace("│", " ").split())


def test_a_generated_graph_is_not_given_the_size_of_another(rows):
    (table,) = find_experiment("datasets").draw(Choice(datasets=("sbm:nodes=200",)), rows)
    assert table.lines[-1][:2] == ["sbm:nodes=200", ""] and table.lines[-1][-1] == "not counted"


@pytest.mark.parametrize("name", ["datasets", "theorem"])
def test_what_is_about_no_method_is_left_out_where_methods_are_chosen(name):
    assert find_experiment(name).cells(Choice())
    assert not find_experiment(name).cells(Choice(methods=("gcn",)))
