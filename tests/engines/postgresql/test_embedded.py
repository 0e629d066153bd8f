"""The embedded server: it keeps its data and password, is found again, and goes away by itself only."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from cdc_lib.embedded import EmbeddedPostgres
from cdc_lib.errors import FixConfiguration, RetryLater


def ask(server: EmbeddedPostgres, statement: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(
        host=server.host, port=server.port, user=server.user, password=server.password, dbname="postgres"
    )
    with closing(connection):
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []


def test_server_keeps_its_data_and_is_found_running(tmp_path: Path) -> None:
    """pytest's folder is closed to other accounts, so as root the data are kept elsewhere."""
    folder = tmp_path / "shop"
    with EmbeddedPostgres(folder, fsync=False) as server:
        ask(server, "CREATE TABLE kept AS SELECT 1 AS one")
        found = EmbeddedPostgres(folder, fsync=False)
        found.start()
        assert (found.pid, found.port) == (server.pid, server.port)
    assert server.pid is None
    again = EmbeddedPostgres(folder, settings={"work_mem": "5MB"})
    again.start()
    try:
        assert ask(again, "SELECT one FROM kept") == [(1,)]
        assert ask(again, "SELECT current_setting('fsync'), current_setting('work_mem')") == [("on", "5MB")]
    finally:
        again.remove()
    assert not folder.exists()
    assert not again.data.exists()


def test_password_is_needed_and_hidden(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "s", fsync=False)
    server.start()
    try:
        assert server.password not in repr(server)
        assert os.stat(server.folder / "password").st_mode & 0o077 == 0
        with pytest.raises(psycopg2.OperationalError):
            psycopg2.connect(
                host=server.host, port=server.port, user=server.user, password="no", dbname="postgres"
            )
    finally:
        server.remove()


def test_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "s", fsync=False, settings={"shared_buffers": "plenty"})
    try:
        with pytest.raises(RetryLater, match="shared_buffers"):
            server.start()
    finally:
        server.remove()


def test_unknown_version_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(FixConfiguration, match="16, 18"):
        EmbeddedPostgres(tmp_path, version=9)
