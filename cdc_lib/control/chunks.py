"""``control.chunks``: the pieces of running and finished snapshots, for people who watch them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field, Txn
from cdc_lib.source import Chunk


class Chunks(ControlTable):
    """Append-only: a chunk is ``planned``, and ``done`` in the batch that committed it."""

    NAME = "chunks"
    COMMENT = "Pieces of snapshots: planned, and done in a batch."
    FIELDS = (
        Field("snapshot_id", "STRING", "Id of one opened view."),
        Field("table_id", "STRING", "The table, as in control.tables."),
        Field("number", "INT", "Number of the piece within its table."),
        Field("state", "STRING", "planned or done."),
        Field("lower", "STRING", "JSON: lower bound of the key, inclusive; NULL is open."),
        Field("upper", "STRING", "JSON: upper bound of the key, exclusive; NULL is open."),
        Field("rows", "BIGINT", "Planned: the server's estimate."),
        Field("batch", "BIGINT", "Done: the batch that has it."),
        Field("at", "TIMESTAMP", "When."),
    )

    def __init__(self, lake: Any, pipeline: str) -> None:
        super().__init__(lake, pipeline)
        self._snapshot_id = ""

    def plan(self, chunks: Mapping[str, Sequence[Chunk]]) -> None:
        """A view was opened and its tables, by id, cut into these pieces."""
        self._snapshot_id = uuid.uuid4().hex
        self.insert(
            [
                {
                    "snapshot_id": self._snapshot_id,
                    "table_id": table_id,
                    "number": chunk.number,
                    "state": "planned",
                    "lower": _bound(chunk.lower),
                    "upper": _bound(chunk.upper),
                    "rows": chunk.rows,
                    "at": now(),
                }
                for table_id, pieces in chunks.items()
                for chunk in pieces
            ]
        )

    def done(self, chunks: Sequence[tuple[str, int]], *, batch: int, txn: Txn) -> None:
        """These pieces, as table id and number, are in the batch that is about to be committed."""
        rows = [
            {
                "snapshot_id": self._snapshot_id,
                "table_id": table_id,
                "number": number,
                "state": "done",
                "batch": batch,
                "at": now(),
            }
            for table_id, number in chunks
        ]
        self.insert(rows, txn=txn)


def _bound(bound: tuple[str, ...] | None) -> str | None:
    return None if bound is None else json.dumps(bound)
