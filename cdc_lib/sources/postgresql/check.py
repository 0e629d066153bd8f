"""What ``cdc check`` says of a PostgreSQL source: rights, settings, tables, each with the SQL that mends it.

Every question is asked on its own, so that one missing right does not hide the other answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc_lib.errors import CdcError
from cdc_lib.pipeline import SourceConfig
from cdc_lib.schema import Identity, TableId
from cdc_lib.source import Finding, Severity
from cdc_lib.sources.postgresql import publication, slot
from cdc_lib.sources.postgresql.catalog import Relation, type_catalog
from cdc_lib.sources.postgresql.connection import rows
from cdc_lib.sources.postgresql.errors import translated
from cdc_lib.sources.postgresql.shape import Shape, assert_key, quoted

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

OLDEST_VERSION = 140000
"""pgoutput's ``messages`` option and scans by row place came with PostgreSQL 14."""


@dataclass(frozen=True)
class Subject:
    """What is examined."""

    config: SourceConfig
    connection: Connection
    relations: Mapping[TableId, Relation]

    def ask(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return rows(self.connection, query, parameters or None)

    @property
    def user(self) -> str:
        return '"' + str(self.config["database.user"]).replace('"', '""') + '"'


def findings(
    config: SourceConfig, connection: Connection, relations: Mapping[TableId, Relation]
) -> list[Finding]:
    """All findings, in the order in which one would mend them."""
    subject = Subject(config, connection, relations)
    return [finding for examine in EXAMINATIONS for finding in _answers(examine, subject)]


def _answers(examine: Callable[[Subject], Iterator[Finding]], subject: Subject) -> list[Finding]:
    try:
        with translated("this could not be examined"):
            return list(examine(subject))
    except CdcError as error:
        name = examine.__name__.strip("_").replace("_", " ")
        return [Finding("warning", name, f"{error.what}: {error.why}", error.remedy)]


def _server_version(subject: Subject) -> Iterator[Finding]:
    number = subject.connection.server_version
    text = f"PostgreSQL {number // 10000}.{number % 10000}"
    if number < OLDEST_VERSION:
        yield Finding("error", "server version", f"{text} is too old", "upgrade the server to 14 or later")
    else:
        yield Finding("ok", "server version", text)


def _standby(subject: Subject) -> Iterator[Finding]:
    [(recovering,)] = subject.ask("SELECT pg_catalog.pg_is_in_recovery()")
    if recovering:
        yield Finding(
            "error",
            "standby",
            "the server is a standby; slots are made on the primary, and a standby does not advance them",
            "point database.hostname to the primary",
        )


def _wal_level(subject: Subject) -> Iterator[Finding]:
    [(level,)] = subject.ask("SELECT pg_catalog.current_setting('wal_level')")
    if level == "logical":
        yield Finding("ok", "wal_level", "logical")
    else:
        yield Finding(
            "error",
            "wal_level",
            f"it is {level}, so the log does not have what is needed to decode rows",
            "ALTER SYSTEM SET wal_level = 'logical'; then restart the server "
            "(Amazon RDS: rds.logical_replication = 1; Azure: azure.replication_support = logical)",
        )


def _replication_right(subject: Subject) -> Iterator[Finding]:
    query = """
        SELECT r.rolsuper OR r.rolreplication OR EXISTS (
            SELECT FROM pg_catalog.pg_roles g
            WHERE g.rolname IN ('rds_replication') AND pg_catalog.pg_has_role(g.oid, 'MEMBER'))
        FROM pg_catalog.pg_roles r WHERE r.rolname = current_user
    """
    [(allowed,)] = subject.ask(query)
    if allowed:
        yield Finding("ok", "replication right", f"{subject.user} may use replication")
    else:
        yield Finding(
            "error",
            "replication right",
            f"{subject.user} may not use replication",
            f"ALTER ROLE {subject.user} REPLICATION (Amazon RDS: GRANT rds_replication TO {subject.user})",
        )


def _select_rights(subject: Subject) -> Iterator[Finding]:
    for table, relation in subject.relations.items():
        if not relation.readable:
            yield Finding(
                "error",
                str(table),
                f"{subject.user} may not read it",
                f"GRANT USAGE ON SCHEMA {_quoted(table.schema)} TO {subject.user}; "
                f"GRANT SELECT ON {quoted(table)} TO {subject.user}",
            )
        elif relation.row_security:
            yield Finding(
                "notice",
                str(table),
                "it has row security; a policy on this role stops the snapshot with an error",
                f"ALTER ROLE {subject.user} BYPASSRLS",
            )


def _capacity(subject: Subject) -> Iterator[Finding]:
    query = """
        SELECT pg_catalog.current_setting('max_replication_slots')::int
               - (SELECT count(*) FROM pg_catalog.pg_replication_slots),
               pg_catalog.current_setting('max_wal_senders')::int
               - (SELECT count(*) FROM pg_catalog.pg_stat_replication),
               EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)
    """
    [(slots, senders, exists)] = subject.ask(query, subject.config["slot.name"])
    # A snapshot beside an existing slot needs a temporary one.
    for name, left, wanted in (("max_replication_slots", slots, 1), ("max_wal_senders", senders, 1)):
        if left >= wanted:
            yield Finding("ok", name, f"{left} free")
        else:
            yield Finding(
                "warning" if exists else "error",
                name,
                "none is free; taking a snapshot needs one for a while",
                f"ALTER SYSTEM SET {name} = <more>; then restart the server, or drop a slot nobody uses",
            )


def _publication(subject: Subject) -> Iterator[Finding]:
    name, mode = subject.config["publication.name"], subject.config["publication.autocreate.mode"]
    tables = sorted(subject.relations)
    found = publication.find(subject.connection, name)
    if found is None:
        yield from _publication_to_create(subject, name, mode)
        return
    complaints = found.complaints(tables, [t for t in tables if subject.relations[t].partitioned])
    if not complaints:
        yield Finding("ok", "publication", f"{name} has all captured tables")
    mended = mode == "filtered" and found.ours and not found.all_tables
    for complaint in complaints:
        missing = mended and "does not have" in complaint.what
        severity: Severity = "notice" if missing else "error"
        remedy = "the next run adds them" if missing else complaint.remedy
        yield Finding(severity, "publication", complaint.what, remedy)


def _publication_to_create(subject: Subject, name: str, mode: str) -> Iterator[Finding]:
    sql = publication.create_text(name, sorted(subject.relations))
    [(may_create, superuser)] = subject.ask(
        """
        SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'), rolsuper
        FROM pg_catalog.pg_roles WHERE rolname = current_user
        """
    )
    foreign = [str(table) for table, relation in subject.relations.items() if not _owns(subject, relation)]
    if mode in ("disabled", "no_tables"):
        yield Finding(
            "error", "publication", f"{name} does not exist or has no tables, and mode is {mode}", sql
        )
    elif mode == "all_tables" and not superuser:
        yield Finding(
            "error", "publication", "only a superuser may publish all tables", f"as superuser: {sql}"
        )
    elif not may_create or (mode == "filtered" and foreign):
        why = f"{subject.user} does not own {', '.join(foreign)}" if foreign else "no CREATE on the database"
        yield Finding("error", "publication", f"{name} does not exist and cannot be created: {why}", sql)
    else:
        yield Finding("notice", "publication", f"{name} does not exist yet; the first run creates it")


def _owns(subject: Subject, relation: Relation) -> bool:
    [(owns,)] = subject.ask("SELECT pg_catalog.pg_has_role(%s, 'USAGE')", relation.owner)
    return bool(owns)


def _slot(subject: Subject) -> Iterator[Finding]:
    name = subject.config["slot.name"]
    state = slot.slot_state(subject.connection, name)
    if state is None:
        yield Finding("notice", "slot", f"{name} does not exist yet; the first run creates it")
        return
    try:
        slot.assert_usable(state, name)
    except CdcError as error:
        yield Finding("error", "slot", f"{error.what}: {error.why}", error.remedy)
        return
    if state.active_pid is not None:
        message = f"{name} is being read by server process {state.active_pid}"
        yield Finding("warning", "slot", message, "only one runner at a time can read it")
    else:
        yield Finding(
            "ok", "slot", f"{name} is there; it holds back {state.retained_bytes or 0:,} bytes of log"
        )


def _retention(subject: Subject) -> Iterator[Finding]:
    [(limit,)] = subject.ask(
        "SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'"
    )
    if limit < 0:
        yield Finding(
            "notice",
            "retention",
            "max_slot_wal_keep_size is not set: while the pipeline stands still, the log may fill the disk",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf(); and watch the lag",
        )
    else:
        yield Finding("ok", "retention", f"a slot may hold back {limit} MB of log before it is dropped")


def _tables_found(subject: Subject) -> Iterator[Finding]:
    count = len(subject.relations)
    if count:
        yield Finding("ok", "tables", f"{count} captured")
    else:
        remedy = "correct schema.include.list and table.include.list"
        yield Finding("error", "tables", "the filters let no table through", remedy)


def _identities(subject: Subject) -> Iterator[Finding]:
    shape = Shape(subject.config)
    for table, relation in subject.relations.items():
        full = f"ALTER TABLE {quoted(table)} REPLICA IDENTITY FULL"
        try:
            assert_key(relation, shape.key(relation))
        except CdcError as error:
            yield Finding("error", str(table), f"{error.what}: {error.why}", error.remedy)
            continue
        if relation.identity is Identity.NOTHING:
            yield Finding(
                "warning",
                str(table),
                "it has no usable replica identity: while it is published, UPDATE and DELETE on it fail at "
                "the source; rows that are only inserted are appended",
                f"{full}; or leave it out (table.include.list or table.exclude.list)",
            )
        elif not shape.key(relation):
            yield Finding(
                "notice",
                str(table),
                "it has no key: silver can only count equal rows, which takes a look at all of bronze "
                "whenever some were updated or deleted",
                "add a primary key, or name one in message.key.columns",
            )


def _columns(subject: Subject) -> Iterator[Finding]:
    shape, types = Shape(subject.config), type_catalog(subject.connection)
    for table, relation in subject.relations.items():
        for attribute, held in shape.columns(relation, types):
            if not held.known:
                subject_name = f"{table}.{attribute.name}"
                yield Finding("notice", subject_name, f"{held.source_type} arrives as its server text")
        if generated := [attribute.name for attribute in relation.attributes if attribute.generated]:
            yield Finding(
                "notice", str(table), f"generated columns are not in the log: {', '.join(generated)} left out"
            )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


EXAMINATIONS: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    _server_version,
    _standby,
    _wal_level,
    _replication_right,
    _tables_found,
    _select_rights,
    _capacity,
    _publication,
    _slot,
    _retention,
    _identities,
    _columns,
)
