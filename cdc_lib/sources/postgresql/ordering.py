"""Numbers of rows in log order: over all tables, within the transaction, and within its table there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdc_lib.schema import TableId
from cdc_lib.sources.postgresql.images import Images
from cdc_lib.sources.postgresql.transactions import Changes
from cdc_lib.sources.postgresql.tuples import Index


@dataclass(frozen=True)
class Numbers:
    """For the rows of one part: ``ordinal`` over everything, and Debezium's two orders, from 1."""

    ordinal: Index
    total_order: Index
    data_collection_order: Index


class Numbering:
    """Counts rows over all stretches; transactions may go on from one stretch to the next.

    ``ordinal``: what the next row will have.
    """

    def __init__(self) -> None:
        self.ordinal = 0
        self._serial = 0  # of the stretch's first transaction, counted from the start of reading
        self._rows_before = 0  # of the first transaction, in earlier stretches
        self._tables: dict[TableId, tuple[int, int]] = {}  # last transaction's serial, its rows so far
        self._starts: Index = np.zeros(1, np.int64)
        self._bases: Index = np.zeros(1, np.int64)

    def lay_out(self, changes: Changes, parts: list[tuple[Index, Images]], transactions: int) -> None:
        """Number the rows of a stretch: of each part, the places of its changes and its images."""
        weights = np.zeros(len(changes.row), np.int64)
        for places, images in parts:
            weights[places] = np.bincount(images.event, minlength=len(places))
        self._starts = np.zeros(len(weights) + 1, np.int64)
        np.cumsum(weights, out=self._starts[1:])
        self._bases = self._starts[np.searchsorted(changes.owner, np.arange(transactions))]
        if transactions:
            self._bases[0] -= self._rows_before

    def of(self, table: TableId, changes: Changes, places: Index, images: Images) -> Numbers:
        """The numbers of one part's rows; parts of a table must be asked for in log order."""
        owner = changes.owner[places][images.event]
        number = self._starts[places][images.event] + (np.diff(images.event, prepend=-1) == 0)
        within = self._within_table(table, owner)
        return Numbers(self.ordinal + number, number - self._bases[owner] + 1, within)

    def close(self, transactions: int, still_open: bool) -> None:
        """Go on behind the stretch, whose last transaction may be still open."""
        total = int(self._starts[-1])
        self.ordinal += total
        self._rows_before = total - int(self._bases[-1]) if still_open else 0
        self._serial += transactions - still_open

    def _within_table(self, table: TableId, owner: Index) -> Index:
        order = np.arange(1, len(owner) + 1) - np.searchsorted(owner, owner)
        serial, rows = self._tables.get(table, (-1, 0))
        if serial == self._serial + owner[0]:
            order[owner == owner[0]] += rows
        self._tables[table] = (int(self._serial + owner[-1]), int(order[-1]))
        return order
