"""Raw files of the named datasets: where they live, what they must hash to, how they are fetched and opened."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import shutil
import zipfile
import zlib
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from spikegcl.errors import DataMissingError, ReadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

log = logging.getLogger("spikegcl")

# Seconds without a byte before a server counts as silent.
TIMEOUT = 30.0


@dataclass(frozen=True)
class RawFile:
    """One file: its path below the dataset's folder, and its pinned SHA-256 (empty: not pinned)."""

    path: str
    sha256: str = ""


@dataclass(frozen=True)
class RawFiles:
    """The files one dataset is read from, laid out as PyG and OGB lay them out.

    =============  =================================================================================
    ``folders``    names of its folder below a data root; all are searched, downloads go to the first
    ``url``        what precedes a file's name in its address, or the address of one zip with them all
    ``files``      role (what the reader asks for) -> file
    =============  =================================================================================
    """

    folders: tuple[str, ...]
    url: str
    files: Mapping[str, RawFile]

    @property
    def is_archive(self) -> bool:
        return self.url.endswith(".zip")

    def address(self, role: str) -> str:
        """The public address a file comes from (of the whole archive, where there is one)."""
        return self.url if self.is_archive else self.url + Path(self.files[role].path).name


def _planetoid(folder: str, **sha256: str) -> RawFiles:
    names = {role: f"raw/ind.{folder.lower()}.{role.replace('_', '.')}" for role in sha256}
    url = "https://github.com/kimiyoung/planetoid/raw/master/data/"
    return RawFiles((folder,), url, {role: RawFile(names[role], digest) for role, digest in sha256.items()})


def _npz(folder: str, name: str, sha256: str) -> RawFiles:
    url = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/"
    return RawFiles((folder,), url, {"graph": RawFile(f"raw/{name}", sha256)})


def _ogb(folders: tuple[str, ...], archive: str, **paths: str) -> RawFiles:
    url = f"https://snap.stanford.edu/ogb/data/nodeproppred/{archive}.zip"
    return RawFiles(folders, url, {role: RawFile(path) for role, path in paths.items()})


# The digests are those of the files in the public repositories. Planetoid's are pickles, which can run code when
# opened, so nothing but exactly these bytes is ever unpickled. OGB's are plain CSV and stay unpinned.
RAW_FILES: dict[str, RawFiles] = {
    "cora": _planetoid(
        "Cora",
        x="23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        tx="b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        allx="9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        y="94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        ty="41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        ally="2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        graph="58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        test_index="297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    ),
    "citeseer": _planetoid(
        "CiteSeer",
        x="d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        tx="539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        allx="2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        y="8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        ty="55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        ally="f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        graph="d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        test_index="2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    ),
    "pubmed": _planetoid(
        "PubMed",
        x="fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        tx="4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        allx="508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        y="e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        ty="ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        ally="0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        graph="5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        test_index="b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    ),
    "computers": _npz(
        "Computers",
        "amazon_electronics_computers.npz",
        "736ba1d9fd85eac2da83a5ad25c463f04b0031a6ca01563f90a7099d9e8ffb2c",
    ),
    "photo": _npz(
        "Photo",
        "amazon_electronics_photo.npz",
        "bdb1feb8e6ff42ee44024b04479145029c563fd42fc31bff80af20887ba0439a",
    ),
    "cs": _npz("CS", "ms_academic_cs.npz", "933c745734e78908c7eb77172a673fee0503f30e26e5a99b36814d88534c42e3"),
    "physics": _npz(
        "Physics", "ms_academic_phy.npz", "e4d68468eba5fb8f6b280ffd406bd53e6e4295ba1dd2967d6fe99b978e4b3375"
    ),
    "ogbn-arxiv": _ogb(
        # A copy without node features is called "partial", so that OGB's own loader does not take it for the whole.
        ("ogbn_arxiv", "ogbn_arxiv_partial"),
        "arxiv",
        edges="raw/edge.csv.gz",
        features="raw/node-feat.csv.gz",
        labels="raw/node-label.csv.gz",
        count="raw/num-node-list.csv.gz",
        train="split/time/train.csv.gz",
        valid="split/time/valid.csv.gz",
        test="split/time/test.csv.gz",
    ),
    "ogbn-mag": _ogb(
        ("ogbn_mag",),
        "mag",
        edges="raw/relations/paper___cites___paper/edge.csv.gz",
        features="raw/node-feat/paper/node-feat.csv.gz",
        labels="raw/node-label/paper/node-label.csv.gz",
        count="raw/num-node-dict.csv.gz",
        train="split/time/paper/train.csv.gz",
        valid="split/time/paper/valid.csv.gz",
        test="split/time/paper/test.csv.gz",
    ),
}


