"""Transactions of the source, for people who put changes of several tables together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from cdc_lib.control.row import ControlTable, Stored
from cdc_lib.delta import Txn


@dataclass(frozen=True)
class TransactionRow:
    """One committed transaction."""

    id: Annotated[str, Stored("STRING", "id of the transaction, as in bronze's transaction.id")]
    event_count: Annotated[int, Stored("BIGINT", "rows it changed in captured tables")]
    position: Annotated[str, Stored("STRING", "sort key of its commit")]
    committed_at: Annotated[datetime | None, Stored("TIMESTAMP", "when it was committed at the source")]
    batch: Annotated[int, Stored("BIGINT", "batch that brought it")]


class Transactions(ControlTable[TransactionRow]):
    """The transactions of a pipeline's source."""

    name = "transactions"
    comment = "Committed transactions of the source (provide.transaction.metadata)"
    row = TransactionRow

    def add(self, transactions: Sequence[TransactionRow], *, txn: Txn | None = None) -> None:
        self._append(transactions, txn)
