"""The source's side of a comparison: the rows of one view, hashed as they pass by, several pieces at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack

import pyarrow as pa

from cdc_lib.reconcile.hashing import Layout, Words
from cdc_lib.silver.table import SPECIAL
from cdc_lib.source import Chunk, SnapshotSession

Each = Callable[[Chunk, pa.RecordBatch, Words], None]
"""Called with rows of a piece (``change.change_schema``) and their hashes, in several threads."""


class SourceRows:
    """The rows of a table in an open view, which can be read more than once.

    :param check: called with the count of rows after each few; may raise to end the reading.
    """

    def __init__(
        self,
        session: SnapshotSession,
        chunks: Sequence[Chunk],
        layout: Layout,
        threads: int,
        check: Callable[[int], None],
    ) -> None:
        self._session = session
        self._chunks = chunks
        self.layout = layout
        self._threads = threads
        self._check = check

    def scan(self, each: Each, *, again: bool = False) -> None:
        """Show all rows to ``each``; its first error ends the reading.

        :param again: they were read before, so they do not count any more.
        """
        failed = threading.Event()

        def read(chunk: Chunk) -> None:
            with ExitStack() as failing:
                failing.callback(failed.set)
                for change in self._session.rows(chunk):
                    if failed.is_set():
                        return
                    each(chunk, change.rows, self.layout.hashed(values_of(change.rows), change.rows.num_rows))
                    self._check(0 if again else change.rows.num_rows)
                failing.pop_all()

        with ThreadPoolExecutor(self._threads, "cdc-reconcile") as pool:
            pieces = [pool.submit(read, chunk) for chunk in self._chunks]
            done, _ = wait(pieces, return_when="FIRST_EXCEPTION")
            for piece in pieces:
                piece.cancel()
        for piece in done:
            piece.result()


def values_of(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """The rows' columns by name, and their server texts by silver's name for them."""
    after = rows.column("after")
    columns = zip((field.name for field in after.type), after.flatten(), strict=True)
    return {**dict(columns), SPECIAL: rows.column("special")}
