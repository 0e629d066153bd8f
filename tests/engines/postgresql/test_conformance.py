"""The conformance suite against PostgreSQL: the two embedded servers, and Debian's where it is asked for.

``CDC_REQUIRE_ENGINES="postgresql-16 postgresql-18"`` makes a missing server a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from psycopg2 import sql

from tests.engines import kill, workload
from tests.engines.conformance import Conformance, EngineDatabase, InACatalog, Printed, PrintedRow, Tour
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import source_section
from tests.servers import postgresql
from tests.servers.postgresql import Database, Server

INFINITE = ["'infinity'", "'-infinity'"]
TYPES: Mapping[str, tuple[str, Sequence[str]]] = {
    "c_boolean": ("boolean", ["true", "false"]),
    "c_smallint": ("smallint", ["-32768", "32767", "0"]),
    "c_integer": ("integer", ["-2147483648", "2147483647"]),
    "c_bigint": ("bigint", ["-9223372036854775808", "9223372036854775807"]),
    "c_real": ("real", ["3.4028235e38", "1e-45", "'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "0.1"]),
    "c_double": (
        "double precision",
        ["1.7976931348623157e308", "4.9e-324", "'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "0.1", "1e15"],
    ),
    "c_decimal": ("numeric(10,2)", ["99999999.99", "-99999999.99", "0.01", "0", "'NaN'"]),
    "c_decimal38": ("numeric(38,9)", [f"{'9' * 29}.{'9' * 9}", f"-{'9' * 29}.999999999", "1"]),
    "c_decimal50": ("numeric(50,10)", [f"{'9' * 40}.{'1' * 10}", "0", "'NaN'"]),
    "c_numeric": ("numeric", ["1e100", "0.00000000000000000001000", "'NaN'", "12345678901234567890.5"]),
    "c_text": (
        "text",
        [
            "''",
            "'Ünïcode 🎉 漢字'",
            "E'tab\\t new\\nline back\\\\slash \"quote\" ''single'''",
            "'NULL'",
            "'\\N'",
        ],
    ),
    "c_varchar": ("varchar(10)", ["'ab '", "'1234567890'", "''"]),
    "c_char": ("char(5)", ["'ab'", "'12345'", "''"]),
    "c_name": ("name", ["'a_name'"]),
    "c_internal_char": ('"char"', ["'x'", "''"]),
    "c_bytea": ("bytea", ["'\\x'", "'\\x00ff10'", "convert_to('text', 'UTF8')"]),
    "c_date": (
        "date",
        ["'0001-01-01'", "'9999-12-31'", *INFINITE, "'0044-03-15 BC'", "'5874897-12-31'", "'2024-02-29'"],
    ),
    "c_time": ("time", ["'00:00'", "'24:00:00'", "'23:59:59.999999'", "'12:00:00.5'"]),
    "c_timetz": ("timetz", ["'00:00+00'", "'12:34:56.7+05:30'", "'24:00:00-15:59'"]),
    "c_timestamp": (
        "timestamp",
        [
            "'0001-01-01 00:00:00'",
            "'9999-12-31 23:59:59.999999'",
            *INFINITE,
            "'4713-01-01 00:00:00 BC'",
            "'294276-12-31 23:59:59.999999'",
            "'1969-12-31 23:59:59.5'",
        ],
    ),
    "c_timestamp0": ("timestamp(0)", ["'2024-01-01 00:00:00.5'"]),
    "c_timestamptz": (
        "timestamptz",
        [
            "'0001-01-01 00:00:00+00'",
            "'9999-12-31 23:59:59.999999+00'",
            *INFINITE,
            "'4713-01-01 00:00:00+00 BC'",
            "'2024-03-31 02:30:00+05:30'",
        ],
    ),
    "c_interval": ("interval", ["'1 year 2 mons -3 days 04:05:06.789'", "'-178000000 years'", "'0'"]),
    "c_uuid": ("uuid", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'00000000-0000-0000-0000-000000000000'"]),
    "c_json": ("json", ['\'{"a":1,  "a":null, "b": [1, 2.50]}\'', "'\"text\"'", "'null'"]),
    "c_jsonb": ("jsonb", ['\'{"b":1,  "a":null}\'', "'[1.10, 1e3]'"]),
    "c_enum": ("mood", ["'happy'", "'so so'"]),
    "c_domain": ("positive", ["1", "2147483647"]),
    "a_integer": ("integer[]", ["'{1,2,NULL,-3}'", "'{}'", "'[0:1]={5,6}'", "'{{1,2},{3,4}}'", "'{NULL}'"]),
    "a_text": (
        "text[]",
        ['\'{"a,b","",NULL,"NULL"}\'', "ARRAY[E'q\"uote', E'back\\\\slash', '{brace}', ' space ']", "'{}'"],
    ),
    "a_boolean": ("boolean[]", ["'{t,f,NULL}'"]),
    "a_bigint": ("bigint[]", ["'{9223372036854775807}'"]),
    "a_double": ("double precision[]", ["'{NaN,Infinity,-0,0.1}'"]),
    "a_decimal": ("numeric(6,2)[]", ["'{1.5,NULL,-9999.99}'", "'{NaN}'"]),
    "a_date": ("date[]", ["'{2024-02-29,NULL}'", "'{infinity,2024-02-29}'"]),
    "a_timestamp": ("timestamp[]", ["'{\"2024-02-29 12:00:00.25\"}'"]),
    "a_timestamptz": ("timestamptz[]", ["'{\"2024-02-29 12:00:00+02\",NULL}'"]),
    "a_uuid": ("uuid[]", ["'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'"]),
    "a_bytea": ("bytea[]", ["ARRAY['\\x00ff'::bytea, NULL]"]),
    "a_enum": ("mood[]", ["'{happy,\"so so\",NULL}'"]),
    "a_jsonb": ("jsonb[]", ['ARRAY[\'{"a": "b,c"}\'::jsonb]']),
    # Not typed yet: they arrive as the server's text.
    "o_point": ("point", ["'(1,2.5)'"]),
    "o_range": ("int4range", ["'[1,5)'", "'empty'"]),
    "o_inet": ("inet", ["'10.0.0.1/8'", "'::1'"]),
    "o_money": ("money", ["12.34"]),
    "o_bits": ("bit varying", ["B'10110'"]),
    "o_tsvector": ("tsvector", ["'fat cat'"]),
    "o_composite": ("pair", ["ROW(1, 'a,\"b')"]),
}

_COLUMNS = """
    SELECT a.attname, t.typcategory = 'A' FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# format() calls the type's own output function; a cast to text would cut a character(n) short.
