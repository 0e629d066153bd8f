"""Random histories of a source table, cut into random batches and applied with replays, equal the source."""

from __future__ import annotations

import random
from typing import Any

import pytest
from model import Row, SourceTable, held, staged_facts, table, target, write
from pyspark.sql import SparkSession

from cdc_lib import silver
from cdc_lib.delta import Lake
from cdc_lib.facts import Facts
from cdc_lib.silver.events import facts_of_bronze

HISTORIES = 20
"""Histories in one table; the group in the key keeps them apart, so each is a case of its own."""
STEPS = 16


@pytest.mark.parametrize("seed", range(3))
def test_random_histories(spark: SparkSession, lake: Lake, seed: int) -> None:
    chance = random.Random(seed)
    source = SourceTable(chance, soft=seed == 1, full=seed == 2)
    kept = target(
        lake,
        table(f"history_{seed}", source.table_types, ("grp", "id")),
        delete="soft" if source.soft else "hard",
    )
    silver.ensure(lake, kept, "one")
    expected = play(chance, source, truncates=seed > 0)
    write(spark, lake, kept.bronze, source.batches)
    highest = 0
    staged = {number: staged_facts(kept.table, number, rows) for number, rows in source.batches.items()}
    assert facts_of_bronze(lake.table(kept.bronze), kept.table) == sum(staged.values(), Facts())
    for turn, (after, upto) in enumerate(ranges(chance, source.batch)):
        told = sum((staged[number] for number in range(after + 1, upto + 1)), Facts()) if turn % 2 else None
        silver.apply(lake, kept, after=after, upto=upto, incarnation="one", facts=told)
        # A lower end than before is a replay and must change nothing.
        highest = max(upto, highest)
        assert _sorted(held(lake, kept)) == _sorted(expected[highest]), f"after the range ({after}, {upto}]"


def play(chance: random.Random, source: SourceTable, truncates: bool) -> dict[int, list[Row]]:
    """Let the source live; what silver must hold after each batch."""
    expected: dict[int, list[Row]] = {}
    for group in range(HISTORIES):
        source.seed((group, 1))
    for number in range(1, 5):
        source.batch = number
        source.batches[number] = []
        for group in chance.sample(range(HISTORIES), HISTORIES):
            for _ in range(chance.randrange(STEPS // 2)):
                _step(chance, source, group)
        if truncates and number in (2, 4):
            source.truncate()
            for group in range(HISTORIES):
                _step(chance, source, group)
        expected[number] = source.rows()
    return expected


def _step(chance: random.Random, source: SourceTable, group: int) -> None:
    keys: list[tuple[int, int | None]] = [(group, None), (group, 1), (group, 2), (group, 3)]
    used = [key for key in keys if key in source.live]
    free = [key for key in keys if key not in source.live]
    kind = chance.random()
    if len(used) >= 2 and kind < 0.2:
        one, two = chance.sample(used, 2)
        if chance.random() < 0.5:
            source.swap(one, two)
        else:
            source.detour(one, two, (group, 99))
    elif used and free and kind < 0.45:
        source.move(chance.choice(used), chance.choice(free))
    elif used and kind < 0.8:
        source.update(chance.choice(used))
    elif used and (not free or kind < 0.9):
        source.delete(chance.choice(used))
    else:
        source.insert(chance.choice(free), chance.choice("cr"))


def ranges(chance: random.Random, last: int) -> list[tuple[int, int]]:
    """Ranges whose ends rise to the last batch, each start at or behind the end before, with replays."""
    ranges: list[tuple[int, int]] = []
    upto = 0
    while upto < last:
        after, upto = chance.randint(max(0, upto - 2), upto), chance.randint(upto + 1, min(last, upto + 3))
        ranges.append((after, upto))
        if chance.random() < 0.4:
            ranges.append(chance.choice(ranges))
    return ranges


def _sorted(rows: list[Any]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["grp"], row["id"] is not None, row["id"] or 0))
