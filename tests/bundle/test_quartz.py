"""The examples of Quartz's own documentation, and what it refuses."""

from __future__ import annotations

import pytest

from tests.bundle.quartz import mistake


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 12 * * ?",
        "0 15 10 ? * *",
        "0 15 10 * * ? 2005",
        "0 0/5 14,18 * * ?",
        "0 10,44 14 ? 3 WED",
        "0 15 10 ? * MON-FRI",
        "0 15 10 L-2 * ?",
        "0 15 10 ? * 6#3",
        "0 15 10 ? JAN-MAR FRIL",
        "0 0 12 15W 1/5 ?",
    ],
)
def test_right(expression: str) -> None:
    assert mistake(expression) is None


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "*/15 * * * *",
        "0 0 12 * * *",
        "0 0 12 ? * ?",
        "60 0 12 * * ?",
        "0 0 24 * * ?",
        "0 0 12 32 * ?",
        "0 0 12 ? * 8",
        "0 0 12 ? FOO MON",
        "0 0/0 12 * * ?",
        "0 0/ 12 * * ?",
        "0 1-2-3 12 * * ?",
        "0 L 12 * * ?",
        "0 0 12 * * ? 1969",
    ],
)
def test_wrong(expression: str) -> None:
    assert mistake(expression)
