"""The command line inside the test process, and the settings and options that keep its runs small."""

from __future__ import annotations

import sys

import pytest

from spikegcl import cli

FAST = ("--set", "epochs=2", "--set", "channels=8", "--set", "steps=4")


def call(*arguments) -> int:
    """Run ``spikegcl`` with these arguments in the current folder; its exit code."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["spikegcl", *map(str, arguments)])
        cli.main()
    return ended.value.code or 0


def options(paths, **changes):
    """Arguments that name the files of a graph; a change to None leaves one out."""
    given = {**paths, **changes}
    edges = given.pop("edges")
    return [edges, *(part for key, value in given.items() if value for part in (f"--{key}", value))]
