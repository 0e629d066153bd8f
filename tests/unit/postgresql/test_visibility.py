"""What a snapshot shows: PostgreSQL's documentation, section "System Information Functions", pg_snapshot."""

from __future__ import annotations

import pytest

from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.visibility import View

VIEW = View.parse("10:20:10,14,15")


@pytest.mark.parametrize(
    ("transaction", "shown"), [(9, True), (10, False), (11, True), (14, False), (20, False)]
)
def test_what_is_shown(transaction: int, shown: bool) -> None:
    assert VIEW.shows(transaction) is shown


def test_hidden_ones_in_order() -> None:
    assert VIEW.hidden([25, 14, 9, 11, 14]) == (14, 25)


def test_an_exported_view_can_be_ahead() -> None:
    assert View.parse("14:22:15,20").ahead_of(VIEW) == (10, 14, 21)


@pytest.mark.parametrize(
    ("xmax", "low", "full"),
    [(20, 19, 19), ((1 << 32) + 5, 4, (1 << 32) + 4), ((1 << 32) + 5, 0xFFFFFFF0, 0xFFFFFFF0)],
)
def test_the_upper_half_of_a_transaction(xmax: int, low: int, full: int) -> None:
    assert View(3, xmax, frozenset()).full(low) == full


def test_a_position_remembers_what_is_not_seen_yet_and_is_equal_without() -> None:
    position = PostgresPosition("1", 1, 255, (7, 9))
    again = PostgresPosition.from_json(position.to_json())
    assert again.unseen == (7, 9)
    assert again == PostgresPosition("1", 1, 255)
