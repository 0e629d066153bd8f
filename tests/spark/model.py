"""What silver must be, said twice without Spark: changes written by hand, and a small source database.

:class:`SourceTable` holds rows, changes them and writes the log that a reader would deliver; for each row it
remembers which columns that log ever carried. Silver must equal it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import unix_seconds

from cdc_lib import bronze
from cdc_lib.change import change_schema
from cdc_lib.delta import Lake, TableRef
from cdc_lib.facts import Facts, facts_of
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.silver import SilverTable

SOURCE = pa.struct([pa.field("ts_us", pa.int64())])
META = ("__sequence", "__committed_at", "__deleted_at", "__unavailable", "__special")
Row = Mapping[str, Any]


def table(name: str, types: Mapping[str, pa.DataType], key: Sequence[str]) -> Table:
    columns = tuple(Column(n, t, "x", id=i) for i, (n, t) in enumerate(types.items(), start=1))
    return Table(TableId("public", name), columns, tuple(key), version=1)


@dataclass
class Change:
    """One row of bronze. Rows of one ``commit`` share a position; its number is its time in seconds."""

    op: str
    after: Row | None = None
    before: Row | None = None
    after_unavailable: Sequence[str] | None = None
    before_unavailable: Sequence[str] | None = None
    special: Mapping[str, str] | None = None
    previous_key: Row | None = None
    version: int = 1
    commit: int = 0

    def bronze(self, batch: int, ordinal: int) -> dict[str, Any]:
        return {
            "op": self.op,
            "before": self.before,
            "after": self.after,
            "before_unavailable": self.before_unavailable,
            "after_unavailable": self.after_unavailable,
            "special": self.special,
            "previous_key": self.previous_key,
            "source": {"ts_us": self.commit * 1_000_000},
            "_batch": batch,
            "_sequence": sequence(batch, ordinal),
            "_position": f"{self.commit:010d}",
            "_schema_version": self.version,
        }


def sequence(batch: int, ordinal: int) -> int:
    return batch << 32 | ordinal


def target(lake: Lake, table: Table, **more: Any) -> SilverTable:
    """Silver and an empty bronze table for ``table``."""
    silver = SilverTable(
        table,
        lake.ref("bronze", table.id.name),
        lake.ref("silver", table.id.name),
        f"id-{table.id.name}",
        **more,
    )
    bronze.ensure(lake, silver.bronze, table, SOURCE, bronze.Marks("test", "one", silver.table_id))
    return silver


def write(spark: SparkSession, lake: Lake, bronze: TableRef, batches: Mapping[int, Iterable[Change]]) -> None:
    """Append the batches to bronze, ordinals in the order given."""
    rows = [
        change.bronze(batch, ordinal)
        for batch, changes in batches.items()
        for ordinal, change in enumerate(changes, start=1)
    ]
    lake.append(bronze, frame(spark, lake, bronze, rows))


def staged_facts(table: Table, batch: int, changes: Iterable[Change]) -> Facts:
    """The facts of a batch's changes, as staging notes them."""
    schema = change_schema(table, SOURCE)
    rows = [
        {**change.bronze(batch, ordinal), "ordinal": ordinal}
        for ordinal, change in enumerate(changes, start=1)
    ]
    return facts_of(pa.RecordBatch.from_pylist(rows, schema), table, batch)


def frame(spark: SparkSession, lake: Lake, bronze: TableRef, rows: list[dict[str, Any]]) -> DataFrame:
    schema = lake.table(bronze).schema
    return spark.createDataFrame([{**dict.fromkeys(schema.names), **row} for row in rows], schema)


def held(lake: Lake, silver: SilverTable) -> list[dict[str, Any]]:
    """Silver's rows, timestamps as seconds since the epoch, absent meta columns as None."""
    found = lake.table(silver.silver)
    times = [name for name in ("__committed_at", "__deleted_at") if name in found.columns]
    rows = found.withColumns({name: unix_seconds(name) for name in times}).collect()
    return [{**dict.fromkeys(META), **row.asDict()} for row in rows]


@dataclass
class Item:
    """A row of the source; ``known`` are the columns that the log carried since the row was created."""

    values: dict[str, str | None]
    special: dict[str, str] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    sequence: tuple[int, int] | None = None
    commit: int = 0
    deleted: bool = False

    def text(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self.special[name] for name in names if name in self.special}


