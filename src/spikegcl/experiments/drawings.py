"""Tables as Markdown, CSV and LaTeX, figures as SVG and PNG: written whole, the same bytes for the same rows."""

from __future__ import annotations

import csv
import io
import logging
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spikegcl.files import write_text, written_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger("spikegcl")

# Okabe and Ito's colours, which people with any colour vision tell apart; without their yellow, too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*X"
# One column of a two-column page: shown that wide, letters have the size that is stated here.
STYLE: Any = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "svg.hashsalt": "spikegcl",
    "savefig.dpi": 250,
}
PAGE = """# Results

All tables and figures, written by `spikegcl reproduce` from the rows beside them. Not to be edited by hand.
"""
_TEX = str.maketrans(
    {
        **{character: "\\" + character for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "²": "$^2$",
        ">": "$>$",
        "<": "$<$",
    }
)


@dataclass(frozen=True)
class Table:
    """``lines`` under ``columns`` are for people (Markdown, LaTeX), ``records`` for programs (CSV): the same facts."""

    name: str
    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    records: Sequence[dict[str, Any]]
    notes: Sequence[str] = ()

    def markdown(self, level: int = 1) -> str:
        """Heading of that level, table, notes."""
        rows = [self.columns, ["---"] * len(self.columns), *self.lines]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
        notes = "".join(f"- {note}\n" for note in self.notes)
        return f"{'#' * level} {self.title}\n\n{body}\n" + (f"\n{notes}" if notes else "")

    def latex(self) -> str:
        rows = [" & ".join(cell.translate(_TEX) for cell in row) + r" \\" for row in (self.columns, *self.lines)]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{' '.join([self.title + '.', *self.notes]).translate(_TEX)}}}",
                rf"\begin{{tabular}}{{{'l' * len(self.columns)}}}",
                r"\toprule",
                rows[0],
                r"\midrule",
                *rows[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.records[0]) if self.records else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return text.getvalue()


@dataclass(frozen=True)
class Figure:
    """``paint`` fills a matplotlib figure of this size (inches)."""

    name: str
    paint: Callable[[Any], None]
    size: tuple[float, float] = (3.4, 2.6)


def write_drawings(drawings: Iterable[Table | Figure], folder: Path) -> list[Path]:
    """Write every drawing in all its formats, but tables without lines: nothing was run for them.

    Without matplotlib figures are left out, with a word about it.
    """
    written: list[Path] = []
    for drawing in drawings:
        if isinstance(drawing, Table):
            written += _write_table(drawing, folder) if drawing.lines else []
        elif _has_matplotlib():
            written += _write_figure(drawing, folder)
        else:
            log.warning("%s was not drawn: figures need matplotlib, pip install 'spikegcl[figures]'", drawing.name)
    return written


def write_page(path: Path, drawings: Iterable[Table | Figure], folder: Path) -> None:
    """One Markdown page of all tables that have rows, and of the figures that ``folder`` has."""
    parts = [PAGE]
    for drawing in drawings:
        if isinstance(drawing, Figure):
            image = folder / f"{drawing.name}.png"
            parts += [f"![{drawing.name}]({os.path.relpath(image, path.parent)})\n"] if image.exists() else []
        elif drawing.lines:
            parts.append(drawing.markdown(level=2))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n".join(parts))


def _write_table(table: Table, folder: Path) -> list[Path]:
    texts = {".md": table.markdown(), ".csv": table.csv(), ".tex": table.latex()}
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in texts.items():
        write_text(folder / (table.name + suffix), text)
    return [folder / (table.name + suffix) for suffix in texts]


def _has_matplotlib() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def _write_figure(figure: Figure, folder: Path) -> list[Path]:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=figure.size, layout="constrained")
        figure.paint(canvas)
        paths = [folder / f"{figure.name}.{kind}" for kind in ("svg", "png")]
        for path, metadata in zip(paths, ({"Date": None}, {"Software": None})):
            with written_atomically(path) as temporary:
                canvas.savefig(temporary, format=path.suffix[1:], metadata=metadata)
    return paths


def curve_styles(names: Sequence[str], line: Callable[[str], str] = lambda name: "-") -> dict[str, dict[str, str]]:
    """Line, colour and marker of every curve of a figure. No two of up to 56 have the same colour and marker."""
    return {
        name: {
            "linestyle": line(name),
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
        }
        for number, name in enumerate(names)
    }


def plot_curves(
    axes: Any,
    curves: Mapping[str, Mapping[float, Sequence[float]]],
    styles: Mapping[str, dict[str, str]] | None = None,
) -> None:
    """A line for every curve: mean and standard deviation over the seeds, at every place on the x axis.

    Panels that share a legend share ``styles`` (:func:`curve_styles`).
    """
    from spikegcl.protocol import spread

    styles = styles or curve_styles(list(curves))
    for name, curve in curves.items():
        places = sorted(curve)
        spreads = [spread(curve[place]) for place in places]
        axes.errorbar(
            places,
            [value["mean"] for value in spreads],
            [value["std"] for value in spreads],
            label=name,
            capsize=2,
            **styles[name],
        )


def plain_table(
    name: str,
    title: str,
    records: Sequence[dict[str, Any]],
    notes: Sequence[str] = (),
    *,
    decimals: int | None = None,
) -> Table:
    """A table for people and programs alike: a column for every key of its records."""
    columns = list(records[0]) if records else []
    lines = [[show(record[key], decimals) for key in columns] for record in records]
    return Table(name, title, columns, lines, records, notes)


def show(value: Any, decimals: int | None = None) -> str:
    """A value for people: so many decimals or five significant digits, thousands apart, nothing for None.

    >>> [show(value) for value in (None, "GCN", 2315598, 0.0259961, 123456.789)], show(-0.3, 2)
    (['', 'GCN', '2,315,598', '0.025996', '123,457'], '-0.30')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.{decimals or 0}f}" if decimals is not None or abs(value) >= 1e5 else f"{value:.5g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def measured(mean: float, std: float | None = None) -> str:
    """A mean to four significant digits, or to those that its spread leaves: two of the spread, and no exponents.

    >>> measured(88.709), measured(88.709, 0.53), measured(1558.2, 163.4), measured(-5e-15, 0.29)
    ('88.71', '88.71 ± 0.53', '1558 ± 163', '0.00 ± 0.29')
    """
    places = [digits - 1 - math.floor(math.log10(abs(one))) for one, digits in ((mean, 4), (std, 2)) if one]
    decimals = max(0, min(places, default=0))
    text = f"{mean:.{decimals}f}" + ("" if std is None else f" ± {std:.{decimals}f}")
    return text.removeprefix("-") if round(mean, decimals) == 0 else text


def percent(mean: float, std: float | None = None) -> str:
    """Fractions as percent.

    >>> percent(0.8671, 0.0052), percent(0.5)
    ('86.7 ± 0.5', '50.0')
    """
    return f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")


def over_seeds(mean: float, std: float, seeds: int) -> str:
    """Percent with the number of seeds; one seed has no spread to show.

    >>> over_seeds(0.8671, 0.0052, 3), over_seeds(0.8671, 0.0, 1)
    ('86.7 ± 0.5 (3)', '86.7 (1)')
    """
    return f"{percent(mean, std if seeds > 1 else None)} ({seeds})"
