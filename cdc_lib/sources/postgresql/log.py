"""Reads ranges of the log: one bulk COPY of what the slot would give, without moving the slot.

``peek`` gives the same range again as often as asked, which is what replaying a sealed batch needs. It is
never asked for ``streaming`` or ``two_phase``: those would give parts of transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc_lib.change import LogEvent, Progress, TransactionEnd
from cdc_lib.errors import CdcError, FixSource, ResnapshotNeeded
from cdc_lib.pipeline import SourceConfig
from cdc_lib.position import Position
from cdc_lib.schema import Table, TableId
from cdc_lib.source import LogReader
from cdc_lib.sources.postgresql import slot
from cdc_lib.sources.postgresql.connection import connect
from cdc_lib.sources.postgresql.copying import CopyStream
from cdc_lib.sources.postgresql.decode import LogDecoder
from cdc_lib.sources.postgresql.position import PostgresPosition, format_lsn
from cdc_lib.sources.postgresql.relations import CaptureRules
from cdc_lib.sources.postgresql.visibility import View

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection


class PostgresLog(LogReader):
    """See the module. ``control`` is the source's own connection, for questions asked in between.

    One read opens ``config.window_bytes`` of log at most: the server writes the result of peek to a temporary
    file before it sends the first row, so this bounds its disk and our waiting.
    """

    def __init__(
        self,
        config: SourceConfig,
        control: Connection,
        rules: CaptureRules,
        schemas: Mapping[TableId, Table],
    ) -> None:
        self._config = config
        self._control = control
        self._rules = rules
        self._schemas = schemas
        self._window = config.window_bytes
        self._unseen: tuple[int, ...] = ()

    def read(self, after: Position, upto: Position) -> Iterator[LogEvent]:
        assert isinstance(after, PostgresPosition)
        assert isinstance(upto, PostgresPosition)
        end = upto if upto.lsn <= after.lsn + self._window else after.at(after.lsn + self._window)
        self._unseen = after.unseen
        if after.lsn < end.lsn:
            yield from self._decoded(after, end)
        yield Progress(self._known(end, set()))

    def _decoded(self, after: PostgresPosition, end: PostgresPosition) -> Iterator[LogEvent]:
        name = self._config["slot.name"]
        decoder = LogDecoder(self._rules, self._schemas, after=after, upto=end)
        slot.assert_continues(self._control, name, after)
        slot.wait_until_free(self._control, name)
        with closing(connect(self._config, initial=False)) as connection, self._explained(after):
            query = self._query(connection, end)
            with CopyStream(connection, query, f"the log of slot {name} cannot be read") as stream:
                for received in stream:
                    yield from self._marked(decoder, decoder.feed(received))
            self._assert_published(connection)
            yield from self._marked(decoder, decoder.finish())

    def _marked(self, decoder: LogDecoder, events: Iterator[LogEvent]) -> Iterator[LogEvent]:
        """The events; where a batch may end, with the transactions that nobody else sees yet."""
        for event in events:
            if isinstance(event, TransactionEnd):
                assert isinstance(event.position, PostgresPosition)
                event = replace(event, position=self._known(event.position, decoder.transactions()))
            yield event

    def _known(self, position: PostgresPosition, emitted: set[int]) -> PostgresPosition:
        if emitted or self._unseen:
            view = View.of(self._control)
            self._unseen = view.hidden({*self._unseen, *map(view.full, emitted)})
        return replace(position, unseen=self._unseen)

    def _query(self, connection: Connection, end: PostgresPosition) -> str:
        from psycopg2 import sql
        from psycopg2.extensions import quote_ident

        publications = quote_ident(self._config["publication.name"], connection)
        query = sql.SQL(
            "COPY (SELECT lsn, xid, data FROM pg_catalog.pg_logical_slot_peek_binary_changes("
            "{slot}, {end}::pg_lsn, NULL, 'proto_version', '1', 'publication_names', {publications}, "
            "'messages', 'true')) TO STDOUT (FORMAT binary)"
        ).format(
            slot=sql.Literal(self._config["slot.name"]),
            end=sql.Literal(format_lsn(end.lsn)),
            publications=sql.Literal(publications),
        )
        text: str = query.as_string(connection)
        return text

    def _assert_published(self, connection: Connection) -> None:
        """PostgreSQL 18 only warns where a publication did not exist yet; earlier servers refuse."""
        name = self._config["publication.name"]
        if any(name in notice for notice in connection.notices):
            raise self._unpublished()

    def _unpublished(self) -> CdcError:
        name = self._config["publication.name"]
        return ResnapshotNeeded(
            f"the publication {name} did not exist when these changes were made",
            why="it was dropped and created again; the log cannot be read with a publication that is younger",
            remedy="take the tables again: cdc snapshot",
        )

    @contextmanager
    def _explained(self, after: PostgresPosition) -> Iterator[None]:
        """Servers say little about why a slot cannot be read; its state says more."""
        try:
            yield
        except FixSource as error:
            slot.assert_continues(self._control, self._config["slot.name"], after)
            if "42704" in error.why:
                raise self._unpublished() from None
            raise
