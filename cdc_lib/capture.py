"""The batch ladder, in order: what a run that owns its pipeline does between source and silver.

    1 recover ▸ 2 release ▸ 3 signals ▸ 4 read ▸ 5 seal ▸ 6 bronze ▸ 7 commit ▸ 8 silver

``recovery`` is step 1, ``reading`` and ``snapshotting`` step 4, ``ladder`` steps 5 to 7, ``applying`` step 8;
this file is the order in which they are called and where a fault may strike. State is read once at start and
kept in memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdc_lib import bronze, recovery, staging
from cdc_lib.answering import answer_signals
from cdc_lib.applying import Applier
from cdc_lib.captured import CapturedTable
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal
from cdc_lib.control.incidents import Incident
from cdc_lib.control.tables import State
from cdc_lib.delta import Lake
from cdc_lib.due import Due, refuse_unknown
from cdc_lib.errors import Interrupted, ResnapshotNeeded
from cdc_lib.faults import reach
from cdc_lib.ladder import Ladder
from cdc_lib.metrics import Metrics
from cdc_lib.owner import Owner
from cdc_lib.position import Position
from cdc_lib.progress import Progress
from cdc_lib.reading import ReadAhead, ReadBatch, Reading, log_batches
from cdc_lib.recomputed import report_recomputed
from cdc_lib.schema import TableId
from cdc_lib.settling import Settling
from cdc_lib.snapshot.on_executors import Executors
from cdc_lib.snapshotting import Snapshots
from cdc_lib.source import Source, Span

log = logging.getLogger("cdc_lib.capture")

HEARTBEAT_SECONDS = 60.0
"""Age of the last watermark from which on an idle run writes where it stands, so that the source lets go."""
Retake = Sequence[TableId] | None
"""Tables to read again; None means all."""
RELEASE_BYTES = 256 << 20
"""Log that is committed from which on the source forgets it also in the middle of a run."""
APPLY_SECONDS = 20.0
"""How far silver may stay behind bronze while there is more to read."""


@dataclass(frozen=True)
class Context:
    """What every step of a run shares."""

    pipeline: Pipeline
    lake: Lake
    control: Control
    progress: Progress
    metrics: Metrics
    stop: threading.Event

    def check_stop(self) -> None:
        """:raises Interrupted: somebody asked the run to end; what is committed stays."""
        if self.stop.is_set():
            raise Interrupted("stopped on request", remedy="run again to go on from here")


class Capture:
    """One run's way up the ladder, for the owner of the pipeline.

    :param silver: whether to apply to silver after each commit.
    :param retake: tables to read again whatever their state; None means all.
    """

    def __init__(
        self, context: Context, source: Source, owner: Owner, *, silver: bool, retake: Retake = ()
    ) -> None:
        self.context = context
        self.control = context.control
        self.pipeline = context.pipeline
        self.progress = context.progress
        self.source = source
        self._owner = owner
        self.silver = silver
        self._wanted = retake
        self.due = Due(context.pipeline, context.control, source)
        self._snapshots = Snapshots(self)
        self._settling = Settling(self)
        self._executors: Executors | None = None
        if context.pipeline.run.snapshot_on == "executors":
            self._executors = Executors(
                lambda: context.lake.spark, context.pipeline, context.metrics, context.stop
            )
        self._applied_at = time.monotonic()
        self._released: Position | None = None
        self.tables: list[TableId] = []
        self._ladder = Ladder(
            context.lake, context.control, context.pipeline, owner.lease, source.source_type
        )
        self.applier = Applier(context.lake, context.control, context.pipeline, owner.lease.incarnation)

    # -- step 1

    def recover(self) -> None:
        """Read where the pipeline stands, refuse what others did to it, finish what was sealed."""
        self.progress.phase("recover")
        standing, watermark, seal = recovery.load(self.control, self.source.position_type)
        self.standing = standing
        if watermark is not None:
            accept = [entry.table_id for entry in standing.captured if self._retakes(entry.id)]
            recovery.refuse_foreign_writes(self._ladder, standing.captured, watermark, accept)
        if seal is not None:
            self._finish(seal)
        staging.clear(self.pipeline.staging)
        self.applier.load(standing.batch)
        reach("recovered")

    def _finish(self, seal: Seal) -> None:
        log.info("finishing a sealed batch batch=%d attempt=%d", seal.batch, seal.attempt + 1)
        unfinished = recovery.Unfinished(self._ladder, self.control, self.pipeline)
        try:
            watermark = unfinished.finish(seal, self.standing, self.reading(endless=True))
        except ResnapshotNeeded as gap:
            if self._wanted is not None:
                raise
            self._begin_anew(gap, seal.batch)
        else:
            self.standing.stand_at(watermark, self.source.position_type)

    # -- steps 2 and 3

    def begin(self) -> None:
        """Make the source ready, let it forget what is committed, answer signals, snapshot what is due."""
        tables = self.tables = self.source.tables()
        retake = tables if self._wanted is None else self._wanted
        refuse_unknown(tables, retake)
        if self.standing.position is None:
            recovery.refuse_other_incarnation(
                self._ladder, map(bronze.table_name, tables), self.standing.batch
            )
        # Before the source is made ready: once it is, nobody can tell any more.
        self._snapshots.read_missed(self.due.missed(self.standing.captured, tables))
        self._prepare(tables)
        back = self.due.back(self.standing.captured, tables)
        self._snapshots.queue(back)
        self._release()
        asked = answer_signals(self.control, self.standing.captured)
        reach("signals.answered")
        new = self._discover(tables)
        self._snapshots.queue([*retake, *asked])
        self._snapshots.trust({*retake, *asked} - {*back, *new})
        self._wanted = ()
        if self.standing.position is None and not self.due.snapshots:
            self.start(self.source.start())
        self._snapshots.take_waiting()

    def to_end(self) -> None:
        """Read up to the position that is current now, take snapshots that became due, apply."""
        if self.streaming:
            span = self.source.span()
            self._note(span)
            self.stream_to(span.newest)
            self._snapshots.take_waiting()
        self.apply()
        while self._settling.step():
            self._snapshots.take_waiting()
            self.apply()
        self.context.check_stop()

    def _note(self, span: Span) -> None:
        """What only the source knows, and nobody else can ask once the run is over."""
        position = self.standing.position
        behind = span.newest.bytes_since(position) if position is not None else None
        found = {"behind": behind, "retained": span.retained_bytes, "headroom": span.headroom_bytes}
        for what, count in found.items():
            if count is not None:
                self.context.metrics.set(f"source.{what}_bytes", max(0, count))

    def apply_committed(self) -> None:
        """Step 8 alone: bring silver up to the watermark."""
        standing, _, seal = recovery.load(self.control, self.source.position_type)
        if seal is not None:
            log.info("a batch is sealed and not committed; the next capture finishes it batch=%d", seal.batch)
        self.standing = standing
        self.applier.load(standing.batch)
        self.progress.phase("apply")
        self.apply()

    def next_round(self) -> None:
        """What a continuous run does between two rounds: wait, then release."""
        self.context.stop.wait(self.pipeline.run.poll_seconds)
        self.context.check_stop()
        self._owner.confirm()
        self._release()
        if self.source.tables() != self.tables or self.source.unlogged(self.tables):
            self.begin()

    def _retakes(self, table: TableId) -> bool:
        return self._wanted is None or table in self._wanted

    def _prepare(self, tables: Sequence[TableId]) -> None:
        """Where the log no longer joins up with what is captured, only reading all tables again goes on."""
        position = self.standing.position if self.streaming else None
        try:
            self.source.prepare(tables, position)
        except ResnapshotNeeded as gap:
            if self._wanted is not None:
                raise
            self._begin_anew(gap, self.standing.batch)
            self.source.prepare(tables, None)

    def _begin_anew(self, gap: ResnapshotNeeded, batch: int) -> None:
        """Leave a gap in the log behind: say so, and start again above every batch there was."""
        standing = self.standing
        left = str(standing.position)
        message = f"{gap.what}; changes after {left} are not in bronze. {gap.why}"
        remedy = "nothing: all tables are read again by this run, and rows that vanished are deleted"
        self.control.incidents.add(Incident("gap in the log", "", "", batch, message, remedy))
        log.warning("the log has a gap after=%s reason=%s", left, gap.what)
        self.source.begin_anew()
        standing.position = standing.durable = None
        # Its number is never sealed: the new start stands above the old watermark, whatever its position.
        standing.batch = batch + 1

    @property
    def streaming(self) -> bool:
        """Whether the log is captured at all."""
        return self.due.streaming

    def _release(self) -> None:
        """Only ever up to a watermark that is durable; what was read since does not count."""
        if self.standing.durable is not None and self.streaming:
            self._forget(self.standing.durable)
        reach("released")

    def _forget(self, durable: Position) -> None:
        self.control.sync()
        self.source.release(durable)
        self._released = durable

    def _let_go(self) -> None:
        """In the thread that reads, which alone uses the log, between two stretches. A run over a long log,
        or a long snapshot, would otherwise read it from its beginning for each of them."""
        durable, released = self.standing.durable, self._released
        if durable is not None and released is not None and self.streaming:
            behind = durable.bytes_since(released)
            if behind is not None and behind > RELEASE_BYTES:
                self._forget(durable)

    def _discover(self, tables: Sequence[TableId]) -> list[TableId]:
        new = self.standing.captured.discover(tables, self.due.first_state)
        if new:
            self.control.tables.save([entry.state for entry in new])
        return [entry.id for entry in new]

    def set_state(
        self, entries: Sequence[CapturedTable], state: State, reason: str = "", remedy: str = ""
    ) -> None:
        """Write the tables' state, if it is another one."""
        wanted = (state, reason)
        changed = [entry for entry in entries if (entry.state.state, entry.state.reason) != wanted]
        for entry in changed:
            entry.state = replace(entry.state, state=state, reason=reason, remedy=remedy)
        if changed:
            self.control.tables.save([entry.state for entry in changed])

    def start(self, position: Position) -> None:
        """The pipeline's first watermark: nothing is captured yet, and everything after here will be."""
        watermark = self._ladder.watermark(self.standing.batch, position, "start")
        self.control.watermarks.commit(watermark)
        self.standing.stand_at(watermark, type(position))
        self._released = self.standing.durable

    # -- step 4, the log

    def stream_to(self, upto: Position) -> None:
        """Commit the log up to ``upto``, in as many batches as it takes."""
        self.progress.phase("capture")
        position = self.standing.position
        assert position is not None
        if position < upto:
            batches = log_batches(self.reading(), position, upto, self.standing.batch + 1)
            with ReadAhead(batches) as ahead:
                for batch in ahead:
                    reach("log.staged")
                    self._log_batch(batch, upto)
                    self.context.check_stop()
        self.context.check_stop()

    def _log_batch(self, batch: ReadBatch, end: Position) -> None:
        if batch.empty:
            self._heartbeat(batch.upto, due=not batch.upto < end)
        else:
            self.take(batch)
        committed = batch.stage.committed_us
        seconds = None if committed is None else max(0.0, time.time() - committed / 1e6)
        self.progress.position(str(batch.upto), end.bytes_since(batch.upto), seconds)

    def _heartbeat(self, position: Position, *, due: bool) -> None:
        """No captured table changed up to ``position``: write that down, so that the log can be let go."""
        current = self.standing.position
        if current is not None and not current < position:
            return
        self.standing.position = position
        durable = self.standing.durable
        far = durable is not None and (position.bytes_since(durable) or 0) > RELEASE_BYTES
        if far or (due and self.standing.age() > HEARTBEAT_SECONDS):
            self._owner.confirm()
            watermark = self._ladder.watermark(self.standing.batch, position, "heartbeat")
            self.control.watermarks.commit(watermark)
            self.standing.stand_at(watermark, type(position))

    def reading(self, *, endless: bool = False) -> Reading:
        """What a reader needs, with a copy of the captured state that may run ahead."""
        return Reading(
            self.source,
            # Also those that were dropped: the log may still hold their last changes.
            [entry.id for entry in self.standing.captured if self.pipeline.source.captures(entry.id)],
            self.pipeline,
            self.standing.captured.copy(),
            self.pipeline.staging,
            self.progress,
            self.context.stop,
            batch_rows=float("inf") if endless else self.pipeline.run.batch_rows,
            let_go=self._let_go,
            executors=self._executors,
        )

    # -- steps 5 to 8

    def take_window(self, batch: ReadBatch) -> None:
        """:meth:`take` for a window, in which nothing may have happened."""
        if batch.empty:
            self.standing.position = batch.upto
        else:
            self.take(batch)

    def take(self, batch: ReadBatch) -> None:
        """Seal, append and commit a staged batch; apply what is committed now and then."""
        started = time.monotonic()
        captured = self.standing.captured
        contents = batch.stage.contents()
        self._owner.confirm()
        if self.streaming:
            # Before the seal: asking once too often for a snapshot is harmless, forgetting it is not.
            self._snapshots.read_again(report_recomputed(self.control, batch, self.source))
        seal = self._ladder.seal(batch, self.pipeline.fingerprint())
        for version in batch.versions:
            captured[version.table_id].adopt(version.table)
            self.applier.refresh(version.table_id)
        self._owner.confirm()
        watermark = self._ladder.execute(seal, contents, captured, batch.upto)
        self.standing.stand_at(watermark, type(batch.upto))
        for table in contents.tables:
            self.applier.pending(table.table_id, seal.batch, table.facts)
            self.context.metrics.count("bronze", str(table.table.id), table.rows)
            self.progress.rows(str(table.table.id), "bronze", table.rows)
        batch.stage.discard()
        self.context.metrics.count("batches", "", 1)
        self.progress.batch(seal.batch, batch.stage.rows, time.monotonic() - started)
        # One merge of several batches costs little more than one; the last are applied at the end.
        if time.monotonic() - self._applied_at > APPLY_SECONDS:
            self.apply()

    def apply(self) -> None:
        """Bring silver up to what is committed, if that is wanted."""
        if self.silver:
            for table, rows in self.applier.apply(self.standing.captured, self.progress).items():
                self.context.metrics.count("silver", table, rows)
        self._applied_at = time.monotonic()
