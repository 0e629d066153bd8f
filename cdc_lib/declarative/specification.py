"""What a declarative pipeline keeps: one flow a table, from the pipeline file and from what was captured.

Needs neither the source nor Spark. A table that AUTO CDC would get wrong is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cdc_lib.captured import Captured, CapturedTable
from cdc_lib.control import Control
from cdc_lib.delta import Lake, TableRef
from cdc_lib.errors import FixConfiguration
from cdc_lib.pipeline import Layout, TableRule, rule_for
from cdc_lib.schema import Identity, Table, TableId
from cdc_lib.silver.table import META

OP = "__op"
CARRIED = "__carried"
TAKEN = frozenset(META) | {OP, CARRIED}
"""Columns of ours, which a source table must not have."""


@dataclass(frozen=True)
class TableFlow:
    """One table: from which bronze table, into which streaming table, how.

    ``since``: the version of the structure in which each column appeared; ``absent``: columns that bronze
    does not have yet, because no row came with them; ``snapshotted``: a snapshot has, or will have, every row
    whole.
    """

    table: Table
    bronze: TableRef
    silver: TableRef
    rule: TableRule
    since: Mapping[str, int] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    snapshotted: bool = True

    @property
    def history(self) -> bool:
        """Whether all versions of a row are kept (SCD type 2)."""
        return self.rule.scd == 2

    @property
    def soft(self) -> bool:
        """Whether deleted rows stay, marked. A history keeps them anyway, as versions that have ended."""
        return self.rule.delete == "soft" and not self.history

    @property
    def whole_before(self) -> bool:
        """Whether the log carries all of a row that is updated or deleted."""
        return self.table.identity is Identity.FULL

    @property
    def values(self) -> tuple[str, ...]:
        """The columns outside the key."""
        return tuple(name for name in self.table.names if name not in self.table.key)


@dataclass(frozen=True)
class LeftOut:
    """A captured table that gets no flow."""

    table: TableId
    reason: str


@dataclass(frozen=True)
class Plan:
    """All captured tables: with a flow, or left out."""

    pipeline: str
    flows: tuple[TableFlow, ...]
    left_out: tuple[LeftOut, ...] = ()


def plan_of(layout: Layout, lake: Lake, control: Control) -> Plan:
    """What to define for a pipeline.

    :raises FixConfiguration: nothing of it was captured yet.
    """
    watermark = control.watermarks.latest()
    captured = Captured.load(control, sealed=watermark.batch if watermark else 0)
    flows, left_out = [], []
    read = {chunk.table_id for chunk in control.chunks.load() if chunk.state == "done"}
    there = {ref.name.lower() for ref in lake.tables("bronze")}
    for entry in sorted(captured, key=lambda entry: entry.id):
        reason = next(_reasons(entry, there), None)
        if entry.table is None or reason is not None:
            left_out.append(LeftOut(entry.id, reason or ""))
        else:
            flow = _flow(entry, entry.table, layout, lake)
            flows.append(replace(flow, snapshotted=entry.table_id in read))
    if not flows:
        raise FixConfiguration(
            f"pipeline {layout.name} has no table that a declarative pipeline can keep",
            why="; ".join(f"{left.table}: {left.reason}" for left in left_out) or "nothing was captured yet",
            remedy="run cdc capture first: tables, keys and columns are those that it found",
        )
    return Plan(layout.name, tuple(flows), tuple(left_out))


def _flow(entry: CapturedTable, table: Table, layout: Layout, lake: Lake) -> TableFlow:
    bronze, silver = lake.ref("bronze", entry.state.bronze), lake.ref("silver", entry.state.silver)
    absent: set[str] = set()
    if table.version > 1:
        absent = set(table.names) - {column.name for column in lake.arrow_schema(bronze).field("after").type}
    rule = rule_for(layout.rules, entry.id)
    return TableFlow(table, bronze, silver, rule, dict(entry.since), frozenset(absent))


def _reasons(entry: CapturedTable, there: Collection[str]) -> Iterator[str]:
    if entry.table is None or entry.state.bronze.lower() not in there:
        yield "no row of it was captured yet"
        return
    if not entry.table.key:
        yield "it has no key, and AUTO CDC knows rows by their keys; its changes are in bronze"
    taken = sorted(name for name in entry.table.names if name.lower() in {mine.lower() for mine in TAKEN})
    if taken:
        yield f"its columns {', '.join(taken)} have names of silver's own columns"