# Where files are --------------------------------------------------------------------------------------------------


def cache_root() -> Path:
    """The folder of our own: ``$XDG_CACHE_HOME/spikegcl``, or ``~/.cache/spikegcl``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "spikegcl"


def find_data_root(explicit: str | Path | None = None) -> Path:
    """The folder datasets are looked for first: the argument, else ``SPIKEGCL_DATA``, else our cache."""
    named = explicit or os.environ.get("SPIKEGCL_DATA")
    return Path(named).expanduser() if named else cache_root()


def download_root(explicit: str | Path | None = None) -> Path:
    """The folder downloads are written to: the argument where it is writable, else our cache.

    A root named only by ``SPIKEGCL_DATA`` is never written to: it is often one folder shared by many people.
    """
    if explicit and _writable(root := Path(explicit).expanduser()):
        return root
    return cache_root()


def _writable(folder: Path) -> bool:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    # The superuser passes os.access everywhere; a folder without any write bit is meant to stay as it is all the same.
    return existing.is_dir() and os.access(existing, os.W_OK) and bool(existing.stat().st_mode & 0o222)


def find_files(raw: RawFiles, roles: Iterable[str], data_root: str | Path | None = None) -> dict[str, Path]:
    """Paths of those files that are present, by role; the data root comes before the cache."""
    places = [root / folder for root in (find_data_root(data_root), cache_root()) for folder in raw.folders]
    found: dict[str, Path] = {}
    for role in roles:
        candidates = (place / raw.files[role].path for place in places)
        if path := next((path for path in candidates if path.is_file()), None):
            found[role] = path
    return found


# Fetching ---------------------------------------------------------------------------------------------------------


def obtain_files(
    name: str,
    raw: RawFiles,
    roles: Iterable[str],
    data_root: str | Path | None = None,
    download: bool = True,
) -> dict[str, Path]:
    """Paths of all the files asked for, by role, after downloading the ones that are not there."""
    roles = list(roles)
    found = find_files(raw, roles, data_root)
    missing = [role for role in roles if role not in found]
    if not missing:
        return found
    target = download_root(data_root) / raw.folders[0]
    reason = "downloading is switched off"
    if download:
        try:
            (_fetch_archive if raw.is_archive else _fetch_each)(raw, missing, target)
            return {role: found.get(role, target / raw.files[role].path) for role in roles}
        except (OSError, HTTPException) as error:
            reason = f"the download failed: {error}"
    searched = " and ".join(map(str, dict.fromkeys([find_data_root(data_root), cache_root()])))
    places = "\n".join(f"  {target / raw.files[role].path}  (from {raw.address(role)})" for role in missing)
    inside = ", unpacked" if raw.is_archive else ""
    raise DataMissingError(
        f"{name} needs {len(missing)} of its {len(roles)} files; searched {searched}, and {reason}. "
        f"Name a folder that has them with --data-root or SPIKEGCL_DATA, or put here{inside}:\n{places}"
    )


def _fetch_each(raw: RawFiles, roles: list[str], target: Path) -> None:
    for role in roles:
        path = target / raw.files[role].path
        with _written_whole(path) as file:
            digest = _stream(raw.address(role), file, path.name)
            _check_digest(raw.address(role), raw.files[role].sha256, digest)


def _fetch_archive(raw: RawFiles, roles: list[str], target: Path) -> None:
    """Download the zip, take out of its single top folder only the files that are missing, and delete it."""
    target.mkdir(parents=True, exist_ok=True)
    archive = target / f".{os.getpid()}.zip"
    try:
        with archive.open("wb") as file:
            _stream(raw.url, file, Path(raw.url).name)
        with zipfile.ZipFile(archive) as members:
            for role in roles:
                # Reading a member to its end checks its CRC, the only pin an OGB archive has.
                member = f"{Path(raw.url).stem}/{raw.files[role].path}"
                with members.open(member) as content, _written_whole(target / raw.files[role].path) as file:
                    shutil.copyfileobj(content, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise ReadError(
            f"{raw.url} is not the archive it should be: {error}; try again later, or unpack it by hand into {target}"
        ) from error
    finally:
        archive.unlink(missing_ok=True)


def _stream(url: str, file: IO[bytes], label: str) -> str:
    """Copy what an address serves into an open file, with a progress bar on a terminal; returns its SHA-256."""
    from urllib.request import Request, urlopen

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    log.info("downloading %s", url)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    digest, done = hashlib.sha256(), 0
    with (
        urlopen(Request(url, headers={"User-Agent": "spikegcl"}), timeout=TIMEOUT) as response,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        total = int(response.headers.get("Content-Length") or 0)
        task = progress.add_task(label, total=total or None)
        while chunk := response.read(1 << 18):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress.update(task, completed=done)
    if total and done != total:
        raise OSError(f"{url} ended after {done} of {total} bytes")
    return digest.hexdigest()


@contextmanager
def _written_whole(path: Path) -> Iterator[IO[bytes]]:
    """An open file that appears under its name only when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


