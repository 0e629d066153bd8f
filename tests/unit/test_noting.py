"""What a bronze commit notes of a table's structure gives the table back, whatever its history was."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from cdc_lib.captured import Captured, CapturedTable
from cdc_lib.noting import Note, packed, structures
from cdc_lib.schema import Column, Table, TableId

TABLE = TableId("public", "t")


def history(seed: int) -> CapturedTable:
    """A table whose columns come, go, come back and widen, as the log shows it."""
    dice = random.Random(seed)
    captured = Captured()
    (entry,) = captured.discover([TABLE], state=None)  # type: ignore[arg-type]
    columns = [Column("id", pa.int32(), "integer")]
    for batch in range(1, 12):
        name = dice.choice("abcd")
        held = [column for column in columns if column.name == name]
        if held and dice.random() < 0.5:
            columns.remove(held[0])
        elif held:
            columns[columns.index(held[0])] = replace(held[0], type=pa.int64(), source_type="bigint")
        else:
            columns.append(Column(name, pa.int64(), "bigint"))
        captured.observe(Table(TABLE, tuple(columns), ("id",)), batch)
    return entry


@pytest.mark.parametrize("seed", range(30))
def test_a_structure_comes_back(seed: int) -> None:
    before = history(seed)
    after = CapturedTable(before.state)
    for table in structures(packed(before)):
        after.adopt(table)
    assert after.table == before.table
    assert after.since == before.since
    assert after.ever == before.ever


def test_the_histories_are_not_trivial() -> None:
    tables = [history(seed) for seed in range(30)]
    assert any(set(one.ever) - set(one.table.names) for one in tables if one.table), "dropped columns"
    assert all(len(set(one.since.values())) > 2 for one in tables)


def test_commits_of_others_have_no_note() -> None:
    note = Note("ours", 3, 1, "{}", "{}", ["one"], state="streaming")
    assert Note.of(note.to_metadata(), "ours") == note
    assert Note.of(note.to_metadata(), "another") is None
    assert Note.of({"incarnation": "ours", "undone": 3}, "ours") is None
    assert Note.of(None, "ours") is None
