"""Plots as SVG text: axes, lines, dots and bars in CSS colours, so that light and dark share one drawing.

A plot is 400 units wide: shown at 340 to 520 pixels its 11-unit letters stay readable on a phone and on a desktop.
Strings are escaped by markupsafe wherever they enter.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

WIDTH, HEIGHT = 400, 250


def number(value: float) -> str:
    """Coordinates to a tenth of a unit."""
    return f"{value:.1f}".removesuffix(".0")


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers from at most ``low`` to at least ``high``.

    >>> nice_ticks(0, 0.33)
    [0.0, 0.1, 0.2, 0.3, 0.4]
    """
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A tick as people write it.

    >>> [tick_text(value) for value in (0.0, 0.25, 1500.0, 2e-06)]
    ['0', '0.25', '1,500', '2e-06']
    """
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.0e}"
    return f"{value:,.10g}"


@dataclass(frozen=True)
class Axis:
    """A range of values with its ticks; ``log`` axes need positive values."""

    label: str
    ticks: Sequence[float]
    low: float
    high: float
    log: bool = False

    @classmethod
    def around(cls, label: str, values: Sequence[float], *, zero: bool = False) -> Axis:
        """A linear axis with round ends that holds all values (and zero, if asked)."""
        ticks = nice_ticks(min([*values, 0]) if zero else min(values), max(values))
        return cls(label, ticks, ticks[0], ticks[-1])

    @classmethod
    def percentages(cls, label: str, values: Sequence[float]) -> Axis:
        """At least ten points of per cent, so that small differences look small; never beyond 0 and 100."""
        low, high = min(values), max(values)
        middle = min(max((low + high) / 2, 5.0), 95.0)
        ticks = nice_ticks(max(0.0, min(low, middle - 5)), min(100.0, max(high, middle + 5)))
        return cls(label, [tick for tick in ticks if tick <= 100], ticks[0], min(ticks[-1], 100.0))

    @classmethod
    def decades(cls, label: str, values: Sequence[float]) -> Axis:
        """A logarithmic axis from one power of ten to another."""
        first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        last = max(last, first + 1)
        stride = -(-(last - first) // 6)
        return cls(label, [10.0**p for p in range(first, last + 1, stride)], 10.0**first, 10.0**last, log=True)

    @classmethod
    def counted(cls, label: str, count: int) -> Axis:
        """1, 2, ... count, with half a place at both ends."""
        step = max(1, round(nice_ticks(0, count, 6)[1])) if count > 8 else 1
        ticks = range(1, count + 1, step) if step <= 2 else [1, *range(step, count + 1, step)]
        return cls(label, ticks, 0.5, count + 0.5)

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass
class Plot:
    """A frame with axes, filled from back to front. Methods take values, not pixels."""

    x: Axis
    y: Axis
    height: int = HEIGHT
    left: int = 46
    parts: list[Markup] = field(default_factory=list)

    top, right, bottom = 10, 14, 40

    def px(self, value: float) -> float:
        return self.left + self.x.place(value) * (WIDTH - self.left - self.right)

    def py(self, value: float) -> float:
        return self.height - self.bottom - self.y.place(value) * (self.height - self.top - self.bottom)

    def grid(self, *, rows: bool = True, columns: bool = False) -> None:
        for tick in self.y.ticks if rows else ():
            self._rule(self.left, self.py(tick), WIDTH - self.right, self.py(tick))
        for tick in self.x.ticks if columns else ():
            self._rule(self.px(tick), self.top, self.px(tick), self.height - self.bottom)

    def _rule(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        shape = '<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>'
        self.parts.append(Markup(shape).format(kind, number(x1), number(y1), number(x2), number(y2)))

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "tick") -> None:
        """Text at a pixel position."""
        shape = '<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>'
        self.parts.append(Markup(shape).format(kind, number(x), number(y), anchor, text))

    def axes(self, *, rows: bool = True) -> None:
        base = self.height - self.bottom
        self._rule(self.left, base, WIDTH - self.right, base, "axis")
        for tick in self.x.ticks:
            self.text(self.px(tick), base + 15, tick_text(tick), "middle")
        for tick in self.y.ticks if rows else ():
            self.text(self.left - 6, self.py(tick) + 3.5, tick_text(tick), "end")
        self.text((self.left + WIDTH - self.right) / 2, self.height - 6, self.x.label, "middle", "label")
        if rows:
            middle = number((self.top + base) / 2)
            shape = '<text class="label" transform="translate(11 {}) rotate(-90)" text-anchor="middle">{}</text>'
            self.parts.append(Markup(shape).format(middle, self.y.label))

    def band(self, low: float, high: float, kind: str = "band") -> None:
        """A horizontal stripe over the whole width."""
        y, tall = self.py(high), self.py(low) - self.py(high)
        shape = '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>'
        wide = WIDTH - self.left - self.right
        self.parts.append(Markup(shape).format(kind, self.left, number(y), number(wide), number(tall)))

    def bar(self, row: float, value: float, kind: str, thick: float = 20) -> None:
        """A horizontal bar from the low end of the x axis."""
        y, wide = self.py(row) - thick / 2, max(1.0, self.px(value) - self.left)
        shape = '<rect class="fill {}" x="{}" y="{}" width="{}" height="{}" rx="2"/>'
        self.parts.append(Markup(shape).format(kind, self.left, number(y), number(wide), number(thick)))

    def column(self, first: float, last: float, value: float, kind: str, tip: str) -> None:
        """A vertical bar from zero, over a range of x."""
        shape = '<rect class="fill {}" x="{}" y="{}" width="{}" height="{}" data-tip="{}"/>'
        x, y = self.px(first) + 0.5, self.py(value)
        wide, tall = self.px(last) - x - 0.5, self.py(0) - y
        self.parts.append(Markup(shape).format(kind, number(x), number(y), number(wide), number(tall), tip))

    def line(self, xs: Sequence[float], ys: Sequence[float], kind: str) -> None:
        path = "L".join(f"{number(self.px(x))} {number(self.py(y))}" for x, y in zip(xs, ys, strict=True))
        self.parts.append(Markup('<path class="line {}" d="M{}"/>').format(kind, path))

    def rise(self, x: float, low: float, high: float, kind: str) -> None:
        """A vertical error bar."""
        self._rule(self.px(x), self.py(low), self.px(x), self.py(high), f"whisker {kind}")

    def reach(self, row: float, low: float, high: float, kind: str) -> None:
        """A horizontal error bar."""
        self._rule(self.px(low), self.py(row), self.px(high), self.py(row), f"whisker {kind}")

    def dot(self, x: float, y: float, kind: str, tip: str | None = None, radius: float = 3.5) -> None:
        """A dot; with ``tip`` a wider invisible one around it answers the pointer."""
        shape = '<circle class="{}" cx="{}" cy="{}" r="{}"/>'
        cx, cy = number(self.px(x)), number(self.py(y))
        self.parts.append(Markup(shape).format(f"fill {kind}", cx, cy, radius))
        if tip is not None:
            wide = '<circle class="hit" cx="{}" cy="{}" r="9" data-tip="{}"/>'
            self.parts.append(Markup(wide).format(cx, cy, tip))

    def draw(self, name: str, summary: str) -> Markup:
        """The SVG element. ``summary`` says in words what the picture shows."""
        shape = '<svg data-figure="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
        return Markup(shape).format(name, WIDTH, self.height, summary, Markup("").join(self.parts))


def bitmap(matrix: NDArray[np.uint8], colour: tuple[int, int, int]) -> str:
    """A 0/1 matrix as a data URI: a PNG of one bit a pixel, ones in ``colour``, zeros transparent."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = matrix.shape
    lines = np.packbits(matrix != 0, axis=1)
    filtered = np.hstack([np.zeros((height, 1), np.uint8), lines])
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 3, 0, 0, 0))
    png += chunk(b"PLTE", bytes(3) + bytes(colour)) + chunk(b"tRNS", b"\x00\xff")
    png += chunk(b"IDAT", zlib.compress(filtered.tobytes(), 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()
