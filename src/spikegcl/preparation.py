"""Edge and feature files of any size to a prepared graph, in bounded memory.

Files are read in blocks into tables of a DuckDB database beside the output. DuckDB matches ids and sorts edges within
its share of the memory, on disk where they do not fit; sorted edges then stream into the arrays of the folder.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa

from spikegcl.blocks import ON_BAD, BadRows, TableFile
from spikegcl.csr_files import write_adjacency, write_features_as_csr, write_without
from spikegcl.errors import ConfigError, GraphError, ReadError
from spikegcl.feature_files import open_features
from spikegcl.graph import PARTS, SPARSE_BELOW, are_class_numbers, encode_labels, report_removed
from spikegcl.prepared import ArrayFile, TextFile, new_prepared, write_manifest
from spikegcl.readers import ID, PART_OF, SOURCE, TARGET, read_labels, read_split, report_weights, warn_of_missing
from spikegcl.staging import Staged
from spikegcl.tables import TABLES, as_text, check_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Progress = Callable[[str, float | None], None]

log = logging.getLogger("spikegcl")

LIBRARIES = 300 * 10**6  # bytes of the process that are not DuckDB's: Python, libraries, blocks on their way
LEAST_MEMORY = 512 * 10**6
THREAD_MEMORY = 256 * 10**6  # a thread that sorts wants this much
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_INTEGER = "0|-?[1-9][0-9]*"


def prepare_graph(
    edges: Sequence[str | Path],
    output: str | Path,
    *,
    features: Sequence[str | Path] = (),
    labels: str | Path | None = None,
    split: str | Path | None = None,
    memory: str = "4GB",
    on_bad: str = "refuse",
    force: bool = False,
    on_progress: Progress = lambda stage, share: None,
) -> dict[str, Any]:
    """Make the folder ``output`` of files as :func:`spikegcl.read_graph` takes them; returns its manifest.

    It is the graph that ``read_graph`` would give: the same nodes in the same order, the same edges, the same hash.
    Edges, and features with the same columns, may come in several files. The process stays within ``memory``.
    Rows that cannot be used are found kind by kind (features, edges, labels), all of a kind before any is reported;
    ``on_bad`` is ``refuse`` or ``skip``. Of rows that repeat an id the first is kept. ``on_progress`` is called with
    the name of the stage and the share of it that is done (None where it is not known).
    """
    if on_bad not in ON_BAD:
        raise ConfigError(f"on_bad is {on_bad!r}; choose {' or '.join(ON_BAD)}")
    limit = memory_bytes(memory)
    with new_prepared(Path(output), force=force) as folder:
        work = folder / "work"
        work.mkdir()
        settings: dict[str, Any] = {
            "memory_limit": f"{int(0.8 * (limit - LIBRARIES)) // 10**6}MB",
            "temp_directory": str(work / "spilled"),
            "threads": max(1, min(os.cpu_count() or 1, limit // THREAD_MEMORY)),
        }
        try:
            with duckdb.connect(work / "tables.duckdb", config=settings) as database:
                making = _Preparation(database, folder, BadRows(on_bad == "skip"), on_progress)
                facts = making.run([Path(path) for path in edges], [Path(path) for path in features], labels, split)
        except duckdb.Error as error:
            raise GraphError(f"cannot prepare {output}: {error}; more --memory or room on the disk may help") from error
        shutil.rmtree(work)
        on_progress("checksums", None)
        return write_manifest(folder, **facts)


def memory_bytes(text: str) -> int:
    """
    >>> memory_bytes("4GB"), memory_bytes("1.5 g")
    (4000000000, 1500000000)
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)i?b?\s*", text.lower())
    if found is None or (size := int(float(found[1]) * _UNITS[found[2]])) < LEAST_MEMORY:
        raise ConfigError(f"memory is {text!r}; give at least {LEAST_MEMORY // 10**6}MB, for example 4GB")
    return size


