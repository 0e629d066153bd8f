"""``control.transactions``: boundaries of source transactions, where ``provide.transaction.metadata`` asks."""

from __future__ import annotations

from cdc_lib.control.base import ControlTable
from cdc_lib.delta import Field


class Transactions(ControlTable):
    """Empty until the property is supported; the column set is Debezium's."""

    NAME = "transactions"
    COMMENT = "Source transactions with their row counts (provide.transaction.metadata)."
    FIELDS = (
        Field("id", "STRING", "The transaction, as in bronze.transaction.id."),
        Field("status", "STRING", "BEGIN or END."),
        Field("event_count", "BIGINT", "Rows of captured tables in it."),
        Field("data_collections", "MAP<STRING,BIGINT>", "Rows by table."),
        Field("committed_at", "TIMESTAMP", "When the source committed it."),
        Field("batch", "BIGINT", "The batch it came in."),
    )
