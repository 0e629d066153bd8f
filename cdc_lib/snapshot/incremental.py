"""Tables read piece by piece while changes flow: each batch is one window of pieces and the log around them.

Order inside a window, and the reason for it (DESIGN section 6): the pieces first, each in a view that shows
everything up to the low watermark P; *then* the high watermark L is taken, so that whatever a piece showed
is in the log up to L; then the log (P, L] is read. Piece rows stand below all changes of the window.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from cdc_lib.change import ChangeBatch, SchemaChange
from cdc_lib.errors import RetryLater
from cdc_lib.position import Position
from cdc_lib.reading import ReadBatch, Reading, read_chunk, read_on_executors, stage_range
from cdc_lib.schema import Table, TableId
from cdc_lib.snapshot.window import Changes
from cdc_lib.source import Chunk, IncrementalSession, PieceRefused
from cdc_lib.staging import LOG_BASE

log = logging.getLogger("cdc_lib.snapshot")

REFUSALS = 20
"""How often in a row pieces may be refused because a table keeps changing its structure."""


def window_batches(
    reading: Reading, session: IncrementalSession, chunks: Sequence[Chunk], after: Position, number: int
) -> Iterator[ReadBatch]:
    """All these pieces with the log around them, as staged batches numbered from ``number``."""
    reading = replace(reading, log_base=LOG_BASE)
    left = deque(chunks)
    refused = 0
    with ThreadPoolExecutor(reading.pipeline.run.threads, "cdc-snapshot") as pool:
        while left and not reading.stop.is_set():
            reading.let_go()
            group = _next(left, reading.batch_rows)
            batch = ReadBatch(reading.stage(number), after, after)
            window = _Window(reading, session, pool, batch)
            try:
                again = window.read(group)
            except PieceRefused as error:
                log.info("pieces are read again reason=%s", error.what)
                again = group
            left.extendleft(reversed(again))
            refused = refused + 1 if again else 0
            if refused > REFUSALS:
                raise RetryLater(
                    f"the structure of {again[0].table} changes time and again",
                    why=f"{REFUSALS} windows in a row had a DDL in them",
                    remedy="run again when it has settled",
                )
            if window.closed:
                after, number = batch.upto, number if batch.empty else number + 1
                yield batch


def _next(left: deque[Chunk], rows: float) -> list[Chunk]:
    """The next pieces, about ``rows`` together; always one."""
    group = [left.popleft()]
    planned = group[0].rows or rows
    while left and planned + (left[0].rows or rows) <= rows:
        group.append(left.popleft())
        planned += group[-1].rows or rows
    return group


class _Window:
    """One window, which becomes the given batch; ``closed`` once that is staged whole."""

    def __init__(
        self, reading: Reading, session: IncrementalSession, pool: ThreadPoolExecutor, batch: ReadBatch
    ) -> None:
        self._reading = reading
        self._session = session
        self._pool = pool
        self._batch = batch
        self._changes: dict[TableId, Changes] = {}
        self.closed = False

    def read(self, group: Sequence[Chunk]) -> list[Chunk]:
        """Pieces, then the log; those that must be read again.

        :raises PieceRefused: a structure changed before the pieces were read; nothing is staged.
        """
        try:
            again = self._read(group)
            self._batch.stage.close()
            self.closed = True
            return again
        finally:
            if not self.closed or self._batch.empty:
                self._batch.stage.discard()

    def _read(self, group: Sequence[Chunk]) -> list[Chunk]:
        if self._structures_changed(group):
            # Up to now the log speaks of the old structure; from the next window on the new one is known.
            stage_range(self._reading, self._batch, self._now())
            for table in _tables(group):
                self._reading.observe(self._batch, SchemaChange(None, self._session.table(table)))
            return list(group)
        self._read_pieces(group)
        # Only now: what a piece showed is in the log up to here.
        upto = self._now()
        self._changes = {table: Changes(self._structure(table)) for table in _tables(group)}
        stage_range(replace(self._reading, watch=self._note), self._batch, upto)
        return self._drop_superseded(group)

    def _read_pieces(self, group: Sequence[Chunk]) -> None:
        """All of them, wherever; a few keys are no work for a job."""
        here: list[Chunk] = []
        there: list[Chunk] = []
        for chunk in group:
            (here if self._reading.executors is None or chunk.keys is not None else there).append(chunk)
        futures = [self._pool.submit(read_chunk, self._reading, self, self._batch, one) for one in here]
        if there:
            futures.append(self._pool.submit(self._on_executors, there))
        _raise_first(futures)

    def _on_executors(self, chunks: Sequence[Chunk]) -> None:
        if refused := read_on_executors(self._reading, self._batch, chunks):
            raise PieceRefused(
                f"{refused[0].table} changed its structure", remedy="nothing: the piece is read again"
            )

    def rows(self, chunk: Chunk) -> Iterator[ChangeBatch]:
        """What :func:`~cdc_lib.reading.read_chunk` stages."""
        return self._session.rows(chunk, self._batch.after, self._structure(chunk.table))

    def _now(self) -> Position:
        return self._reading.source.span().newest

    def _structure(self, table: TableId) -> Table:
        known = self._reading.captured[table].table
        assert known is not None
        return known

    def _structures_changed(self, group: Sequence[Chunk]) -> bool:
        """Whether a table has another structure than the log has shown. First sights are noted here."""
        changed = False
        for table in _tables(group):
            known, now = self._reading.captured[table].table, self._session.table(table)
            if known is None:
                self._reading.observe(self._batch, SchemaChange(None, now))
            else:
                changed = changed or not known.same_structure(now)
        return changed

    def _note(self, table: TableId, rows: pa.RecordBatch) -> None:
        if table in self._changes:
            # A change that is left out of bronze supersedes nothing.
            self._changes[table].add(self._batch.stage.without_skipped(rows))

    def _drop_superseded(self, group: Sequence[Chunk]) -> list[Chunk]:
        """Rows that the window's changes supersede; whole pieces where the structure changed in it."""
        changed = {seen.entry.id for seen in self._batch.observed if seen.changes}
        for table, changes in self._changes.items():
            table_id = self._reading.captured[table].table_id
            if table in changed:
                self._batch.stage.filter_chunks(table_id, None)
            elif not (kept := changes.kept()).everything:
                self._batch.stage.filter_chunks(table_id, kept.rows)
        return [chunk for chunk in group if chunk.table in changed]


def _tables(group: Sequence[Chunk]) -> list[TableId]:
    return list(dict.fromkeys(chunk.table for chunk in group))


def _raise_first(futures: Sequence[Future[None]]) -> None:
    """Wait for all; a real error comes before a piece that was merely refused."""
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PieceRefused)):
        raise error
