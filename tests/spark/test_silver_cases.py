"""Merge cases, each a few changes of a few keys in up to three batches; however the batches are cut, silver
holds the same. One table holds all cases, kept apart by the group in the key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from model import Change, held, table, target, write
from pyspark.sql import DataFrame, SparkSession

from cdc_lib import silver
from cdc_lib.delta import Lake

COLUMNS = {"grp": pa.int32(), "id": pa.int32(), "a": pa.string(), "b": pa.string(), "late": pa.string()}
SINCE = {"grp": 1, "id": 1, "a": 1, "b": 1, "late": 2}
SHOWN = (
    "grp int, case string, id int, a string, b string, late string, "
    "unavailable string, special string, gone boolean"
)


def row(
    key: int | None, a: str | None = None, b: str | None = None, late: str | None = None
) -> dict[str, Any]:
    return {"id": key, "a": a, "b": b, "late": late}


def change(op: str, image: dict[str, Any] | None = None, lacks: Sequence[str] = (), **more: Any) -> Change:
    """A change whose ``image`` is before for a delete, else after; ``lacks`` are its unavailable columns."""
    more.setdefault("version", 2)
    side = "before" if op == "d" else "after"
    return Change(op, **{side: image, f"{side}_unavailable": list(lacks) or None, **more})


def create(image: dict[str, Any], lacks: Sequence[str] = (), **more: Any) -> Change:
    return change("c", image, lacks, **more)


def update(image: dict[str, Any], lacks: Sequence[str] = (), **more: Any) -> Change:
    return change("u", image, lacks, **more)


def delete(key: int | None) -> Change:
    """With the key as all that the log says of the old row."""
    return change("d", row(key), ("a", "b", "late"))


def moved(old: int, image: dict[str, Any], lacks: Sequence[str] = (), commit: int = 1) -> list[Change]:
    """An update of the key from ``old``: two rows of bronze."""
    gone, come = delete(old), create(image, lacks, previous_key={"id": old})
    gone.commit = come.commit = commit
    return [gone, come]


@dataclass(frozen=True)
class Left:
    """A row that silver must hold: its values, the columns listed as not known, texts, whether deleted."""

    values: dict[str, Any]
    unavailable: str | None = None
    special: str | None = None
    gone: bool = False


@dataclass(frozen=True)
class Case:
    """``left`` is what lives in silver at the end; ``kept`` what soft delete keeps beside it."""

    name: str
    batches: Sequence[Sequence[Change]]
    left: Sequence[Left] = ()
    kept: Sequence[Left] = field(default=())


CASES = (
    Case("created", [[create(row(1, "x", "y", "z"))]], [Left(row(1, "x", "y", "z"))]),
    Case("read by a snapshot", [[change("r", row(1, "x", "y", "z"))]], [Left(row(1, "x", "y", "z"))]),
    Case(
        "the newest of several updates counts, also to NULL",
        [[create(row(1, "1", "2", "3"))], [update(row(1, "4", "5", "6")), update(row(1, None, "7", "6"))]],
        [Left(row(1, None, "7", "6"))],
    ),
    Case(
        "an update of a row that silver never had is written whole",
        [[update(row(1, "x", "y", "z"))]],
        [Left(row(1, "x", "y", "z"))],
    ),
    Case(
        "deleted in a later batch",
        [[create(row(1, "x", "y", "z"))], [delete(1)]],
        kept=[Left(row(1, "x", "y", "z"), gone=True)],
    ),
    Case(
        "created, updated and deleted in one batch",
        [[create(row(1, "x", "y", "z")), update(row(1, "w", None, "z"), ["b"]), delete(1)]],
        kept=[Left(row(1, "w", "y", "z"), gone=True)],
    ),
    Case(
        "deleted and created again with the same key",
        [[create(row(1, "x", "y", "z"))], [delete(1), create(row(1, "new", None, None))]],
        [Left(row(1, "new", None, None))],
    ),
    Case(
        "a delete of a row that silver never had",
        [[delete(1)]],
        kept=[Left(row(1), unavailable='["a","b","late"]', gone=True)],
    ),
    Case(
        "a NULL in the key is a key",
        [
            [create(row(None, "x", "y", "z")), create(row(1, "o", "o", "o"))],
            [update(row(None, "w", "y", "z"))],
        ],
        [Left(row(None, "w", "y", "z")), Left(row(1, "o", "o", "o"))],
    ),
    Case(
        "an unchanged TOAST value stays as silver has it",
        [[create(row(1, "x", "big", "z"))], [update(row(1, "w", None, "z"), ["b"])]],
        [Left(row(1, "w", "big", "z"))],
    ),
    Case(
        "an unchanged TOAST value that is NULL is known to be NULL",
        [[create(row(1, "x", None, "z"))], [update(row(1, "w", None, "z"), ["b"])]],
        [Left(row(1, "w", None, "z"))],
    ),
    Case(
        "the newest update that carries the column, over one that does not",
        [
            [create(row(1, "x", "old", "z"))],
            [update(row(1, "x", "new", "z")), update(row(1, "w", None, "z"), ["b"])],
        ],
        [Left(row(1, "w", "new", "z"))],
    ),
    Case(
        "the before image carries it",
        [[update(row(1, "w", None, "z"), ["b"], before=row(1, "x", "big", "z"))]],
        [Left(row(1, "w", "big", "z"))],
    ),
    Case(
        "a before image that lacks it, too",
        [[update(row(1, "w", None, "z"), ["b"], before=row(1, "x", None, "z"), before_unavailable=["b"])]],
        [Left(row(1, "w", None, "z"), unavailable='["b"]')],
    ),
    Case(
        "never from before a delete",
        [[create(row(1, "x", "big", "z"))], [delete(1), create(row(1, "w", None, "z"), ["b"])]],
        [Left(row(1, "w", None, "z"), unavailable='["b"]')],
    ),
    Case(
        "not known, then carried",
        [[update(row(1, "w", None, "z"), ["b"])], [update(row(1, "w", "found", "z"))]],
        [Left(row(1, "w", "found", "z"))],
    ),
    Case(
        "not known stays so when another column is updated",
        [[update(row(1, "w", None, "z"), ["b"])], [], [update(row(1, "v", None, "z"), ["b"])]],
        [Left(row(1, "v", None, "z"), unavailable='["b"]')],
    ),
    Case(
        "a column that is newer than the row is NULL in it",
        [[create(row(1, "x", "y"), version=1)]],
        [Left(row(1, "x", "y"))],
    ),
    Case(
        "an update under the new version brings it, one under it that lacks another does not lose it",
        [
            [create(row(1, "x", "y"), version=1)],
            [update(row(1, "x", "y", "z")), update(row(1, "w", None, "z"), ["b"])],
        ],
        [Left(row(1, "w", "y", "z"))],
    ),
    Case(
        "the key changes and all is carried",
        [[create(row(1, "x", "y", "z"))], moved(1, row(2, "w", "y", "z"))],
        [Left(row(2, "w", "y", "z"))],
        kept=[Left(row(1, "x", "y", "z"), gone=True)],
    ),
    Case(
        "the key changes; what the create lacks is under the old key",
        [[create(row(1, "x", "big", "z"))], moved(1, row(2, "w", None, "z"), ["b"])],
        [Left(row(2, "w", "big", "z"))],
        kept=[Left(row(1, "x", "big", "z"), gone=True)],
    ),
    Case(
        "the key changes twice, the column was last carried before",
        [
            [create(row(1, "x", "old", "z"))],
            [update(row(1, "x", "big", "z")), *moved(1, row(2, "w", None, "z"), ["b"])],
            [
                *moved(2, row(3, "v", None, None), ["b", "late"]),
                update(row(3, "u", None, None), ["b", "late"]),
            ],
        ],
        [Left(row(3, "u", "big", "z"))],
        kept=[Left(row(1, "x", "big", "z"), gone=True), Left(row(2, "w", "big", "z"), gone=True)],
    ),
    Case(
        "the key changes and comes back",
        [
            [create(row(1, "x", "big", "z"))],
            [*moved(1, row(2, "w", None, "z"), ["b"]), *moved(2, row(1, "v", None, "z"), ["b"], 2)],
        ],
        [Left(row(1, "v", "big", "z"))],
        kept=[Left(row(2, "w", "big", "z"), gone=True)],
    ),
    Case(
        "two rows exchange keys by way of a third, in one commit",
        [
            [create(row(1, "x", "one", "z")), create(row(2, "y", "two", "z"))],
            [
                *moved(1, row(9, "x", None, "z"), ["b"]),
                *moved(2, row(1, "y", None, "z"), ["b"]),
                *moved(9, row(2, "x", None, "z"), ["b"]),
            ],
        ],
        [Left(row(1, "y", "two", "z")), Left(row(2, "x", "one", "z"))],
        kept=[Left(row(9, "x", "one", "z"), gone=True)],
    ),
    Case(
        "two rows exchange keys under a deferred constraint",
        [
            [create(row(1, "x", "one", "z")), create(row(2, "y", "two", "z"))],
            [*moved(1, row(2, "x", None, "z"), ["b"]), *moved(2, row(1, "y", None, "z"), ["b"])],
        ],
        [Left(row(1, "y", "two", "z")), Left(row(2, "x", "one", "z"))],
    ),
    Case(
        "all keys rise by one under a deferred constraint",
        [
            [create(row(1, "x", "one", "z")), create(row(2, "y", "two", "z"))],
            [*moved(1, row(2, "x", None, "z"), ["b"]), *moved(2, row(3, "y", None, "z"), ["b"])],
        ],
        [Left(row(2, "x", "one", "z")), Left(row(3, "y", "two", "z"))],
        kept=[Left(row(1, "x", "one", "z"), gone=True)],
    ),
    Case(
        "a moved row that nothing knew",
        [moved(1, row(2, "w", None, "z"), ["b"])],
        [Left(row(2, "w", None, "z"), unavailable='["b"]')],
        kept=[Left(row(1), unavailable='["a","b","late"]', gone=True)],
    ),
    Case(
        "server text of the last row, replaced by the next value",
        [
            [create(row(1, None, None, "z"), special={"a": "infinity", "b": "24:00"})],
            [update(row(1, "x", None, "z"), special={"b": "25:00"})],
        ],
        [Left(row(1, "x", None, "z"), special='{"b":"25:00"}')],
    ),
    Case(
        "server text travels with the value it belongs to",
        [
            [create(row(1, "x", None, "z"), special={"b": "infinity"})],
            [update(row(1, "w", None, "z"), ["b"])],
            [update(row(1, "v", None, "z"), ["b"]), *moved(1, row(2, "u", None, "z"), ["b"])],
        ],
        [Left(row(2, "u", None, "z"), special='{"b":"infinity"}')],
        kept=[Left(row(1, "v", None, "z"), special='{"b":"infinity"}', gone=True)],
    ),
    Case(
        "server text of a before image",
        [
            [
                update(
                    row(1, "w", None, "z"),
                    ["b"],
                    before=row(1, "x", None, "z"),
                    special={"before.b": "infinity", "before.a": "no"},
                )
            ]
        ],
        [Left(row(1, "w", None, "z"), special='{"b":"infinity"}')],
    ),
)


@pytest.mark.parametrize(
    ("delete", "ranges"),
    [
        ("hard", [(0, 1), (1, 2), (2, 3)]),
        ("hard", [(0, 3), (0, 3)]),
        ("hard", [(0, 2), (0, 3)]),
        ("soft", [(0, 1), (1, 2), (1, 3)]),
        ("soft", [(0, 3)]),
    ],
)
def test_cases(spark: SparkSession, lake: Lake, delete: Any, ranges: list[tuple[int, int]]) -> None:
    kept = target(lake, table("cases", COLUMNS, ("grp", "id")), delete=delete, since=SINCE)
    silver.ensure(lake, kept, "one")
    batches: dict[int, list[Change]] = {1: [], 2: [], 3: []}
    for group, case in enumerate(CASES):
        for number, changes in enumerate(case.batches, start=1):
            batches[number] += [_in_group(group, number, each) for each in changes]
    write(spark, lake, kept.bronze, batches)
    for after, upto in ranges:
        silver.apply(lake, kept, after=after, upto=upto, incarnation="one")
    expected = [
        (group, case.name, *left.values.values(), left.unavailable, left.special, left.gone)
        for group, case in enumerate(CASES)
        for left in (*case.left, *(case.kept if delete == "soft" else ()))
    ]
    assert_df_equality(_shown(spark, held(lake, kept)), _frame(spark, expected), ignore_nullable=True)


def _in_group(group: int, batch: int, each: Change) -> Change:
    """A copy of the change in the case's group, its commit counted within the batch."""
    images = {
        name: {"grp": group, **image}
        for name in ("before", "after", "previous_key")
        if (image := getattr(each, name)) is not None
    }
    return replace(each, commit=10 * batch + each.commit, **images)


def _shown(spark: SparkSession, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    return _frame(
        spark,
        [
            (
                *(each["grp"], CASES[each["grp"]].name, each["id"], each["a"], each["b"], each["late"]),
                _json(each["__unavailable"]),
                _json(each["__special"]),
                each["__deleted_at"] is not None,
            )
            for each in rows
        ],
    )


def _frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(rows), SHOWN).orderBy("grp", "id")


def _json(value: Any) -> str | None:
    return (
        None if value is None else json.dumps(value, separators=(",", ":"), sort_keys=isinstance(value, dict))
    )
