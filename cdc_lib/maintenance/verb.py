"""What may be done to which table, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

from cdc_lib.clock import now
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.expiring import expired
from cdc_lib.control.leases import Lease
from cdc_lib.control.watermarks import Watermark
from cdc_lib.delta import Lake
from cdc_lib.delta_upkeep import SAFE_HOURS
from cdc_lib.errors import FixConfiguration
from cdc_lib.maintenance.files import Files, Work
from cdc_lib.maintenance.result import Expired, Maintained, TableUpkeep
from cdc_lib.maintenance.sparing import Sparing

MERGED = frozenset({"leases", "tables"})
"""Control tables whose rows are replaced. A run that does that while their files are put together has to give
up, and they have few: nothing is ever only added to them."""


def refuse_short_retention(pipeline: Pipeline, *, forced: bool) -> None:
    """:raises FixConfiguration: files would go that somebody may still need."""
    hours = pipeline.maintain.vacuum_hours
    if hours < SAFE_HOURS and not forced:
        raise FixConfiguration(
            f"maintain.vacuum_hours is {hours}, less than the {SAFE_HOURS} of a week",
            why="older versions would lose their files: queries that have begun break, streams that read "
            "bronze cannot go on, and a foreign write to bronze or half a batch cannot be taken back",
            remedy="leave it out; or, if nobody needs any of that, cdc maintain --force while nothing runs",
        )


class Maintenance:
    """One maintenance of a pipeline's tables.

    :param writes: False: only say what would be done.
    :param check_stop: called between tables; raises to end.
    """

    def __init__(
        self,
        lake: Lake,
        control: Control,
        pipeline: Pipeline,
        *,
        writes: bool,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._lake = lake
        self._control = control
        self._pipeline = pipeline
        self._writes = writes
        self._check_stop = check_stop

    def run(self) -> Maintained:
        """Expire rows, then look after files: deleting rows leaves files behind."""
        watermark, lease = self._control.watermarks.latest(), self._control.leases.current()
        if watermark is None or lease is None:
            # Nothing is captured yet, or cdc rebuild has to come first and needs all there is.
            return Maintained(not self._writes)
        return Maintained(not self._writes, expired=self._expire(), tables=self._files(watermark, lease))

    def _expire(self) -> tuple[Expired, ...]:
        rows: dict[str, int] = {}
        for found in expired(self._control, now() - timedelta(days=self._pipeline.maintain.keep_days)):
            self._check_stop()
            if self._writes:
                found.carry_out()
            rows[found.table.name] = rows.get(found.table.name, 0) + found.rows
        return tuple(Expired(name, count) for name, count in rows.items())

    def _files(self, watermark: Watermark, lease: Lease) -> tuple[TableUpkeep, ...]:
        hours = self._pipeline.maintain.vacuum_hours
        files = Files(self._lake, lease.incarnation, watermark.batch, hours=hours, writes=self._writes)
        done = []
        for work in self._work(watermark, lease):
            self._check_stop()
            done.append(files.look_after(work))
        return tuple(done)

    def _work(self, watermark: Watermark, lease: Lease) -> Iterator[Work]:
        hours = self._pipeline.maintain.vacuum_hours
        sparing = Sparing(self._lake, self._control, watermark, lease, hours=hours)
        for state in self._control.tables.load().values():
            ref = self._lake.ref("bronze", state.bronze)
            if self._lake.exists(ref):
                yield sparing.work(ref, state)
            ref = self._lake.ref("silver", state.silver)
            # What a declarative pipeline keeps, its platform looks after.
            if self._pipeline.apply.mode == "merge" and self._lake.exists(ref):
                yield Work(ref)
        for table in self._control.every():
            # On a path they put their files together by themselves.
            compact = table.ref.path is None and table.name not in MERGED
            if self._lake.exists(table.ref):
                yield Work(table.ref, compact=compact)


def plan_maintenance(pipeline: Pipeline) -> Maintained:
    """What ``cdc maintain`` would do; writes nothing."""
    lake = Lake(pipeline.target)
    return Maintenance(lake, Control(lake, pipeline.name), pipeline, writes=False).run()
