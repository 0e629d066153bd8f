"""Two runners seal the same batch. Exactly one may; two blind appends would both land.

Guard: the plan's transaction version, and reading the seal back. With the guard out, both tests fail (the
last test shows that the hazard is real).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from cdc_lib.control.batches import Batches, Seal
from cdc_lib.delta import Lake
from cdc_lib.errors import RetryLater

SEAL = Seal(1, 1, "", "i1", "{}", "{}", [], "c", "/s", datetime(2026, 3, 1, tzinfo=timezone.utc))


@pytest.fixture(params=["path", "catalog"])
def lake_of_both(request: pytest.FixtureRequest) -> Lake:
    lake: Lake = request.getfixturevalue("lake" if request.param == "path" else "catalog_lake")
    Batches(lake, "shop").create()
    return lake


def runner(lake: Lake, name: str) -> Callable[[], object]:
    def seal() -> str:
        Batches(lake, "shop").seal(replace(SEAL, runner=name))
        return name

    return seal


def test_at_the_same_time(lake_of_both: Lake, at_once: Callable[..., list[object]]) -> None:
    results = at_once(runner(lake_of_both, "r1"), runner(lake_of_both, "r2"))
    (winner,) = [result for result in results if isinstance(result, str)]
    (loser,) = [result for result in results if not isinstance(result, str)]
    assert isinstance(loser, RetryLater), loser
    assert [seal.runner for seal in Batches(lake_of_both, "shop").load()] == [winner]


def test_one_after_the_other(lake_of_both: Lake) -> None:
    runner(lake_of_both, "r1")()
    with pytest.raises(RetryLater, match="sealed batch 1: r1"):
        runner(lake_of_both, "r2")()
    assert [seal.runner for seal in Batches(lake_of_both, "shop").load()] == ["r1"]


def test_without_the_guard_both_land(lake_of_both: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Lake.append_rows

    def blind(self: Lake, ref: Any, rows: Any, **options: Any) -> None:
        guarded(self, ref, rows)

    monkeypatch.setattr(Lake, "append_rows", blind)
    runner(lake_of_both, "r1")()
    runner(lake_of_both, "r2")()
    assert sorted(seal.runner for seal in Batches(lake_of_both, "shop").load()) == ["r1", "r2"]
