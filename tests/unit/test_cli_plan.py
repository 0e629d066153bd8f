"""What ``cdc plan`` prints, and when it says that something is wrong."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from cdc_lib.cli.planned import show_plan
from cdc_lib.errors import ResnapshotNeeded
from cdc_lib.plan import (
    Effect,
    LogRange,
    PendingMerge,
    Plan,
    PlannedSignal,
    PlannedTable,
    SealedWork,
    Stop,
    StructureChange,
)
from cdc_lib.source import Preparation

KNOWN = PlannedTable("public.t", "known", "streaming", "log", silver=PendingMerge(2, 4, 1200))
PLAN = Plan(
    "shop",
    batch=4,
    position="0/200",
    configuration="changed",
    sealed=SealedWork(4, 1, "0/100", "0/200", ["public.t"], 1200, "staging"),
    source=[Preparation("alter", "publication", "cdc", "ALTER ...", added=("public.new",))],
    signals=[PlannedSignal("1", "dance", "rejected", "no signal of type 'dance'")],
    log=LogRange("0/200", "0/600", 1024),
    tables=[
        PlannedTable("public.new", "new", "", "snapshot", "windows", chunks=3, rows=600_000),
        PlannedTable("public.half", "known", "snapshot", "resume", "windows", chunks=1, rows=10),
        KNOWN,
    ],
)


def shown(plan: Plan) -> list[str]:
    file = io.StringIO()
    show_plan(plan, Console(file=file, width=200))
    return [" ".join(line.split()) for line in file.getvalue().splitlines()]


def changed(effect: Effect) -> Plan:
    change = StructureChange("incompatible", "n", "INT to STRING", effect)
    return replace(PLAN, tables=[replace(KNOWN, changes=[change])])


def test_the_steps_of_the_run_come_in_their_order() -> None:
    assert shown(PLAN)[:7] == [
        "shop",
        "position 0/200, batch 4",
        "to finish batch 4, 1,200 rows of public.t, from its staged files",
        "configuration changed since the last batch was sealed; it holds from the next one on",
        "at the source publication cdc is altered +public.new: ALTER ...",
        "signal 1 (dance): rejected, no signal of type 'dance'",
        "log 0/200 to 0/600, 1.0 KiB",
    ]


def test_each_table_has_a_line() -> None:
    lines = shown(PLAN)
    assert "public.new new read it whole, 3 pieces, in windows while changes flow 600,000" in lines
    assert (
        "public.half known snapshot go on reading it, 1 piece left, in windows while changes flow 10" in lines
    )
    assert "public.t known streaming follow its changes batches 3 to 4, 1,200 rows" in lines


def test_a_pipeline_that_never_ran() -> None:
    assert "position nothing captured yet" in shown(Plan("shop"))


@pytest.mark.parametrize(("effect", "good"), [("evolves", True), ("snapshot", True), ("refuses", False)])
def test_a_change_that_bronze_cannot_follow_is_a_finding(effect: Effect, good: bool) -> None:
    plan = changed(effect)
    assert plan.good is good
    (line,) = [line for line in shown(plan) if line.startswith("public.t: ")]
    assert line.startswith("public.t: incompatible n (INT to STRING): ")


def test_what_would_stop_the_run_is_said_with_its_remedy() -> None:
    stop = Stop.of(ResnapshotNeeded("the slot is gone", why="it was dropped", remedy="cdc snapshot"))
    plan = replace(PLAN, stops=[stop])
    assert not plan.good
    assert shown(plan)[-3:] == [
        "the run would end: the slot is gone",
        "why: it was dropped",
        "to do: cdc snapshot",
    ]


def test_json_has_every_part_under_its_name() -> None:
    found = json.loads(json.dumps(PLAN.to_dict()))
    assert list(found) == [
        *("pipeline", "batch", "position", "configuration", "stops"),
        *("sealed", "source", "signals", "log", "tables"),
    ]
    assert found["log"] == {"after": "0/200", "upto": "0/600", "bytes": 1024}
    assert found["tables"][2]["silver"] == {"after": 2, "upto": 4, "rows": 1200}
