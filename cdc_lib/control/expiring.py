"""Rows of control tables that nothing needs any more, and all the reasons why others stay.

Age alone decides nothing: a clock may have been wrong. What a run, a rebuild or a person who reads the tables
may still ask for is told by batch, place or id; only then is it asked how old a row is. Runs go on meanwhile:
whatever they add stands above what is deleted here.

Never deleted are ``tables``, ``leases``, ``schema_history`` and ``schema_changes`` (small, and needed to read
bronze), ``messages`` and ``transactions`` (data of the source, as bronze is).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cdc_lib.control import Control
from cdc_lib.control.row import ControlTable
from cdc_lib.control.watermarks import Watermark
from cdc_lib.delta_upkeep import Condition, holds


@dataclass(frozen=True)
class Expiry:
    """So many rows of a table, and what they have in common. ``first``: what must be written before."""

    table: ControlTable[Any]
    rows: int
    conditions: Sequence[Condition]
    first: Callable[[], None] | None = None

    def carry_out(self) -> None:
        """Delete them.

        :raises Conflict: others kept committing to the table.
        """
        if self.first is not None:
            self.first()
        self.table.forget(self.conditions)


def expired(control: Control, before: datetime) -> list[Expiry]:
    """What can go, of the rows from ``before`` a point in time; in the order in which it must go."""
    latest = control.watermarks.latest()
    if latest is None:
        return []
    every = (
        *_watermarks(control, latest, before),
        *_batches(control, latest.batch, before),
        _chunks(control, before),
        *_signals(control, before),
        *_reports(control, before),
    )
    return [found for found in every if found.rows]


def _expiry(table: ControlTable[Any], rows: Iterable[Any], *conditions: Condition) -> Expiry:
    return Expiry(table, sum(holds(row, conditions) for row in rows), conditions)


def _watermarks(control: Control, latest: Watermark, before: datetime) -> Iterator[Expiry]:
    """The latest stays, and the newest start: batches up to it stand before a gap in the log."""
    table = control.watermarks
    marks = table.load()
    old: Condition = ("committed_at", "<", before)
    moved: Condition = ("kind", "in", ["batch", "heartbeat"])
    yield _expiry(table, marks, old, moved, ("batch", "<", latest.batch))
    yield _expiry(table, marks, old, moved, ("batch", "=", latest.batch), ("sort_key", "<", latest.sort_key))
    yield _expiry(table, marks, old, ("kind", "=", "start"), ("batch", "<", table.started()))
    applied = table.applied()
    if applied:
        below: Condition = ("batch", "<", max(applied.values()))
        found = _expiry(table, marks, old, ("kind", "=", "applied"), below)
        # Each table's newest batch may stand in a row of its own: one row that has them all goes first.
        yield replace(found, first=lambda: table.commit_applied(applied))


def _batches(control: Control, committed: int, before: datetime) -> Iterator[Expiry]:
    """A seal stays if its batch is the newest, or the newest with rows of some table; if silver lacks it (it
    says what kinds of rows come); and if a structure first occurs in it (that counts only with its seal). How
    many rows the others brought is counted first."""
    seals = control.batches.load()
    applied = control.watermarks.applied()
    kept = {row.batch for row in control.schema_history.rows()}
    newest: dict[str, int] = {}
    for seal in seals:
        lacking = any(applied.get(table.table_id, 0) < seal.batch for table in seal.tables)
        if lacking or seal.batch >= committed or seal.sealed_at >= before:
            kept.add(seal.batch)
        for table in seal.tables:
            newest[table.table_id] = max(seal.batch, newest.get(table.table_id, 0))
    kept.update(newest.values())
    going = [seal for seal in seals if seal.batch not in kept]
    totals = control.totals.newest()
    above = max(totals.below, max((seal.batch for seal in going), default=0) + 1)
    staying = sorted({seal.batch for seal in seals if seal.batch < above} & kept)
    found = _expiry(control.batches, seals, ("batch", "<", above), ("batch", "not in", staying))
    yield replace(found, first=lambda: control.totals.add(going, above, staying))
    yield _expiry(control.totals, control.totals.load(), ("number", "<", totals.number))


def _chunks(control: Control, before: datetime) -> Expiry:
    """The newest snapshot of each table stays, done or not."""
    rows = control.chunks.load()
    planned = sorted((row for row in rows if row.state == "planned"), key=lambda row: row.at)
    newest = {row.table_id: row.snapshot for row in planned}
    # What a rebuild noted as done belongs to no snapshot that was planned here.
    kept = {"", *newest.values(), *(row.snapshot for row in rows if row.at >= before)}
    going = sorted({row.snapshot for row in rows} - kept)
    return _expiry(control.chunks, rows, ("snapshot", "in", going))


def _signals(control: Control, before: datetime) -> Iterator[Expiry]:
    """A signal goes before its answer: without that, it would be acted on again. One that names no pipeline
    stays, and its answer: others may not have answered it yet."""
    answers = control.answers.load()
    old = {answer.id for answer in answers if answer.at < before}
    signals = control.signals.named()
    going = sorted({signal.id for signal in signals} & old)
    yield _expiry(control.signals, signals, ("id", "in", going))
    staying = {signal.id for signal in control.signals.load()} - set(going)
    yield _expiry(control.answers, answers, ("id", "in", sorted(old - staying)))


def _reports(control: Control, before: datetime) -> Iterator[Expiry]:
    """What people read; the newest run stays."""
    runs = control.runs.load()
    newest = [run.run_id for run in sorted(runs, key=lambda run: run.ended_at)[-1:]]
    yield _expiry(control.runs, runs, ("ended_at", "<", before), ("run_id", "not in", newest))
    yield _expiry(control.incidents, control.incidents.load(), ("at", "<", before))
    yield _expiry(control.notifications, control.notifications.load(), ("at", "<", before))
