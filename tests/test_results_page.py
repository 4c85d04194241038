"""The committed page of results is what the committed rows give; `make results` writes it."""

from __future__ import annotations

from pathlib import Path

from spikegcl.experiments import Choice, experiment_names, find_experiment
from spikegcl.experiments.drawings import write_page
from spikegcl.experiments.rows import Rows

ROOT = Path(__file__).parent.parent


def test_the_page_of_results_is_drawn_from_the_rows(data_root, tmp_path):
    (tmp_path / "results").symlink_to(ROOT / "results")
    rows, choice = Rows(ROOT / "results/rows.jsonl"), Choice(preset="cpu", data_root=data_root)
    drawings = [drawing for name in experiment_names() for drawing in find_experiment(name).draw(choice, rows)]
    write_page(tmp_path / "docs/results.md", drawings, tmp_path / "results")
    committed = (ROOT / "docs/results.md").read_text("utf-8")
    assert (tmp_path / "docs/results.md").read_text("utf-8") == committed, "run make results"
