"""Step 4 of the ladder for tables that must be read whole: first sights, retakes, what a DDL recomputed.

Two ways. *Incremental*: piece by piece while changes flow, without locks that stop anybody, and going on
where it was interrupted. *Consistent*: all tables in one view at one position. The second is for tables
without a key, which windows cannot join with their changes, for ``snapshot.mode: initial_only``, and where
``run.snapshot`` asks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cdc_lib.captured import CapturedTable
from cdc_lib.control.incidents import Incident
from cdc_lib.control.tables import State
from cdc_lib.due import MISSED, MISSED_WHY
from cdc_lib.faults import reach
from cdc_lib.reading import ReadAhead, ReadBatch, chunk_batches
from cdc_lib.schema import TableId
from cdc_lib.snapshot.incremental import window_batches
from cdc_lib.source import Chunk, SnapshotSpec
from cdc_lib.sweeping import emptied

if TYPE_CHECKING:
    from cdc_lib.capture import Capture

log = logging.getLogger("cdc_lib.snapshot")

Plan = Mapping[str, Sequence[Chunk]]
"""Pieces that are left to read, by table id."""


class Snapshots:
    """Takes what is due, through the steps of the ``capture`` that it belongs to."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._planned_anew = False
        self._trusted: frozenset[TableId] = frozenset()

    # -- what is due

    def trust(self, tables: Collection[TableId]) -> None:
        """The changes of these tables have reached us all the time."""
        self._trusted = frozenset(tables)

    def queue(self, tables: Sequence[TableId]) -> None:
        """These tables are to be read whole."""
        captured = self._capture.standing.captured
        self._capture.set_state([captured[table] for table in dict.fromkeys(tables)], State.SNAPSHOT)

    def read_missed(self, entries: Sequence[CapturedTable]) -> None:
        """Changes of these tables are missing from the log, or will be: they are read whole once they are
        captured again. Pieces that were read do not count either."""
        control, batch = self._capture.control, self._capture.standing.batch
        remedy = "nothing: once it is captured again it is read whole"
        for entry in entries:
            log.warning("changes do not reach us table=%s", entry.id)
            control.incidents.add(
                Incident("changes not captured", entry.table_id, str(entry.id), batch, MISSED_WHY, remedy)
            )
        if entries:
            control.chunks.restart([entry.table_id for entry in entries])
        self._capture.set_state(entries, State.SNAPSHOT, MISSED, remedy)

    def read_again(self, tables: Sequence[TableId]) -> None:
        """Old rows of these tables have values that no log carried; also the pieces that were read."""
        captured = self._capture.standing.captured
        begun = [captured[table] for table in tables if captured[table].state.state is State.SNAPSHOT]
        if begun:
            self._capture.control.chunks.restart([entry.table_id for entry in begun])
            self._planned_anew = True
        self.queue(tables)

    def take_waiting(self) -> None:
        """Read the tables whose snapshot is due."""
        capture = self._capture
        while waiting := capture.due.whole(capture.standing.captured, capture.tables):
            self._planned_anew = False
            at_once = [entry for entry in waiting if capture.due.needs_one_view(entry)]
            if at_once:
                self._consistent(at_once)
            else:
                self._incremental(waiting)

    # -- one view

    def _consistent(self, waiting: Sequence[CapturedTable]) -> None:
        """Read tables in one consistent view, the log first, exactly up to it."""
        capture = self._capture
        run = capture.pipeline.run
        tables = [entry.id for entry in waiting]
        spec = SnapshotSpec(tables, run.chunk_rows, run.threads, keep=capture.streaming)
        capture.progress.phase("snapshot")
        with capture.source.snapshot(spec) as session:
            reach("snapshot.opened")
            if capture.standing.position is None:
                capture.start(session.position)
            elif capture.streaming:
                capture.stream_to(session.position)
                capture.progress.phase("snapshot")
            plan = {entry.table_id: session.chunks(entry.id) for entry in waiting}
            capture.control.chunks.plan(plan)
            self._empty_without_key(waiting)
            every = [chunk for chunks in plan.values() for chunk in chunks]
            batches = chunk_batches(capture.reading(), session, every, capture.standing.batch + 1)
            self._commit(batches, waiting, plan)

    def _empty_without_key(self, waiting: Sequence[CapturedTable]) -> None:
        """Else their rows would stand beside those of an earlier reading, whole or broken off."""
        capture = self._capture
        again = [entry for entry in waiting if entry.table is not None and not entry.table.key]
        if again:
            position = capture.standing.position
            assert position is not None
            capture.take(emptied(capture.reading(), again, position, capture.standing.batch + 1))

    # -- piece by piece

    def _incremental(self, waiting: Sequence[CapturedTable]) -> None:
        """Read tables in windows, the log first up to now, so that the first window is short."""
        capture = self._capture
        run = capture.pipeline.run
        first = capture.standing.position is None
        if first:
            capture.start(capture.source.start())
        capture.stream_to(capture.source.span().newest)
        capture.progress.phase("snapshot")
        spec = SnapshotSpec([entry.id for entry in waiting], run.chunk_rows, run.threads)
        with capture.source.incremental(spec) as session:
            reach("snapshot.opened")
            resumed = {entry.table_id: capture.due.left(entry) for entry in waiting}
            new = {
                entry.table_id: session.chunks(entry.id) for entry in waiting if not resumed[entry.table_id]
            }
            capture.control.chunks.plan(new)
            plan = {table_id: new.get(table_id) or left or [] for table_id, left in resumed.items()}
            every = [chunk for chunks in plan.values() for chunk in chunks]
            position, number = capture.standing.position, capture.standing.batch + 1
            assert position is not None
            captured = capture.standing.captured
            if not first and any(captured[table_id].id not in self._trusted for table_id in new):
                position = capture.source.with_open_writers(position)
            batches = window_batches(capture.reading(), session, every, position, number)
            self._commit(batches, waiting, plan)

    # -- both

    def _commit(self, batches: Iterator[ReadBatch], waiting: Sequence[CapturedTable], plan: Plan) -> None:
        capture = self._capture
        for entry in waiting:
            rows = [chunk.rows for chunk in plan[entry.table_id]]
            known = None if None in rows else sum(count or 0 for count in rows)
            capture.progress.snapshot_planned(str(entry.id), known, len(rows))
        unsettled = {entry.table_id for entry in waiting if entry.table is not None}
        left = {table_id: {chunk.number for chunk in chunks} for table_id, chunks in plan.items()}
        with ReadAhead(batches) as ahead:
            for batch in ahead:
                reach("chunks.staged")
                staged = batch.stage.contents().tables
                done = {table.table_id: table.chunks for table in staged}
                unsettled |= {table.table_id for table in staged if table.facts.lacking_moves}
                capture.take_window(batch)
                if self._planned_anew:
                    return
                for table_id, finished in done.items():
                    left.get(table_id, set()).difference_update(finished)
                read = [entry for entry in waiting if not left[entry.table_id]]
                # All at once: each call is a commit, and a window may bring hundreds of small tables.
                capture.set_state([one for one in read if one.table_id in unsettled], State.SETTLE)
                capture.set_state([one for one in read if one.table_id not in unsettled], State.STREAMING)
                capture.context.check_stop()
        capture.context.check_stop()