_TEXT = "CASE WHEN {0} IS NOT NULL THEN format('%%s', {0}) END"
_ELEMENTS = """CASE WHEN {0} IS NOT NULL THEN (SELECT coalesce(json_agg(
    CASE WHEN e IS NOT NULL THEN format('%%s', e) END ORDER BY o), '[]')::text
    FROM unnest({0}) WITH ORDINALITY AS u(e, o)) END"""


class PostgresDatabase(EngineDatabase):
    """A database of a PostgreSQL server."""

    schema = "public"

    def __init__(self, server: Server) -> None:
        self.database = Database(server)
        self.name = self.database.name

    def __enter__(self) -> PostgresDatabase:
        self.database.create()
        return self

    def __exit__(self, *error: object) -> None:
        self.database.drop()

    def execute(self, *statements: str) -> None:
        self.database.execute(*statements)

    def transaction(self, *statements: str) -> None:
        self.database.execute("BEGIN", *statements)

    def rows(self, table: str) -> list[PrintedRow]:
        columns = self.database.rows(_COLUMNS, (f"public.{table}",))
        selected = []
        for name, is_array in columns:
            column = sql.Identifier(name)
            selected.append(sql.SQL(_TEXT).format(column))
            selected.append(sql.SQL(_ELEMENTS if is_array else "NULL").format(column))
        query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(selected), sql.Identifier(table))
        names = [name for name, _ in columns]
        return [
            {name: Printed(row[2 * place], row[2 * place + 1]) for place, name in enumerate(names)}
            for row in self.database.rows(query, ())
        ]

    def source(self, folder: Path, properties: Mapping[str, Any]) -> dict[str, Any]:
        return {**source_section(self.database, folder), **properties}

    def holds_log(self) -> bool:
        query = "SELECT count(*) FROM pg_replication_slots WHERE database = %s"
        return bool(self.database.rows(query, (self.name,))[0][0])

    def typed(self) -> Mapping[str, tuple[str, Sequence[str]]]:
        self.execute(
            "CREATE TYPE mood AS ENUM ('happy', 'so so')",
            "CREATE DOMAIN positive AS integer CHECK (VALUE > 0)",
            "CREATE TYPE pair AS (number integer, label text)",
        )
        return TYPES

    def whole_rows_in_log(self, table: str) -> None:
        self.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")

    def out_of_line(self, table: str, column: str) -> None:
        self.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")

    def add_tour(self) -> None:
        for identity in ("default", "full", "indexed", "nothing"):
            self.execute(
                f"CREATE TABLE identity_{identity} (id integer PRIMARY KEY, code text NOT NULL, n integer)",
                f"INSERT INTO identity_{identity} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
            )
        self.execute(
            "ALTER TABLE identity_full REPLICA IDENTITY FULL",
            "CREATE UNIQUE INDEX by_code ON identity_indexed (code)",
            "ALTER TABLE identity_indexed REPLICA IDENTITY USING INDEX by_code",
            "ALTER TABLE identity_nothing REPLICA IDENTITY NOTHING",
        )

    def change_tour(self) -> None:
        for identity in ("default", "full", "indexed"):
            table = f"identity_{identity}"
            self.execute(
                f"UPDATE {table} SET n = 10 WHERE id = 1",
                f"UPDATE {table} SET id = 20, code = 'z' WHERE id = 2",
                f"DELETE FROM {table} WHERE id = 3",
            )
        # The server itself refuses updates and deletes of a table without an identity.
        self.execute("INSERT INTO identity_nothing VALUES (4, 'd', 4)")

    def load(self) -> AbstractContextManager[object]:
        workload.create(self.database)
        return workload.Workload(self.database, seed=7)

    def load_differences(self, pipeline: PipelineUnderTest) -> list[str]:
        return kill.differences(pipeline, self.database)


