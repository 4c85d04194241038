"""What all settings share: checked on construction, changed by name, hashed, written as TOML."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar, Self, get_type_hints

from spikegcl.errors import ConfigError, PresetMissingError


@dataclass(frozen=True)
class Settings:
    """Base of every frozen dataclass of settings. Fields are int, float, bool or str, each with a default.

    ``CHOICES`` lists the allowed values of a str field, ``RANGES`` the inclusive bounds of a number, which else is not
    negative; both are checked whenever an object is made.
    """

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {}
    RANGES: ClassVar[dict[str, tuple[float, float]]] = {}
    NEWER: ClassVar[dict[str, Any]] = {}  # settings that stored results do not know, with the value they were made with

    def __post_init__(self) -> None:
        for name, choices in self.CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} = {getattr(self, name)!r} is unknown; choose one of {', '.join(choices)}")
        for name, value in vars(self).items():
            low, high = self.RANGES.get(name, (0, math.inf))
            if not isinstance(value, (int, float)):
                wrong = name in self.RANGES
            else:
                wrong = not (low <= value <= high and math.isfinite(value))
            if wrong:
                raise ConfigError(f"{name} = {value} is out of range; it must lie between {low} and {high}")

    @property
    def hash(self) -> str:
        """Twelve hex digits that identify the settings in every result row."""
        return hashlib.sha256(json.dumps(self.known(), sort_keys=True).encode()).hexdigest()[:12]

    def known(self) -> dict[str, Any]:
        """All settings, without newer ones that have the value older results were made with."""
        return {name: value for name, value in dataclasses.asdict(self).items() if self.NEWER.get(name) != value}

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed; unknown names and wrong types are errors."""
        hints = get_type_hints(type(self))
        kinds = {field.name: hints[field.name] for field in dataclasses.fields(self)}
        for name, value in changes.items():
            if name not in kinds:
                raise ConfigError(f"unknown setting {name!r}; known are {', '.join(kinds)}")
            changes[name] = _convert(name, value, kinds[name])
        return dataclasses.replace(self, **changes)

    @classmethod
    def shipped(cls, method: str, preset: str, dataset: str, any_graph: tuple[str, ...] = ("default",)) -> Self:
        """The settings of presets/<method>.toml for a dataset; ``any_graph`` are the presets that need no such table.

        Tables are called [preset.dataset]; [preset.all] holds what the datasets share, and ``base`` in [preset] names
        another preset of which only some values are changed.
        """
        file = resources.files("spikegcl") / "presets" / f"{method}.toml"
        tables = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
        if preset not in tables:
            known = ", ".join((*any_graph, *tables))
            raise PresetMissingError(f"{method} has no preset {preset!r}; choose one of {known}")
        named = tables[preset]
        if dataset not in named:
            known, use = ", ".join(key for key in named if key not in ("all", "base")), " or ".join(any_graph)
            raise PresetMissingError(f"preset {preset!r} of {method} has no {dataset!r}, only {known}; use {use}")
        start = cls.shipped(method, named["base"], dataset) if "base" in named else cls()
        return start.replace(**{**named.get("all", {}), **named[dataset]})

    def to_toml(self) -> str:
        return "".join(f"{name} = {toml_value(value)}\n" for name, value in dataclasses.asdict(self).items())


def toml_value(value: Any) -> str:
    """A number, truth value, text or list of them in TOML, which takes JSON's but for surrogates and a bare delete.

    >>> print(toml_value("a 📊 \\x7f"), toml_value([1, True]))
    "a 📊 \\u007f" [1, true]
    """
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return text.encode("utf-8", "replace").decode("utf-8")  # names of files may hold bytes that are no text


def _convert(name: str, value: Any, kind: type) -> Any:
    """Accept what a TOML file or ``--set key=value`` gives for a setting of type ``kind``."""
    if isinstance(value, str) and kind is not str:
        try:
            value = json.loads(value.lower())
        except json.JSONDecodeError:
            raise ConfigError(f"{name} = {value!r} is not a {kind.__name__}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{name} = {value!r} must be a {kind.__name__}")
    return value
