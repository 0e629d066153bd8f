"""Servers for the engine tests: started once a run, a fresh database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.servers import postgresql


@pytest.fixture(scope="session", params=postgresql.names(), ids=lambda name: f"postgresql-{name}")
def postgres(request: pytest.FixtureRequest) -> Iterator[postgresql.Server]:
    """Each of the PostgreSQL servers to test against."""
    if reason := postgresql.absent(request.param):
        pytest.skip(reason)
    with postgresql.running(request.param) as server:
        yield server


@pytest.fixture
def database(postgres: postgresql.Server) -> Iterator[postgresql.Database]:
    with postgresql.database(postgres) as made:
        yield made


@pytest.fixture
def own_postgres(postgres: postgresql.Server) -> EmbeddedPostgres:
    """The server, where a test may change its settings or stop it."""
    if not isinstance(postgres, EmbeddedPostgres):
        pytest.skip("this test changes the server's settings, and this server is not ours")
    return postgres