class PostgresConformance(Conformance):
    """The suite on the server ``version``."""

    version: ClassVar[str]

    @pytest.fixture(scope="class")
    def new_database(self, stack: ExitStack) -> Callable[[], EngineDatabase]:
        if reason := unavailable(self.version):
            if f"postgresql-{self.version}" in os.environ.get("CDC_REQUIRE_ENGINES", "").split():
                pytest.fail(f"postgresql-{self.version} is required: {reason}")
            pytest.skip(reason)
        server = stack.enter_context(postgresql.running(self.version, workload.SETTINGS))
        return lambda: PostgresDatabase(server)

    @pytest.mark.parametrize("identity", ["default", "full", "indexed", "nothing"])
    def test_replica_identity(self, tour: Tour, identity: str) -> None:
        tour.assert_same(f"identity_{identity}")

    def test_what_each_replica_identity_carries(self, tour: Tour) -> None:
        """``before`` of the delete: the key, or the whole row."""
        carried = {"default": (3, None, None), "full": (3, "c", 3)}
        for identity, wanted in carried.items():
            name = tour.name(f"identity_{identity}")
            columns = "before.id, before.code, before.n, before_unavailable AS missing"
            row = tour.pipeline.rows("bronze", name, columns, "WHERE op = 'd' AND before.id = 3").to_pylist()[
                0
            ]
            assert (row["id"], row["code"], row["n"]) == wanted
            assert row["missing"] == (["code", "n"] if identity == "default" else None)


def unavailable(version: str) -> str | None:
    """Why the suite does not run on a server; None if it does."""
    if reason := postgresql.absent(version):
        return reason
    wanted = f"postgresql-{version}" in os.environ.get("CDC_REQUIRE_ENGINES", "").split()
    if version in postgresql.DEBIAN and version not in postgresql.names() and not wanted:
        return f"not asked for: CDC_REQUIRE_ENGINES=postgresql-{version}"
    return None


class TestPostgreSQL16(InACatalog, PostgresConformance):
    version = "16"


class TestPostgreSQL18(PostgresConformance):
    version = "18"

    @pytest.mark.slow
    def test_structure_changes_while_it_runs(
        self, database: EngineDatabase, make: Callable[..., PipelineUnderTest]
    ) -> None:
        super().test_structure_changes_while_it_runs(database, make)


class TestPostgreSQL15(PostgresConformance):
    version = "15"


def test_a_required_engine_that_is_missing_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(postgresql.DEBIAN, "15", tmp_path / "nowhere")
    assert "not installed" in str(unavailable("15"))
