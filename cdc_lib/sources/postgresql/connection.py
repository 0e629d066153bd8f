"""Connections whose text output is the same on every server, so that decoders can rely on it.

Values reach us as text, and several settings change that text. They are set on each session and asserted,
because a proxy in between may swallow a SET.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdc_lib.errors import CdcError, FixConfiguration, FixSource, RetryLater
from cdc_lib.pipeline import SourceConfig
from cdc_lib.sources.postgresql.errors import classify, translated

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

SETTINGS: Mapping[str, str] = {
    "client_encoding": "UTF8",
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    # Names in regclass-like values and in format_type come out qualified, whatever the role's path is.
    "search_path": "",
    # A policy would hide rows from the snapshot without a word; off makes the server raise instead.
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_isolation": "read committed",
}
"""What every session runs under. ``lc_monetary`` is left alone: it belongs to the values."""

LIBPQ: Mapping[str, str] = {
    "database.hostname": "host",
    "database.port": "port",
    "database.user": "user",
    "database.dbname": "dbname",
    "database.sslmode": "sslmode",
    "database.sslcert": "sslcert",
    "database.sslkey": "sslkey",
    "database.sslrootcert": "sslrootcert",
}
SECRETS: Mapping[str, str] = {"database.password": "password", "database.sslpassword": "sslpassword"}

INITIAL = "database.initial.statements"
CONNECT_SECONDS = 15
KEEPALIVE = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


def connect(config: SourceConfig, *, initial: bool = True) -> Connection:
    """A session in autocommit under :data:`SETTINGS`.

    :param initial: run ``database.initial.statements``; sessions that read the log do not (the guide).
    :raises FixConfiguration: wrong password, database or TLS settings, or initial statements that fail or
        change one of the settings.
    :raises FixSource: the database's encoding is not UTF8, or a setting does not hold.
    :raises RetryLater: the server does not answer.
    """
    connection = _open(config)
    try:
        with translated("the session cannot be prepared"):
            connection.autocommit = True
            _prepare(connection)
        if initial and config[INITIAL]:
            run_given(connection, INITIAL, config[INITIAL])
            with translated("the session cannot be examined"):
                _assert_untouched(connection)
    except CdcError:
        connection.close()
        raise
    return connection


def connect_as_role(config: SourceConfig) -> Connection:
    """A session in autocommit with the role's own settings, for SQL that the pipeline file brings along."""
    connection = _open(config)
    try:
        connection.autocommit = True
        run_given(connection, INITIAL, config[INITIAL])
    except CdcError:
        connection.close()
        raise
    return connection


def run_given(connection: Connection, prop: str, statements: Sequence[str]) -> None:
    """Run SQL that a property of the pipeline file holds.

    :raises RetryLater: the connection was lost, or the server is in trouble.
    :raises FixConfiguration: the server refuses a statement; it is told by number, since it may hold secrets.
    """
    import psycopg2

    for number, statement in enumerate(statements, start=1):
        try:
            execute(connection, statement)
        except psycopg2.Error as error:
            found = classify(error, f"statement {number} of {prop} cannot be run")
            if isinstance(found, RetryLater):
                raise found from None
            raise FixConfiguration(
                found.what, why=found.why, remedy=f"correct {prop}, or grant the role what it needs"
            ) from None


def connect_replication(config: SourceConfig) -> Connection:
    """A session in the replication protocol, for CREATE_REPLICATION_SLOT and the like."""
    from psycopg2.extras import LogicalReplicationConnection

    return _open(config, connection_factory=LogicalReplicationConnection)


def rows(
    connection: Connection, query: Any, parameters: Sequence[Any] | None = None
) -> list[tuple[Any, ...]]:
    """All rows of one query, a text or a ``psycopg2.sql`` composition; ``parameters`` are bound."""
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return cursor.fetchall() if cursor.description else []


def execute(connection: Connection, query: Any, parameters: Sequence[Any] | None = None) -> None:
    """One statement without a result."""
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)


def _open(config: SourceConfig, **more: Any) -> Connection:
    import psycopg2

    arguments: dict[str, Any] = {LIBPQ[name]: config[name] for name in LIBPQ}
    secrets = {SECRETS[name]: config.secret(name) for name in SECRETS}
    arguments |= {**secrets, **KEEPALIVE, **more, "connect_timeout": CONNECT_SECONDS}
    if config["database.tcpKeepAlive"] is False:
        arguments["keepalives"] = 0
    given = {name: value for name, value in arguments.items() if value not in (None, "")}
    where = f"{config['database.hostname']}:{config['database.port']}/{config['database.dbname']}"
    with translated(f"no connection to {where}", [value for value in secrets.values() if value]):
        opened: Connection = psycopg2.connect(application_name=f"cdc_lib {config.name}", **given)
    return opened


def _prepare(connection: Connection) -> None:
    wanted = _wanted(connection)
    for name, value in wanted.items():
        execute(connection, "SELECT pg_catalog.set_config(%s, %s, false)", (name, value))
    [(encoding,)] = rows(connection, "SELECT pg_catalog.current_setting('server_encoding')")
    _assert_encoding(encoding)
    if wrong := _not_kept(connection, wanted):
        raise FixSource(
            "the session does not keep its settings",
            why="; ".join(wrong),
            remedy="connect to the server itself and not through a pooler that shares sessions",
        )


def _assert_untouched(connection: Connection) -> None:
    if wrong := _not_kept(connection, _wanted(connection)):
        raise FixConfiguration(
            f"{INITIAL} changes settings that captured values depend on",
            why="; ".join(wrong),
            remedy="leave these settings out of it",
        )


def _wanted(connection: Connection) -> dict[str, str]:
    recent = connection.server_version >= 170000
    return {**SETTINGS, **({"transaction_timeout": "0"} if recent else {})}


def _not_kept(connection: Connection, wanted: Mapping[str, str]) -> list[str]:
    query = "SELECT name, pg_catalog.current_setting(name) FROM unnest(%s) name"
    found = dict(rows(connection, query, ([*wanted],)))
    return [f"{name} is {found[name]!r}" for name in wanted if not _same(found[name], wanted[name])]


def _assert_encoding(encoding: str) -> None:
    if encoding != "UTF8":
        raise FixSource(
            f"the database's encoding is {encoding}",
            why="only text of a UTF8 database can be carried over without guessing",
            remedy="move the data to a database made with ENCODING 'UTF8' TEMPLATE template0",
        )


def _same(found: str, wanted: str) -> bool:
    return found.strip('"').lower() == wanted.lower()
