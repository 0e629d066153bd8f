"""What is due at the next run: which tables must be read whole, and in which of the two ways.

A run carries these decisions out, a plan shows them; neither takes them itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cdc_lib.captured import Captured, CapturedTable
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.tables import State
from cdc_lib.errors import FixConfiguration
from cdc_lib.schema import TableId
from cdc_lib.source import Chunk, Source

STREAMING_MODES = frozenset({"initial", "no_data", "never"})
SNAPSHOT_MODES = frozenset({"initial", "initial_only"})


MISSED = "its changes did not reach us for a while"
"""Why a table whose changes were not captured is to be read whole."""
MISSED_WHY = (
    "its changes do not reach us: the filters of the pipeline leave it out, it was dropped or replaced, or "
    "the source did not log it for us; bronze lacks them until it is read whole"
)


class Due:
    """The decisions for one pipeline. Reads control tables and the source, writes nothing.

    :param coming: pieces that a sealed batch is about to bring, by table id.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        control: Control,
        source: Source,
        coming: Mapping[str, Collection[int]] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._control = control
        self._source = source
        self._coming = coming or {}
        self._mode: str = pipeline.source["snapshot.mode"]

    @property
    def streaming(self) -> bool:
        """Whether the log is captured at all."""
        return self._mode in STREAMING_MODES

    @property
    def snapshots(self) -> bool:
        """Whether tables are read whole at first sight."""
        return self._mode in SNAPSHOT_MODES

    @property
    def first_state(self) -> State:
        """What a table is in when it is first seen."""
        return State.SNAPSHOT if self.snapshots else State.STREAMING

    def whole(self, captured: Captured, tables: Collection[TableId]) -> list[CapturedTable]:
        """Those of the source's ``tables`` that must be read whole."""
        return [entry for entry in captured if entry.state.state is State.SNAPSHOT and entry.id in tables]

    def missed(self, captured: Captured, tables: Sequence[TableId]) -> list[CapturedTable]:
        """Known tables whose changes do not reach us, of which that is not noted yet: the filters leave them
        out, they were dropped (one of that name may come back), or the source does not log them for us."""
        if not self.streaming:
            return []
        known = [table for table in tables if table in captured]
        logged = set(known) - set(self._source.unlogged(known))
        return [entry for entry in captured if entry.id not in logged and entry.state.reason != MISSED]

    def back(self, captured: Captured, tables: Collection[TableId]) -> list[TableId]:
        """Tables that were missed and are captured again."""
        return [entry.id for entry in captured if entry.state.reason == MISSED and entry.id in tables]

    def needs_one_view(self, entry: CapturedTable) -> bool:
        """Whether the table is read in one consistent view, and not in windows."""
        if not self.streaming:
            return True
        structure = entry.table or self._source.describe(entry.id)
        if not structure.key:
            return True
        return self._pipeline.run.snapshot == "consistent" and self.left(entry) is None

    def left(self, entry: CapturedTable) -> list[Chunk] | None:
        """What an interrupted snapshot of the table has not read; None if it must be planned anew."""
        started = self._control.watermarks.started()
        coming = self._coming.get(entry.table_id, ())
        return self._control.chunks.left(entry.table_id, entry.id, started, coming)


def refuse_unknown(tables: Sequence[TableId], retake: Sequence[TableId]) -> None:
    """:raises FixConfiguration: nothing is captured, or one of the tables to read again is not."""
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
