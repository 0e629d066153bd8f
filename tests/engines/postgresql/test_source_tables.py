"""Which tables are captured and what they look like, asked of a real server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cdc_lib.errors import FixConfiguration
from cdc_lib.schema import Identity
from cdc_lib.source import Finding
from cdc_lib.sources.postgresql.source import PostgresSource
from cdc_lib.types import TIMESTAMP
from tests.engines.postgresql.observing import table
from tests.servers import postgresql
from tests.servers.postgresql import Database

SHOP = (
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.orders (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), "
    "total numeric(12,2), twice numeric GENERATED ALWAYS AS (total * 2) STORED, secret text)",
    "COMMENT ON TABLE shop.orders IS 'what people bought'",
    "COMMENT ON COLUMN shop.orders.total IS 'in euro'",
    "CREATE TABLE shop.log (line text)",
    'CREATE TABLE public."Mixed Case" (id int)',
    "CREATE TEMP TABLE passing (id int)",
    "CREATE UNLOGGED TABLE public.fleeting (id int)",
    "CREATE VIEW public.seen AS SELECT 1 AS one",
)


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(*SHOP)
    return database


@pytest.mark.parametrize(
    ("properties", "captured"),
    [
        ({}, ["public.Mixed Case", "shop.log", "shop.orders"]),
        ({"schema_include_list": ("shop",)}, ["shop.log", "shop.orders"]),
        ({"schema_exclude_list": ("SHOP",)}, ["public.Mixed Case"]),
        ({"table_include_list": (r"shop\.o.*", r"public\.mixed case")}, ["public.Mixed Case", "shop.orders"]),
        ({"table_include_list": ("orders",)}, []),
        ({"table_exclude_list": (r"shop\.log",)}, ["public.Mixed Case", "shop.orders"]),
    ],
)
def test_filters_match_whole_names(shop: Database, properties: dict[str, Any], captured: list[str]) -> None:
    with PostgresSource(shop.config(**properties)) as source:
        assert [str(one) for one in source.tables()] == captured


def test_columns_with_types_comments_and_defaults(shop: Database) -> None:
    with PostgresSource(shop.config()) as source:
        orders = source.describe(table("orders", "shop"))
    assert orders.comment == "what people bought"
    assert [(one.name, one.type, one.source_type, one.nullable) for one in orders.columns] == [
        ("id", pa.int64(), "bigint", False),
        ("at", TIMESTAMP, "timestamp with time zone", False),
        ("total", pa.decimal128(12, 2), "numeric(12,2)", True),
        ("secret", pa.string(), "text", True),
    ]
    assert orders.column("total").comment == "in euro"
    assert orders.column("at").default == "now()"
    assert orders.column("total").default is None


def test_column_filters_never_take_the_key(shop: Database) -> None:
    config = shop.config(column_exclude_list=(r"shop\.orders\.(id|secret)",))
    with PostgresSource(config) as source:
        assert source.describe(table("orders", "shop")).names == ("id", "at", "total")


KEYS = [
    ("PRIMARY KEY (b, a)", None, ("b", "a"), Identity.KEY),
    ("UNIQUE (a)", None, (), Identity.NOTHING),
    ("UNIQUE (a)", "FULL", (), Identity.FULL),
    ("PRIMARY KEY (a)", "NOTHING", ("a",), Identity.NOTHING),
    ("UNIQUE (b, a)", "USING INDEX t_b_a_key", ("b", "a"), Identity.KEY),
    ("PRIMARY KEY (a), UNIQUE (b)", "USING INDEX t_b_key", ("b",), Identity.KEY),
    ("PRIMARY KEY (a), UNIQUE (b, a)", "USING INDEX t_b_a_key", ("a",), Identity.KEY),
]


@pytest.mark.parametrize(("constraint", "identity", "key", "says"), KEYS)
def test_key_is_what_the_log_carries(
    database: Database, constraint: str, identity: str | None, key: tuple[str, ...], says: Identity
) -> None:
    database.execute(f"CREATE TABLE t (a int NOT NULL, b int NOT NULL, c int, {constraint})")
    if identity:
        database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    with PostgresSource(database.config()) as source:
        found = source.describe(table("t"))
    assert (found.key, found.identity) == (key, says)


def test_chosen_key_needs_a_full_identity(database: Database) -> None:
    """With the default identity the log of a delete would not have the chosen columns."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, code text)")
    config = database.config(message_key_columns=((r"public\.t", ("code",)),))
    with PostgresSource(config) as source:
        with pytest.raises(FixConfiguration, match="not in the log"):
            source.prepare([table("t")], None)
        assert any(
            one.severity == "error" and "REPLICA IDENTITY FULL" in one.remedy for one in source.check()
        )
        database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        source.prepare([table("t")], None)
        assert source.describe(table("t")).key == ("code",)


def test_chosen_key_must_exist(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = database.config(message_key_columns=((r"public\.t", ("nope",)),))
    with PostgresSource(config) as source, pytest.raises(FixConfiguration, match="no column nope"):
        source.describe(table("t"))


def test_missing_table_is_named(database: Database) -> None:
    with PostgresSource(database.config()) as source:
        for act in (
            lambda: source.describe(table("gone")),
            lambda: source.prepare([table("gone")], None),
        ):
            with pytest.raises(FixConfiguration, match=r"public\.gone"):
                act()


# -- check ---------------------------------------------------------------------------------------------


def found(database: Database, **properties: Any) -> dict[str, Finding]:
    with PostgresSource(database.config(**properties)) as source:
        return {one.subject: one for one in source.check()}


def test_check_writes_nothing(shop: Database) -> None:
    found(shop)
    assert shop.rows("SELECT count(*) FROM pg_publication") == [(0,)]
    assert shop.rows("SELECT count(*) FROM pg_replication_slots WHERE database = %s", (shop.name,)) == [(0,)]


def test_check_of_a_server_that_is_ready(shop: Database) -> None:
    findings = found(shop, table_include_list=(r"shop\.orders",))
    assert not [one for one in findings.values() if one.severity in ("warning", "error")]
    assert findings["wal_level"].severity == "ok"
    assert "twice" in findings["shop.orders"].message


def test_check_warns_of_updates_that_will_fail_at_the_source(shop: Database) -> None:
    finding = found(shop)["shop.log"]
    assert finding.severity == "warning"
    assert 'ALTER TABLE "shop"."log" REPLICA IDENTITY FULL' in finding.remedy


def test_check_names_columns_that_arrive_as_text(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, place point, plain text)")
    findings = found(database)
    assert "server text" in findings["public.t.place"].message
    assert "public.t.plain" not in findings


def test_check_of_a_table_that_is_not_there(shop: Database) -> None:
    finding = found(shop, table_include_list=("shop.orders", "shop.gone"))["tables"]
    assert (finding.severity, "shop.gone" in finding.message) == ("error", True)


def test_check_of_filters_that_let_nothing_through(database: Database) -> None:
    assert found(database, table_include_list=("nowhere",))["tables"].severity == "error"


def test_check_of_a_server_without_logical_log() -> None:
    with (
        postgresql.running("16", {"wal_level": "replica"}) as server,
        postgresql.database(server) as database,
    ):
        finding = found(database)["wal_level"]
    assert (finding.severity, "wal_level = 'logical'" in finding.remedy) == ("error", True)
