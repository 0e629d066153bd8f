"""``control.batches``: what each batch is, fixed before anything of it is written to bronze."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field, Txn
from cdc_lib.errors import FixConfiguration, RetryLater

MAX_ATTEMPTS = 1000


@dataclass(frozen=True)
class SealedTable:
    """What a batch has of one table. ``log_rows`` and ``log_hash`` prove a repeated read."""

    table_id: str
    schema: str
    name: str
    schema_version: int
    rows: int
    log_rows: int = 0
    log_hash: str = ""
    partial: bool = False
    chunks: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Seal:
    """Batch N is exactly the commits with ``after`` < commit <= ``upto`` (JSON positions), and the chunks."""

    batch: int
    attempt: int
    runner: str
    incarnation: str
    after: str
    upto: str
    tables: list[SealedTable]
    configuration: str
    staging: str
    sealed_at: datetime = field(default_factory=now)


class Batches(ControlTable):
    """Append-only, one row per attempt."""

    NAME = "batches"
    COMMENT = "Sealed batches: range, tables, row counts and hashes. Committed ones are in watermarks."
    FIELDS = (
        Field("batch", "BIGINT", "Number of the batch; rises for ever."),
        Field("attempt", "INT", "Rises when another runner, or a restarted one, takes the batch over."),
        Field("runner", "STRING", "Who sealed it."),
        Field("incarnation", "STRING", "Id of this life of the pipeline."),
        Field("after", "STRING", "JSON position: commits after this one."),
        Field("upto", "STRING", "JSON position: commits up to this one."),
        Field(
            "tables",
            "ARRAY<STRUCT<table_id: STRING, schema: STRING, name: STRING, schema_version: INT, rows: BIGINT, "
            "log_rows: BIGINT, log_hash: STRING, partial: BOOLEAN, chunks: ARRAY<INT>>>",
            "What the batch has of each table.",
        ),
        Field("configuration", "STRING", "Hash of the configuration that shaped the rows."),
        Field("staging", "STRING", "Folder of the staged rows until the commit."),
        Field("sealed_at", "TIMESTAMP", "When."),
    )

    def seal(self, seal: Seal) -> None:
        """Append under the plan's transaction version, and read back.

        A concurrent loser gets Delta's conflict, a sequential one is skipped in silence and sees the winner
        here; two blind appends would both land.

        :raises RetryLater: another runner sealed this batch.
        """
        if seal.attempt >= MAX_ATTEMPTS:
            raise FixConfiguration(
                f"batch {seal.batch} was attempted {MAX_ATTEMPTS - 1} times",
                remedy="look at the errors in control.runs; something fails the same way every time",
            )
        version = seal.batch * MAX_ATTEMPTS + seal.attempt
        self.insert([asdict(seal)], txn=Txn(f"{seal.incarnation}/plan", version))
        newest = self._newest(seal.batch)
        if newest is None or (newest.attempt, newest.runner) != (seal.attempt, seal.runner):
            owner = newest.runner if newest else "nobody"
            raise RetryLater(
                f"batch {seal.batch} was sealed by another runner ({owner})",
                why="two runners work on this pipeline",
                remedy="run again; let only one job run a pipeline",
            )

    def unfinished(self, committed: int) -> Seal | None:
        """The newest attempt at the batch after the committed one, if it was sealed."""
        return self._newest(committed + 1)

    def after(self, batch: int) -> list[Seal]:
        """The newest attempt of each sealed batch above ``batch``, oldest first."""
        newest: dict[int, Seal] = {}
        for row in self.select({"batch": (">", batch)}):
            seal = _seal(row)
            if seal.batch not in newest or newest[seal.batch].attempt < seal.attempt:
                newest[seal.batch] = seal
        return [newest[number] for number in sorted(newest)]

    def _newest(self, batch: int) -> Seal | None:
        seals = [_seal(row) for row in self.select({"batch": batch})]
        return max(seals, key=lambda seal: seal.attempt, default=None)


def _seal(row: dict[str, Any]) -> Seal:
    tables = [SealedTable(**table) for table in row["tables"] or []]
    return Seal(
        **{name: value for name, value in row.items() if name not in ("pipeline", "tables")}, tables=tables
    )
