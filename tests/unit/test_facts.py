"""Facts of staged rows: how many there are of each operation survives adding up and being sealed."""

from __future__ import annotations

from cdc_lib.facts import Facts


def test_counts_by_operation_add_up_and_survive_the_seal() -> None:
    one = Facts(rows=3, ops=frozenset("cu"), counts={"c": 2, "u": 1})
    other = Facts(rows=2, ops=frozenset("ud"), counts={"u": 1, "d": 1})
    read = Facts.from_json((one + other).to_json())
    assert read == one + other
    assert read.counts == {"c": 2, "u": 2, "d": 1}


def test_what_was_sealed_before_counts_were_kept_has_none() -> None:
    assert Facts.from_json('{"rows": 5, "ops": ["r"]}').counts == {}
