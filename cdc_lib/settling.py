"""What a snapshot leaves to do once silver has it: rows that vanished, rows whose values nobody said.

*Vanished*: after a gap in the log, or when a table is read again, silver may hold rows that the source no
longer has. The snapshot did not see them, so none of its batches touched them; they are deleted.
*Not known*: a row that moved to another key while its piece was read, and whose large columns the log did not
carry, is in silver without them. It is read by its key in a window like any other (DESIGN's one-key chunk).

Both are found in silver, so a run that is killed here leaves nothing behind but the table's state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_lib.captured import CapturedTable
from cdc_lib.control.tables import State
from cdc_lib.reading import ReadAhead
from cdc_lib.snapshot.incremental import window_batches
from cdc_lib.source import Chunk, SnapshotSpec
from cdc_lib.sweeping import swept

if TYPE_CHECKING:
    from cdc_lib.capture import Capture

log = logging.getLogger("cdc_lib.settling")

BY_KEY = 1 << 30
"""Number of the first piece that is read by keys: above those of all ranges."""
KEYS = 500
"""Keys of one piece: they are all in one statement."""

Lacking = Mapping[str, pa.Table]
"""By table id, the keys of silver's rows whose values are not all known."""


class Settling:
    """Settles tables, through the steps of the ``capture`` that it belongs to."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._asked: Lacking = {}

    def step(self) -> bool:
        """One step for all tables that are due; silver must be applied before it.

        :returns: whether it brought rows to bronze, so that silver must be applied and another step made.
        """
        capture = self._capture
        due = [entry for entry in capture.standing.captured if entry.state.state is State.SETTLE]
        if not due or capture.standing.position is None:
            return False
        if capture.pipeline.apply.mode == "declarative":
            # What its rows lack, a declarative pipeline refuses or lists; silver may not have them yet.
            deleted = self._sweep(due, capture.applier.vanished)
            capture.set_state(due, State.STREAMING)
            return deleted
        if not capture.silver:
            return False
        deleted = self._sweep(due, capture.applier.older)
        lacking = {entry.table_id: capture.applier.incomplete(entry) for entry in due}
        lacking = {table_id: keys for table_id, keys in lacking.items() if keys.num_rows}
        # What stays as it was although it was asked for, the source does not say.
        read = lacking != self._asked and self._read(lacking)
        self._asked = lacking
        if not deleted and not read:
            for table_id, keys in lacking.items():
                entry = capture.standing.captured[table_id]
                capture.applier.report_unavailable(entry, keys.num_rows, capture.standing.batch)
            # A change of structure in these windows may have asked for some of them whole.
            capture.set_state([entry for entry in due if entry.state.state is State.SETTLE], State.STREAMING)
            return False
        return True

    def _sweep(self, due: Sequence[CapturedTable], unseen: Callable[[CapturedTable, int], pa.Table]) -> bool:
        capture = self._capture
        position = capture.standing.position
        assert position is not None
        chunks, started = capture.control.chunks, capture.control.watermarks.started()
        gone = ((entry, unseen(entry, chunks.first_batch(entry.table_id, started))) for entry in due)
        batch = swept(capture.reading(), gone, position, capture.standing.batch + 1)
        if batch is not None:
            capture.take(batch)
        return batch is not None

    def _read(self, lacking: Lacking) -> bool:
        capture = self._capture
        captured = capture.standing.captured
        entries = [captured[table_id] for table_id in lacking if captured[table_id].id in capture.tables]
        if not entries or not capture.streaming:
            return False
        run, position = capture.pipeline.run, capture.standing.position
        assert position is not None
        chunks = [chunk for entry in entries for chunk in _pieces(entry, lacking[entry.table_id])]
        log.info("rows are read by their keys tables=%d pieces=%d", len(entries), len(chunks))
        before = capture.standing.batch
        spec = SnapshotSpec([entry.id for entry in entries], run.chunk_rows, run.threads)
        with capture.source.incremental(spec) as session:
            batches = window_batches(capture.reading(), session, chunks, position, before + 1)
            with ReadAhead(batches) as ahead:
                for batch in ahead:
                    capture.take_window(batch)
                    capture.context.check_stop()
        return capture.standing.batch > before


def _pieces(entry: CapturedTable, keys: pa.Table) -> Iterator[Chunk]:
    for number, start in enumerate(range(0, keys.num_rows, KEYS)):
        part = keys.slice(start, KEYS)
        yield Chunk(entry.id, BY_KEY + number, rows=part.num_rows, keys=part)
