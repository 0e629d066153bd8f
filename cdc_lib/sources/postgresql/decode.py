"""The log decoder: pgoutput messages, as COPY hands them over, to typed change batches.

Pure: bytes in, Arrow out. All rows of a table in a stretch of the log are decoded together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from cdc_lib.change import TRANSACTION, LogEvent, Message, TransactionEnd
from cdc_lib.errors import RetryLater
from cdc_lib.schema import Table, TableId
from cdc_lib.sources.postgresql.envelope import SOURCE, Stamps, log_batch
from cdc_lib.sources.postgresql.images import Images, read_images
from cdc_lib.sources.postgresql.ordering import Numbering, Numbers
from cdc_lib.sources.postgresql.pgoutput import COMMIT, MESSAGE, parse_message, trim
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.relations import CapturedRelation, CaptureRules
from cdc_lib.sources.postgresql.structures import Structures
from cdc_lib.sources.postgresql.transactions import Changes, Open, Stretch, Transactions
from cdc_lib.sources.postgresql.tuples import Index

STRETCH_BYTES = 1 << 29
"""Most that is decoded at a time: offsets into the buffer have 31 bits, and a single row may take half."""

_Part = tuple[CapturedRelation, Index, Images]


class LogDecoder:
    """Decodes the log between two positions; one decoder for one read.

    ``known``: the structures that the reader's caller has; others are announced by SchemaChange. Rows'
    ``position`` is the sort key of where their commit record *starts* (known from the Begin message on);
    a TransactionEnd's position is where it *ends*. Both rise in log order, and so do both mixed.
    """

    def __init__(
        self,
        rules: CaptureRules,
        known: Mapping[TableId, Table],
        *,
        after: PostgresPosition,
        upto: PostgresPosition,
    ) -> None:
        self._after = after
        self._upto = upto
        self._captures_message = rules.message
        self._structures = Structures(rules, known)
        self._numbering = Numbering()
        self._open: Open | None = None
        self._carried: list[bytes] = []
        self._seen: set[int] = set()

    def transactions(self) -> set[int]:
        """Those that were emitted since this was last asked, by the lower 32 bits of their number."""
        seen, self._seen = self._seen, set()
        return seen

    def feed(self, rows: list[bytes]) -> Iterator[LogEvent]:
        """Decode the next rows of ``COPY (SELECT lsn, xid, data ...) TO STDOUT (FORMAT binary)``.

        Up to the last commit among them, and the rest next time; all of them when there is no commit, so
        that memory follows the chunk and not the transaction. The iterator must be used up.
        """
        for piece in _pieces(trim(rows)):
            if self._carried and _size(self._carried) + _size(piece) > 2 * STRETCH_BYTES:
                yield from self._decode(Stretch(self._carried))
                self._carried = []
            yield from self._feed(self._carried + piece)

    def finish(self) -> Iterator[LogEvent]:
        """Decode what was carried over.

        :raises RetryLater: the log ends inside a transaction, so part of it was not read.
        """
        rows, self._carried = self._carried, []
        if rows:
            yield from self._decode(Stretch(rows))
        if self._open is not None:
            raise RetryLater(
                f"the log ends inside transaction {self._open.xid}",
                why="the server stopped sending before the transaction's commit",
                remedy="run again",
            )

    def _feed(self, rows: list[bytes]) -> Iterator[LogEvent]:
        stretch = Stretch(rows)
        commits = stretch.find(COMMIT)
        end = int(commits[-1]) + 1 if len(commits) else len(rows)
        self._carried = rows[end:]
        yield from self._decode(stretch if end == len(rows) else stretch.upto(end))

    def _decode(self, stretch: Stretch) -> Iterator[LogEvent]:
        transactions = Transactions.read(stretch, self._open, self._after, self._upto)
        self._structures.read(stretch)
        self._seen.update(transactions.xid[transactions.wanted].tolist())
        changes = Changes.read(stretch, transactions)
        parts = [
            (relation, places, _images(stretch, changes, relation, places))
            for relation, places in self._structures.parts(changes)
        ]
        count = len(transactions.first)
        self._numbering.lay_out(changes, [(places, images) for _, places, images in parts], count)
        yield from self._messages(stretch, transactions)
        for part in parts:
            yield from self._part(stretch, transactions, changes, part)
        self._open = transactions.left_open(stretch)
        self._numbering.close(count, self._open is not None)
        yield from self._end(stretch, transactions)

    def _part(
        self, stretch: Stretch, transactions: Transactions, changes: Changes, part: _Part
    ) -> Iterator[LogEvent]:
        described, places, images = part
        relation, announcement = self._structures.announce(described)
        if announcement is not None:
            yield announcement
        numbers = self._numbering.of(relation.table.id, changes, places, images)
        origins = places[images.event]
        lsn = stretch.lsn(changes.row[origins])
        stamps = self._stamps(transactions, changes.owner[origins], lsn, numbers)
        yield log_batch(stretch.received, relation, images, stamps)

    def _stamps(self, transactions: Transactions, owner: Index, lsn: Index, numbers: Numbers) -> Stamps:
        count = len(owner)
        committed = transactions.committed_us[owner]
        origin = _origins(transactions, owner)
        source = [
            pa.repeat("false", count),
            pa.array(committed // 1000),
            pa.array(committed),
            pa.array(committed * 1000),
            pa.array(transactions.xid[owner]),
            pa.array(lsn),
            pa.array(transactions.commit_lsn[owner]),
            origin,
        ]
        places = pa.array(owner)
        orders = [pa.array(numbers.total_order), pa.array(numbers.data_collection_order)]
        return Stamps(
            source=pa.StructArray.from_arrays(source, fields=list(SOURCE)),
            transaction=pa.StructArray.from_arrays(
                [transactions.ids().take(places), *orders], fields=list(TRANSACTION)
            ),
            position=transactions.sort_keys(self._after.timeline).take(places),
            ordinal=numbers.ordinal,
        )

    def _messages(self, stretch: Stretch, transactions: Transactions) -> Iterator[Message]:
        for row in stretch.find(MESSAGE):
            found = parse_message(stretch.message(int(row)))
            if found.transactional:
                owner = int(transactions.of(np.array([row]))[0])
                wanted = bool(transactions.wanted[owner])
                lsn, xid = int(transactions.commit_lsn[owner]), int(transactions.xid[owner])
            else:
                # Written at once, whatever becomes of its transaction; its LSN is the end of its record.
                wanted = self._after.lsn < found.lsn <= self._upto.lsn
                lsn, xid = found.lsn, None
            if wanted and self._captures_message(found.prefix):
                yield Message(found.prefix, found.content, found.transactional, self._after.at(lsn), xid)

    def _end(self, stretch: Stretch, transactions: Transactions) -> Iterator[TransactionEnd]:
        commits = stretch.find(COMMIT)
        commits = commits[transactions.wanted[transactions.of(commits)]]
        if len(commits):
            owner = transactions.of(commits[-1:])[0]
            end = int(stretch.received.int64[stretch.at[commits[-1]] + 10])
            committed = int(transactions.committed_us[owner])
            yield TransactionEnd(self._after.at(end), self._numbering.ordinal, committed)


def _images(stretch: Stretch, changes: Changes, relation: CapturedRelation, places: Index) -> Images:
    return read_images(stretch.received, relation, stretch.at[changes.row[places]], changes.tag[places])


def _origins(transactions: Transactions, owner: Index) -> pa.StringArray:
    if not any(transactions.origin):
        return pa.nulls(len(owner), pa.string())
    return pa.array(transactions.origin, pa.string()).take(pa.array(owner))


def _size(rows: list[bytes]) -> int:
    return sum(map(len, rows))


def _pieces(rows: list[bytes]) -> Iterator[list[bytes]]:
    """The rows in lists that can be decoded at once; nearly always a single one."""
    if _size(rows) <= STRETCH_BYTES:
        if rows:
            yield rows
        return
    half = len(rows) // 2
    if half == 0:
        yield rows
        return
    yield from _pieces(rows[:half])
    yield from _pieces(rows[half:])
