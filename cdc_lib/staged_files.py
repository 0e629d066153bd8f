"""One staged file: rows of one table under one schema version, as a stream of Arrow batches.

Written by the run itself, or by a Spark task that reads a piece of a snapshot; the run knows which count.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from cdc_lib.change import ChangeBatch
from cdc_lib.errors import FixConfiguration, RetryLater
from cdc_lib.facts import Facts, facts_of
from cdc_lib.schema import Table


@dataclass(frozen=True)
class Part:
    """A finished file. ``base`` is added to the ordinals of its rows: who wrote them may not have known
    which rows stand below them."""

    path: str
    rows: int
    bytes: int
    version: int
    base: int = 0


@dataclass(frozen=True)
class PieceFile:
    """A piece of a snapshot in a file of its own, its ordinals counted from 0; no file, if it has no rows."""

    part: Part
    facts: Facts


class PartWriter:
    """The open file of rows of one table and version."""

    def __init__(self, path: Path, schema: pa.Schema, version: int, base: int = 0) -> None:
        self.path = path
        self.version = version
        self.rows = 0
        self._base = base
        with on_disk(path.parent):
            self._file = pa.OSFile(str(path), "wb")
            self._stream = pa.ipc.new_stream(self._file, schema)

    def write(self, rows: pa.RecordBatch) -> None:
        with on_disk(self.path.parent):
            self._stream.write_batch(rows)
        self.rows += rows.num_rows

    def close(self) -> Part:
        with on_disk(self.path.parent):
            self._stream.close()
            self._file.close()
            return Part(str(self.path), self.rows, self.path.stat().st_size, self.version, self._base)

    def abandon(self) -> None:
        """Let go of the file, which may be on a disk that takes nothing more."""
        with suppress(OSError):
            self._file.close()


@contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """
    :raises RetryLater: the disk is full.
    :raises FixConfiguration: the folder cannot be written at all.
    """
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else "the operating system refuses it"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RetryLater(
                f"there is no room left in the staging folder {folder.parent}",
                why=f"{why}; what was staged of this batch is deleted, what is committed stays",
                remedy="make room there, or name a folder on a larger disk in target.staging, or lower "
                "run.batch_rows; then run again",
            ) from None
        raise FixConfiguration(
            f"the staging folder {folder.parent} cannot be written",
            why=why,
            remedy="let this process write there, or name another folder in target.staging",
        ) from None


def write_piece(path: Path, batches: Iterable[ChangeBatch], table: Table) -> PieceFile:
    """Write the rows of a piece, read under the structure ``table``, to a new file."""
    writer, facts = None, Facts()
    with ExitStack() as undo:
        for batch in batches:
            if writer is None:
                writer = PartWriter(path, batch.rows.schema, table.version)
                undo.callback(path.unlink, missing_ok=True)
                undo.callback(writer.abandon)
            writer.write(batch.rows)
            # The batch's number only matters to truncates, which no piece has.
            facts += facts_of(batch.rows, table, 0)
        part = Part("", 0, 0, table.version) if writer is None else writer.close()
        undo.pop_all()
    return PieceFile(part, facts)


def is_whole(part: Part) -> bool:
    """Whether the file is there in its full length."""
    try:
        return Path(part.path).stat().st_size == part.bytes
    except OSError:
        return False
