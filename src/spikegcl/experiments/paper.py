"""What the paper prints (paper_values.toml), and whether a number of ours is the printed one."""

from __future__ import annotations

import functools
import math
import tomllib
from importlib import resources
from typing import Any

ACCURACY_TABLES = ("table1", "table4")
NEAR = 0.1


@functools.cache
def values() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads(
        (resources.files("spikegcl") / "experiments" / "paper_values.toml").read_text("utf-8")
    )
    return loaded


def methods() -> dict[str, tuple[str, str]]:
    """Title and marks (letters of USB) of the paper's sixteen methods, by the name they have here."""
    return {name: (title, marks) for name, (title, marks) in values()["methods"].items()}


def datasets(table: str) -> list[str]:
    """The columns of a printed table."""
    columns: list[str] = values()[table]["datasets"]
    return columns


def printed(table: str, row: str, dataset: str, part: str | None = None) -> str | None:
    """A cell as the paper prints it ("86.5 ± 0.5", "-", ...), or None if the table has no such cell."""
    rows = values()[table] if part is None else values()[table][part]
    if row not in rows or dataset not in datasets(table):
        return None
    text: str = rows[row][datasets(table).index(dataset)]
    return text


def accuracy(method: str, dataset: str) -> str | None:
    """The printed accuracy in %, from whichever table has it."""
    cells = (printed(table, method, dataset) for table in ACCURACY_TABLES)
    return next((cell for cell in cells if cell is not None), None)


def number(text: str | None) -> float | None:
    """The printed number, without its deviation; None for what is not a number.

    >>> number("86.5 ± 0.5"), number("13,752"), number(">3days")
    (86.5, 13752.0, None)
    """
    try:
        return float((text or "").partition(" ± ")[0].replace(",", ""))
    except ValueError:
        return None


def verdict(printed: str, ours: float, near: float = NEAR) -> str:
    """How a recomputed value stands to a printed one. The paper cuts digits off more often than it rounds.

    A value that differs by a larger share than ``near`` was not made by the rule that was tried.

    >>> verdict("0.38", 0.386), verdict("0.39", 0.386), verdict("0.4", 0.37), verdict("17", 17.9)
    ('equal', 'rounding', 'rounding', 'equal')
    >>> verdict("60.9", 58.5), verdict("0.5", 26.0), verdict("-", 1.0)
    ('differs by -3.9 %', 'no rule found', 'not printed')
    """
    value = number(printed)
    if value is None:
        return "not printed"
    unit = 10.0 ** -len(printed.partition(".")[2])
    units = ours / unit + 1e-9  # what binary fractions lose: 0.15 is a hair below half of 0.1 and 0.2
    if math.isclose(math.floor(units) * unit, value):
        return "equal"
    if math.isclose(math.floor(units + 0.5) * unit, value):
        return "rounding"
    difference = ours / value - 1
    return f"differs by {100 * difference:+.2g} %" if abs(difference) <= near else "no rule found"
