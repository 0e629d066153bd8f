"""COPY ... TO STDOUT in a thread of its own, handed over in lists of rows through a short queue.

The queue bounds memory and lets the server work while the decoder does. The driver gives one bytes object a
row to a callable; ours is the ``send`` of a generator, which costs a third of a method call.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from cdc_lib.errors import CdcError
from cdc_lib.sources.postgresql.errors import classify

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

ROWS = 32_768
BYTES = 16 << 20
"""A list is handed over when it has this many rows or about this many bytes."""
DEPTH = 2
"""Lists waiting in the queue; one more is being filled and one decoded."""
_BLOCK = 64
_SOCKET_BYTES = 1 << 20

Rows = list[bytes]


class _Stopped(Exception):
    """Unwinds the driver's copy loop when nobody wants its rows any more."""


class _Done(Exception):
    """Tells the collector that the copy is complete. Not GeneratorExit, which a failed copy causes too."""


class CopyStream:
    """The rows of one COPY in binary format; a context manager and an iterator of lists of rows.

    The first list begins with the format's header and the last one ends with its trailer, as the server
    sends them. Leaving the block early cancels the query at the server and joins the thread.

    :param doing: what fails if it fails, for the error.
    """

    def __init__(self, connection: Connection, query: Any, doing: str) -> None:
        self._connection = connection
        self._query = query
        self._doing = doing
        self._queue: queue.Queue[Rows | CdcError | None] = queue.Queue(DEPTH)
        self._stop = threading.Event()
        self._complete = False
        self._thread = threading.Thread(target=self._run, name="cdc-copy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        # Also when the thread has ended by itself: the server may still be sending.
        if not self._complete:
            self._cancel()
        while self._thread.is_alive():
            self._thread.join(0.2)
            self._cancel()

    def __iter__(self) -> Iterator[Rows]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, CdcError):
                raise item
            yield item

    def _run(self) -> None:
        import psycopg2

        with suppress(_Stopped):
            try:
                self._copy()
                self._complete = True
                self._put(None)
            except psycopg2.Error as error:
                self._put(classify(error, self._doing))

    def _copy(self) -> None:
        collector = self._collect()
        next(collector)
        sink = type("Sink", (), {"write": staticmethod(collector.send)})
        with self._connection.cursor() as cursor:
            cursor.copy_expert(self._query, sink, _SOCKET_BYTES)  # type: ignore[arg-type]
        with suppress(StopIteration):
            collector.throw(_Done)

    def _collect(self) -> Generator[None, bytes, None]:
        """Receives one row at a time; sizes are summed a block at a time, outside Python's loop."""
        part: Rows = []
        try:
            while True:
                add, size, block = part.append, 0, _BLOCK
                while len(part) < ROWS and size < BYTES:
                    seen = len(part)
                    for _ in range(block):
                        add((yield))
                    got = sum(map(len, part[seen:]))
                    size += got
                    # Wide rows are looked at one by one, so that a list stays near its size.
                    block = 1 if got > BYTES // 16 else _BLOCK
                self._put(part)
                part = []
        except _Done:
            if part:
                self._put(part)

    def _put(self, item: Rows | CdcError | None) -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
        raise _Stopped

    def _cancel(self) -> None:
        import psycopg2

        if not self._connection.closed:
            try:
                self._connection.cancel()
            except psycopg2.Error:
                self._connection.close()
