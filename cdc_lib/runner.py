"""What ``cdc run``, ``capture``, ``apply``, ``snapshot``, ``reconcile``, ``rebuild`` and ``maintain`` do: own
the pipeline (the last need not), climb the ladder, report.

The steps themselves, and the order that makes every change arrive exactly once, are in ``capture``.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

from typing_extensions import Self

from cdc_lib.capture import Capture, Context, Retake
from cdc_lib.clock import now
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.runs import Run
from cdc_lib.delta import Lake
from cdc_lib.delta_upkeep import SAFE_HOURS
from cdc_lib.errors import CdcError, FixConfiguration, Interrupted
from cdc_lib.faults import reach
from cdc_lib.maintenance import Maintained, Maintenance, refuse_short_retention
from cdc_lib.metrics import Metrics
from cdc_lib.owner import Owner
from cdc_lib.progress import Progress
from cdc_lib.rebuilding import Rebuild, Rebuilt, refuse_unless_lost
from cdc_lib.reconcile import Reconciled
from cdc_lib.reconcile.verb import Reconciliation
from cdc_lib.schema import TableId
from cdc_lib.source import open_source
from cdc_lib.surviving import Survivors

log = logging.getLogger("cdc_lib.runner")

REPORT_SECONDS = 600.0
"""How often a continuous run writes what it did: dashboards and alerts know no more than that."""


@dataclass(frozen=True)
class RunResult:
    """What a run did; ``metrics`` as in ``control.runs``."""

    run_id: str
    outcome: str
    metrics: dict[str, float] = field(default_factory=dict)


class Runner:
    """Runs one pipeline; a context manager.

    :param stop: set from outside (a signal handler) to end after the batch that is under way.

    All verbs raise the classes of ``cdc_lib.errors``.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
        lake: Lake | None = None,
    ) -> None:
        lake = lake or Lake(pipeline.target)
        self._context = Context(
            pipeline,
            lake,
            Control(lake, pipeline.name),
            progress or Progress(),
            Metrics(),
            stop or threading.Event(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.progress.close()

    def run(self, *, continuous: bool = False) -> RunResult:
        """Snapshot, capture and apply until caught up; ``continuous`` goes on until stopped."""
        return self._reported("run", lambda: self._capture(silver=self._merges, continuous=continuous))

    def capture(self) -> RunResult:
        """Snapshot and log into bronze; silver is left alone."""
        return self._reported("capture", lambda: self._capture(silver=False))

    def snapshot(self, tables: Sequence[str] = ()) -> RunResult:
        """Read tables again, whole, beside their changes, and go on. Taking all of them is also the way on
        when the log no longer joins up with what is captured.

        :param tables: source names, ``schema.table``; none means all.
        """
        wanted = [_table_id(name) for name in tables] or None
        return self._reported("snapshot", lambda: self._capture(silver=self._merges, retake=wanted))

    def apply(self) -> RunResult:
        """Bring silver up to what bronze has; the source is not connected."""
        self._refuse_unless_merging("apply")
        return self._reported("apply", self._apply)

    def reconcile(self, tables: Sequence[str] = (), *, repair: bool = False, shown: int = 20) -> Reconciled:
        """Bring silver to a position of the source's log and compare it with the source there, every cell.

        :param tables: source names, ``schema.table``; none means all.
        :param repair: write the source's values where silver differs, as rows of bronze.
        :param shown: how many differences of each table the result names.
        """
        self._refuse_unless_merging("reconcile")
        wanted = [_table_id(name) for name in tables]
        found: list[Reconciled] = []

        def compare(capture: Capture) -> None:
            found.append(Reconciliation(capture, wanted, repair=repair, shown=shown).run())

        run = self._reported("reconcile", lambda: self._capture(silver=True, then=compare))
        return replace(found[0], metrics=run.metrics)

    def rebuild(self) -> Rebuilt:
        """Write control tables that are lost anew, from what bronze and silver say of themselves."""
        rebuilt: list[Rebuilt] = []
        self._reported("rebuild", lambda: rebuilt.append(self._rebuild()))
        return rebuilt[0]

    @property
    def _merges(self) -> bool:
        """Whether silver is this runner's, and not a declarative pipeline's."""
        return self._context.pipeline.apply.mode == "merge"

    def _refuse_unless_merging(self, verb: str) -> None:
        if not self._merges:
            raise FixConfiguration(
                f"cdc {verb} writes to silver, which a declarative pipeline keeps",
                why="the pipeline file says apply: {mode: declarative}",
                remedy="start an update of the declarative pipeline instead (docs/declarative.md)",
            )

    def maintain(self, *, force: bool = False) -> Maintained:
        """Put small files together, remove those that no version needs, drop control rows that nothing needs.
        Other runs go on meanwhile.

        :param force: also under ``maintain.vacuum_hours`` of less than a week; no other run must be at work.
        """
        context = self._context
        refuse_short_retention(context.pipeline, forced=force)
        if context.control.watermarks.latest() is None:
            return Maintained(planned=False)
        found: list[Maintained] = []
        run = self._reported("maintain", lambda: found.append(self._maintain()))
        return replace(found[0], metrics=run.metrics)

    def _maintain(self) -> Maintained:
        context = self._context
        context.control.create()
        context.progress.phase("maintain")
        work = Maintenance(
            context.lake, context.control, context.pipeline, writes=True, check_stop=context.check_stop
        )
        if context.pipeline.maintain.vacuum_hours >= SAFE_HOURS:
            return work.run()
        # Files that an append has written and not committed yet may be older than that.
        with Owner(context.control, context.pipeline.run.lease_seconds):
            return work.run()

    def _rebuild(self) -> Rebuilt:
        context = self._context
        context.control.create()
        refuse_unless_lost(context.control)
        survivors = Survivors.find(context.lake, context.pipeline.name)
        owner = Owner(context.control, context.pipeline.run.lease_seconds, survivors.incarnation)
        with open_source(context.pipeline.source) as source, owner:
            return Rebuild(context, source, survivors, owner.lease.runner).run()

    def _capture(
        self,
        *,
        silver: bool,
        continuous: bool = False,
        retake: Retake = (),
        then: Callable[[Capture], None] | None = None,
    ) -> None:
        pipeline = self._context.pipeline
        self._context.control.create()
        owner = Owner(self._context.control, pipeline.run.lease_seconds)
        with open_source(pipeline.source) as source, owner:
            capture = Capture(self._context, source, owner, silver=silver, retake=retake)
            capture.recover()
            capture.begin()
            capture.to_end()
            while continuous:
                capture.next_round()
                capture.to_end()
                self._log.write_if_due()
            if then is not None:
                then(capture)

    def _apply(self) -> None:
        self._context.control.create()
        source = open_source(self._context.pipeline.source)
        with Owner(self._context.control, self._context.pipeline.run.lease_seconds) as owner:
            Capture(self._context, source, owner, silver=True).apply_committed()

    def _reported(self, verb: str, work: Callable[[], None]) -> RunResult:
        """The one boundary: whatever ends a run is written to ``control.runs`` before it goes on up."""
        self._log = RunLog(verb, self._context)
        outcome = "done"
        error: BaseException | None = None
        try:
            work()
        except Interrupted as interrupted:
            outcome, error = "interrupted", interrupted
            raise
        except BaseException as failure:
            outcome, error = "failed", failure
            raise
        finally:
            ended = self._log.write(outcome, *_reason(error))
            reach("reported")
        return RunResult(ended.run_id, outcome, ended.metrics)


class RunLog:
    """Writes what a run did to ``control.runs``: once, or of a run that goes on, now and then."""

    def __init__(self, verb: str, context: Context) -> None:
        self._verb = verb
        self._context = context
        self._begin()

    def _begin(self) -> None:
        self._started = now()
        self._clock = time.monotonic()

    def write_if_due(self) -> None:
        """A row for what was done since the last one, if that is long ago."""
        if time.monotonic() - self._clock >= REPORT_SECONDS:
            self.write("going on")
            self._begin()

    def write(self, outcome: str, error: str = "", remedy: str = "") -> Run:
        """Write a row; what it counts is not counted again."""
        context = self._context
        context.metrics.set("seconds", time.monotonic() - self._clock)
        metrics = context.metrics.take()
        run = Run(uuid.uuid4().hex, self._verb, self._started, now(), outcome, error, remedy, metrics)
        try:
            context.control.runs.add(run)
        except CdcError as failure:
            log.error("the run could not be reported run=%s reason=%s", run.run_id, failure.what)
        return run


def _reason(error: BaseException | None) -> tuple[str, str]:
    """What ended a run, and the remedy. A foreign exception's text may repeat a connection string or a row,
    so only its class is kept."""
    if error is None:
        return "", ""
    if isinstance(error, CdcError):
        return error.what, error.remedy
    return type(error).__name__, ""


def _table_id(name: str) -> TableId:
    try:
        return TableId.parse(name)
    except ValueError as error:
        raise FixConfiguration(str(error), remedy="name tables as schema.table") from None
