"""The comparison itself: it must find every loss, duplicate, swap and wrong value that is planted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.engines.history import Change, Event, History, Row

KEYS = {"t": ["id"], "w": ["a", "b"]}


def row(number: int, text: str | None = "x") -> Row:
    return {"id": str(number), "text": text}


def wide(a: str, b: int, text: str) -> Row:
    return {"a": a, "b": str(b), "text": text}


CHANGES = [
    Change(1, "10", "t", None, row(1), "s1", 100),
    Change(2, "10", "t", None, row(2), "s1", 100),
    Change(3, "11", "w", None, wide("k", 1, "first"), "s2", 110),
    Change(4, "12", "t", row(1), row(1, "y"), "s1", 120),
    Change(5, "12", "w", wide("k", 1, "first"), wide("k", 2, "first"), "s1", 120),
    Change(6, "13", "t", row(2), None, "s2", 130),
    Change(7, "14", "t", None, row(2, "again"), "s1", 140),
    Change(8, "15", "w", None, None, "s1", 150),
    Change(9, "16", "w", None, wide("k", 3, "last"), "s2", 160),
]
BASE = {"10", "11"}
"""Committed before the pipeline started: the snapshot has them."""
REQUIRED = {change.transaction for change in CHANGES} - BASE


def event(place: int, op: str, table: str, transaction: str, **more: object) -> Event:
    return Event(sequence=(1 << 32) + place, op=op, table=table, transaction=transaction, **more)  # type: ignore[arg-type]


def bronze() -> list[Event]:
    """What a right capture of CHANGES writes; the key update's create does not carry ``text``."""
    return [
        event(0, "r", "t", "", after=row(1), position="p"),
        event(1, "r", "t", "", after=row(2), position="p"),
        event(2, "r", "w", "", after=wide("k", 1, "first"), position="p"),
        event(10, "u", "t", "12", after=row(1, "y"), committed_us=120),
        event(
            11,
            "d",
            "w",
            "12",
            before={"a": "k", "b": "1", "text": None},
            before_unavailable=frozenset({"text"}),
            committed_us=120,
        ),
        event(
            12,
            "c",
            "w",
            "12",
            after={"a": "k", "b": "2", "text": None},
            unavailable=frozenset({"text"}),
            previous_key={"a": "k", "b": "1"},
            committed_us=120,
        ),
        event(
            13,
            "d",
            "t",
            "13",
            before={"id": "2", "text": None},
            before_unavailable=frozenset({"text"}),
            committed_us=130,
        ),
        event(14, "c", "t", "14", after=row(2, "again"), committed_us=140),
        event(15, "t", "w", "15", committed_us=150),
        event(16, "c", "w", "16", after=wide("k", 3, "last"), committed_us=160),
    ]


def problems(events: Sequence[Event]) -> list[str]:
    return History(KEYS, CHANGES).problems(events, REQUIRED)


def test_a_right_capture_has_no_problems() -> None:
    assert problems(bronze()) == []
    assert problems(random.Random(1).sample(bronze(), len(bronze()))) == [], "the order is that of _sequence"


def test_a_second_snapshot_at_a_later_position_is_right() -> None:
    again = event(100, "r", "t", "", after=row(1, "y"), position="q")
    assert problems([*bronze(), again]) == []


@pytest.mark.parametrize("lost", range(len(bronze())))
def test_every_single_lost_row_is_found(lost: int) -> None:
    events = bronze()
    gone = events.pop(lost)
    if gone.op == "r" and gone.table == "t" and gone.after == row(2):
        # Deleted later: without this row nothing differs, and the log has the delete.
        assert problems(events) == []
    elif gone.op == "r" and gone.after == row(1):
        # The update carries the whole row, so the result is right; only a row-by-row look could tell.
        assert problems(events) == []
    elif gone.op == "r":
        # The truncate hides it from the end state.
        assert problems(events) == []
    else:
        assert any(problem.startswith("lost") for problem in problems(events))


