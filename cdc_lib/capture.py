"""The batch ladder, in order: what a run that owns its pipeline does between source and silver.

    1 recover ▸ 2 release ▸ 3 signals ▸ 4 read ▸ 5 seal ▸ 6 bronze ▸ 7 commit ▸ 8 silver

``recovery`` is step 1, ``reading`` step 4, ``ladder`` steps 5 to 7, ``applying`` step 8; this file is the
order in which they are called and where a fault may strike. State is read once at start and kept in memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdc_lib import recovery, staging
from cdc_lib.answering import answer_signals
from cdc_lib.applying import Applier
from cdc_lib.captured import CapturedTable
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal
from cdc_lib.control.incidents import Incident
from cdc_lib.control.tables import State
from cdc_lib.delta import Lake
from cdc_lib.errors import FixConfiguration, Interrupted, ResnapshotNeeded
from cdc_lib.faults import reach
from cdc_lib.ladder import Ladder
from cdc_lib.metrics import Metrics
from cdc_lib.owner import Owner
from cdc_lib.position import Position
from cdc_lib.progress import Progress
from cdc_lib.reading import ReadAhead, ReadBatch, Reading, chunk_batches, log_batches
from cdc_lib.recomputed import report_recomputed
from cdc_lib.schema import TableId
from cdc_lib.source import Chunk, SnapshotSession, SnapshotSpec, Source
from cdc_lib.sweeping import swept

log = logging.getLogger("cdc_lib.capture")

HEARTBEAT_SECONDS = 60.0
"""Age of the last watermark from which on an idle run writes where it stands, so that the source lets go."""
Retake = Sequence[TableId] | None
"""Tables to read again; None means all."""
STREAMING_MODES = frozenset({"initial", "no_data", "never"})
SNAPSHOT_MODES = frozenset({"initial", "initial_only"})


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
        self._context = context
        self._control = context.control
        self._pipeline = context.pipeline
        self._progress = context.progress
        self._source = source
        self._owner = owner
        self._silver = silver
        self._wanted = retake
        self._tables: list[TableId] = []
        self._mode = context.pipeline.source["snapshot.mode"]
        self._ladder = Ladder(
            context.lake, context.control, context.pipeline, owner.lease, source.source_type
        )
        self._applier = Applier(context.lake, context.control, context.pipeline, owner.lease.incarnation)

    # -- step 1

    def recover(self) -> None:
        """Read where the pipeline stands, refuse what others did to it, finish what was sealed."""
        self._progress.phase("recover")
        standing, watermark, seal = recovery.load(self._control, self._source.position_type)
        self._standing = standing
        if watermark is not None:
            accept = [entry.table_id for entry in standing.captured if self._retakes(entry.id)]
            recovery.refuse_foreign_writes(self._ladder, standing.captured, watermark, accept)
        if seal is not None:
            self._finish(seal)
        staging.clear(self._pipeline.staging)
        self._applier.load(standing.batch)
        reach("recovered")

    def _finish(self, seal: Seal) -> None:
        log.info("finishing a sealed batch batch=%d attempt=%d", seal.batch, seal.attempt + 1)
        unfinished = recovery.Unfinished(self._ladder, self._control, self._pipeline)
        try:
            watermark = unfinished.finish(seal, self._standing, self._reading(endless=True))
        except ResnapshotNeeded as gap:
            if self._wanted is not None:
                raise
            self._begin_anew(gap, seal.batch)
        else:
            self._standing.stand_at(watermark, self._source.position_type)

    # -- steps 2 and 3

    def begin(self) -> None:
        """Make the source ready, let it forget what is committed, answer signals, snapshot what is due."""
        tables = self._tables = self._source.tables()
        retake = tables if self._wanted is None else self._wanted
        self._refuse_unknown(tables, retake)
        self._prepare(tables)
        self._release()
        asked = answer_signals(self._control, self._standing.captured)
        reach("signals.answered")
        self._discover(tables)
        self._queue_snapshot([*retake, *asked])
        self._wanted = ()
        if self._standing.position is None:
            recovery.refuse_other_incarnation(self._ladder, self._standing.captured)
            if self._mode not in SNAPSHOT_MODES:
                self._start(self._source.start())
        self._snapshot_waiting()

    def to_end(self) -> None:
        """Read up to the position that is current now, take snapshots that became due, apply."""
        if self._streaming:
            self._stream_to(self._source.span().newest)
            self._snapshot_waiting()
        self._apply()
        self._sweep()
        self._context.check_stop()

    def apply_committed(self) -> None:
        """Step 8 alone: bring silver up to the watermark."""
        standing, _, seal = recovery.load(self._control, self._source.position_type)
        if seal is not None:
            log.info("a batch is sealed and not committed; the next capture finishes it batch=%d", seal.batch)
        self._standing = standing
        self._applier.load(standing.batch)
        self._progress.phase("apply")
        self._apply()

    def next_round(self) -> None:
        """What a continuous run does between two rounds: wait, then release."""
        self._context.stop.wait(self._pipeline.run.poll_seconds)
        self._context.check_stop()
        self._owner.confirm()
        self._release()
        if self._source.tables() != self._tables:
            self.begin()

    def _retakes(self, table: TableId) -> bool:
        return self._wanted is None or table in self._wanted

    def _prepare(self, tables: Sequence[TableId]) -> None:
        """Where the log no longer joins up with what is captured, only reading all tables again goes on."""
        position = self._standing.position if self._streaming else None
        try:
            self._source.prepare(tables, position)
        except ResnapshotNeeded as gap:
            if self._wanted is not None:
                raise
            self._begin_anew(gap, self._standing.batch)
            self._source.prepare(tables, None)

    def _begin_anew(self, gap: ResnapshotNeeded, batch: int) -> None:
        """Leave a gap in the log behind: say so, and start again above every batch there was."""
        standing = self._standing
        left = str(standing.position)
        message = f"{gap.what}; changes after {left} are not in bronze. {gap.why}"
        remedy = "nothing: all tables are read again by this run, and rows that vanished are deleted"
        self._control.incidents.add(Incident("gap in the log", "", "", batch, message, remedy))
        log.warning("the log has a gap after=%s reason=%s", left, gap.what)
        self._source.begin_anew()
        standing.position = standing.durable = None
        # Its number is never sealed: the new start stands above the old watermark, whatever its position.
        standing.batch = batch + 1

    @property
    def _streaming(self) -> bool:
        return self._mode in STREAMING_MODES

    def _release(self) -> None:
        """Only ever up to a watermark that is durable; what was read since does not count."""
        if self._standing.durable is not None and self._streaming:
            self._control.sync()
            self._source.release(self._standing.durable)
        reach("released")

    def _refuse_unknown(self, tables: Sequence[TableId], retake: Sequence[TableId]) -> None:
        if not tables:
            raise FixConfiguration(
                "the pipeline captures no table",
                why="no table of the database passes its schema and table filters",
                remedy="correct schema.include.list and table.include.list in the pipeline file",
            )
        missing = [str(table) for table in retake if table not in tables]
        if missing:
            raise FixConfiguration(
                f"{', '.join(missing)}: no such captured table",
                why="it does not exist, or the filters of the pipeline leave it out",
                remedy="cdc tables shows the captured ones",
            )

    def _discover(self, tables: Sequence[TableId]) -> None:
        state = State.SNAPSHOT if self._mode in SNAPSHOT_MODES else State.STREAMING
        new = self._standing.captured.discover(tables, state)
        if new:
            self._control.tables.save([entry.state for entry in new])

    def _queue_snapshot(self, tables: Sequence[TableId]) -> None:
        self._set_state([self._standing.captured[table] for table in dict.fromkeys(tables)], State.SNAPSHOT)

    def _set_state(self, entries: Sequence[CapturedTable], state: State) -> None:
        changed = [entry for entry in entries if entry.state.state is not state]
        for entry in changed:
            entry.state = replace(entry.state, state=state, reason="", remedy="")
        if changed:
            self._control.tables.save([entry.state for entry in changed])

    def _start(self, position: Position) -> None:
        """The pipeline's first watermark: nothing is captured yet, and everything after here will be."""
        watermark = self._ladder.watermark(self._standing.batch, position, "start")
        self._control.watermarks.commit(watermark)
        self._standing.stand_at(watermark, type(position))

    # -- step 4, the log

    def _stream_to(self, upto: Position) -> None:
        self._progress.phase("capture")
        position = self._standing.position
        assert position is not None
        if position < upto:
            batches = log_batches(self._reading(), position, upto, self._standing.batch + 1)
            with ReadAhead(batches) as ahead:
                for batch in ahead:
                    reach("log.staged")
                    self._log_batch(batch, upto)
                    self._context.check_stop()
        self._context.check_stop()

    def _log_batch(self, batch: ReadBatch, end: Position) -> None:
        if batch.empty:
            self._heartbeat(batch.upto, due=not batch.upto < end)
        else:
            self._take(batch)
        committed = batch.stage.committed_us
        seconds = None if committed is None else max(0.0, time.time() - committed / 1e6)
        self._progress.position(str(batch.upto), end.bytes_since(batch.upto), seconds)

    def _heartbeat(self, position: Position, *, due: bool) -> None:
        """No captured table changed up to ``position``: write that down, so that the log can be let go."""
        current = self._standing.position
        if current is not None and not current < position:
            return
        self._standing.position = position
        if due and self._standing.age() > HEARTBEAT_SECONDS:
            self._owner.confirm()
            watermark = self._ladder.watermark(self._standing.batch, position, "heartbeat")
            self._control.watermarks.commit(watermark)
            self._standing.stand_at(watermark, type(position))

    def _reading(self, *, endless: bool = False) -> Reading:
        return Reading(
            self._source,
            # Also those that were dropped: the log may still hold their last changes.
            [entry.id for entry in self._standing.captured if self._pipeline.source.captures(entry.id)],
            self._pipeline,
            self._standing.captured.copy(),
            self._pipeline.staging,
            self._progress,
            self._context.stop,
            batch_rows=float("inf") if endless else self._pipeline.run.batch_rows,
        )

    # -- steps 5 to 8

    def _take(self, batch: ReadBatch) -> None:
        started = time.monotonic()
        captured = self._standing.captured
        contents = batch.stage.contents()
        self._owner.confirm()
        if self._streaming:
            # Before the seal: asking once too often for a snapshot is harmless, forgetting it is not.
            self._queue_snapshot(report_recomputed(self._control, batch, self._source))
        seal = self._ladder.seal(batch, self._pipeline.fingerprint())
        for version in batch.versions:
            captured[version.table_id].adopt(version.table)
            self._applier.refresh(version.table_id)
        self._owner.confirm()
        watermark = self._ladder.execute(seal, contents, captured, batch.upto)
        self._standing.stand_at(watermark, type(batch.upto))
        for table in contents.tables:
            self._applier.pending(table.table_id, seal.batch, table.facts)
            self._context.metrics.count("bronze", str(table.table.id), table.rows)
            self._progress.rows(str(table.table.id), "bronze", table.rows)
        batch.stage.discard()
        self._context.metrics.count("batches", "", 1)
        self._progress.batch(seal.batch, batch.stage.rows, time.monotonic() - started)
        self._apply()

    def _apply(self) -> None:
        if self._silver:
            for table, rows in self._applier.apply(self._standing.captured, self._progress).items():
                self._context.metrics.count("silver", table, rows)

    # -- step 4, snapshots

    def _snapshot_waiting(self) -> None:
        """Read the tables whose snapshot is due in one consistent view, the log first, exactly up to it."""
        waiting = [
            entry
            for entry in self._standing.captured
            if entry.state.state is State.SNAPSHOT and entry.id in self._tables
        ]
        if not waiting:
            return
        run = self._pipeline.run
        spec = SnapshotSpec(
            [entry.id for entry in waiting], run.chunk_rows, run.threads, keep=self._streaming
        )
        self._progress.phase("snapshot")
        with self._source.snapshot(spec) as session:
            reach("snapshot.opened")
            if self._standing.position is None:
                self._start(session.position)
            elif self._streaming:
                self._stream_to(session.position)
                self._progress.phase("snapshot")
            self._read_chunks(session, waiting)

    def _read_chunks(self, session: SnapshotSession, waiting: Sequence[CapturedTable]) -> None:
        left = {entry.table_id: session.chunks(entry.id) for entry in waiting}
        for entry in waiting:
            chunks = left[entry.table_id]
            rows = [chunk.rows for chunk in chunks]
            known = None if None in rows else sum(count or 0 for count in rows)
            self._progress.snapshot_planned(str(entry.id), known, len(chunks))
        again = {entry.table_id for entry in waiting if entry.table is not None}
        self._control.chunks.plan(left)
        every: list[Chunk] = [chunk for chunks in left.values() for chunk in chunks]
        batches = chunk_batches(self._reading(), session, every, self._standing.batch + 1)
        numbers = {table_id: {chunk.number for chunk in chunks} for table_id, chunks in left.items()}
        with ReadAhead(batches) as ahead:
            for batch in ahead:
                reach("chunks.staged")
                done = {table.table_id: table.chunks for table in batch.stage.tables.values()}
                self._take(batch)
                for table_id, finished in done.items():
                    numbers[table_id] -= set(finished)
                read = [entry for entry in waiting if not numbers[entry.table_id]]
                self._set_state([entry for entry in read if entry.table_id in again], State.SWEEP)
                self._set_state([entry for entry in read if entry.table_id not in again], State.STREAMING)
                self._context.check_stop()

    def _sweep(self) -> None:
        """Delete the rows of silver that a snapshot of their table did not see; after it was applied."""
        due = [entry for entry in self._standing.captured if entry.state.state is State.SWEEP]
        if not due or not self._silver or self._standing.position is None:
            return
        gone = ((entry, self._applier.older(entry, self._first_batch(entry))) for entry in due)
        batch = swept(self._reading(), gone, self._standing.position, self._standing.batch + 1)
        if batch is not None:
            self._take(batch)
        self._set_state(due, State.STREAMING)

    def _first_batch(self, entry: CapturedTable) -> int:
        return self._control.chunks.first_batch(entry.table_id)
