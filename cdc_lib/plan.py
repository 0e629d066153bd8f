"""What ``cdc plan`` answers: the next run, said before it takes place. ``planning`` finds it out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cdc_lib.errors import CdcError
from cdc_lib.source import Preparation

Action = Literal["snapshot", "resume", "settle", "log", "bronze only", "none"]
"""``snapshot``: read whole. ``resume``: go on with a snapshot that was interrupted. ``settle``: delete what
vanished, and read by key what is not known. ``log``: follow its changes. ``none``: not captured any more, or
read whole and not followed."""
Effect = Literal["evolves", "snapshot", "refuses"]
"""What becomes of a change of structure: bronze and silver follow, the table is read again, the run ends."""


@dataclass(frozen=True)
class Stop:
    """An error that the run would end with; ``error`` is its class."""

    error: str
    what: str
    why: str
    remedy: str
    exit_code: int

    @classmethod
    def of(cls, error: CdcError) -> Stop:
        return cls(type(error).__name__, error.what, error.why, error.remedy, error.exit_code)


@dataclass(frozen=True)
class SealedWork:
    """A batch that was sealed and not committed. ``way``: from its staged files, or from the log again."""

    batch: int
    attempt: int
    after: str
    upto: str
    tables: list[str]
    rows: int
    way: Literal["staging", "log", ""] = ""


@dataclass(frozen=True)
class LogRange:
    """The log to read, as the source spells positions; ``bytes`` None where it does not count them."""

    after: str
    upto: str
    bytes: int | None


@dataclass(frozen=True)
class StructureChange:
    """How a table's structure differs from the one that is known. It takes effect with the table's next
    change in the log, or with its next piece."""

    kind: str
    column: str
    detail: str
    effect: Effect


@dataclass(frozen=True)
class PendingMerge:
    """Batches that silver lacks: above ``after``, up to ``upto``; ``rows`` None if nobody counted."""

    after: int
    upto: int
    rows: int | None


@dataclass(frozen=True)
class PlannedTable:
    """One table. ``state`` is that of the control table ``tables``, empty for a new one.

    ``chunks`` and ``rows`` of what is to be read whole: the pieces, and the server's estimate. ``way``:
    in windows while changes flow, or all in one view; empty where nothing is read whole.
    """

    table: str
    standing: Literal["new", "known", "gone"]
    state: str
    action: Action
    way: Literal["windows", "one view", ""] = ""
    chunks: int | None = None
    rows: int | None = None
    reason: str = ""
    changes: list[StructureChange] = field(default_factory=list)
    silver: PendingMerge | None = None


@dataclass(frozen=True)
class PlannedSignal:
    """A signal without an answer, and the answer it would get."""

    id: str
    type: str
    status: str
    text: str


@dataclass(frozen=True)
class Plan:
    """The next run of a pipeline.

    ``batch``
        The newest batch that stands before it reads anything: the committed one, or the sealed one that it
        finishes first.
    ``configuration``
        ``changed`` if the last batch was sealed under another one; the present one holds from the next on.
    ``stops``
        Errors that it would end with, in their order; the first of them counts.
    """

    pipeline: str
    batch: int = 0
    position: str = ""
    configuration: Literal["first", "unchanged", "changed"] = "first"
    stops: list[Stop] = field(default_factory=list)
    sealed: SealedWork | None = None
    source: list[Preparation] = field(default_factory=list)
    signals: list[PlannedSignal] = field(default_factory=list)
    log: LogRange | None = None
    tables: list[PlannedTable] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Nothing is known that would stop the run."""
        refused = any(change.effect == "refuses" for table in self.tables for change in table.changes)
        return not self.stops and not refused

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
