"""Step 4 of the ladder: read a source into staged batches, ahead of the thread that commits them.

Batches end at transaction boundaries. Reading goes on in a thread of its own while the batch before is
sealed and appended, at most one staged batch ahead.
"""

from __future__ import annotations

import base64
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

import pyarrow as pa
from typing_extensions import Self

from cdc_lib.captured import Captured, Observed
from cdc_lib.change import ChangeBatch, Message, SchemaChange, TransactionEnd
from cdc_lib.change import Progress as LogProgress
from cdc_lib.config import Pipeline
from cdc_lib.control.schema_history import SchemaVersion
from cdc_lib.errors import Interrupted
from cdc_lib.evolution import ColumnChange
from cdc_lib.position import Position
from cdc_lib.progress import Progress
from cdc_lib.schema import TableId
from cdc_lib.snapshot.on_executors import Executors, Piece
from cdc_lib.source import Chunk, SharedView, SnapshotSession, Source
from cdc_lib.staging import CHUNK_LANE, BatchStage, StagedChange, StagedMessage


@dataclass
class ReadBatch:
    """A staged batch, not yet sealed: exactly the commits with ``after`` < commit <= ``upto``, and chunks."""

    stage: BatchStage
    after: Position
    upto: Position
    versions: list[SchemaVersion] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return self.stage.contents().empty

    @property
    def number(self) -> int:
        return self.stage.number


@dataclass(frozen=True)
class Reading:
    """What reading needs. ``captured`` is this reader's own copy: it runs ahead of the committed state."""

    source: Source
    tables: Sequence[TableId]
    pipeline: Pipeline
    captured: Captured
    folder: Path
    progress: Progress
    stop: threading.Event
    batch_rows: float
    """Rows from which on a batch is cut at the next commit; infinite when a sealed batch is read again."""
    log_base: int = 0
    """Ordinal of the first log row of a batch."""
    watch: Callable[[TableId, pa.RecordBatch], None] | None = None
    """Sees the rows that the log brings, table by table."""
    let_go: Callable[[], None] = lambda: None
    """Called before a stretch of log is read: the source forgets what is committed by now, and need not read
    it again to find the stretch."""
    executors: Executors | None = None
    """Read the pieces of a snapshot, where that is not left to threads of this process."""

    def stage(self, number: int) -> BatchStage:
        skipped = self.pipeline.source["skipped.operations"]
        return BatchStage(self.folder, number, skip=skipped, log_base=self.log_base)

    def observe(self, batch: ReadBatch, change: SchemaChange | ChangeBatch) -> Observed:
        """Number the structure a change has and note in the batch what is new about it."""
        seen = self.captured.observe(change.table, batch.number)
        if seen.version is not None:
            batch.versions.append(seen.version)
            batch.observed.append(seen)
            batch.stage.touch(seen.entry.table_id, seen.table, evolved=True)
            batch.stage.changes += [_staged_change(seen, change) for change in seen.changes]
        return seen


def log_batches(reading: Reading, after: Position, upto: Position, number: int) -> Iterator[ReadBatch]:
    """The log range (after, upto] as staged batches numbered from ``number``; some may be empty, and then
    have no files."""
    while after < upto and not reading.stop.is_set():
        reading.let_go()
        reader = reading.source.log(reading.tables, reading.captured.structures())
        for batch in _window(reading, reader.read(after, upto), after, number):
            # A batch that is empty is never sealed, so its number is free again: numbers have no gaps.
            after, number = batch.upto, batch.number if batch.empty else batch.number + 1
            yield batch


def _window(reading: Reading, events: Iterator[object], after: Position, number: int) -> Iterator[ReadBatch]:
    batch = ReadBatch(reading.stage(number), after, after)
    start = 0
    ours = True
    try:
        for event in events:
            stage_event(reading, batch, event, start)
            full = batch.stage.rows >= reading.batch_rows or reading.stop.is_set()
            if full and isinstance(event, TransactionEnd):
                ours = False
                yield _closed(batch)
                if reading.stop.is_set():
                    return
                start = event.ordinal
                batch = ReadBatch(reading.stage(batch.number + 1), event.position, event.position)
                ours = True
        ours = False
        yield _closed(batch)
    finally:
        # What was handed over belongs to the batch that may be sealed by now.
        if ours:
            batch.stage.discard()


