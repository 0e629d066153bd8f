"""SCD type 2: random histories of a source table cut into random batches, and the cases that need a name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from model import Change, Item, SourceTable, sequence, staged_facts, table, target, write
from pyspark.sql import SparkSession
from pyspark.sql.functions import unix_seconds
from test_silver_histories import HISTORIES, play, ranges

from cdc_lib import silver
from cdc_lib.delta import Lake
from cdc_lib.errors import FixConfiguration
from cdc_lib.facts import Facts
from cdc_lib.silver import SilverTable

Key = tuple[int, int | None]


@dataclass
class Version:
    item: Item
    row: dict[str, Any]


@dataclass
class HistoryTable(SourceTable):
    """Remembers every version of its rows, as far as the log carried them."""

    versions: dict[Key, list[Version]] = field(default_factory=dict)

    def insert(self, key: Key, op: str = "c") -> None:
        super().insert(key, op)
        self._begin(key)

    def update(self, key: Key) -> None:
        super().update(key)
        self._begin(key)

    def swap(self, one: Key, two: Key) -> None:
        """Of a row that was never captured nobody can tell that it was the one to leave."""
        if self.live[two].sequence is None:
            one, two = two, one
        if self.live[two].sequence is None:
            return
        super().swap(one, two)

    def truncate(self) -> None:
        super().truncate()
        for key in self.versions:
            self._end(key, self._last())

    def _enter(self, key: Key, old: Key, item: Item) -> None:
        super()._enter(key, old, item)
        self._begin(key)

    def _leave(self, key: Key, item: Item) -> None:
        super()._leave(key, item)
        versions = self.versions.get(key)
        # Under a deferred constraint the row that leaves may have been replaced before.
        if versions and versions[-1].item is item:
            self._end(key, self._last())

    def _begin(self, key: Key) -> None:
        item = self.live[key]
        self._end(key, self._last())
        row = {name: value for name, value in self._row(key, item).items() if name in self.shown}
        row |= {"__START_AT": self._last(), "__END_AT": None, "__ended_at": None}
        self.versions.setdefault(key, []).append(Version(item, row))

    def _end(self, key: Key, at: int) -> None:
        for version in self.versions.get(key, [])[-1:]:
            if version.row["__END_AT"] is None:
                version.row |= {"__END_AT": at, "__ended_at": self.commit}

    def _last(self) -> int:
        return sequence(self.batch, len(self.batches[self.batch]))

    @property
    def shown(self) -> Sequence[str]:
        return ("grp", "id", *self.columns, "__committed_at", "__unavailable", "__special")

    def rows(self) -> list[dict[str, Any]]:
        return [dict(version.row) for versions in self.versions.values() for version in versions]


def held(lake: Lake, kept: SilverTable) -> list[dict[str, Any]]:
    found = lake.table(kept.silver)
    times = [name for name in ("__committed_at", "__ended_at") if name in found.columns]
    rows = found.withColumns({name: unix_seconds(name) for name in times}).collect()
    optional = dict.fromkeys(("__unavailable", "__special"))
    return [{**optional, **row.asDict()} for row in rows]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        rows, key=lambda row: (row["grp"] or 0, row["id"] is not None, row["id"] or 0, row["__START_AT"])
    )


@pytest.mark.parametrize("seed", [0, 5, 8])
def test_random_histories(spark: SparkSession, lake: Lake, seed: int) -> None:
    chance = random.Random(seed)
    source = HistoryTable(chance, full=seed % 2 == 1)
    kept = target(lake, table(f"versions_{seed}", source.table_types, ("grp", "id")), scd=2)
    silver.ensure(lake, kept, "one")
    expected = play(chance, source, truncates=True)
    write(spark, lake, kept.bronze, source.batches)
    staged = {number: staged_facts(kept.table, number, rows) for number, rows in source.batches.items()}
    highest = 0
    for turn, (after, upto) in enumerate(ranges(chance, source.batch)):
        told = sum((staged[number] for number in range(after + 1, upto + 1)), Facts()) if turn % 2 else None
        silver.apply(lake, kept, after=after, upto=upto, incarnation="one", facts=told)
        highest = max(upto, highest)
        assert in_order(held(lake, kept)) == in_order(expected[highest]), f"after the range ({after}, {upto}]"
    assert len(expected[highest]) > HISTORIES


@dataclass(frozen=True)
class Case:
    """``versions``: of each its values, its columns that are not known, the place of the changes (batch,
    ordinal) that began and ended it."""

    name: str
    batches: Sequence[Sequence[Change]]
    versions: Sequence[tuple[str | None, str | None, Sequence[str], tuple[int, int], tuple[int, int] | None]]


def change(op: str, a: str | None, b: str | None, *lacks: str, **more: Any) -> Change:
    side = "before" if op == "d" else "after"
    return Change(op, **{side: {"id": 1, "a": a, "b": b}, f"{side}_unavailable": list(lacks) or None, **more})


GONE = change("d", None, None, "a", "b")
CASES = (
    Case("read", [[change("r", "x", "y")]], [("x", "y", (), (1, 1), None)]),
    Case(
        "read again as it was",
        [[change("r", "x", "y")], [change("r", "x", "y")], [change("r", "x", "y")]],
        [("x", "y", (), (1, 1), None)],
    ),
    Case(
        "read again as another",
        [[change("r", "x", "y")], [change("r", "x", None)]],
        [("x", "y", (), (1, 1), (2, 1)), ("x", None, (), (2, 1), None)],
    ),
    Case(
        "read again with a value that its column cannot hold",
        [[change("r", "x", None)], [change("r", "x", None, special={"b": "infinity"})]],
        [("x", None, (), (1, 1), (2, 1)), ("x", None, (), (2, 1), None)],
    ),
    Case(
        "read again after it was deleted",
        [[change("r", "x", "y")], [GONE], [change("r", "x", "y")]],
        [("x", "y", (), (1, 1), (2, 1)), ("x", "y", (), (3, 1), None)],
    ),
    Case(
        "completed by a row that is read",
        [[change("u", "x", None, "b")], [change("r", "x", "y")]],
        [("x", "y", (), (1, 1), None)],
    ),
    Case(
        "not completed by a row that is another",
        [[change("u", "x", None, "b")], [change("r", "z", "y")]],
        [("x", None, ("b",), (1, 1), (2, 1)), ("z", "y", (), (2, 1), None)],
    ),
    Case(
        "a row of a window that only carries what its changes lack",
        [[change("c", "o", "o")], [change("r", None, "y", "a"), change("u", "x", None, "b")]],
        [("o", "o", (), (1, 1), (2, 2)), ("x", "y", (), (2, 2), None)],
    ),
    Case(
        "filled version by version",
        [[change("c", "1", "y")], [change("u", "2", None, "b"), change("u", "3", None, "b")], [GONE]],
        [("1", "y", (), (1, 1), (2, 1)), ("2", "y", (), (2, 1), (2, 2)), ("3", "y", (), (2, 2), (3, 1))],
    ),
    Case(
        "never filled across a delete",
        [[change("c", "1", "y")], [GONE, change("u", "2", None, "b")]],
        [("1", "y", (), (1, 1), (2, 1)), ("2", None, ("b",), (2, 2), None)],
    ),
    Case("a delete of a row that nobody knew", [[GONE]], []),
)
WAYS = {
    "at once": [(0, 3)],
    "batch by batch": [(0, 1), (1, 2), (2, 3)],
    "overlapping": [(0, 2), (0, 3), (1, 3)],
}


@pytest.mark.parametrize("way", WAYS)
def test_cases(spark: SparkSession, lake: Lake, way: str) -> None:
    """All in one table; however the batches are cut, the versions are the same."""
    types = {"grp": pa.int32(), "id": pa.int32(), "a": pa.string(), "b": pa.string()}
    kept = target(lake, table("cases", types, ("grp", "id")), scd=2)
    silver.ensure(lake, kept, "one")
    batches: dict[int, list[Change]] = {1: [], 2: [], 3: []}
    places: dict[tuple[int, int, int], int] = {}
    for group, case in enumerate(CASES):
        for number, changes in enumerate(case.batches, 1):
            for ordinal, one in enumerate(changes, 1):
                images = {
                    name: {**getattr(one, name), "grp": group}
                    for name in ("before", "after")
                    if getattr(one, name)
                }
                batches[number].append(replace(one, **images))
                places[group, number, ordinal] = sequence(number, len(batches[number]))
    write(spark, lake, kept.bronze, batches)
    for after, upto in WAYS[way]:
        silver.apply(lake, kept, after=after, upto=upto, incarnation="one")
    found = held(lake, kept)
    for group, case in enumerate(CASES):
        wanted = [
            (a, b, list(lacks), places[(group, *start)], end and places[(group, *end)])
            for a, b, lacks, start, end in case.versions
        ]
        got = [
            (row["a"], row["b"], row["__unavailable"] or [], row["__START_AT"], row["__END_AT"])
            for row in in_order([row for row in found if row["grp"] == group])
        ]
        assert got == wanted, case.name
    assert silver.applied(lake, kept) == 3


def test_replayed_where_delta_does_not_say_what_it_has(spark: SparkSession, catalog_lake: Lake) -> None:
    """In a catalog the rows prove what was applied; and there is a view of the current versions."""
    types = {"id": pa.int32(), "a": pa.string(), "b": pa.string()}
    kept = target(catalog_lake, table("replayed", types, ("id",)), scd=2)
    silver.ensure(catalog_lake, kept, "one")
    batches = {1: [change("r", "x", "y")], 2: [change("r", "x", "y"), GONE], 3: [change("r", "n", "n")]}
    write(spark, catalog_lake, kept.bronze, batches)
    for after, upto in ((0, 1), (1, 2), (0, 2), (0, 3)):
        silver.apply(catalog_lake, kept, after=after, upto=upto, incarnation="one")
    versions = sorted((row["a"], row["__START_AT"], row["__END_AT"]) for row in held(catalog_lake, kept))
    assert versions == [("n", sequence(3, 1), None), ("x", sequence(1, 1), sequence(2, 2))]
    rows = spark.table(replace(kept.silver, name="replayed_current").sql).collect()
    assert [(row.id, row.a, row.b) for row in rows] == [(1, "n", "n")]
    assert not {"__START_AT", "__END_AT"} & set(rows[0].asDict())


def test_another_kind_of_table_is_refused(spark: SparkSession, lake: Lake) -> None:
    types = {"id": pa.int32(), "a": pa.string(), "b": pa.string()}
    kept = target(lake, table("kind", types, ("id",)))
    assert silver.ensure(lake, kept, "one") is True
    assert silver.ensure(lake, kept, "one") is False
    with pytest.raises(FixConfiguration, match="not made for scd: 2"):
        silver.ensure(lake, replace(kept, scd=2), "one")


def test_a_table_without_a_key_has_no_history(spark: SparkSession, lake: Lake) -> None:
    kept = target(lake, table("nokey", {"id": pa.int32(), "a": pa.string(), "b": pa.string()}, ()), scd=2)
    silver.ensure(lake, kept, "one")
    write(spark, lake, kept.bronze, {1: [change("c", "x", "y")]})
    with pytest.raises(silver.KeylessUpdate, match="SCD type 2"):
        silver.apply(lake, kept, after=0, upto=1, incarnation="one")
