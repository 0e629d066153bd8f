"""Messages that applications wrote into the source's log."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cdc_lib.clock import now
from cdc_lib.control.row import ControlTable, Stored
from cdc_lib.delta import Txn

if TYPE_CHECKING:
    from cdc_lib.staging import StagedMessage


@dataclass(frozen=True)
class MessageRow:
    """One message."""

    prefix: Annotated[str, Stored("STRING", "prefix that the application gave it")]
    content: Annotated[bytes, Stored("BINARY", "its bytes, as they are")]
    transactional: Annotated[bool, Stored("BOOLEAN", "whether it is part of a transaction")]
    position: Annotated[str, Stored("STRING", "sort key of its place in the log")]
    transaction_id: Annotated[int | None, Stored("BIGINT", "its transaction, if it is part of one")]
    batch: Annotated[int, Stored("BIGINT", "batch that brought it")]
    at: Annotated[datetime, Stored("TIMESTAMP", "when the row was written")] = field(default_factory=now)


class Messages(ControlTable[MessageRow]):
    """The messages of a pipeline's source."""

    name = "messages"
    comment = "Messages that applications wrote into the source's log"
    row = MessageRow

    def add(self, messages: Sequence[StagedMessage], *, batch: int, txn: Txn | None = None) -> None:
        rows = [
            MessageRow(
                message.prefix,
                base64.b64decode(message.content),
                message.transactional,
                message.sort_key,
                message.transaction_id,
                batch,
            )
            for message in messages
        ]
        self._append(rows, txn)