@dataclass
class _Preparation:
    """One preparation: its database, the folder it fills, the bad rows so far."""

    database: Any
    folder: Path
    bad: BadRows
    report: Progress
    nodes_are_text: bool = False

    def run(self, edges: list[Path], features: list[Path], labels: Any, split: Any) -> dict[str, Any]:
        """Write every array file; what the manifest says beside them."""
        columns, width = self.read_features(features) if features else (None, 0)
        links = self.read_edges(edges)
        if not features:
            self.number_nodes_by_id(links)
        count = self.count_nodes()
        self.match_edges(links, str(features[0]) if features else "the edges")
        self.write_ids()
        classes = None if labels is None else self.write_labels(Path(labels), count)
        if split is not None:
            self.write_split(Path(split), count)
        self.write_edges(count, weighted="weight" in links.columns)
        return {
            "name": edges[0].name.split(".")[0],
            "num_features": width,
            "columns": columns,
            "classes": classes,
            "skipped": dict(self.bad.counts),
        }

    def read_features(self, paths: list[Path]) -> tuple[list[str] | None, int]:
        """Number the nodes and write their features; names of columns, number of columns."""
        nodes = Staged(self.database, "node_of", ["id"])
        files = open_features(paths)
        names, width = files[0].names, files[0].width
        target, filled = self.folder / "features.npy", 0
        with ArrayFile(target, np.float32, width) as array:
            for number, file in enumerate(files):
                nodes.files.append(file.where)
                for ids, matrix, places, share in file.finite_blocks(self.bad):
                    self.report("reading features", (number + share) / len(files))
                    filled += int(np.count_nonzero(matrix))
                    array.append(matrix)
                    nodes.insert([pa.array(places) if ids is None else ids], places)
        repeats = nodes.drop_repeats(self.bad, "repeated ids")
        self.bad.settle()
        self.nodes_are_text = nodes.text
        if len(repeats):
            self.database.execute(
                "CREATE OR REPLACE TABLE node_of AS "
                "SELECT id, row_number() OVER (ORDER BY row) - 1 AS node FROM node_of"
            )
        else:
            self.database.execute("ALTER TABLE node_of RENAME row TO node")
        if not width:
            target.unlink()
            return None, 0
        if len(repeats):
            filled = write_without(target, repeats)
        if filled < SPARSE_BELOW * (nodes.rows - len(repeats)) * width:
            write_features_as_csr(target)
        # 0, 1, 2, ... for names is how a data frame without column names is written.
        return None if names == [str(i) for i in range(width)] else names, width

    def read_edges(self, paths: list[Path]) -> Staged:
        files = [TableFile(check_path(path, TABLES)[0], (SOURCE, TARGET), True) for path in paths]
        names, widths = zip(*(file.names() for file in files))
        for path, width in zip(paths, widths):
            if width > 3:
                raise ReadError(f"{path}: {width} columns; keep source, target and at most one weight")
            if width != widths[0]:
                raise ReadError(
                    f"{path} has {width} columns and {paths[0]} {widths[0]}; give weights in all or in none"
                )
        links = Staged(self.database, "edges", ["source", "target"], {"weight": "FLOAT"} if widths[0] == 3 else {})
        for number, file in enumerate(files):
            links.files.append(file.where)
            for block, share in file.blocks(self.bad):
                self.report("reading edges", (number + share) / len(files))
                if widths[0] == 3:
                    weights = block.columns[2].to_numpy(zero_copy_only=False)
                    usable = np.isfinite(weights) & (weights >= 0)
                    wrong = np.flatnonzero(~usable)
                    texts = (
                        f"{file.where(block.places[row])}: weight {weights[row]} must be finite and not negative"
                        for row in wrong
                    )
                    self.bad.add("unusable weights", texts, len(wrong))
                    block = block.keep(usable)
                links.insert(block.columns, block.places)
        self.bad.settle()
        if widths[0] == 3:
            ranges = "SELECT file, min(weight), max(weight) FROM edges GROUP BY file ORDER BY file"
            for number, low, high in self.database.execute(ranges).fetchall():
                report_weights(paths[number], names[number], low, high)
        return links

    def number_nodes_by_id(self, links: Staged) -> None:
        """Without features, the nodes are the ids of edges, ascending."""
        self.report("numbering nodes", None)
        self.database.execute(
            "CREATE TABLE node_of AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS node "
            "FROM (SELECT source AS id FROM edges UNION SELECT target FROM edges)"
        )
        self.nodes_are_text = links.text

    def count_nodes(self) -> int:
        (count,) = self._one("SELECT count(*) FROM node_of")
        if count == 0:
            raise GraphError("the graph has no nodes; give at least one edge or a feature row")
        if count > np.iinfo(np.int32).max:
            raise GraphError(f"{count} nodes do not fit 32-bit node indices")
        return int(count)

    def match_edges(self, links: Staged, features: str) -> None:
        """Make ``links``: edges by the numbers of their nodes, NULL where there is no such node, which is bad."""
        self.report("matching ids", None)
        weight = ", weight" if "weight" in links.columns else ""
        text = self.nodes_are_text or links.text
        count, numbered = self._one("SELECT count(*), bool_and(id = node) FROM node_of") if not text else (0, False)
        if numbered:  # ids are the numbers: nothing to look up
            ends = [f"CASE WHEN {end} BETWEEN 0 AND {count - 1} THEN {end} END AS {end}" for end in links.ids]
            tables, kind = "edges e", "VIEW"
        else:
            ends = [f"{end}_node.node AS {end}" for end in links.ids]
            joined = (
                f"LEFT JOIN node_of {end}_node ON {_same_id(f'{end}_node.id', f'e.{end}', text)}" for end in links.ids
            )
            tables, kind = " ".join(["edges e", *joined]), "TABLE"
        given = ", ".join(f"e.{end} AS {end}_id" for end in links.ids)
        self.database.execute(
            f"CREATE {kind} links AS SELECT {', '.join(ends)}{weight}, {given}, e.row, e.file, e.place FROM {tables}"
        )
        unknown = "FROM links WHERE source IS NULL OR target IS NULL"
        (number,) = self._one(f"SELECT count(*) {unknown}")
        if number:
            named = "CASE WHEN source IS NULL THEN source_id ELSE target_id END"
            found = self.database.sql(f"SELECT file, place, {named} {unknown} ORDER BY row LIMIT 10").fetchall()
            texts = (
                f"{links.where(file, at)}: node id {str(node)!r} has no row in {features}" for file, at, node in found
            )
            self.bad.add("edges of nodes without features", texts, number)
        self.bad.settle()

    def write_ids(self) -> None:
        query = "SELECT id FROM node_of ORDER BY node"
        if self.nodes_are_text:
            with TextFile(self.folder / "ids.arrow") as names:
                for (ids,) in self._stream(query):
                    names.append(ids)
        else:
            self._write("ids.npy", query)

    def write_edges(self, count: int, weighted: bool) -> None:
        """Sort both directions of every edge and write the adjacency."""
        self.report("sorting edges", None)
        weight, present = (", weight", "weight > 0") if weighted else ("", "true")
        usable = f"FROM links WHERE source <> target AND {present}"  # not where one of them is unknown
        (lines,) = self._one(f"SELECT count(*) {usable}")
        counts = "count(*) FILTER (source = target), count(*) FILTER (source <> target)"
        report_removed(*self._one(f"SELECT {counts} FROM links WHERE source = target OR NOT {present}"))
        query = (
            f"SELECT (source << 32) | target AS pair{weight} {usable} "
            f"UNION ALL SELECT (target << 32) | source{weight} {usable} ORDER BY pair"
        )

        def columns() -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32] | None]]:
            done = 0
            for pairs, *weights in self._stream(query):
                yield pairs.to_numpy(), weights[0].to_numpy() if weights else None
                done += len(pairs)
                self.report("writing edges", done / (2 * lines))

        written = write_adjacency(self.folder, columns(), count)
        log.info("%d edge lines describe %d undirected edges", lines, written // 2)

    def write_labels(self, path: Path, count: int) -> list[str] | None:
        """Write labels as integers, -1 where there is none; the class names they stand for, if they are names."""
        self.report("labels", None)
        if check_path(path, (*TABLES, ".npy"))[1] == ".npy":
            values, names = encode_labels(read_labels(path, np.arange(count)), count)
            with ArrayFile(self.folder / "labels.npy", np.int64) as file:
                file.append(values)
            return None if names is None else list(names)
        self.read_values("labels", path)
        whole = f"regexp_full_match(value, '{_INTEGER}') AND TRY_CAST(value AS BIGINT) IS NOT NULL"
        (integers,) = self._one(f"SELECT coalesce(bool_and({whole}), true) FROM labels_of WHERE value <> ''")
        value = "TRY_CAST(value AS BIGINT)" if integers else "value"
        wanted = f"{value} >= 0" if integers else "value <> ''"
        found = self.database.sql(f"SELECT DISTINCT {value} AS name FROM labels_of WHERE {wanted} ORDER BY name")
        classes = [name for (name,) in found.fetchall()]
        if integers and are_class_numbers(classes):
            classes, code = [], f"coalesce(greatest({value}, -1), -1)"
        else:
            warn_of_missing(path, classes)
            self.database.register("classes", pa.table({"name": classes, "code": np.arange(len(classes))}))
            self.database.execute("CREATE TABLE class_of AS FROM classes")
            code = f"coalesce((SELECT code FROM class_of WHERE name = {value}), -1)"
        self._write("labels.npy", f"SELECT {code} FROM node_of LEFT JOIN labels_of USING (node) ORDER BY node")
        return list(map(str, classes)) or None

    def write_split(self, path: Path, count: int) -> None:
        self.report("split", None)
        if check_path(path, (*TABLES, ".npy"))[1] == ".npy":
            split = read_split(path, np.arange(count))
            for part in PARTS:
                with ArrayFile(self.folder / f"{part}.npy", np.int64) as file:
                    file.append(getattr(split, part))
            return
        self.read_values("split", path, allowed=PART_OF)
        for code, part in enumerate(PARTS):
            names = ", ".join(f"'{name}'" for name, number in PART_OF.items() if number == code)
            self._write(f"{part}.npy", f"SELECT node FROM split_of WHERE lower(value) IN ({names}) ORDER BY node")

    def read_values(self, kind: str, path: Path, allowed: dict[str, int] | None = None) -> None:
        """Make ``{kind}_of``, node and value, from a table of id and value."""
        file = TableFile(path, (ID,), False)
        if (width := file.names()[1]) != 2:
            raise ReadError(f"{path}: {width} columns; keep two, the node id and its value")
        staged = Staged(self.database, kind, ["id"], {"value": "VARCHAR"})
        staged.files.append(file.where)
        for block, share in file.blocks(self.bad):
            self.report(kind, share)
            values = as_text(block.columns[1])
            if allowed is not None:
                fine = np.array([value.lower() in allowed for value in values.to_pylist()], bool)
                wrong = [(block.places[row], values[row]) for row in np.flatnonzero(~fine)]
                texts = (f"{file.where(place)}: {str(value)!r} is no part of a split" for place, value in wrong)
                self.bad.add("unknown parts", texts, len(wrong))
                block, values = block.keep(fine), values.filter(pa.array(fine))
            staged.insert([block.columns[0], values], block.places)
        staged.drop_repeats(self.bad, f"repeated ids of {kind}")
        same = _same_id("n.id", "t.id", staged.text or self.nodes_are_text)
        self.database.execute(
            f"CREATE TABLE {kind}_of AS SELECT node, value, t.id, t.row, t.place "
            f"FROM {kind} t LEFT JOIN node_of n ON {same}"
        )
        (number,) = self._one(f"SELECT count(*) FROM {kind}_of WHERE node IS NULL")
        if number:
            query = f"SELECT place, id FROM {kind}_of WHERE node IS NULL ORDER BY row LIMIT 10"
            found = self.database.sql(query).fetchall()
            texts = (f"{file.where(place)}: node id {str(node)!r} is not a node of the graph" for place, node in found)
            self.bad.add(f"{kind} of unknown nodes", texts, number)
            self.database.execute(f"DELETE FROM {kind}_of WHERE node IS NULL")
        self.bad.settle()

    def _one(self, query: str) -> tuple[Any, ...]:
        rows: list[tuple[Any, ...]] = self.database.execute(query).fetchall()
        return rows[0]

    def _stream(self, query: str) -> Iterator[list[Any]]:
        """The columns of a result, block by block."""
        return (batch.columns for batch in self.database.sql(query).to_arrow_reader(1 << 18))

    def _write(self, name: str, query: str) -> None:
        """A column of integers as an array file."""
        with ArrayFile(self.folder / name, np.int64) as file:
            for (column,) in self._stream(query):
                file.append(column.to_numpy())


def _same_id(left: str, right: str, text: bool) -> str:
    return f"{left}::VARCHAR = {right}::VARCHAR" if text else f"{left} = {right}"