def stage_range(reading: Reading, batch: ReadBatch, upto: Position) -> None:
    """Add the whole log range from ``batch.upto`` to ``upto`` to one batch, in as many reads as it takes."""
    used = 0
    while batch.upto < upto:
        reader = reading.source.log(reading.tables, reading.captured.structures())
        ordinal = 0
        for event in reader.read(batch.upto, upto):
            # Each read counts from 0 again.
            stage_event(reading, batch, event, -used)
            if isinstance(event, TransactionEnd):
                ordinal = event.ordinal
            if reading.stop.is_set():
                raise Interrupted("stopped while reading the log; this batch was not sealed")
        used += ordinal


def stage_event(reading: Reading, batch: ReadBatch, event: object, start: int) -> None:
    """What one event of the log adds to a batch whose first ordinal is ``start``."""
    if isinstance(event, ChangeBatch):
        _add_log(reading, batch, event, start)
    elif isinstance(event, SchemaChange):
        reading.observe(batch, event)
    elif isinstance(event, Message):
        batch.stage.messages.append(_staged_message(event))
    elif isinstance(event, LogProgress):
        batch.upto = event.position
    elif isinstance(event, TransactionEnd):
        _end_at(batch, event)


def _end_at(batch: ReadBatch, event: TransactionEnd) -> None:
    batch.upto = event.position
    batch.stage.committed_us = event.committed_us or batch.stage.committed_us


def _closed(batch: ReadBatch) -> ReadBatch:
    batch.stage.close()
    if batch.empty:
        batch.stage.discard()
    return batch


def _add_log(reading: Reading, batch: ReadBatch, change: ChangeBatch, start: int) -> None:
    seen = reading.observe(batch, change)
    if reading.watch is not None:
        reading.watch(seen.entry.id, change.rows)
    batch.stage.add_log(seen.entry.table_id, ChangeBatch(seen.table, change.rows, change.partial), start)
    reading.progress.rows(str(seen.entry.id), "log", change.rows.num_rows)


def _staged_message(message: Message) -> StagedMessage:
    content = base64.b64encode(message.content).decode("ascii")
    key = message.position.sort_key
    return StagedMessage(message.prefix, content, message.transactional, key, message.transaction_id)


def _staged_change(seen: Observed, change: ColumnChange) -> StagedChange:
    entry = seen.entry
    return StagedChange(
        entry.table_id, str(entry.id), seen.table.version, change.kind, change.column, change.detail
    )


def chunk_batches(
    reading: Reading, session: SnapshotSession, chunks: Sequence[Chunk], number: int
) -> Iterator[ReadBatch]:
    """The chunks of one consistent view as staged batches at its position, read by several threads."""
    groups = _grouped(chunks, reading.batch_rows)
    waiting: list[tuple[ReadBatch, list[Future[None]]]] = []
    pool = ThreadPoolExecutor(reading.pipeline.run.threads, "cdc-snapshot")
    try:
        for group in groups:
            batch = ReadBatch(reading.stage(number), session.position, session.position)
            number += 1
            for chunk in group:
                reading.observe(batch, SchemaChange(None, session.table(chunk.table)))
            if reading.executors is not None and reading.source.capabilities.shared_views:
                futures = [pool.submit(_read_shared, reading, session, batch, group)]
            else:
                futures = [pool.submit(read_chunk, reading, session, batch, chunk) for chunk in group]
            waiting.append((batch, futures))
            if len(waiting) > 1:
                yield _finished(*waiting.pop(0))
        while waiting:
            yield _finished(*waiting.pop(0))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for batch, _ in waiting:
            batch.stage.discard()


class ReadsPieces(Protocol):
    """What :func:`read_chunk` needs to read a piece."""

    def rows(self, chunk: Chunk) -> Iterator[ChangeBatch]: ...


