"""Steps 5 to 7 of the batch ladder: seal, append to bronze, commit.

Everything here can be repeated: the seal decides once what batch N is, each table's append carries N as its
transaction version, and the watermark moves only forward. See DESIGN section 5 for the table of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone

import pyarrow as pa

from cdc_lib import bronze
from cdc_lib.captured import Captured, CapturedTable
from cdc_lib.clock import now
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal, SealedTable
from cdc_lib.control.leases import Lease
from cdc_lib.control.tables import State
from cdc_lib.control.watermarks import Kind, Watermark
from cdc_lib.delta import Conflict, Lake, TableRef, Txn
from cdc_lib.errors import ResnapshotNeeded
from cdc_lib.faults import reach
from cdc_lib.noting import Note, packed
from cdc_lib.position import Position
from cdc_lib.reading import ReadBatch
from cdc_lib.staging import StagedBatch, StagedTable
from cdc_lib.unity import Governor


class Ladder:
    """Takes one staged batch from seal to commit, for the runner that holds ``lease``."""

    def __init__(
        self, lake: Lake, control: Control, pipeline: Pipeline, lease: Lease, source_type: pa.DataType
    ):
        self.lake = lake
        self.control = control
        self.pipeline = pipeline
        self.lease = lease
        self.source_type = source_type
        self.versions: dict[str, int] = {}
        """Delta version of each bronze table after our last commit to it, by table id."""
        self._governor = Governor(lake)

    def seal(self, batch: ReadBatch, configuration: str) -> Seal:
        """Fix what batch N is. Its schema versions are written first: they count only if the seal stands.

        :raises RetryLater: another runner sealed this batch.
        """
        self.control.schema_history.add(batch.versions)
        seal = Seal(
            batch=batch.number,
            attempt=1,
            runner=self.lease.runner,
            incarnation=self.lease.incarnation,
            after=batch.after.to_json(),
            upto=batch.upto.to_json(),
            tables=[_sealed(table) for table in batch.stage.tables.values()],
            configuration=configuration,
            staging=str(batch.stage.folder),
            sealed_at=now(),
        )
        self.control.batches.seal(seal)
        reach("sealed")
        return seal

    def take_over(self, seal: Seal, contents: StagedBatch) -> Seal:
        """A new attempt at a batch that another runner, or this one before a kill, sealed."""
        taken = replace(
            seal,
            attempt=seal.attempt + 1,
            runner=self.lease.runner,
            tables=[_sealed(table) for table in contents.tables],
            sealed_at=now(),
        )
        self.control.batches.seal(taken)
        return taken

    def execute(self, seal: Seal, contents: StagedBatch, captured: Captured, upto: Position) -> Watermark:
        """Append every table that has not got this batch yet, then commit."""
        tables = contents.tables
        with ThreadPoolExecutor(self.pipeline.run.commit_threads, "cdc-bronze") as pool:
            commits = pool.map(lambda table: self._append(seal, table, captured), tables)
            self.versions.update(zip((table.table_id for table in tables), commits, strict=True))
        reach("bronze.appended")
        self._note(seal, contents)
        watermark = self.watermark(seal.batch, upto, "batch", _time(contents.committed_us))
        self.control.watermarks.commit(watermark, Txn(f"{seal.incarnation}/watermarks", seal.batch))
        reach("committed")
        return watermark

    def _note(self, seal: Seal, contents: StagedBatch) -> None:
        """What the batch means for the other control tables, before the commit that makes it final."""
        txn = Txn(f"{seal.incarnation}/notes", seal.batch)
        done = [(table.table_id, number) for table in contents.tables for number in table.chunks]
        if done:
            self.control.chunks.done(done, batch=seal.batch, txn=txn)
        if contents.messages:
            self.control.messages.add(contents.messages, batch=seal.batch, txn=txn)
        if contents.changes:
            self.control.schema_changes.add(contents.changes, batch=seal.batch, txn=txn)

    def watermark(
        self, batch: int, position: Position, kind: Kind, source_committed_at: datetime | None = None
    ) -> Watermark:
        """A row for the watermarks table that says where bronze stands now."""
        return Watermark(
            batch=batch,
            position=position.to_json(),
            sort_key=position.sort_key,
            kind=kind,
            source_committed_at=source_committed_at,
            tables=dict(self.versions),
            runner=self.lease.runner,
            committed_at=now(),
        )

    def bronze(self, table_id: str, captured: Captured) -> TableRef:
        return self.lake.ref("bronze", captured[table_id].state.bronze)

    def refuse_foreign_writes(self, entry: CapturedTable) -> None:
        """Compare a bronze table with the version we remember of it.

        :raises ResnapshotNeeded: somebody wrote to it, restored or replaced it.
        """
        remembered = self.versions.get(entry.table_id)
        ref = self.lake.ref("bronze", entry.state.bronze)
        if remembered is None or self.lake.version(ref) == remembered:
            return
        foreign = bronze.foreign_commits(self.lake, ref, remembered, self.lease.incarnation)
        if foreign:
            raise ResnapshotNeeded(
                f"bronze of {entry.id} was changed by somebody else ({foreign[0].operation}, "
                f"version {foreign[0].version})",
                why="captured changes may be missing from it; nothing was written or released",
                # Maintenance may have taken what the remembered version needs, not what came just before.
                remedy=f"undo it (RESTORE TABLE {ref.sql} TO VERSION AS OF "
                f"{max(remembered, foreign[-1].version - 1)}), "
                f"or take the table again: cdc snapshot {entry.id}",
            )

    def _append(self, seal: Seal, staged: StagedTable, captured: Captured) -> int:
        ref = self.bronze(staged.table_id, captured)
        marks = bronze.Marks(self.pipeline.name, seal.incarnation, staged.table_id)
        bronze.ensure(self.lake, ref, staged.table, self.source_type, marks)
        self._governor.bronze(ref, self.pipeline.rule(staged.table.id))
        self.refuse_foreign_writes(captured[staged.table_id])
        if not staged.rows:
            return self.lake.version(ref)
        commit = bronze.find_commit(self.lake, ref, seal.incarnation, seal.batch)
        if commit is None:
            before = self.lake.version(ref)
            try:
                bronze.append(
                    self.lake,
                    ref,
                    staged,
                    batch=seal.batch,
                    txn=Txn(f"{seal.incarnation}/{staged.table_id}", seal.batch),
                    metadata=self._note_of(seal, staged, captured[staged.table_id]).to_metadata(),
                )
            except Conflict:
                # The append of a runner that was killed can go on in a Spark server, and arrive first.
                if bronze.find_commit(self.lake, ref, seal.incarnation, seal.batch) is None:
                    raise
            commit = bronze.verify(self.lake, ref, seal.incarnation, seal.batch)
            self.lake.sync(ref, before)
        reach("bronze.appended.one")
        return commit.version

    def _note_of(self, seal: Seal, staged: StagedTable, entry: CapturedTable) -> Note:
        state, first = entry.state.state, 0
        if state in (State.SNAPSHOT, State.SETTLE):
            started = self.control.watermarks.started()
            chunks = self.control.chunks
            first = chunks.first_batch(entry.table_id, started) or (seal.batch if staged.chunks else 0)
            if state is State.SNAPSHOT and chunks.completes(entry.table_id, started, staged.chunks):
                state = State.SETTLE
        return Note(
            seal.incarnation,
            seal.batch,
            seal.attempt,
            seal.after,
            seal.upto,
            [table.table_id for table in seal.tables if table.rows],
            sorted(staged.chunks),
            state.value,
            first,
            packed(entry),
        )


def compare_replay(seal: Seal, tables: Sequence[StagedTable]) -> None:
    """A batch that was read again must hold exactly the rows that were sealed.

    :raises ResnapshotNeeded: count or hash of a table's log rows differ.
    """
    again = {table.table_id: (table.log_rows, table.log_hash) for table in tables}
    for sealed in seal.tables:
        found = again.get(sealed.table_id, (0, ""))
        if sealed.log_rows and found != (sealed.log_rows, sealed.log_hash):
            raise ResnapshotNeeded(
                f"batch {seal.batch} of {sealed.schema}.{sealed.name} cannot be repeated: "
                f"{sealed.log_rows} rows were sealed, {found[0]} were read again, or their content differs",
                why="the source's log for this range is not what it was",
                remedy="find out what changed on the server (restore, failover); "
                "then start a new pipeline name, which snapshots again",
            )


def _sealed(table: StagedTable) -> SealedTable:
    return SealedTable(
        table_id=table.table_id,
        schema=table.table.id.schema,
        name=table.table.id.name,
        schema_version=table.table.version,
        rows=table.rows,
        log_rows=table.log_rows,
        log_hash=table.log_hash,
        partial=table.partial,
        chunks=sorted(table.chunks),
        facts=table.facts.to_json(),
    )


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else datetime.fromtimestamp(microseconds / 1e6, timezone.utc)
