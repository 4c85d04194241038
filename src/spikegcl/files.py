"""Files that are either whole or not there: temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from spikegcl.errors import SpikeGCLError, WriteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make a WriteError that names ``path`` of whatever goes wrong with files in the block."""
    try:
        yield
    except FileExistsError as error:
        raise WriteError(f"cannot write {path}: {error.filename} is not a folder") from error
    except OSError as error:
        if isinstance(error, SpikeGCLError):
            raise
        reason = os.strerror(error.errno) if error.errno else error  # Arrow's own words name the temporary file
        raise WriteError(f"cannot write {path}: {reason}") from error


@contextlib.contextmanager
def written_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; when the block ends well it is synced and renamed, else removed.

    Folders on the way to it are made.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with written_atomically(path) as temporary:
        temporary.write_text(text, "utf-8")


@contextlib.contextmanager
def locked(folder: Path, error: type[SpikeGCLError]) -> Iterator[None]:
    """Keep other processes out of ``folder``; the lock is gone with the process, however it ends."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise error(f"another process is writing {folder}; wait for it or choose another name") from None
        yield
    finally:
        os.close(handle)
