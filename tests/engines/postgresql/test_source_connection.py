"""Connections that cannot be made, and what the error says and does not say."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from cdc_lib.errors import CdcError, FixConfiguration, FixSource, RetryLater
from cdc_lib.sources.postgresql.connection import SETTINGS, connect, rows
from cdc_lib.sources.postgresql.source import PostgresSource
from tests.servers import postgresql
from tests.servers.postgresql import Database, Server

PASSWORD = "wrong-and-secret"

REFUSED: list[tuple[str, dict[str, Any], type[CdcError]]] = [
    ("password", {"database_password": PASSWORD}, FixConfiguration),
    ("no password", {"database_password": None}, FixConfiguration),
    ("database", {"database_dbname": "nowhere"}, FixConfiguration),
    ("role", {"database_user": "nobody_here"}, FixConfiguration),
    ("TLS", {"database_sslmode": "require"}, FixConfiguration),
    ("certificate", {"database_sslmode": "verify-full", "database_sslrootcert": "/no/ca"}, FixConfiguration),
    ("port", {"database_port": 1}, RetryLater),
]


@pytest.mark.parametrize(
    ("properties", "kind"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refused_connection(database: Database, properties: dict[str, Any], kind: type[CdcError]) -> None:
    with pytest.raises(kind) as caught, PostgresSource(database.config(**properties)):
        pass
    assert caught.value.remedy
    # Nothing that is printed, pickled or logged has the password; libpq's text may repeat what it was given.
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(caught.value.args)
    assert PASSWORD not in shown
    assert database.server.password not in shown


def test_session_settings_do_not_depend_on_the_role(database: Database) -> None:
    role = f"odd_{database.name}"
    database.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'pw'",
        f"ALTER ROLE {role} SET datestyle = 'German, DMY'",
        f"ALTER ROLE {role} SET timezone = 'Asia/Tokyo'",
        f"ALTER ROLE {role} SET intervalstyle = 'iso_8601'",
        f"ALTER ROLE {role} SET bytea_output = 'escape'",
        f"ALTER ROLE {role} SET extra_float_digits = 0",
        f"ALTER ROLE {role} SET statement_timeout = '1s'",
    )
    try:
        connection = connect(database.config(database_user=role, database_password="pw"))
        shown = dict(
            rows(connection, "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (list(SETTINGS),))
        )
        connection.close()
    finally:
        database.execute(f"DROP ROLE {role}")
    assert shown["DateStyle"] == "ISO, YMD"
    assert (shown["TimeZone"], shown["IntervalStyle"], shown["bytea_output"]) == ("UTC", "postgres", "hex")
    assert (shown["extra_float_digits"], shown["statement_timeout"]) == ("3", "0")


def test_connections_are_named_after_the_pipeline(database: Database) -> None:
    with PostgresSource(database.config()):
        assert database.rows(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (f"cdc_lib {database.name}",)
        ) == [(1,)]


def test_other_encodings_are_refused(postgres: Server) -> None:
    with (
        postgresql.database(postgres, "ENCODING 'SQL_ASCII' TEMPLATE template0") as database,
        pytest.raises(FixSource, match="SQL_ASCII"),
        PostgresSource(database.config()),
    ):
        pass


def test_row_security_is_an_error_and_not_a_filter(database: Database) -> None:
    """A policy would hide rows from the snapshot without a word."""
    role = f"limited_{database.name}"
    database.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'pw'",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON t USING (id > 5)",
        f"GRANT SELECT ON t TO {role}",
    )
    try:
        connection = connect(database.config(database_user=role, database_password="pw"))
        with pytest.raises(Exception, match="row-level security"):
            rows(connection, "SELECT * FROM public.t")
        connection.close()
    finally:
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_full_house_is_a_passing_fault(database: Database) -> None:
    role = f"single_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw' CONNECTION LIMIT 0")
    try:
        config = database.config(database_user=role, database_password="pw")
        with pytest.raises(RetryLater, match="no connection"), PostgresSource(config):
            pass
    finally:
        database.execute(f"DROP ROLE {role}")
