"""Step 1 of the ladder: what stands, what is half done, and whether anybody else wrote to our tables.

Checks come before anything is written and long before anything is released.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime

from cdc_lib import bronze, staging
from cdc_lib.captured import Captured
from cdc_lib.clock import now
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal
from cdc_lib.control.watermarks import Watermark
from cdc_lib.errors import FixConfiguration
from cdc_lib.facts import Facts
from cdc_lib.ladder import Ladder, compare_replay
from cdc_lib.position import Position
from cdc_lib.reading import ReadBatch, Reading, stage_range
from cdc_lib.staging import LOG_BASE, StagedBatch, StagedTable

log = logging.getLogger("cdc_lib.recovery")


@dataclass
class Standing:
    """Where a pipeline stands: everything up to ``position`` is in bronze, in batches up to ``batch``.

    ``durable`` is the position of the last watermark; ``position`` runs ahead of it over log without
    captured changes. Both are None before the first start.
    """

    captured: Captured
    batch: int = 0
    position: Position | None = None
    durable: Position | None = None
    committed_at: datetime | None = None

    def stand_at(self, watermark: Watermark, positions: type[Position]) -> None:
        """A watermark was committed, or read back."""
        self.batch = watermark.batch
        self.position = self.durable = positions.from_json(watermark.position)
        self.committed_at = watermark.committed_at

    def age(self) -> float:
        """Seconds since the last watermark; infinite if nobody can say, as when the clock was set back."""
        if self.committed_at is None:
            return float("inf")
        seconds = (now() - self.committed_at).total_seconds()
        return seconds if seconds >= 0 else float("inf")


def load(control: Control, positions: type[Position]) -> tuple[Standing, Watermark | None, Seal | None]:
    """Read the committed state, and the batch that was sealed after it, if any."""
    watermark = control.watermarks.latest()
    standing = Standing(Captured.load(control, sealed=watermark.batch if watermark else 0))
    if watermark is not None:
        standing.stand_at(watermark, positions)
    return standing, watermark, control.batches.unfinished(standing.batch)


def refuse_foreign_writes(
    ladder: Ladder, captured: Captured, watermark: Watermark, accept: Collection[str]
) -> None:
    """Compare each bronze table with the version we remember of it.

    :param accept: ids of tables that are about to be snapshotted again, whose past no longer matters.
    :raises ResnapshotNeeded: somebody wrote to, restored or replaced a bronze table.
    """
    for table_id, version in watermark.tables.items():
        if table_id in accept:
            version = ladder.lake.version(ladder.bronze(table_id, captured))
        ladder.versions[table_id] = version
        ladder.refuse_foreign_writes(captured[table_id])


def refuse_other_incarnation(ladder: Ladder, names: Iterable[str], batch: int) -> None:
    """A new pipeline must not append to the bronze tables of an earlier one, nor one that has forgotten what
    it appended to its own.

    :param names: of the bronze tables.
    :param batch: 0 for a pipeline that never had a watermark, and so cannot have any.
    :raises FixConfiguration: a bronze table exists that carries another incarnation's id, or any if ``batch``
        is 0.
    """
    for name in names:
        ref = ladder.lake.ref("bronze", name)
        if not ladder.lake.exists(ref):
            continue
        found = ladder.lake.properties(ref).get("cdc.incarnation")
        if batch == 0 or found != ladder.lease.incarnation:
            raise FixConfiguration(
                f"bronze table {ref.sql} belongs to another incarnation of this pipeline ({found})",
                why="its control tables were lost or moved, or two pipelines share a target; "
                "appending would mix two histories",
                remedy="put the control tables back, or, if they are lost, rebuild them from bronze "
                f"(cdc rebuild {_file(ladder.pipeline)}); else choose another target, or drop the old tables",
            )


def _file(pipeline: Pipeline) -> str:
    """What a command calls the pipeline."""
    return str(pipeline.path or pipeline.name)


class Unfinished:
    """Executes a batch that was sealed but not committed."""

    def __init__(self, ladder: Ladder, control: Control, pipeline: Pipeline) -> None:
        self._ladder = ladder
        self._control = control
        self._pipeline = pipeline

    def finish(self, seal: Seal, standing: Standing, reading: Reading) -> Watermark:
        """Append and commit exactly what was sealed, from its staging if whole, else from the log."""
        assert standing.position is not None
        upto = type(standing.position).from_json(seal.upto)
        contents = self.staged(seal)
        if contents is None:
            log.info("staging is not whole, reading the log again batch=%d", seal.batch)
            contents = self._read_again(seal, standing, upto, reading)
        self.adopt(seal, standing)
        taken = self._ladder.take_over(seal, contents)
        return self._ladder.execute(taken, contents, standing.captured, upto)

    def staged(self, seal: Seal) -> StagedBatch | None:
        """What was staged of the batch, if it is whole; None if the log must be read again.

        :raises FixConfiguration: it must be, and the configuration is another one.
        """
        contents = staging.load_whole(self._pipeline.staging, seal.batch)
        if contents is None and seal.configuration != self._pipeline.fingerprint():
            raise FixConfiguration(
                f"batch {seal.batch} was sealed under another configuration and must be read again",
                why="the pipeline file changed between the interruption and this start",
                remedy="run once with the earlier file, then change it",
            )
        return contents

    def adopt(self, seal: Seal, standing: Standing) -> None:
        """Take the structures that the batch brings."""
        for version in self._control.schema_history.of_batch(seal.batch):
            standing.captured[version.table_id].adopt(version.table)

    def pieces(self, seal: Seal, standing: Standing) -> dict[str, list[int]]:
        """The pieces that the batch will have brought, by table id: their rows are staged or in bronze."""
        contents = self.staged(seal)
        tables = self._appended(seal, standing).values() if contents is None else contents.tables
        return {table.table_id: table.chunks for table in tables}

    def _read_again(self, seal: Seal, standing: Standing, upto: Position, reading: Reading) -> StagedBatch:
        assert standing.position is not None
        if any(table.chunks for table in seal.tables):
            reading = replace(reading, log_base=LOG_BASE)
        batch = ReadBatch(reading.stage(seal.batch), standing.position, standing.position)
        with ExitStack() as undo:
            undo.callback(batch.stage.discard)
            stage_range(reading, batch, upto)
            batch.stage.close()
            found = batch.stage.contents()
            compare_replay(seal, found.tables)
            undo.pop_all()
        # Chunk rows went with the staging. A table that already has them in bronze keeps them; the others
        # drop out of the batch, and their chunks are read anew.
        tables = {table.table_id: table for table in found.tables} | self._appended(seal, standing)
        return StagedBatch(list(tables.values()), found.messages, found.changes, found.committed_us)

    def _appended(self, seal: Seal, standing: Standing) -> dict[str, StagedTable]:
        """The sealed tables whose bronze has the batch, as they were sealed."""
        structures = {
            version.table_id: version.table for version in self._control.schema_history.of_batch(seal.batch)
        }
        appended = {}
        for table in seal.tables:
            entry = standing.captured[table.table_id]
            ref = self._ladder.bronze(table.table_id, standing.captured)
            if bronze.find_commit(self._ladder.lake, ref, seal.incarnation, seal.batch):
                structure = structures.get(table.table_id) or entry.table
                assert structure is not None
                appended[table.table_id] = StagedTable(
                    table.table_id,
                    structure,
                    rows=table.rows,
                    log_rows=table.log_rows,
                    log_hash=table.log_hash,
                    partial=table.partial,
                    chunks=list(table.chunks),
                    facts=Facts.from_json(table.facts),
                )
        return appended
