"""Pipelines from a PostgreSQL server through the runner to silver, for the tests that go all the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines import workload
from tests.engines.connect_server import ConnectServer
from tests.engines.pipelines import PipelineUnderTest
from tests.servers import postgresql
from tests.servers.postgresql import Database, Server

MakePipeline = Callable[..., PipelineUnderTest]


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """One JVM for all of these tests."""
    with ConnectServer(tmp_path_factory.mktemp("spark") / "spark.log") as server:
        yield server


@pytest.fixture(scope="session")
def recording_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that keeps commit times, for workloads with a recorded history."""
    with postgresql.running("16", workload.SETTINGS) as server:
        assert isinstance(server, EmbeddedPostgres)
        yield server


@pytest.fixture
def recorded_database(recording_postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A database with the workload's tables, first rows and triggers."""
    with postgresql.database(recording_postgres) as made:
        workload.create(made)
        yield made


def source_section(database: Database, folder: Path, **properties: Any) -> dict[str, Any]:
    """The ``source`` section of a pipeline file; the password is in a file beside it."""
    server: Server = database.server
    secret = folder / "password"
    secret.write_text(server.password, encoding="utf-8")
    return {
        "connector.class": "postgresql",
        "database.hostname": server.host,
        "database.port": server.port,
        "database.user": server.user,
        "database.password": f"${{file:{secret}}}",
        "database.dbname": database.name,
        "table.include.list": r"public\..*",
        **{name.replace("_", "."): value for name, value in properties.items()},
    }


@pytest.fixture
def make_pipeline(connect_server: ConnectServer, tmp_path: Path) -> MakePipeline:
    """A function from a database to a pipeline; keywords are source properties (``snapshot_mode``)."""

    def make(database: Database, run: dict[str, Any] | None = None, **properties: Any) -> PipelineUnderTest:
        source = source_section(database, tmp_path, **properties)
        return PipelineUnderTest(connect_server, tmp_path, database.name, source, run or {})

    return make
