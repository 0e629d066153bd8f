"""The benchmarks: what is loaded, what is measured on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import checksum, systems
from benchmarks import large as under_load
from benchmarks.process import Worker
from benchmarks.rounds import Bench, Measurement, Plan
from benchmarks.systems import Apply, Backlog
from benchmarks.workload import Database, Identity, Operations, database

MEMORY_ROUNDS = 3
"""A peak of memory varies little, and each of these rounds takes as long as two others."""


@dataclass(frozen=True)
class Setup:
    """What every benchmark is given. ``rows`` is the size; ``peer`` the prototype's path, if there is one."""

    folder: Path
    rows: int
    plan: Plan
    peer: Path | None
    say: Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """All rounds of a benchmark, and what its data was."""

    measurements: list[Measurement]
    workload: Mapping[str, Any]


def snapshot(setup: Setup) -> Outcome:
    """The table into bronze, beside reading it and throwing it away."""
    with database(setup.folder / "server") as source:
        source.fill(setup.rows)
        state = checksum.of_server(source)
        measured = _bench(setup, source).run(
            [
                systems.floor(source, setup.rows),
                *(systems.snapshot(source, setup.folder, state, each) for each in systems.WRITERS),
            ],
            setup.plan,
        )
        return Outcome(measured, {"rows": setup.rows})


def backlog_full(setup: Setup) -> Outcome:
    """A backlog with whole before-images into bronze, beside the prototype on the same log."""
    return _backlog(setup, "full")


def backlog_default(setup: Setup) -> Outcome:
    """The same with keys only in the before-images; the cold start was measured with the whole ones."""
    return _backlog(replace(setup, plan=replace(setup.plan, cold_rounds=0)), "default")


def _backlog(setup: Setup, identity: Identity) -> Outcome:
    with database(setup.folder / "server", identity) as source:
        source.keep_log()
        operations = source.write_backlog(setup.rows)
        log = Backlog(operations, checksum.of_server(source), identity == "full")
        measured = [
            systems.floor(source, log.state.rows),
            *(systems.backlog(source, setup.folder, log, each) for each in systems.WRITERS),
            *([systems.prototype(source, setup.folder, log, setup.peer)] if setup.peer else []),
        ]
        workload = _described(operations, source) | {"identity": identity}
        return Outcome(_bench(setup, source).run(measured, setup.plan), workload)


def silver(setup: Setup) -> Outcome:
    """Bronze into an empty silver table, and a tenth of the keys changed into a full one."""
    with database(setup.folder / "server") as source, Worker(setup.folder / "prepare.log") as worker:
        setup.say("  preparing bronze and silver")
        source.fill(setup.rows)
        whole = checksum.of_server(source)
        template = systems.pipeline(source, setup.folder / "empty", "bench_silver", "initial")
        filled, operations = _prepare_silver(setup, source, worker, template)
        changed = checksum.of_server(source)
        initial = Apply("initial load", setup.rows, whole)
        merge = Apply("merge", operations.rows, changed, cold=False)
        measured = [
            systems.floor(source, changed.rows),
            systems.apply(template, setup.folder, initial, worker),
            systems.apply(filled, setup.folder, merge, worker),
        ]
        workload = _operations(operations) | {"rows": setup.rows}
        return Outcome(_bench(setup, source).run(measured, setup.plan), workload)


def _prepare_silver(
    setup: Setup, source: Database, worker: Worker, template: Mapping[str, Any]
) -> tuple[dict[str, Any], Operations]:
    """A lake with bronze alone, for the initial load, and one with silver and changes that wait for it."""
    full = setup.folder / "full"
    filled = {**template, "target": {"path": str(full)}}
    worker.ask("capture", {"pipeline": template})
    shutil.copytree(setup.folder / "empty", full)
    worker.ask("apply", {"pipeline": filled})
    operations = source.change(setup.rows, setup.rows // 10)
    worker.ask("capture", {"pipeline": filled})
    return filled, operations


def memory(setup: Setup) -> Outcome:
    """One transaction of twice the size into bronze, each time in a new process."""
    plan = Plan(rounds=0, cold_rounds=min(setup.plan.rounds, MEMORY_ROUNDS))
    with database(setup.folder / "server") as source:
        source.keep_log()
        operations = source.insert(1, 2 * setup.rows)
        source.settle()
        log = Backlog(operations, checksum.of_server(source), full=False)
        both = [systems.backlog(source, setup.folder, log, each) for each in systems.WRITERS]
        measured = _bench(setup, source).run(both, plan)
        return Outcome(measured, _described(operations, source))


def large(setup: Setup) -> Outcome:
    """A table of ten times the size, snapshotted under load by runs that are killed, and compared."""
    rows = 10 * setup.rows
    with database(setup.folder / "server") as source:
        setup.say(f"  filling {rows:,} rows")
        source.fill(rows)
        pipeline = systems.pipeline(source, setup.folder / "lake", "bench_large", "initial")
        measured, facts = under_load.measured(setup.folder, pipeline, source, rows)
        for each in measured:
            setup.say(f"  {each.system:28} {each.seconds:7.0f} s  {each.rows / each.seconds:>11,.0f} rows/s")
        return Outcome(measured, facts)


BENCHMARKS: Mapping[str, Callable[[Setup], Outcome]] = {
    "snapshot": snapshot,
    "backlog-full": backlog_full,
    "backlog-default": backlog_default,
    "silver": silver,
    "memory": memory,
    "large": large,
}


def _bench(setup: Setup, source: Database) -> Bench:
    return Bench(setup.folder, source.pid, setup.say)


def _described(operations: Operations, source: Database) -> dict[str, Any]:
    return _operations(operations) | {"log_bytes": source.log_bytes()}


def _operations(operations: Operations) -> dict[str, Any]:
    return {"inserts": operations.c, "updates": operations.u, "deletes": operations.d}
