"""Sessions and what the pipeline file runs on them, against a stand-in for the driver's connection.

What a real server makes of the settings is tested with real servers; here it is when what is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
import pytest

from cdc_lib.config import parse
from cdc_lib.errors import FixConfiguration, RetryLater
from cdc_lib.pipeline import SourceConfig
from cdc_lib.sources.postgresql import heartbeat, slot
from cdc_lib.sources.postgresql.connection import SETTINGS, connect, connect_as_role
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.source import PostgresSource

HERE = PostgresPosition("7000", 1, 0x1000)


class Session:
    """Keeps settings as a server does, and what else it was sent."""

    server_version = 160004

    def __init__(self, failure: Exception | None = None) -> None:
        self.settings: dict[str, str] = {"TimeZone": "Europe/Berlin"}
        self.sent: list[str] = []
        self.open = True
        self.autocommit = False
        self.failure = failure
        self.result: list[tuple[Any, ...]] = []

    @contextmanager
    def cursor(self) -> Iterator[Session]:
        yield self

    def execute(self, query: str, parameters: Any = None) -> None:
        self.result = []
        if query.startswith("SELECT pg_catalog.set_config"):
            self.settings[parameters[0]] = parameters[1]
        elif "unnest" in query:
            self.result = [(name, self.settings[name]) for name in parameters[0]]
        elif "server_encoding" in query:
            self.result = [("UTF8",)]
        else:
            self.sent.append(query)
            if self.failure is not None:
                raise self.failure
            if found := re.fullmatch(r"SET (\w+) = '(.*)'", query):
                self.settings[found[1]] = found[2]

    @property
    def description(self) -> list[tuple[Any, ...]]:
        return self.result

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.result

    def close(self) -> None:
        self.open = False


def refusal(code: str, text: str) -> psycopg2.Error:
    """An error as the server sends it; the driver takes the code from there alone."""
    error = psycopg2.Error(text)
    error.__setstate__({"pgcode": code})
    return error


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Every session that is opened; they answer with success."""
    sessions: list[Session] = []

    def open_one(**_: Any) -> Session:
        sessions.append(Session())
        return sessions[-1]

    monkeypatch.setattr(psycopg2, "connect", open_one)
    return sessions


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Session:
    session = Session(error)
    monkeypatch.setattr(psycopg2, "connect", lambda **_: session)
    return session


def config(**properties: str) -> SourceConfig:
    source = {
        "connector.class": "postgresql",
        "database.hostname": "h",
        "database.user": "u",
        "database.dbname": "d",
    }
    given = {name.replace("_", "."): value for name, value in properties.items()}
    return parse({"name": "shop", "source": source | given, "target": {"path": "lake"}}).source


STATEMENTS = "SET work_mem = '64MB'; SELECT set_config('app.note', 'a;;b', false);"
SENT = ["SET work_mem = '64MB'", "SELECT set_config('app.note', 'a;b', false)"]


def test_initial_statements_run_on_sessions_that_ask(opened: list[Session]) -> None:
    connect(config(database_initial_statements=STATEMENTS))
    assert opened[0].sent == SENT
    assert {name: opened[0].settings[name] for name in SETTINGS} == SETTINGS


def test_initial_statements_do_not_run_where_the_log_is_read(opened: list[Session]) -> None:
    connect(config(database_initial_statements=STATEMENTS), initial=False)
    assert opened[0].sent == []


def test_initial_statements_cannot_change_what_values_depend_on(opened: list[Session]) -> None:
    with pytest.raises(FixConfiguration, match="changes settings that captured values depend on") as caught:
        connect(config(database_initial_statements="SET TimeZone = 'Asia/Tokyo'"))
    assert caught.value.why == "TimeZone is 'Asia/Tokyo'"
    assert not opened[0].open


def test_an_initial_statement_that_fails_is_a_mistake_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    session = fail(monkeypatch, refusal("42704", "no such parameter"))
    with pytest.raises(FixConfiguration, match=r"statement 1 of database\.initial\.statements") as caught:
        connect(config(database_initial_statements="SET x.secret = 'hunter2'"))
    assert "hunter2" not in str(caught.value)
    assert not session.open


def test_no_statement_runs_unless_asked_for(opened: list[Session]) -> None:
    connect(config())
    assert opened[0].sent == []


INSERT = "INSERT INTO beats (note) VALUES ('100%')"


def test_a_heartbeat_runs_with_the_settings_of_the_role(opened: list[Session]) -> None:
    given = config(heartbeat_action_query=INSERT, database_initial_statements="SET ROLE beat")
    heartbeat.Heartbeat(given).beat()
    assert opened[0].sent == ["SET ROLE beat", INSERT]
    assert opened[0].settings["TimeZone"] == "Europe/Berlin"
    assert opened[0].autocommit
    assert not opened[0].open


def test_heartbeats_keep_their_interval(opened: list[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    beating = heartbeat.Heartbeat(config(heartbeat_action_query=INSERT, heartbeat_interval_ms="2000"))
    counts = []
    for second in (0, 1, 2, 3, 5):
        now[0] = 1000.0 + second
        beating.beat()
        counts.append(len(opened))
    assert counts == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("given", [{}, {"heartbeat_action_query": INSERT, "heartbeat_interval_ms": "0"}])
def test_no_heartbeat_without_query_or_interval(opened: list[Session], given: dict[str, str]) -> None:
    heartbeat.Heartbeat(config(**given)).beat()
    assert opened == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refusal("42601", "syntax error"), FixConfiguration),
        (refusal("57P01", "terminating connection"), RetryLater),
        (psycopg2.OperationalError("server closed the connection"), RetryLater),
    ],
)
def test_a_heartbeat_that_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    session = fail(monkeypatch, error)
    with pytest.raises(kind, match=r"statement 1 of heartbeat\.action\.query"):
        heartbeat.Heartbeat(config(heartbeat_action_query=INSERT)).beat()
    assert not session.open


def test_a_session_of_the_role_is_closed_when_its_statements_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    session = fail(monkeypatch, refusal("42501", "permission denied"))
    with pytest.raises(FixConfiguration):
        connect_as_role(config(database_initial_statements="SET ROLE other"))
    assert not session.open


@pytest.mark.parametrize(
    ("given", "moved"),
    [
        ({}, [HERE]),
        ({"flush_lsn_source": "true", "lsn_flush_mode": "connector"}, [HERE]),
        ({"flush_lsn_source": "false"}, []),
        ({"lsn_flush_mode": "manual"}, []),
    ],
)
def test_the_slot_is_moved_unless_somebody_else_does(
    opened: list[Session],
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    moved: list[PostgresPosition],
) -> None:
    released: list[PostgresPosition] = []
    monkeypatch.setattr(slot, "advance", lambda connection, name, upto: released.append(upto))
    source = PostgresSource(config(heartbeat_action_query=INSERT, **given))
    source.connect()
    source.release(HERE)
    assert released == moved
    assert opened[1].sent == [INSERT]