# Opening ----------------------------------------------------------------------------------------------------------


def read_pinned(path: Path, sha256: str) -> bytes:
    """The content of a file, after checking that it is the content we know.

    The bytes that were checked are the bytes returned: a file exchanged between check and use cannot slip through.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReadError(f"cannot read {path}: {error}") from error
    _check_digest(str(path), sha256, hashlib.sha256(content).hexdigest())
    return content


def _check_digest(source: str, expected: str, found: str) -> None:
    if expected and found != expected:
        raise ReadError(
            f"{source} is not the published file: its SHA-256 should be {expected} but is {found}; "
            "delete the file and download it again"
        )


class PickledMatrix:
    """What is left of a pickled scipy CSR matrix without its class: its attributes, as plain arrays."""

    data: np.ndarray[Any, Any]
    indices: np.ndarray[Any, Any]
    indptr: np.ndarray[Any, Any]
    _shape: tuple[int, int]


def _pickled_dtype(code: str, align: int, copy: int) -> np.dtype[Any]:
    # Python 2 wrote these flags as 0 and 1; numpy 2.4 deprecates everything but booleans.
    return np.dtype(code, bool(align), bool(copy))


# All that Planetoid's files name. numpy's array constructor moved between modules, so it is asked of an array.
ADMITTED: dict[tuple[str, str], Any] = {
    ("__builtin__", "list"): list,
    ("collections", "defaultdict"): defaultdict,
    ("numpy", "dtype"): _pickled_dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("scipy.sparse.csr", "csr_matrix"): PickledMatrix,
}


class _PlanetoidUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise ReadError(f"the pickle asks for {module}.{name}, which no benchmark file needs; refused") from None


def load_pickle(content: bytes) -> Any:
    """A Python 2 pickle of lists, dicts, numpy arrays and CSR matrices; anything else is refused."""
    return _PlanetoidUnpickler(io.BytesIO(content), encoding="latin1").load()
