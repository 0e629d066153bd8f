"""Transactions of a stretch of the log: which are wanted, and what their rows are stamped with."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_lib.sources.postgresql.convert import Mask
from cdc_lib.sources.postgresql.pgoutput import (
    BEGIN,
    COMMIT,
    EPOCH_US,
    HEADER,
    LSN_AT,
    ORIGIN,
    ROW_TAGS,
    TRUNCATE,
    malformed,
    parse_origin,
    parse_truncate,
)
from cdc_lib.sources.postgresql.position import PostgresPosition, sort_keys
from cdc_lib.sources.postgresql.tuples import Index, Received


class Stretch:
    """Consecutive messages of the log. ``at``: where each starts in the buffer; ``tags``: its kind."""

    def __init__(self, rows: list[bytes]) -> None:
        self.rows = rows
        self.received = Received(rows)
        self.at = self.received.starts + HEADER
        self.tags = self.received.octets[self.at]

    def upto(self, end: int) -> Stretch:
        """The first messages of the stretch, on the same buffer."""
        part = copy(self)
        part.rows, part.at, part.tags = self.rows[:end], self.at[:end], self.tags[:end]
        return part

    def message(self, row: int) -> bytes:
        return self.rows[row][HEADER:]

    def find(self, tag: int) -> Index:
        return np.flatnonzero(self.tags == tag)

    def lsn(self, rows: Index) -> Index:
        """The LSN of each change itself."""
        return self.received.int64[self.received.starts[rows] + LSN_AT].astype(np.int64)


@dataclass(frozen=True)
class Open:
    """A transaction whose commit has not been read yet."""

    commit_lsn: int
    committed_us: int
    xid: int
    origin: str | None


@dataclass(frozen=True)
class Transactions:
    """Those that have a part in a stretch, in order; one that was open before stands first.

    ``first``: the row of its Begin (-1: before the stretch). ``commit_lsn``: where its commit record starts.
    """

    first: Index
    commit_lsn: Index
    committed_us: Index
    xid: Index
    origin: list[str | None]
    wanted: Mask

    @classmethod
    def read(
        cls, stretch: Stretch, before: Open | None, after: PostgresPosition, upto: PostgresPosition
    ) -> Transactions:
        """``wanted`` are those that commit behind ``after`` and not behind ``upto``."""
        received, rows = stretch.received, stretch.find(BEGIN)
        at = stretch.at[rows]
        first = rows
        lsn = received.int64[at + 1].astype(np.int64)
        time = received.int64[at + 9].astype(np.int64) + EPOCH_US
        xid = received.uint32[at + 17].astype(np.int64)
        origin: list[str | None] = [None] * len(rows)
        if before is not None:
            first, lsn = np.r_[-1, first], np.r_[before.commit_lsn, lsn]
            time, xid = np.r_[before.committed_us, time], np.r_[before.xid, xid]
            origin.insert(0, before.origin)
        for row in stretch.find(ORIGIN):
            origin[int(np.searchsorted(first, row, "right")) - 1] = parse_origin(stretch.message(row))
        # Both bounds are ends of records, and a commit record ends behind its start.
        return cls(first, lsn, time, xid, origin, (after.lsn <= lsn) & (lsn < upto.lsn))

    def of(self, rows: Index) -> Index:
        """Which transaction each row of the stretch belongs to.

        :raises CdcError: a row belongs to none.
        """
        owner = np.searchsorted(self.first, rows, "right") - 1
        if len(owner) and owner[0] < 0:
            raise malformed("the log has a change outside of any transaction")
        return owner

    def left_open(self, stretch: Stretch) -> Open | None:
        """The last one, if the stretch ends inside it."""
        commits = stretch.find(COMMIT)
        if not len(self.first) or (len(commits) and commits[-1] > self.first[-1]):
            return None
        return Open(int(self.commit_lsn[-1]), int(self.committed_us[-1]), int(self.xid[-1]), self.origin[-1])

    def ids(self) -> pa.StringArray:
        return pa.array(self.xid).cast(pa.string())

    def sort_keys(self, timeline: int) -> pa.StringArray:
        return sort_keys(timeline, self.commit_lsn)


@dataclass(frozen=True)
class Changes:
    """Row changes of wanted transactions in log order; a TRUNCATE stands once for each of its tables.

    ``row``: of the stretch. ``owner``: the transaction's place. ``relation``: the table's OID.
    """

    row: Index
    owner: Index
    relation: Index
    tag: npt.NDArray[np.uint8]

    @classmethod
    def read(cls, stretch: Stretch, transactions: Transactions) -> Changes:
        row = np.flatnonzero(ROW_TAGS[stretch.tags])
        owner = transactions.of(row)
        wanted = transactions.wanted[owner]
        row, owner = row[wanted], owner[wanted]
        tag = stretch.tags[row]
        relation = stretch.received.uint32[stretch.at[row] + 1].astype(np.int64)
        if not (tag == TRUNCATE).any():
            return cls(row, owner, relation, tag)
        truncates = np.flatnonzero(tag == TRUNCATE)
        tables = [parse_truncate(stretch.message(int(row[one]))) for one in truncates]
        counts = np.ones(len(row), np.int64)
        counts[truncates] = [len(oids) for oids in tables]
        relation, tag = np.repeat(relation, counts), np.repeat(tag, counts)
        relation[tag == TRUNCATE] = [oid for oids in tables for oid in oids]
        return cls(np.repeat(row, counts), np.repeat(owner, counts), relation, tag)