@dataclass
class SourceTable:
    """A source table of key ``(grp, id)`` and text columns, with its log in ``batches``.

    ``full`` is the replica identity: whether before images carry more than the key.
    """

    random: random.Random
    columns: tuple[str, ...] = ("a", "b", "c")
    soft: bool = False
    full: bool = False
    live: dict[tuple[int, int | None], Item] = field(default_factory=dict)
    kept: dict[tuple[int, int | None], Item] = field(default_factory=dict)
    batches: dict[int, list[Change]] = field(default_factory=dict)
    batch: int = 1
    commit: int = 0

    @property
    def table_types(self) -> dict[str, pa.DataType]:
        return {"grp": pa.int32(), "id": pa.int32(), **dict.fromkeys(self.columns, pa.string())}

    def seed(self, key: tuple[int, int | None]) -> None:
        """A row that was there before the capture and that no snapshot has read."""
        self.live[key] = self._item()

    def insert(self, key: tuple[int, int | None], op: str = "c") -> None:
        self.commit += 1
        item = self._item()
        self._log(
            key, item, Change(op, self._image(key, item, self.columns), special=dict(item.special) or None)
        )
        item.known = set(self.columns)
        self.live[key] = item
        self.kept.pop(key, None)

    def update(self, key: tuple[int, int | None]) -> None:
        self.commit += 1
        item = self.live[key]
        old, old_text = dict(item.values), dict(item.special)
        changed = self._some(self.columns)
        for name in changed:
            self._assign(item, name)
        absent = self._some(set(self.columns) - set(changed))
        there = [name for name in self.columns if name not in absent]
        change = Change("u", self._image(key, item, there), after_unavailable=absent or None)
        texts = item.text(there)
        if self.full:
            lacking = self._some(self.columns)
            seen = [name for name in self.columns if name not in lacking]
            change.before = self._image(key, Item(old), seen)
            change.before_unavailable = lacking or None
            texts |= {f"before.{name}": text for name, text in Item(old, old_text).text(seen).items()}
            item.known |= set(seen) - set(changed)
        change.special = texts or None
        self._log(key, item, change)
        item.known |= set(there)

    def delete(self, key: tuple[int, int | None]) -> None:
        self.commit += 1
        self._leave(key, self.live.pop(key))

    def move(self, old: tuple[int, int | None], new: tuple[int, int | None]) -> None:
        """Update of the key; ``new`` may be taken only if its row moves within the same commit."""
        self.commit += 1
        self._move(old, new)

    def swap(self, one: tuple[int, int | None], two: tuple[int, int | None]) -> None:
        """Two rows exchange keys under a deferred constraint: 1 to 2 while 2 is still there."""
        self.commit += 1
        first, second = self.live.pop(one), self.live.pop(two)
        self._leave(one, first)
        self._enter(two, one, first)
        self._leave(two, second)
        self.kept.pop(two, None)
        self._enter(one, two, second)

    def detour(self, one: tuple[int, int | None], two: tuple[int, int | None], free: tuple[int, int]) -> None:
        """Two rows exchange keys in one commit by way of a third."""
        self.commit += 1
        self._move(one, free)
        self._move(two, one)
        self._move(free, two)

    def truncate(self) -> None:
        self.commit += 1
        number = self._append(Change("t"))
        for key, item in self.live.items():
            if self.soft and item.sequence is not None:
                item.sequence, item.commit, item.deleted = number, self.commit, True
                self.kept[key] = item
        self.live.clear()

    def rows(self) -> list[dict[str, Any]]:
        """What silver must hold now."""
        captured = {key: item for key, item in self.live.items() if item.sequence is not None}
        return [self._row(key, item) for key, item in {**self.kept, **captured}.items()]

    def _move(self, old: tuple[int, int | None], new: tuple[int, int | None]) -> None:
        item = self.live.pop(old)
        self._leave(old, item)
        self._enter(new, old, item)

    def _leave(self, key: tuple[int, int | None], item: Item) -> None:
        seen = [name for name in self.columns if name not in self._some(self.columns)] if self.full else []
        absent = [name for name in self.columns if name not in seen]
        item.known |= set(seen)
        gone = Item(dict(item.values), dict(item.special), set(item.known), deleted=True)
        change = Change("d", before=self._image(key, item, seen), before_unavailable=absent or None)
        change.special = item.text(seen) or None
        self._log(key, gone, change)
        if self.soft:
            self.kept[key] = gone

    def _enter(self, key: tuple[int, int | None], old: tuple[int, int | None], item: Item) -> None:
        changed = self._some(self.columns)
        for name in changed:
            self._assign(item, name)
        absent = self._some(set(self.columns) - set(changed))
        there = [name for name in self.columns if name not in absent]
        previous = {"grp": old[0], "id": old[1]}
        change = Change("c", self._image(key, item, there), None, absent or None, previous_key=previous)
        change.special = item.text(there) or None
        self._log(key, item, change)
        item.known |= set(there)
        self.live[key] = item
        self.kept.pop(key, None)

    def _item(self) -> Item:
        item = Item({})
        for name in self.columns:
            self._assign(item, name)
        return item

    def _assign(self, item: Item, name: str) -> None:
        item.special.pop(name, None)
        kind = self.random.random()
        item.values[name] = None if kind < 0.3 else f"{name}{self.random.randrange(10**6)}"
        if kind < 0.15:
            item.special[name] = f"text {self.random.randrange(10**6)}"

    def _image(self, key: tuple[int, int | None], item: Item, names: Iterable[str]) -> Row:
        there = set(names)
        values = {name: item.values[name] if name in there else None for name in self.columns}
        return {"grp": key[0], "id": key[1], **values}

    def _some(self, names: Iterable[str]) -> list[str]:
        if self.random.random() < 0.4:
            return []
        return [name for name in sorted(names) if self.random.random() < 0.5]

    def _log(self, key: tuple[int, int | None], item: Item, change: Change) -> None:
        item.sequence, item.commit = self._append(change), self.commit

    def _append(self, change: Change) -> tuple[int, int]:
        change.commit = self.commit
        batch = self.batches.setdefault(self.batch, [])
        batch.append(change)
        return self.batch, len(batch)

    def _row(self, key: tuple[int, int | None], item: Item) -> dict[str, Any]:
        assert item.sequence is not None
        unknown = [name for name in self.columns if name not in item.known]
        values = {name: item.values[name] if name in item.known else None for name in self.columns}
        return {
            "grp": key[0],
            "id": key[1],
            **values,
            "__sequence": sequence(*item.sequence),
            "__committed_at": item.commit,
            "__deleted_at": item.commit if item.deleted else None,
            "__unavailable": unknown or None,
            "__special": item.text(sorted(item.known)) or None,
        }
