"""PostgreSQL servers for tests, and a fresh database on one of them for each test.

``CDC_TEST_POSTGRESQL`` lists the servers to test against, by default ``16,18``, the embedded ones; ``15``
is Debian's. ``CDC_TEST_POSTGRESQL_URL`` names one's own server instead (``postgresql://user:password@host``);
tests that restart or break the server are skipped there.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import psycopg2
import psycopg2.extras

from cdc_lib.embedded import EmbeddedPostgres
from cdc_lib.pipeline import SourceConfig

DEBIAN = {"15": Path("/usr/lib/postgresql/15/bin")}


class Server(Protocol):
    """Where a server listens and who may do everything there."""

    host: str
    port: int
    user: str

    @property
    def password(self) -> str: ...


@dataclass
class OwnServer:
    """A server that somebody else runs."""

    host: str
    port: int
    user: str
    password: str

    @classmethod
    def parse(cls, url: str) -> OwnServer:
        parts = urlsplit(url)
        return cls(
            parts.hostname or "localhost", parts.port or 5432, parts.username or "", parts.password or ""
        )


def names() -> list[str]:
    """The servers to test against."""
    if os.environ.get("CDC_TEST_POSTGRESQL_URL"):
        return ["url"]
    return os.environ.get("CDC_TEST_POSTGRESQL", "16,18").split(",")


def absent(name: str) -> str | None:
    """Why a server cannot be had here, None if it can."""
    if name in DEBIAN and not DEBIAN[name].exists():
        return f"Debian's postgresql-{name} is not installed"
    return None


@contextmanager
def running(name: str, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server that is thrown away afterwards, with :func:`names`' ``name``."""
    if name == "url":
        yield OwnServer.parse(os.environ["CDC_TEST_POSTGRESQL_URL"])
        return
    server = EmbeddedPostgres(
        Path(tempfile.mkdtemp(prefix="cdc-lib-test-")),
        version=16 if name in DEBIAN else int(name),
        bin=DEBIAN.get(name),
        fsync=False,
        settings=settings or {},
    )
    try:
        server.start()
        yield server
    finally:
        server.remove()


@dataclass
class Database:
    """A database of its own on a server, and a pipeline's configuration for it."""

    server: Server
    name: str = field(default_factory=lambda: f"t_{uuid.uuid4().hex[:12]}")

    @property
    def slot(self) -> str:
        return f"cdc_{self.name}"

    def create(self, options: str = "") -> None:
        self._administer(f'CREATE DATABASE "{self.name}" {options}')

    def drop(self) -> None:
        self._administer(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (self.name,)
        )
        self._administer(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
            (self.name,),
        )
        self._administer(f'DROP DATABASE "{self.name}" WITH (FORCE)')

    def connect(self, dbname: str | None = None, **arguments: Any) -> Any:
        """A superuser's connection in autocommit."""
        connection = psycopg2.connect(
            host=self.server.host,
            port=self.server.port,
            dbname=dbname or self.name,
            **{"user": self.server.user, "password": self.server.password, **arguments},
        )
        if "connection_factory" not in arguments:
            connection.autocommit = True
        return connection

    def connect_replication(self) -> psycopg2.extras.LogicalReplicationConnection:
        """A superuser's connection in the replication protocol."""
        made: psycopg2.extras.LogicalReplicationConnection = self.connect(
            connection_factory=psycopg2.extras.LogicalReplicationConnection
        )
        return made

    def execute(self, *statements: str) -> None:
        """Each statement in a transaction of its own."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, query: Any, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(query, parameters)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found

    def config(self, **properties: Any) -> SourceConfig:
        """The source's configuration; keyword ``table_include_list`` is property ``table.include.list``."""
        values = {
            "connector.class": "postgresql",
            "database.hostname": self.server.host,
            "database.port": self.server.port,
            "database.user": self.server.user,
            "database.password": self.server.password,
            "database.dbname": self.name,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        return SourceConfig("postgresql", self.name, values)

    def _administer(self, statement: str, parameters: Sequence[Any] | None = None) -> None:
        with closing(self.connect("postgres")) as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)


@contextmanager
def database(server: Server, options: str = "") -> Iterator[Database]:
    """A fresh database, dropped afterwards together with its slots."""
    made = Database(server)
    made.create(options)
    try:
        yield made
    finally:
        made.drop()
