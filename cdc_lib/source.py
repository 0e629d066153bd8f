"""The source contract: what an engine must offer, and how one is found.

An engine is one folder under ``sources/``, one line in :data:`ENGINES` and one conformance test class.
Engines never import Spark, and import their driver only inside functions.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, Literal

import pyarrow as pa
from typing_extensions import Self

from cdc_lib.change import ChangeBatch, LogEvent
from cdc_lib.config import SourceConfig
from cdc_lib.errors import FixConfiguration, RetryLater
from cdc_lib.position import Position
from cdc_lib.schema import Table, TableId

Severity = Literal["ok", "notice", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One result of a check. ``remedy`` is the SQL or the setting that mends it, ready to paste."""

    severity: Severity
    subject: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do; declared, shown by ``cdc status``, never found out by catching an exception."""

    consistent_snapshot: bool = True
    key_range_chunks: bool = True
    truncate_events: bool = True
    shared_views: bool = False
    """Other processes can join the view of a snapshot (:meth:`SnapshotSession.share`)."""
    logical_messages: bool = False


@dataclass(frozen=True)
class Span:
    """The part of the log that can be read now.

    ``oldest`` is None where the source keeps the log for us (a slot) and nothing is lost;
    ``retained_bytes`` is what the source holds back because of us, ``headroom_bytes`` what it may still
    hold back before it drops the log (None: no limit known).
    """

    oldest: Position | None
    newest: Position
    retained_bytes: int | None = None
    headroom_bytes: int | None = None


@dataclass(frozen=True)
class Preparation:
    """One thing that a run would make or change at the source.

    ``subject`` is a kind of object there (slot, publication, heartbeat), ``statement`` the SQL that does it,
    where there is one; ``added`` and ``removed`` are tables.
    """

    action: Literal["create", "alter", "release", "execute"]
    subject: str
    name: str
    statement: str = ""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chunk:
    """A part of a table that is read in one go.

    ``lower`` (inclusive) and ``upper`` (exclusive) bound the key, one text per key column in the server's
    own spelling; None is open. ``rows`` is an estimate. ``keys``, where given, names the rows instead: a
    column for each of the key, as bronze and silver hold it. A key that the engine cannot look up in that
    form finds no row.
    """

    table: TableId
    number: int
    lower: tuple[str, ...] | None = None
    upper: tuple[str, ...] | None = None
    rows: int | None = None
    keys: pa.Table | None = None


@dataclass(frozen=True)
class SnapshotSpec:
    """Which tables to read in one consistent view, in pieces of about how many rows, by how many threads.

    ``keep``: streaming will go on from the view's position, so the source must keep the log from there.
    """

    tables: Sequence[TableId]
    chunk_rows: int = 250_000
    threads: int = 2
    keep: bool = True


class TableSession(ABC):
    """Reads whole tables in pieces; a context manager."""

    @abstractmethod
    def table(self, table: TableId) -> Table:
        """The structure of a table: in one view, that of the view; else, as of now."""

    @abstractmethod
    def chunks(self, table: TableId) -> list[Chunk]:
        """Pieces that together cover the table exactly once, and every row that it will have where changes go
        on. By ranges of the key; one piece where the server cannot order it."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class SharedView:
    """A consistent view that sessions of other processes can join as long as the one that opened it lives.

    ``name`` is the server's name for it, ``captured_us`` when it was opened, in microseconds since 1970.
    """

    name: str
    position: Position
    captured_us: int


class SnapshotSession(TableSession):
    """One consistent view of some tables at one log position; structures cannot change while it is open.

    ``position``: the view holds exactly the transactions up to it; the log after it has all others.
    """

    position: Position

    @abstractmethod
    def rows(self, chunk: Chunk) -> Iterator[ChangeBatch]:
        """Rows of a chunk as ``op`` ``r``; ordinals start at 0. Called from several threads at once."""

    def share(self) -> SharedView:
        """The view, for :meth:`Source.joined`. Only where :class:`Capabilities` say so."""
        raise NotImplementedError

    def assert_unchanged(self, table: TableId) -> None:
        """What others have read of a table in the shared view counts: nothing changed it up to now.

        :raises RetryLater: something did.
        """
        raise NotImplementedError


class PieceRefused(RetryLater):
    """What was read of a table cannot be used: its structure is not the one expected. Read it again."""


class IncrementalSession(TableSession):
    """Pieces of tables, each read in a view of its own while changes flow.

    Takes no lock that stops writers. A piece is never read while the table's structure changes.
    """

    @abstractmethod
    def rows(self, chunk: Chunk, after: Position, expected: Table) -> Iterator[ChangeBatch]:
        """Rows of a piece as ``op`` ``r`` at position ``after``, in one view that shows every transaction
        that committed up to there, and maybe later ones; ordinals start at 0. Called from several threads.

        :raises PieceRefused: the table does not have the structure ``expected``.
        :raises RetryLater: a transaction up to ``after`` stays invisible.
        """


class LogReader(ABC):
    """Reads ranges of the log."""

    @abstractmethod
    def read(self, after: Position, upto: Position) -> Iterator[LogEvent]:
        """Exactly the transactions with ``after`` < commit <= ``upto``, in commit order.

        Ordinals start at 0 in each read. Bounded: ends with ``Progress(p)``; ``p`` is ``upto``, or less where
        the reader limits how much of the log it opens at once (the caller then reads on from there). The same
        range gives the same rows again as long as the source still has it. Closing the iterator early ends
        the read at the server.
        A table whose structure is not the one in ``schemas`` is announced by a SchemaChange first.
        """


