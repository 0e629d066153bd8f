"""Rows on their way from a source to bronze: Arrow IPC files, one batch at a time.

A batch is read and written here before it is sealed, so that memory follows the decoded chunk and never
the transaction or the batch. The files of a sealed batch are the cheapest way to execute it again after a
kill; if they are not whole, the log is read again. They are deleted after the commit.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lib.change import ChangeBatch
from cdc_lib.errors import FixConfiguration
from cdc_lib.facts import Facts, facts_of
from cdc_lib.fingerprint import RowHash
from cdc_lib.schema import Table
from cdc_lib.staged_files import Part, PartWriter, PieceFile, is_whole, on_disk

SPLIT_ROWS = 65_536
"""Rows of a table from which on its log rows go to two files, so that two Spark tasks share the append."""
CHUNK_LANE = "chunk-"
"""How the lanes of pieces of a snapshot begin."""
LOG_BASE = 1 << 31
"""Ordinal of the first log row in a batch that also has pieces of a snapshot, which stand below."""
MAX_ORDINAL = (1 << 32) - 1
_MANIFEST = "manifest.json"


@dataclass
class StagedTable:
    """What a batch holds of one table. ``table`` is the newest structure any of its rows has."""

    table_id: str
    table: Table
    parts: list[Part] = field(default_factory=list)
    rows: int = 0
    log_rows: int = 0
    log_hash: str = ""
    partial: bool = False
    evolved: bool = False
    chunks: list[int] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)


@dataclass(frozen=True)
class StagedMessage:
    """An application's message in the log, until it stands in ``control.messages``."""

    prefix: str
    content: str
    """Base64: the bytes may be anything."""
    transactional: bool
    sort_key: str
    transaction_id: int | None


@dataclass(frozen=True)
class StagedChange:
    """A change of a table's structure, until it stands in ``control.schema_changes``."""

    table_id: str
    table: str
    version: int
    kind: str
    column: str
    detail: str


@dataclass
class StagedBatch:
    """All a batch holds: what is sealed, and what is executed again after a kill."""

    tables: list[StagedTable] = field(default_factory=list)
    messages: list[StagedMessage] = field(default_factory=list)
    changes: list[StagedChange] = field(default_factory=list)
    committed_us: int | None = None
    """When the source committed the last transaction of the batch, in microseconds since the epoch."""

    @property
    def empty(self) -> bool:
        return not (self.tables or self.messages or self.changes)