def read_chunk(reading: Reading, pieces: ReadsPieces, batch: ReadBatch, chunk: Chunk) -> None:
    """Stage the rows of one piece; called in a thread of its own."""
    entry = reading.captured[chunk.table]
    assert entry.table is not None
    lane = f"{CHUNK_LANE}{chunk.number}"
    for change in pieces.rows(chunk):
        batch.stage.add_chunk(entry.table_id, ChangeBatch(entry.table, change.rows, change.partial), lane)
        reading.progress.rows(str(entry.id), "snapshot", change.rows.num_rows)
        if reading.stop.is_set():
            raise Interrupted(f"stopped while reading {entry.id}; this batch was not sealed")
    staged = batch.stage.touch(entry.table_id, entry.table, evolved=False)
    staged.chunks.append(chunk.number)


def read_on_executors(
    reading: Reading, batch: ReadBatch, chunks: Sequence[Chunk], view: SharedView | None = None
) -> list[Chunk]:
    """Stage pieces that Spark's workers read; those that were refused."""
    pieces = []
    for chunk in chunks:
        entry = reading.captured[chunk.table]
        assert entry.table is not None
        pieces.append(Piece(chunk, entry.table_id, entry.table))
    assert reading.executors is not None
    before = {table_id: table.rows for table_id, table in batch.stage.tables.items()}
    refused = reading.executors.read(batch.stage, batch.after, pieces, view)
    for table_id, table in batch.stage.tables.items():
        count = table.rows - before.get(table_id, 0)
        reading.progress.rows(str(table.table.id), "snapshot", count)
    return [piece.chunk for piece in refused]


def _read_shared(
    reading: Reading, session: SnapshotSession, batch: ReadBatch, group: Sequence[Chunk]
) -> None:
    """Pieces of one view. Those that somebody else's wish to alter a table keeps from joining it are read by
    this process, whose sessions have held their locks from the beginning."""
    refused = read_on_executors(reading, batch, group, session.share())
    for table in {chunk.table for chunk in group}:
        session.assert_unchanged(table)
    for chunk in refused:
        read_chunk(reading, session, batch, chunk)


def _finished(batch: ReadBatch, futures: list[Future[None]]) -> ReadBatch:
    with ExitStack() as undo:
        undo.callback(batch.stage.discard)
        for future in futures:
            future.result()
        batch.stage.close()
        undo.pop_all()
    return batch


def _grouped(chunks: Sequence[Chunk], rows: float) -> Iterator[list[Chunk]]:
    group: list[Chunk] = []
    planned = 0.0
    for chunk in chunks:
        group.append(chunk)
        planned += chunk.rows or rows
        if planned >= rows:
            yield group
            group, planned = [], 0.0
    if group:
        yield group


class ReadAhead:
    """Runs an iterator in a thread, at most one batch ahead of the consumer; errors come out in order.

    Batches that nobody took any more are discarded at the end.
    """

    def __init__(self, items: Iterator[ReadBatch]) -> None:
        self._items = items
        self._queue: queue.Queue[tuple[bool, ReadBatch | BaseException | None]] = queue.Queue(maxsize=1)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="cdc-read", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        while self._thread.is_alive():
            self._drop(0.05)
        self._thread.join()
        self._drop(0)

    def _drop(self, seconds: float) -> None:
        with suppress(queue.Empty):
            _, item = self._queue.get(timeout=seconds) if seconds else self._queue.get_nowait()
            if isinstance(item, ReadBatch):
                item.stage.discard()

    def __iter__(self) -> Iterator[ReadBatch]:
        while True:
            more, item = self._queue.get()
            if isinstance(item, BaseException):
                raise item
            if not more or item is None:
                return
            yield item

    def _produce(self) -> None:
        try:
            for item in self._items:
                self._queue.put((True, item))
                if self._closed.is_set():
                    break
            self._queue.put((False, None))
        except BaseException as error:  # noqa: BLE001 - handed to the consumer's thread, which raises it
            self._queue.put((False, error))
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