def test_a_lost_snapshot_row_that_the_log_does_not_replace_is_found() -> None:
    changes = CHANGES[:3]
    events = bronze()[:3]
    assert History(KEYS, changes).problems(events, set()) == []
    for index in range(3):
        left = events[:index] + events[index + 1 :]
        assert any("bronze gives nothing" in one for one in History(KEYS, changes).problems(left, set()))


@pytest.mark.parametrize("twice", range(len(bronze())))
def test_every_single_duplicate_is_found(twice: int) -> None:
    events = bronze()
    copy = replace(events[twice], sequence=(2 << 32) + twice)
    assert any(problem.startswith("duplicate") for problem in problems([*events, copy]))


def test_a_duplicate_inside_its_transaction_is_found() -> None:
    events = bronze()
    copy = replace(events[3], sequence=events[3].sequence)
    assert any("twice" in problem for problem in problems([*events, copy]))


@pytest.mark.parametrize("first", range(3, len(bronze()) - 1))
def test_every_swap_of_neighbours_is_found(first: int) -> None:
    events = bronze()
    one, other = events[first], events[first + 1]
    events[first] = replace(other, sequence=one.sequence)
    events[first + 1] = replace(one, sequence=other.sequence)
    assert problems(events)


def test_snapshot_rows_after_a_change_they_do_not_know_are_found() -> None:
    events = bronze()
    events[0] = replace(events[0], sequence=(1 << 32) + 11)
    assert any("snapshot row differs" in problem for problem in problems(events))


@pytest.mark.parametrize(
    "break_it",
    [
        lambda event: replace(event, after=row(1, "z")),
        lambda event: replace(event, after=row(1, None)),
        lambda event: replace(event, after={"id": "1"}),
        lambda event: replace(event, after=None),
        lambda event: replace(event, committed_us=121),
        lambda event: replace(event, transaction="99"),
        lambda event: replace(event, op="c"),
        lambda event: replace(event, unavailable=frozenset({"text"})),
    ],
)
def test_a_wrong_value_is_found(break_it: Callable[[Event], Event]) -> None:
    events = bronze()
    events[3] = break_it(events[3])
    assert problems(events)


def test_a_wrong_previous_key_is_found() -> None:
    events = bronze()
    events[5] = replace(events[5], previous_key={"a": "k", "b": "7"})
    assert any("previous key" in problem for problem in problems(events))


def test_a_transaction_that_was_rolled_back_is_found() -> None:
    extra = event(20, "c", "t", "77", after=row(9), committed_us=170)
    assert any(problem.startswith("invented") for problem in problems([*bronze(), extra]))


def test_a_session_whose_transactions_are_swapped_is_found() -> None:
    """Two transactions that touch different keys, so that only the session tells their order."""
    changes = [
        Change(1, "20", "t", None, row(1), "s", 1),
        Change(2, "21", "t", None, row(2), "s", 2),
    ]
    right = [
        event(0, "c", "t", "20", after=row(1), committed_us=1),
        event(1, "c", "t", "21", after=row(2), committed_us=2),
    ]
    swapped = [replace(right[1], sequence=0), replace(right[0], sequence=1)]
    assert History(KEYS, changes).problems(right, {"20", "21"}) == []
    assert any("same session" in one for one in History(KEYS, changes).problems(swapped, {"20", "21"}))


def test_transactions_whose_commits_lie_far_apart_are_found_swapped() -> None:
    """Different sessions and keys: only the clock tells, and it may be a little off."""
    far = 10_000_000
    changes = [Change(1, "20", "t", None, row(1), "s1", 1), Change(2, "21", "t", None, row(2), "s2", far)]
    swapped = [
        event(0, "c", "t", "21", after=row(2), committed_us=far),
        event(1, "c", "t", "20", after=row(1), committed_us=1),
    ]
    assert any("committed" in one for one in History(KEYS, changes).problems(swapped, {"20", "21"}))
