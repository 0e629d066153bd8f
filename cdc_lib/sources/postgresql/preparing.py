"""What a run would make or change at the server before it reads, found out without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cdc_lib.pipeline import SourceConfig
from cdc_lib.position import Position
from cdc_lib.schema import TableId
from cdc_lib.source import Preparation
from cdc_lib.sources.postgresql import heartbeat, publication, slot
from cdc_lib.sources.postgresql.catalog import Relation
from cdc_lib.sources.postgresql.position import PostgresPosition

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection


class Preparing:
    """Looks through a connection that may be read-only."""

    def __init__(self, config: SourceConfig, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def publication(self, relations: Mapping[TableId, Relation]) -> list[Preparation]:
        """:raises FixSource: also as it would be then, it would leave changes of these tables out."""
        name, mode = self._config["publication.name"], self._config["publication.autocreate.mode"]
        tables = sorted(relations)
        found = publication.find(self._connection, name)
        due = publication.alteration(found, name, mode, tables)
        ready = found if due is None else due.after
        assert ready is not None
        publication.refuse_incomplete(ready, tables, [one for one in tables if relations[one].partitioned])
        if due is None:
            return []
        before = frozenset[TableId]() if found is None else found.tables
        return [
            Preparation(
                due.action,
                "publication",
                name,
                due.query.as_string(self._connection),
                added=_names(due.after.tables - before),
                removed=_names(before - due.after.tables),
            )
        ]

    def slot(self, committed: Position | None, *, keep: bool) -> list[Preparation]:
        """The slot, created or moved up, and the heartbeat's query, which goes with moving it."""
        if not keep:
            return []
        name = self._config["slot.name"]
        if committed is None:
            exists = slot.slot_state(self._connection, name) is not None
            return [] if exists else [Preparation("create", "slot", name)]
        assert isinstance(committed, PostgresPosition)
        due = []
        if releases(self._config) and slot.is_behind(self._connection, name, committed):
            due.append(Preparation("release", "slot", name))
        if heartbeat.is_wanted(self._config):
            due.append(Preparation("execute", "heartbeat", heartbeat.QUERY))
        return due


def releases(config: SourceConfig) -> bool:
    """Whether we let the server forget log, or somebody else does."""
    return bool(config["flush.lsn.source"]) and config["lsn.flush.mode"] == "connector"


def _names(tables: frozenset[TableId]) -> tuple[str, ...]:
    return tuple(map(str, sorted(tables)))
