"""Transactions that are in the log and not yet visible to other sessions.

A commit is written to the log before its rows become visible; with synchronous replication to a standby that
does not answer, long before. Such a transaction may belong to a batch that is done, and a later view still
does not show it: a piece of a snapshot read in that view would lack its rows, and no later batch has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import Self

from cdc_lib.sources.postgresql.connection import rows
from cdc_lib.sources.postgresql.errors import translated

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

_EPOCH = 1 << 32


def next_transaction(connection: Connection) -> int:
    """A number that no transaction before had."""
    with translated("the server gives no transaction number"):
        [(number,)] = rows(connection, "SELECT pg_catalog.pg_current_xact_id()::text")
    return int(number)


@dataclass(frozen=True)
class View:
    """What a snapshot shows: all transactions below ``xmin``, none from ``xmax`` on, and in between those
    that are not ``running``. Numbers have 64 bits (PostgreSQL: ``pg_snapshot``)."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def of(cls, connection: Connection) -> Self:
        """The view of the connection's transaction, or the newest one outside of any."""
        with translated("the server's running transactions cannot be read"):
            [(text,)] = rows(connection, "SELECT pg_catalog.pg_current_snapshot()::text")
        return cls.parse(text)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The server's text form, ``xmin:xmax:xip,xip``."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(one) for one in running.split(",") if one))

    def shows(self, transaction: int) -> bool:
        if transaction < self.xmin:
            return True
        return transaction < self.xmax and transaction not in self.running

    def hidden(self, transactions: Iterable[int]) -> tuple[int, ...]:
        """Those that it does not show, in order."""
        return tuple(sorted(one for one in set(transactions) if not self.shows(one)))

    def ahead_of(self, other: View) -> tuple[int, ...]:
        """Transactions that this view shows and ``other`` does not. The view that a new slot exports follows
        the log, so it can be ahead of what ordinary sessions see."""
        return tuple(one for one in other.unfinished(self.xmax) if self.shows(one))

    def unfinished(self, below: int) -> tuple[int, ...]:
        """Transactions with lower numbers than ``below`` that it does not show, in order. Those from ``xmax``
        on are not listed as running: all that began are."""
        return (*sorted(self.running), *range(self.xmax, below))

    def full(self, transaction: int) -> int:
        """The 64-bit number of a transaction that the log names by its lower half: the newest that began."""
        whole = self.xmax - self.xmax % _EPOCH + transaction
        return whole if whole <= self.xmax else whole - _EPOCH
