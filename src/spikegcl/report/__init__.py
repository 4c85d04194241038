"""report.html: one self-contained page about a run; figures are SVG, nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spikegcl.files import write_text
from spikegcl.report.facts import gather
from spikegcl.report.page import render

if TYPE_CHECKING:
    from spikegcl.graph import Graph
    from spikegcl.runs import Run

__all__ = ["draw_report", "write_report"]


def draw_report(run: Run, graph: Graph) -> str:
    """The page of a finished run as HTML; ``graph`` is the one it was trained on."""
    return render(gather(run, graph))


def write_report(run: Run, graph: Graph, path: Path | str | None = None) -> Path:
    """Write the page to ``path``, by default report.html in the run folder."""
    path = Path(path or run.path / "report.html")
    write_text(path, draw_report(run, graph))
    return path
