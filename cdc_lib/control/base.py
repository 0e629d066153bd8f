"""What all control tables have in common: a definition, the pipeline's rows, appends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar

from cdc_lib.delta import Field, Lake, TableRef, Txn

PIPELINE = Field("pipeline", "STRING", "Name of the pipeline.", nullable=False)


class ControlTable:
    """One control table as one pipeline sees it."""

    NAME: ClassVar[str]
    COMMENT: ClassVar[str]
    FIELDS: ClassVar[tuple[Field, ...]]
    """Columns after ``pipeline``."""

    def __init__(self, lake: Lake, pipeline: str) -> None:
        self.lake = lake
        self.pipeline = pipeline
        self.ref: TableRef = lake.ref("control", self.NAME)

    def create(self) -> None:
        if not self.lake.exists(self.ref):
            self.lake.create(self.ref, (PIPELINE, *self.FIELDS), comment=self.COMMENT)

    def select(self, where: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """This pipeline's rows; ``where`` as in :meth:`Lake.rows`. None if the table does not exist."""
        return self.lake.rows(self.ref, where={"pipeline": self.pipeline, **(where or {})})

    def insert(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        txn: Txn | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Append rows; with ``txn`` a repeat of the same version is skipped."""
        if rows:
            full = [{"pipeline": self.pipeline, **row} for row in rows]
            self.lake.append_rows(self.ref, full, txn=txn, metadata=metadata)


def now() -> datetime:
    return datetime.now(timezone.utc)
