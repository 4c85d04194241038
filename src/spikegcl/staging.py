"""Rows of files in tables of a DuckDB database, where they may outgrow memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spikegcl.tables import as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spikegcl.blocks import BadRows


class Staged:
    """A table of rows from files.

    It has the id columns (BIGINT, all VARCHAR once some text has come), other columns, the number of the row, and
    where it came from: the number of the file and the place in it.
    """

    def __init__(self, database: Any, name: str, ids: Sequence[str], others: dict[str, str] | None = None) -> None:
        self.database, self.name, self.ids = database, name, ids
        self.text, self.rows, self.files = False, 0, list[Callable[[int], str]]()
        self._ascending, self._last = True, -(2**63)
        kinds = dict.fromkeys(ids, "BIGINT") | (others or {})
        kinds |= {"row": "BIGINT", "file": "INTEGER", "place": "BIGINT"}
        self.columns = list(kinds)
        database.execute(f"CREATE TABLE {name} ({', '.join(f'{key} {kind}' for key, kind in kinds.items())})")

    def insert(self, columns: Sequence[Any], places: NDArray[np.int64]) -> None:
        """Add rows of the file that ``files`` has last: their ids, then the other columns."""
        count = len(places)
        if count == 0:
            return
        ids, others = columns[: len(self.ids)], columns[len(self.ids) :]
        if not self.text and any(pa.types.is_string(column.type) for column in ids):
            self.text = True
            for name in self.ids:
                self.database.execute(f"ALTER TABLE {self.name} ALTER {name} TYPE VARCHAR")
        if self.text:
            ids = [as_text(column) for column in ids]
        elif self._ascending:
            numbers = ids[0].to_numpy()
            self._ascending = bool(numbers[0] > self._last and (numbers[1:] > numbers[:-1]).all())
            self._last = int(numbers[-1])
        origin = [np.arange(self.rows, self.rows + count), np.full(count, len(self.files) - 1, np.int32), places]
        self.database.register("block", pa.table([*ids, *others, *map(pa.array, origin)], names=self.columns))
        self.database.execute(f"INSERT INTO {self.name} FROM block")
        self.database.unregister("block")
        self.rows += count

    def where(self, file: int, place: int) -> str:
        return self.files[file](place)

    def drop_repeats(self, bad: BadRows, kind: str) -> NDArray[np.int64]:
        """Remove rows whose id was there before; their row numbers, ascending."""
        if self._ascending and not self.text:
            return np.zeros(0, np.int64)
        self.database.execute(
            f"CREATE OR REPLACE TEMP TABLE repeats AS SELECT t.id, t.row, t.file, t.place, first_file, first_place "
            f"FROM {self.name} t JOIN (SELECT id, min(row) AS first, arg_min(file, row) AS first_file, "
            f"arg_min(place, row) AS first_place FROM {self.name} GROUP BY id HAVING count(*) > 1) f USING (id) "
            f"WHERE t.row > f.first"
        )
        rows: NDArray[np.int64] = self.database.sql("SELECT row FROM repeats ORDER BY row").fetchnumpy()["row"]
        if len(rows):
            found = self.database.sql("SELECT * EXCLUDE (row) FROM repeats ORDER BY row LIMIT 10").fetchall()
            texts = (
                f"{self.where(file, place)}: node id {str(node)!r} is already at {self.where(*first)}"
                for node, file, place, *first in found
            )
            bad.add(kind, texts, len(rows))
            self.database.execute(f"DELETE FROM {self.name} WHERE row IN (SELECT row FROM repeats)")
        return rows
