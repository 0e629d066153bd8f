"""``control.messages``: what applications wrote into the source's log (``pg_logical_emit_message``)."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field, Txn
from cdc_lib.staging import StagedMessage


class Messages(ControlTable):
    """Append-only."""

    NAME = "messages"
    COMMENT = "Messages that applications wrote into the source's log."
    FIELDS = (
        Field("prefix", "STRING", "The message's prefix."),
        Field("content", "BINARY", "The message."),
        Field("transactional", "BOOLEAN", "Whether it belongs to a transaction, and was committed with it."),
        Field("transaction_id", "BIGINT", "That transaction."),
        Field("position", "STRING", "Sort key of its place in the log."),
        Field("batch", "BIGINT", "The batch it came in."),
        Field("at", "TIMESTAMP", "When it was written here."),
    )

    def add(self, messages: Sequence[StagedMessage], *, batch: int, txn: Txn) -> None:
        rows = [
            {
                "prefix": message.prefix,
                "content": base64.b64decode(message.content),
                "transactional": message.transactional,
                "transaction_id": message.transaction_id,
                "position": message.sort_key,
                "batch": batch,
                "at": now(),
            }
            for message in messages
        ]
        self.insert(rows, txn=txn)
