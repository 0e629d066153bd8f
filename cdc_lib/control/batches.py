"""What each batch is, fixed before the first of its rows is appended.

The seal of batch N, attempt A is appended with the transaction version N * 1000 + A, and read back: of two
runners at the same time one conflicts, of two in turn the second is skipped in silence and sees the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

from cdc_lib.control.row import ControlTable, Stored
from cdc_lib.delta import Conflict, Txn
from cdc_lib.errors import FixConfiguration, ResnapshotNeeded, RetryLater

ATTEMPTS = 1000


@dataclass(frozen=True)
class SealedTable:
    """What a batch holds of one table."""

    table_id: str
    schema: str
    name: str
    schema_version: int
    rows: int
    log_rows: int
    log_hash: str
    partial: bool
    chunks: list[int]
    facts: str = ""
    """:class:`cdc_lib.facts.Facts` as JSON; empty if not known."""


_TABLES = (
    "ARRAY<STRUCT<table_id: STRING, schema: STRING, name: STRING, schema_version: INT, rows: BIGINT, "
    "log_rows: BIGINT, log_hash: STRING, partial: BOOLEAN, chunks: ARRAY<INT>, facts: STRING>>"
)


@dataclass(frozen=True)
class Seal:
    """One attempt at a batch: exactly what is read, and from where to where."""

    batch: Annotated[int, Stored("BIGINT", "number of the batch; rises for ever")]
    attempt: Annotated[int, Stored("INT", "1 for the runner that read it, then one more a takeover")]
    runner: Annotated[str, Stored("STRING", "runner that executes it")]
    incarnation: Annotated[str, Stored("STRING", "id of this life of the pipeline")]
    after: Annotated[str, Stored("STRING", "position after which its log rows begin, JSON")]
    upto: Annotated[str, Stored("STRING", "position up to which its log rows go, JSON")]
    tables: Annotated[list[SealedTable], Stored(_TABLES, "its tables, with count and hash of their rows")]
    configuration: Annotated[str, Stored("STRING", "hash of the configuration under which it was read")]
    staging: Annotated[str, Stored("STRING", "folder of its staged rows, gone after the commit")]
    sealed_at: Annotated[datetime, Stored("TIMESTAMP", "when it was sealed")]


class Batches(ControlTable[Seal]):
    """The seals of a pipeline."""

    name = "batches"
    comment = "What each batch is, sealed before its rows are appended"
    row = Seal

    def seal(self, seal: Seal) -> None:
        """Fix a batch, or take over one that was not finished.

        :raises RetryLater: another runner sealed it.
        :raises ResnapshotNeeded: Delta skipped the row though nobody sealed it: the table was restored.
        """
        if not 1 <= seal.attempt < ATTEMPTS:
            raise FixConfiguration(
                f"batch {seal.batch} failed {ATTEMPTS - 1} times",
                why="every attempt ended between its seal and its commit",
                remedy="see the errors in the control table runs; nothing is lost",
            )
        try:
            self._append([seal], Txn(f"{seal.incarnation}/plan", seal.batch * ATTEMPTS + seal.attempt))
        except Conflict:
            raise _sealed_by_another(seal, "") from None
        self._read_back(seal)

    def unfinished(self, committed: int) -> Seal | None:
        """The newest attempt at the batch after the last committed one; None if it was never sealed."""
        return max(self._select(batch=committed + 1), key=_order, default=None)

    def after(self, batch: int) -> list[Seal]:
        """The newest attempt at each batch above ``batch``, in order."""
        newest = {seal.batch: seal for seal in sorted(self.load(), key=_order) if seal.batch > batch}
        return list(newest.values())

    def last(self) -> Seal | None:
        """The newest attempt at the highest batch."""
        return max(self.load(), key=_order, default=None)

    def readers(self) -> dict[int, str]:
        """For each batch the runner of its first attempt, which read it from the source."""
        where = {"pipeline": self._pipeline, "attempt": 1}
        found = self._lake.rows(self.ref, ["batch", "runner"], where)
        return {row["batch"]: row["runner"] for row in found}

    def _read_back(self, seal: Seal) -> None:
        found = [other for other in self._select(batch=seal.batch) if other.attempt >= seal.attempt]
        if any((other.attempt, other.runner) == (seal.attempt, seal.runner) for other in found):
            return
        later = max(found, key=_order, default=None) or self.last()
        if later is not None and _order(later) >= _order(seal):
            raise _sealed_by_another(seal, later.runner)
        raise ResnapshotNeeded(
            f"the seal of batch {seal.batch} did not arrive",
            why="Delta has recorded this batch before and skipped the row: "
            "the table batches was restored to an older version",
            remedy="restore it to its newest version, or start a new pipeline name, which snapshots again",
        )

    def _from_dict(self, data: Mapping[str, Any]) -> Seal:
        seal = Seal(**data)
        return replace(seal, tables=[SealedTable(**table) for table in data["tables"]])


def _order(seal: Seal) -> tuple[int, int]:
    return seal.batch, seal.attempt


def _sealed_by_another(seal: Seal, runner: str) -> RetryLater:
    return RetryLater(
        f"another runner sealed batch {seal.batch}" + (f": {runner}" if runner else ""),
        why="two runners were at work on this pipeline",
        remedy="run again; the batch is finished by whoever holds the lease",
    )
