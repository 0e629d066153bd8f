"""A wall clock that jumps: leases, heartbeats and plans of snapshots do not take it for an order."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from cdc_lib import clock
from cdc_lib.captured import Captured
from cdc_lib.control import Control
from cdc_lib.delta import Lake
from cdc_lib.errors import RetryLater
from cdc_lib.pipeline import Target
from cdc_lib.recovery import Standing
from cdc_lib.schema import TableId
from cdc_lib.source import Chunk

T = TableId("public", "t")
DAY = 86_400
THREE = [Chunk(T, number) for number in range(3)]


class Clock:
    """Sets this process's clock off by some seconds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    def jump(self, seconds: float) -> None:
        self._file.write_text(str(seconds), encoding="ascii")


@pytest.fixture
def shifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("CDC_CLOCK_SHIFT", str(tmp_path / "shift"))
    return Clock(tmp_path / "shift")


@pytest.fixture
def control(tmp_path: Path) -> Control:
    control = Control(Lake(Target(path=tmp_path / "lake")), "shop")
    control.create()
    return control


def test_the_clock_jumps_as_told(shifted: Clock) -> None:
    shifted.jump(-DAY)
    assert abs(clock.now() - datetime.now(timezone.utc) + timedelta(days=1)) < timedelta(seconds=5)


def test_a_lease_that_was_given_back_is_free_whatever_the_time(control: Control, shifted: Clock) -> None:
    """The process that held it is still there: it is this one."""
    lease = control.leases.acquire("one", 60)
    control.leases.release(lease)
    shifted.jump(-DAY)
    assert control.leases.acquire("two", 60).runner == "two"


def test_a_clock_that_is_set_back_takes_no_lease_away(control: Control, shifted: Clock) -> None:
    control.leases.acquire("one", 60)
    shifted.jump(-DAY)
    with pytest.raises(RetryLater, match="one"):
        control.leases.acquire("two", 60)


def test_whose_lease_ran_out_by_a_jump_notices_at_its_next_renewal(control: Control, shifted: Clock) -> None:
    lease = control.leases.acquire("one", 60)
    shifted.jump(DAY)
    control.leases.acquire("two", 60)
    shifted.jump(0)
    with pytest.raises(RetryLater, match="two took it"):
        control.leases.renew(lease, 60)


def test_a_heartbeat_is_due_when_the_last_one_is_in_the_future() -> None:
    standing = Standing(Captured(), committed_at=datetime.now(timezone.utc) + timedelta(days=1))
    assert standing.age() == float("inf")
    standing.committed_at = datetime.now(timezone.utc) - timedelta(seconds=90)
    assert 89 < standing.age() < 100


def test_the_newest_plan_is_the_last_that_was_made(control: Control, shifted: Clock) -> None:
    control.chunks.plan({"t": THREE})
    control.chunks.done([("t", 0), ("t", 1), ("t", 2)], batch=1)
    shifted.jump(-DAY)
    control.chunks.plan({"t": THREE})
    Control(control.chunks._lake, "shop").chunks.done([("t", 0)], batch=2)
    left = control.chunks.left("t", T, started=0)
    assert left is not None
    assert [chunk.number for chunk in left] == [1, 2]
    assert control.chunks.first_batch("t", started=0) == 2


def test_pieces_that_do_not_count_any_more_do_not_count(control: Control, shifted: Clock) -> None:
    control.chunks.plan({"t": THREE})
    control.chunks.done([("t", 0)], batch=1)
    shifted.jump(-DAY)
    control.chunks.restart(["t"])
    assert control.chunks.left("t", T, started=0) is None
