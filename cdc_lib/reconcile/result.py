"""What a reconciliation found, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["different", "not known", "missing in silver", "only in silver"]


@dataclass(frozen=True)
class Difference:
    """One cell, or a row that one side does not have (then ``column`` is empty). Values are cut around the
    first character that differs; NULL is without quotes, text within."""

    kind: Kind
    key: Mapping[str, str]
    column: str = ""
    source: str | None = None
    silver: str | None = None


@dataclass(frozen=True)
class TableResult:
    """One table. Rows: ``equal`` are the same on both sides; ``wrong`` have another value in silver,
    ``unknown`` a value that silver lists as not known; ``lost`` are missing in silver, ``extra`` only there.

    ``kept``: columns of silver that the source no longer has, not compared. ``lacking``: columns of the
    source that silver does not have, or not with a type that goes with it; a difference by themselves.
    ``differences``: the first few. ``repaired``: rows that a repair mended; ``remedy`` what else to do.
    """

    table: str
    source_rows: int
    silver_rows: int
    equal: int
    wrong: int = 0
    unknown: int = 0
    lost: int = 0
    extra: int = 0
    kept: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    repaired: int = 0
    remedy: str = ""

    @property
    def different(self) -> int:
        """Rows of either side that have no equal on the other; a pair of them under one key is one."""
        return self.wrong + self.unknown + self.lost + self.extra

    @property
    def same(self) -> bool:
        """Whether silver equals the source now, after a repair if there was one."""
        return self.different == self.repaired and not self.lacking

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "different": self.different, "same": self.same}


@dataclass(frozen=True)
class Skipped:
    """A table that was not compared, and why."""

    table: str
    reason: str


@dataclass(frozen=True)
class Reconciled:
    """All tables, as of ``position`` of the source's log."""

    position: str
    tables: tuple[TableResult, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether silver was found equal to the source, or made so. Nothing compared proves nothing."""
        return bool(self.tables) and all(table.same for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        return {
            "same": self.same,
            "position": self.position,
            "tables": [table.to_dict() for table in self.tables],
            "skipped": [asdict(table) for table in self.skipped],
            "seconds": self.metrics.get("seconds"),
        }
