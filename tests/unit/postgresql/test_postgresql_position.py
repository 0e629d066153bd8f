from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lib.sources.postgresql.position import PostgresPosition, format_lsn, parse_lsn, sort_keys

LSNS = st.integers(0, 2**63 - 1)
TIMELINES = st.integers(1, 2**32 - 1)


def test_text_is_the_servers() -> None:
    # The manual's own example of a pg_lsn.
    assert parse_lsn("16/B374D848") == 0x16B374D848
    assert str(PostgresPosition("1", 1, 0x16B374D848)) == "16/B374D848"
    assert format_lsn(0) == "0/0"


@pytest.mark.parametrize("text", ["", "16", "16/", "/1", "1/2/3", "G/1", "123456789/0", "+1/2", "0/ 1"])
def test_what_is_not_a_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a LSN"):
        parse_lsn(text)


@given(LSNS)
def test_text_reads_back(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


@given(TIMELINES, LSNS)
def test_json_reads_back(timeline: int, lsn: int) -> None:
    position = PostgresPosition("7123", timeline, lsn)
    assert PostgresPosition.from_json(position.to_json()) == position


@given(st.tuples(TIMELINES, LSNS), st.tuples(TIMELINES, LSNS))
def test_sort_keys_order_like_timeline_then_lsn(one: tuple[int, int], other: tuple[int, int]) -> None:
    a, b = PostgresPosition("1", *one), PostgresPosition("1", *other)
    assert (a < b) == (one < other)
    assert (a.sort_key < b.sort_key) == (one < other)
    assert (a == b) == (one == other)
    assert len(a.sort_key) == 24


def test_clusters_have_no_common_order() -> None:
    one, other = PostgresPosition("1", 1, 5), PostgresPosition("2", 1, 5)
    assert one != other
    with pytest.raises(ValueError, match="no order"):
        assert one < other


@given(TIMELINES, st.lists(LSNS, max_size=20))
def test_many_sort_keys_are_those_of_each(timeline: int, lsns: list[int]) -> None:
    keys = sort_keys(timeline, np.array(lsns, np.int64))
    keys.validate(full=True)
    assert keys.to_pylist() == [PostgresPosition("1", timeline, lsn).sort_key for lsn in lsns]
