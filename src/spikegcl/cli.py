"""The command line: entry point, and which commands there are.

Every command prints a summary for people or, with --json, one JSON document on stdout; logs go to stderr.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from spikegcl import __version__
from spikegcl.commands import (
    datasets,
    embed,
    energy,
    estimate,
    export,
    methods,
    prepare,
    probe,
    report,
    reproduce,
    search,
    train,
)
from spikegcl.errors import SpikeGCLError

if TYPE_CHECKING:
    from collections.abc import Callable


NO_MEMORY = ("can't allocate memory", "out of memory")  # what torch says of it, on CPUs and on other devices


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, ended by an interrupt with a word of what is left; typer would end it in silence."""

    @functools.wraps(command)
    def run(*args: object, **options: object) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt:
            _fail("interrupted; nothing half-written was left. train --resume and reproduce go on where they were", 130)

    return run


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
for command in (
    train.demo,
    train.train,
    prepare.prepare,
    embed.embed,
    search.search,
    probe.probe,
    energy.energy,
    estimate.estimate,
    report.report,
    reproduce.reproduce,
    export.export,
    datasets.datasets,
    methods.methods,
):
    app.command()(_interruptible(command))


def main() -> None:
    """Entry point: errors a user can act on end in one paragraph and exit code 1, wrong usage in exit code 2."""
    _limit_threads()
    level = logging.INFO if os.environ.get("RANK", "0") == "0" else logging.ERROR
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it tells which of its builds it tries to load
    try:
        with _world():
            app(standalone_mode=True)
    except SpikeGCLError as error:
        _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        # torch's allocators raise RuntimeErrors: one of their own, which would have to be imported, and plain ones
        if isinstance(error, RuntimeError) and not any(text in str(error) for text in NO_MEMORY):
            raise
        _fail("out of memory; fewer channels or a smaller graph need less, or more --parts; spikegcl estimate tells")


def _limit_threads() -> None:
    """What is asked of OpenMP holds for numba too, whose first kernel would else give all cores to itself and to torch.

    It is read when numba is imported, which no command has done yet; a program that has keeps the threads it started.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads) and "numba" not in sys.modules:
        os.environ.setdefault("NUMBA_NUM_THREADS", threads)


def _world() -> contextlib.AbstractContextManager[None]:
    """The processes that torchrun started work together; any other process works alone."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return contextlib.nullcontext()
    from spikegcl import world

    return world.joined()


def _fail(message: str, code: int = 1) -> None:
    print(f"Error: {message}", file=sys.stderr)
    raise SystemExit(code)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """1-bit node codes for graphs, without labels."""
    if version:
        print(__version__)
        raise typer.Exit