class BatchStage:
    """The staging of batch ``number`` in ``folder``; safe to fill from several threads.

    :param skip: operations that are left out (``skipped.operations``); their ordinals stay used.
    :param log_base: ordinal of the first log row: above those of the pieces, where the batch has both.
    """

    def __init__(self, folder: Path, number: int, skip: Collection[str] = (), log_base: int = 0) -> None:
        self.folder = folder / f"{number:012d}"
        self.number = number
        self.tables: dict[str, StagedTable] = {}
        self.messages: list[StagedMessage] = []
        self.changes: list[StagedChange] = []
        self.committed_us: int | None = None
        self.rows = 0
        self._log_base = log_base
        self._chunk_facts: dict[str, Facts] = {}
        self._skip = pa.array(sorted(skip), pa.string()) if skip else None
        self._writers: dict[tuple[str, int, str], PartWriter] = {}
        self._adopted: list[tuple[str, Part]] = []
        self._hashes: dict[str, RowHash] = {}
        self._next_ordinal = 0
        self._lock = threading.Lock()
        shutil.rmtree(self.folder, ignore_errors=True)
        with on_disk(self.folder):
            self.folder.mkdir(parents=True)

    def touch(self, table_id: str, table: Table, *, evolved: bool) -> StagedTable:
        """Note the newest structure of a table in this batch."""
        with self._lock:
            staged = self.tables.get(table_id)
            if staged is None:
                staged = self.tables[table_id] = StagedTable(table_id, table)
            staged.table = table
            staged.evolved = staged.evolved or evolved
            return staged

    def add_chunk(self, table_id: str, batch: ChangeBatch, lane: str) -> None:
        """Rows that a snapshot read; each ``lane`` (a chunk) has its own file."""
        staged = self.touch(table_id, batch.table, evolved=False)
        with self._lock:
            base = self._next_ordinal
            self._next_ordinal += batch.rows.num_rows
        rows = _rebase(batch.rows, base)
        with self._lock:
            writer = self._writer(table_id, batch, lane)
        writer.write(rows)
        found = facts_of(rows, batch.table, self.number)
        with self._lock:
            self._chunk_facts[table_id] = self._chunk_facts.get(table_id, Facts()) + found
            staged.rows += rows.num_rows
            self.rows += rows.num_rows

    def adopt_chunk(self, table_id: str, number: int, table: Table, written: PieceFile) -> None:
        """A piece whose rows another process has written to a file in :attr:`folder`.

        :raises FixConfiguration: the file is not there as it was written.
        """
        part = written.part
        if part.rows and not is_whole(part):
            raise FixConfiguration(
                f"what a Spark worker wrote to the staging folder {self.folder.parent} is not there",
                why="workers and driver see different folders under this path",
                remedy="name a folder in target.staging that all of them share, such as a volume",
            )
        staged = self.touch(table_id, table, evolved=False)
        with self._lock:
            if part.rows:
                self._adopted.append((table_id, replace(part, base=self._next_ordinal)))
            self._next_ordinal += part.rows
            if self._next_ordinal > (self._log_base or MAX_ORDINAL):
                raise OverflowError(f"the pieces of one batch have {self._next_ordinal:,} rows")
            self._chunk_facts[table_id] = self._chunk_facts.get(table_id, Facts()) + written.facts
            staged.chunks.append(number)
            staged.rows += part.rows
            self.rows += part.rows

    def add_log(self, table_id: str, batch: ChangeBatch, start: int) -> None:
        """Rows from the log; ``start`` is the reader's ordinal at which this batch begins."""
        staged = self.touch(table_id, batch.table, evolved=False)
        first = batch.rows.column("ordinal")[0].as_py() if batch.rows.num_rows else start
        rows = _rebase(batch.rows, first - start + self._log_base)
        rows = self.without_skipped(rows)
        if not rows.num_rows:
            return
        self._hashes.setdefault(table_id, RowHash()).update(rows)
        lane = "log-1" if staged.rows >= SPLIT_ROWS and (staged.rows // 32_768) % 2 else "log-0"
        self._writer(table_id, batch, lane).write(rows)
        staged.facts += facts_of(rows, batch.table, self.number)
        staged.rows += rows.num_rows
        staged.log_rows += rows.num_rows
        staged.partial = staged.partial or batch.partial
        self.rows += rows.num_rows

    def without_skipped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose operation is not left out."""
        if self._skip is None:
            return rows
        return rows.filter(pc.invert(pc.is_in(rows.column("op"), value_set=self._skip)))

    def filter_chunks(self, table_id: str, keeps: Callable[[pa.RecordBatch], pa.RecordBatch] | None) -> None:
        """Write the rows of a table's pieces again, only those that ``keeps`` returns; None drops all, and
        the pieces count as not read."""
        staged = self.tables[table_id]
        self._chunk_facts[table_id] = Facts()
        for part in self._pieces_of(table_id):
            staged.rows -= part.rows
            self.rows -= part.rows
            if keeps is not None:
                self._rewrite(table_id, part, keeps)
            Path(part.path).unlink()
        if keeps is None:
            staged.chunks.clear()

    def _pieces_of(self, table_id: str) -> list[Part]:
        """The finished files of a table's pieces, which no longer belong to the batch."""
        lanes = [key for key in self._writers if key[0] == table_id and key[2].startswith(CHUNK_LANE)]
        adopted = [part for owner, part in self._adopted if owner == table_id]
        self._adopted = [each for each in self._adopted if each[0] != table_id]
        return [*(self._writers.pop(lane).close() for lane in lanes), *adopted]

    def _rewrite(self, table_id: str, part: Part, keeps: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        staged, old = self.tables[table_id], Path(part.path)
        with pa.OSFile(part.path) as file, pa.ipc.open_stream(file) as stream:
            again = PartWriter(old.with_name(f"kept-{old.name}"), stream.schema, part.version, part.base)
            for rows in stream:
                kept = keeps(rows)
                again.write(kept)
                self._chunk_facts[table_id] += facts_of(kept, staged.table, self.number)
        self._writers[table_id, part.version, again.path.name] = again
        staged.rows += again.rows
        self.rows += again.rows

    def close(self) -> None:
        """Finish all files and write the manifest; tables with nothing new drop out."""
        written = [(key[0], writer.close()) for key, writer in self._writers.items()]
        for table_id, part in (*written, *self._adopted):
            if part.rows:
                self.tables[table_id].parts.append(part)
        self._writers.clear()
        self._adopted.clear()
        for table_id, facts in self._chunk_facts.items():
            self.tables[table_id].facts += facts
        self._chunk_facts.clear()
        for table_id, digest in self._hashes.items():
            self.tables[table_id].log_hash = digest.hexdigest()
        self.tables = {
            key: table for key, table in self.tables.items() if table.rows or table.evolved or table.chunks
        }
        manifest = {
            "boot": boot_id(),
            "tables": [_to_dict(table) for table in self.tables.values()],
            "messages": [asdict(message) for message in self.messages],
            "changes": [asdict(change) for change in self.changes],
            "committed_us": self.committed_us,
        }
        with on_disk(self.folder):
            (self.folder / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")

    def contents(self) -> StagedBatch:
        """What is in it, once closed."""
        return StagedBatch(list(self.tables.values()), self.messages, self.changes, self.committed_us)

    def discard(self) -> None:
        """Delete the files; idempotent."""
        for writer in self._writers.values():
            writer.abandon()
        self._writers.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _writer(self, table_id: str, batch: ChangeBatch, lane: str) -> PartWriter:
        key = (table_id, batch.table.version, lane)
        writer = self._writers.get(key)
        if writer is None:
            path = self.folder / f"{table_id}-{batch.table.version}-{lane}.arrow"
            writer = self._writers[key] = PartWriter(path, batch.rows.schema, batch.table.version)
        return writer


def load_whole(folder: Path, number: int) -> StagedBatch | None:
    """The contents of a sealed batch, or None if any file is missing, cut short, or from before the
    last boot of this machine (it may then have lost what was never flushed to disk)."""
    try:
        manifest = json.loads((folder / f"{number:012d}" / _MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if manifest["boot"] != boot_id():
        return None
    tables = [_from_dict(data) for data in manifest["tables"]]
    if not all(is_whole(part) for table in tables for part in table.parts):
        return None
    messages = [StagedMessage(**message) for message in manifest["messages"]]
    changes = [StagedChange(**change) for change in manifest["changes"]]
    return StagedBatch(tables, messages, changes, manifest["committed_us"])


def clear(folder: Path, keep: Iterable[int] = ()) -> None:
    """Delete the staging of all batches but ``keep``."""
    kept = {f"{number:012d}" for number in keep}
    if folder.is_dir():
        for child in folder.iterdir():
            if child.name not in kept:
                shutil.rmtree(child, ignore_errors=True)


def boot_id() -> str:
    """What changes whenever this machine starts anew; constant where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _rebase(rows: pa.RecordBatch, base: int) -> pa.RecordBatch:
    """Move the batch's first ordinal to ``base``."""
    index = rows.schema.get_field_index("ordinal")
    ordinals = rows.column(index)
    if not rows.num_rows:
        return rows
    moved = pc.add(ordinals, base - ordinals[0].as_py())
    if moved[-1].as_py() > MAX_ORDINAL:
        raise OverflowError(f"more than {MAX_ORDINAL:,} rows in one batch")
    return rows.set_column(index, rows.schema.field(index), moved)


def _to_dict(table: StagedTable) -> dict[str, Any]:
    parts = [asdict(part) for part in table.parts]
    return {**vars(table), "table": table.table.to_json(), "parts": parts, "facts": table.facts.to_json()}


def _from_dict(data: dict[str, Any]) -> StagedTable:
    parts = [Part(**part) for part in data["parts"]]
    table, facts = Table.from_json(data["table"]), Facts.from_json(data["facts"])
    return StagedTable(**{**data, "table": table, "parts": parts, "facts": facts})
