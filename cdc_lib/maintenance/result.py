"""What a maintenance did, or would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class TableUpkeep:
    """One table: ``files`` before and ``files_after``, ``removed`` files that no version needed.

    In a plan, ``files_after`` is None where files would be put together, and ``removed`` would be. ``left``:
    what was not done and why; ``finding``: somebody has to look at that.
    """

    table: str
    files: int
    bytes: int
    files_after: int | None = None
    removed: int = 0
    left: str = ""
    finding: bool = False


@dataclass(frozen=True)
class Expired:
    """So many rows of a control table that nothing needed any more."""

    table: str
    rows: int


@dataclass(frozen=True)
class Maintained:
    """All of it; ``planned``: nothing was written."""

    planned: bool
    tables: tuple[TableUpkeep, ...] = ()
    expired: tuple[Expired, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether nobody has to look at anything."""
        return not any(table.finding for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        del found["metrics"]
        return found
