"""What ``cdc reconcile`` prints, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdc_lib.cli import app
from cdc_lib.reconcile.result import Difference, Reconciled, Skipped, TableResult

EQUAL = TableResult("public.a", 5, 5, 5, kept=("old",))
DIFFERENT = TableResult(
    "public.b",
    5,
    5,
    3,
    wrong=1,
    lost=1,
    extra=1,
    differences=(
        Difference("different", {"id": "1"}, "v", '"paid"', '"paid "'),
        Difference("missing in silver", {"id": "2"}),
        Difference("not known", {"id": "3"}, "body", '"long"'),
    ),
    remedy="cdc reconcile public.b --repair",
)
MENDED = TableResult("public.b", 5, 5, 3, wrong=1, lost=1, repaired=2)
LACKING = TableResult("public.c", 5, 5, 5, lacking=("fresh",), remedy="cdc snapshot public.c")
SKIPPED = Skipped("public.d", "it is kept in bronze only: [no key]")

Cdc = Callable[..., tuple[int, str]]


@pytest.fixture
def cdc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cdc:
    """The command, where the run finds what is given."""
    pipeline = tmp_path / "shop.yml"
    pipeline.write_text("name: shop\n")

    def call(found: Reconciled, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(app, "_work", lambda path, verb: found)
        done = CliRunner().invoke(app.app, ["reconcile", str(pipeline), *arguments])
        return done.exit_code, done.stdout

    return call


@pytest.mark.parametrize(
    ("tables", "code", "verdict"),
    [
        ((EQUAL,), 0, "Silver equals the source at 0/AB; 3s."),
        ((EQUAL, DIFFERENT), 1, "Silver DIFFERS from the source at 0/AB; 3s."),
        ((EQUAL, MENDED), 0, "Silver equals the source at 0/AB; 3s."),
        ((EQUAL, LACKING), 1, "Silver DIFFERS from the source at 0/AB; 3s."),
        ((), 1, "Nothing was compared at 0/AB; 3s."),
    ],
)
def test_the_verdict_stands_last_and_is_the_exit_code(
    cdc: Cdc, tables: tuple[TableResult, ...], code: int, verdict: str
) -> None:
    found = Reconciled("0/AB", tables, (SKIPPED,), {"seconds": 3.2})
    exit_code, text = cdc(found)
    assert (exit_code, text.splitlines()[-1]) == (code, verdict)


def test_what_is_not_equal_and_what_was_not_compared_are_named(cdc: Cdc) -> None:
    _, text = cdc(Reconciled("0/AB", (EQUAL, DIFFERENT, LACKING), (SKIPPED,)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for wanted in (
        "public.a: the source no longer has old; not compared",
        "public.b: 1 differ, 0 not known, 1 missing in silver, 1 only in silver",
        'id=1 v "paid" "paid "',
        "id=2 a row no row",
        'id=3 body "long" not known',
        "to do: cdc reconcile public.b --repair",
        "public.c: silver lacks fresh, or has it with another type",
        "public.d: not compared: it is kept in bronze only: [no key]",
    ):
        assert wanted in lines


def test_json_has_all_of_it(cdc: Cdc) -> None:
    code, text = cdc(Reconciled("0/AB", (DIFFERENT,), (SKIPPED,)), "--json")
    found = json.loads(text)
    assert (code, found["same"], found["position"]) == (1, False, "0/AB")
    assert found["tables"][0]["different"] == 3
    assert found["tables"][0]["differences"][0] == {
        "kind": "different",
        "key": {"id": "1"},
        "column": "v",
        "source": '"paid"',
        "silver": '"paid "',
    }
    assert found["skipped"] == [{"table": SKIPPED.table, "reason": SKIPPED.reason}]