class Source(ABC):
    """A database whose changes are captured; a context manager, connected between enter and exit.

    All methods raise the classes of ``cdc_lib.errors`` only; a lost connection is ``RetryLater``.
    """

    capabilities: ClassVar[Capabilities]
    position_type: ClassVar[type[Position]]
    source_type: ClassVar[pa.DataType]
    """The struct of position fields in each row's ``source``; holds at least ``ts_ms`` and ``snapshot``."""

    def __init__(self, config: SourceConfig) -> None:
        self.config = config

    @abstractmethod
    def connect(self) -> None:
        """Open the control connection and assert what the decoders rely on (encoding, time zone)."""

    @abstractmethod
    def close(self) -> None:
        """Close everything this source opened; idempotent."""

    @abstractmethod
    def check(self) -> list[Finding]:
        """Rights and settings, each with the SQL that mends it. Writes nothing; a finding never raises."""

    @abstractmethod
    def tables(self) -> list[TableId]:
        """The captured tables: those that exist and pass the filters, in order of name."""

    @abstractmethod
    def describe(self, table: TableId) -> Table:
        """Structure of a captured table as of now, filtered columns left out.

        :raises FixConfiguration: the table does not exist or cannot be read.
        """

    @abstractmethod
    def span(self) -> Span:
        """What can be read now. ``newest`` is safe: every commit at or below it is already in the log that
        :meth:`log` sees, and nothing will ever be added at or below it."""

    @abstractmethod
    def prepare(self, tables: Sequence[TableId], committed: Position | None) -> None:
        """Make the source ready to stream ``tables`` (publication, rights), and prove that the log still
        joins up with ``committed``, the last position that is durable on our side (None: a new pipeline).

        :raises ResnapshotNeeded: the slot is gone, was moved past us, or the server has another history.
        :raises RetryLater: somebody else is reading from the slot.
        """

    @abstractmethod
    def unlogged(self, tables: Sequence[TableId]) -> list[TableId]:
        """Those whose changes the source does not log for us now: some are missing from the log, whatever
        :meth:`prepare` then does. Writes nothing."""

    @abstractmethod
    def preview(
        self, tables: Sequence[TableId], committed: Position | None, *, keep: bool = True
    ) -> list[Preparation]:
        """What :meth:`prepare`, and :meth:`start` or :meth:`release` behind it, would make or change at the
        source. Writes nothing; needs no right that writing needs.

        :param keep: streaming goes on from here, so that the source must keep the log.
        :raises: what :meth:`prepare` would raise.
        """

    @abstractmethod
    def pieces(self, table: TableId, chunk_rows: int, *, one_view: bool) -> list[Chunk]:
        """What ``chunks`` of a snapshot (``one_view``) or of an incremental session would give now; writes
        nothing."""

    @abstractmethod
    def start(self) -> Position:
        """Where streaming starts for a new pipeline without a snapshot; creates the slot if needed."""

    @abstractmethod
    def snapshot(self, spec: SnapshotSpec) -> SnapshotSession:
        """Open one consistent view of the tables. For a new pipeline its position is also where streaming
        starts, and it creates the slot (unless ``spec.keep`` is off); later ones use a temporary slot."""

    def with_open_writers(self, position: Position) -> Position:
        """``position``, after which pieces are read of tables whose changes have only just begun to reach us.
        What transactions that are open now wrote to them before is in no log, so a piece must show it."""
        return position

    @abstractmethod
    def incremental(self, spec: SnapshotSpec) -> IncrementalSession:
        """Read these tables in pieces while changes flow; only for tables with a key."""

    def joined(self, view: SharedView, chunk: Chunk, expected: Table) -> Iterator[ChangeBatch]:
        """Rows of a chunk, as :meth:`SnapshotSession.rows` gives them, in a view that another process opened.
        Needs no :meth:`connect`. Only where :class:`Capabilities` say so.

        :raises PieceRefused: somebody waits to alter the table; only who has locked it before can read it.
        """
        raise NotImplementedError

    @abstractmethod
    def log(self, tables: Sequence[TableId], schemas: Mapping[TableId, Table]) -> LogReader:
        """A reader for these tables, starting out from the structures in ``schemas``."""

    def begin_anew(self) -> None:
        """The log no longer joins up with what we have, and everything is about to be read again: clear away
        what would hinder a new start (a slot whose log is lost). What can still be used stays."""

    @abstractmethod
    def release(self, upto: Position) -> None:
        """Allow the source to forget everything up to ``upto``. Idempotent; never goes back."""

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Engine:
    """Where an engine lives (``module:Class``), the names it goes by, the extra that installs its driver."""

    target: str
    extra: str
    aliases: tuple[str, ...] = field(default=())


ENGINES: Mapping[str, Engine] = {
    "postgresql": Engine(
        "cdc_lib.sources.postgresql.source:PostgresSource",
        extra="postgresql",
        aliases=("postgres", "io.debezium.connector.postgresql.PostgresConnector"),
    ),
}


def open_source(config: SourceConfig) -> Source:
    """The source of a configuration, not yet connected.

    :raises FixConfiguration: its driver is not installed.
    """
    engine = ENGINES[config.engine]
    module, _, name = engine.target.partition(":")
    try:
        cls = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise FixConfiguration(
            f"the driver for {config.engine} is not installed",
            why=f"module {error.name} is missing",
            remedy=f"pip install 'cdc-lib[{engine.extra}]'",
        ) from None
    source: Source = cls(config)
    return source
