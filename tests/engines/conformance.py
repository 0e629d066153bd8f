"""What every engine must do, from a real server through the runner to silver: one suite, one subclass each.

An engine brings an :class:`EngineDatabase`: how to execute SQL there, what the server itself prints for each
value, which types it has. Expected values always come from the server. Each step is a run of its own, so
everything is captured over restarts.

Tables and batches are dear, so the tables of several tests share a pipeline (:class:`Tour`); each test looks
at the table that is its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engines.canonical import Text, of_delta, of_server
from tests.engines.connect_server import ConnectServer
from tests.engines.pipelines import PipelineUnderTest

META = (
    *("__sequence", "__committed_at", "__deleted_at", "__unavailable", "__special"),
    *("__START_AT", "__END_AT", "__ended_at"),
)


@dataclass(frozen=True)
class Printed:
    """A value as the server prints it; ``elements`` is a JSON array of its elements' texts, for an array."""

    text: Text
    elements: Text = None


PrintedRow = Mapping[str, Printed]


class EngineDatabase(ABC):
    """A fresh database on a server of the engine under test; a context manager."""

    name: str
    schema: str

    @abstractmethod
    def __enter__(self) -> EngineDatabase: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...

    @abstractmethod
    def execute(self, *statements: str) -> None:
        """Each statement in a transaction of its own."""

    @abstractmethod
    def transaction(self, *statements: str) -> None:
        """All statements in one transaction, of which the last is COMMIT or ROLLBACK."""

    @abstractmethod
    def rows(self, table: str) -> list[PrintedRow]:
        """The table as it is now."""

    @abstractmethod
    def source(self, folder: Path, properties: Mapping[str, Any]) -> dict[str, Any]:
        """The ``source`` section of a pipeline file; secrets may be kept in ``folder``."""

    @abstractmethod
    def holds_log(self) -> bool:
        """Whether the server keeps log for a pipeline of ours."""

    @abstractmethod
    def typed(self) -> Mapping[str, tuple[str, Sequence[str]]]:
        """Column name to a type's DDL and literals worth a look, extremes and specials included. Creates the
        types that it needs."""

    @abstractmethod
    def whole_rows_in_log(self, table: str) -> None:
        """Make the log carry all columns of rows before their update or delete."""

    @abstractmethod
    def out_of_line(self, table: str, column: str) -> None:
        """Keep large values where the log of an update that does not change them leaves them out."""

    @abstractmethod
    def add_tour(self) -> None:
        """Tables of this engine's own for the tour, with rows."""

    @abstractmethod
    def change_tour(self) -> None:
        """Changes of these tables."""

    @abstractmethod
    def load(self) -> AbstractContextManager[object]:
        """Tables under all kinds of writes, for as long as the context is open."""

    @abstractmethod
    def load_differences(self, pipeline: PipelineUnderTest) -> list[str]:
        """Bronze and silver against the load's true history and its tables."""


# -- comparison

SilverRow = Mapping[str, tuple[pa.DataType, Text, Text]]
"""By column: its type, the canonical text of its value, and the server text in ``__special``."""


def silver_rows(pipeline: PipelineUnderTest, name: str, *, deleted: bool = False) -> list[SilverRow]:
    """Rows of a silver table that live, or those that were deleted softly or have ended."""
    found = pipeline.rows("silver", name)
    names = [column for column in found.column_names if column not in META]
    types = {column: found.schema.field(column).type for column in names}
    rows: list[SilverRow] = []
    for row in found.to_pylist():
        ended = row.get("__deleted_at") is not None or row.get("__END_AT") is not None
        if ended is not deleted:
            continue
        special = dict(row.get("__special") or ())
        rows.append(
            {
                column: (types[column], of_delta(row[column], types[column]), special.get(column))
                for column in names
            }
        )
    return rows


def differences(
    pipeline: PipelineUnderTest, database: EngineDatabase, table: str, key: Sequence[str] = ("id",)
) -> list[str]:
    """Silver against what the server prints, row by row."""
    silver = silver_rows(pipeline, f"{database.schema}_{table}")
    types = {name: silver[0][name][0] if silver else pa.string() for name in key}
    true = {
        tuple(of_server(row[name].text, to) for name, to in types.items()): row
        for row in database.rows(table)
    }
    held = {tuple(row[name][1] for name in key): row for row in silver}
    found = [f"{len(silver)} rows with {len(held)} keys"] if len(silver) != len(held) else []
    for place in sorted({*true, *held}, key=str):
        if place not in held:
            found.append(f"{place} is missing in silver")
        elif place not in true:
            found.append(f"{place} is in silver, and not at the source")
        else:
            found += [f"{place}: {one}" for one in row_differences(held[place], true[place])]
    return found


def row_differences(silver: SilverRow, true: PrintedRow) -> Iterator[str]:
    if list(silver) != list(true):
        yield f"columns {list(silver)}, at the source {list(true)}"
        return
    for name, (to, value, special) in silver.items():
        printed = true[name]
        if special is not None:
            if value is not None or special != printed.text:
                yield f"{name}: {value!r} with {special!r} beside it, the server prints {printed.text!r}"
            continue
        wanted = of_server(printed.elements if pa.types.is_list(to) else printed.text, to)
        if value != wanted:
            yield f"{name}: {value!r} ({to}), the server prints {printed.text!r}"


def assert_same(
    pipeline: PipelineUnderTest, database: EngineDatabase, table: str, key: Sequence[str] = ("id",)
) -> None:
    """Silver equals the source."""
    found = differences(pipeline, database, table, key)
    assert not found, f"{table}: " + "; ".join(found[:6])


def assert_same_bag(pipeline: PipelineUnderTest, database: EngineDatabase, table: str) -> None:
    """The same rows equally often, for tables without a key; plain types only."""
    silver = Counter(
        tuple((name, value) for name, (_, value, _) in row.items())
        for row in silver_rows(pipeline, f"{database.schema}_{table}")
    )
    true = Counter(tuple((name, value.text) for name, value in row.items()) for row in database.rows(table))
    found = [
        f"only in silver: {list((silver - true).items())[:3]}",
        f"missing: {list((true - silver).items())[:3]}",
    ]
    assert silver == true, f"{table}: {'; '.join(found)}"


def ops(pipeline: PipelineUnderTest, table: str, rest: str = "ORDER BY _sequence") -> list[str]:
    """Operations of a bronze table, in order."""
    found: list[str] = pipeline.rows("bronze", table, "op", rest).column("op").to_pylist()
    return found


def batches(pipeline: PipelineUnderTest) -> int:
    """The newest committed batch."""
    return max(int(row["batch"]) for row in pipeline.control("watermarks") if row["kind"] != "applied")


@dataclass
class Tour:
    """A pipeline with a table for each of many tests, after snapshot, changes and an idle run."""

    pipeline: PipelineUnderTest
    database: EngineDatabase
    after_snapshot: dict[str, list[str]] = field(default_factory=dict)
    """Differences that were found between the first run and the changes."""
    batches: list[int] = field(default_factory=list)
    """The newest batch after each run."""

    def name(self, table: str) -> str:
        return f"{self.database.schema}_{table}"

    def assert_same(self, table: str, key: Sequence[str] = ("id",)) -> None:
        assert_same(self.pipeline, self.database, table, key)

    def ops(self, table: str) -> list[str]:
        return ops(self.pipeline, self.name(table))


TOUR_TABLES = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, status VARCHAR(20), amount DECIMAL(12,2))",
    "INSERT INTO orders VALUES (1, 'new', 10.50), (2, 'new', NULL), (3, 'new', 0), (4, NULL, -1.25)",
    "CREATE TABLE order_lines (order_id INTEGER, line INTEGER, article VARCHAR(20), "
    "PRIMARY KEY (order_id, line))",
    "INSERT INTO order_lines VALUES (1, 1, 'apple'), (1, 2, 'pear'), (2, 1, 'plum')",
    "CREATE TABLE emptied (id INTEGER PRIMARY KEY, label VARCHAR(20))",
    "INSERT INTO emptied VALUES (1, 'before'), (2, 'before')",
    "CREATE TABLE kept (id INTEGER PRIMARY KEY, label VARCHAR(20))",
    "INSERT INTO kept VALUES (1, 'stays'), (2, 'goes'), (3, 'comes back')",
    "CREATE TABLE prices (id INTEGER PRIMARY KEY, price INTEGER)",
    "INSERT INTO prices VALUES (1, 10), (2, 20), (3, 30)",
    "CREATE TABLE readings (sensor INTEGER, reading INTEGER)",
    "INSERT INTO readings VALUES (1, 20), (1, 20), (2, NULL)",
    "CREATE TABLE votes (choice VARCHAR(20), weight INTEGER)",
    "INSERT INTO votes VALUES ('tea', 1), ('tea', 1), ('tea', 1), ('coffee', NULL), ('coffee', 2)",
    "CREATE TABLE documents (id INTEGER PRIMARY KEY, revision INTEGER, body TEXT)",
)
LARGE = "x1" * 4000
"""Long enough that no server keeps it in the row."""


class InACatalog:
    """Tables in a catalog instead of under a path, once an engine: mixed into one of its suites."""

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_tables_in_a_catalog(
        self, database: EngineDatabase, make: Callable[..., PipelineUnderTest]
    ) -> None:
        database.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)", "INSERT INTO t VALUES (1, 1), (2, 2)"
        )
        pipeline = make(database)
        word = database.name.lower()
        layers = {layer: f"{word}_{layer}" for layer in ("bronze", "silver", "control")}
        pipeline.target = {"catalog": "spark_catalog", **layers}
        pipeline.run()
        assert_same(pipeline, database, "t")
        database.execute("UPDATE t SET n = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2")
        pipeline.run()
        assert_same(pipeline, database, "t")
        assert ops(pipeline, f"{database.schema}_t") == ["r", "r", "u", "d"]


class Conformance:
    """The suite. A subclass overrides :meth:`new_database`."""

    @pytest.fixture(scope="class")
    def new_database(self) -> Callable[[], EngineDatabase]:
        """A function that makes a fresh database on the engine's server."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    def stack(self) -> Iterator[ExitStack]:
        with ExitStack() as opened:
            yield opened

    @pytest.fixture
    def database(
        self, new_database: Callable[[], EngineDatabase], stack: ExitStack
    ) -> Iterator[EngineDatabase]:
        with new_database() as made:
            yield made

    @pytest.fixture(scope="class")
    def make(
        self, connect_server: ConnectServer, tmp_path_factory: pytest.TempPathFactory
    ) -> Callable[..., PipelineUnderTest]:
        """A function from a database to a pipeline; keywords are source properties (``snapshot_mode``)."""

        def make(database: EngineDatabase, **properties: Any) -> PipelineUnderTest:
            folder = tmp_path_factory.mktemp("pipeline")
            named = {name.replace("_", "."): value for name, value in properties.items()}
            source = database.source(folder, named)
            return PipelineUnderTest(connect_server, folder, database.name, source)

        return make

    # -- many small tables in one pipeline

    @pytest.fixture(scope="class")
    def tour(
        self,
        new_database: Callable[[], EngineDatabase],
        make: Callable[..., PipelineUnderTest],
        stack: ExitStack,
    ) -> Tour:
        database = stack.enter_context(new_database())
        database.execute(*TOUR_TABLES)
        database.out_of_line("documents", "body")
        database.whole_rows_in_log("votes")
        database.execute(
            f"INSERT INTO documents VALUES (1, 1, '{LARGE}'), (2, 1, '{LARGE}'), (3, 1, 'short')"
        )
        database.add_tour()
        tour = Tour(make(database), database)
        tour.pipeline.tables = [
            {"match": rf"{database.schema}\.kept", "delete": "soft"},
            {"match": rf"{database.schema}\.prices", "scd": 2},
        ]
        tour.pipeline.run()
        tour.after_snapshot = {
            table: differences(tour.pipeline, database, table)
            for table in ("orders", "emptied", "kept", "documents")
        }
        tour.batches.append(batches(tour.pipeline))
        self.change(database)
        for _ in range(2):
            tour.pipeline.run()
            tour.batches.append(batches(tour.pipeline))
        return tour

    def change(self, database: EngineDatabase) -> None:
        """What happens between the first and the second run of the tour."""
        database.execute(
            "INSERT INTO orders VALUES (5, 'late', 99.99)",
            "UPDATE orders SET status = 'paid' WHERE id = 1",
            "UPDATE orders SET id = 30 WHERE id = 3",
            "DELETE FROM orders WHERE id = 4",
        )
        database.transaction(
            "INSERT INTO orders VALUES (6, 'both', 1)",
            "INSERT INTO order_lines VALUES (6, 1, 'fig'), (6, 2, 'nut')",
            "UPDATE order_lines SET line = 9 WHERE order_id = 1 AND line = 2",
            "COMMIT",
        )
        database.transaction("INSERT INTO orders VALUES (7, 'never', 1)", "ROLLBACK")
        database.transaction(
            "INSERT INTO orders VALUES (8, 'kept', 8)",
            "SAVEPOINT one",
            "INSERT INTO orders VALUES (9, 'undone', 9)",
            "UPDATE orders SET status = 'undone' WHERE id = 8",
            "ROLLBACK TO SAVEPOINT one",
            "COMMIT",
        )
        database.execute("TRUNCATE TABLE emptied", "INSERT INTO emptied VALUES (2, 'after')")
        database.execute(
            "DELETE FROM kept WHERE id IN (2, 3)",
            "INSERT INTO kept VALUES (3, 'is back')",
            "UPDATE prices SET price = 11 WHERE id = 1",
            "UPDATE prices SET price = 12 WHERE id = 1",
            "DELETE FROM prices WHERE id = 2",
            "UPDATE prices SET id = 4 WHERE id = 3",
            "INSERT INTO readings VALUES (1, 20), (3, 5)",
            "INSERT INTO votes VALUES ('tea', 1), ('water', 1)",
            "UPDATE votes SET weight = 3 WHERE choice = 'coffee' AND weight IS NULL",
            "UPDATE votes SET choice = 'tea' WHERE choice = 'water'",
            "DELETE FROM votes WHERE weight = 2",
            "UPDATE documents SET revision = 2 WHERE id = 1",
            "UPDATE documents SET id = 20 WHERE id = 2",
            f"UPDATE documents SET body = '{LARGE}new' WHERE id = 3",
        )
        database.change_tour()

    @pytest.mark.timeout(600)
    def test_snapshot(self, tour: Tour) -> None:
        assert tour.after_snapshot == {"orders": [], "emptied": [], "kept": [], "documents": []}
        assert tour.ops("orders")[:4] == ["r"] * 4

    def test_stream(self, tour: Tour) -> None:
        tour.assert_same("orders")
        # An update of a key is a delete and a create.
        assert tour.ops("orders")[4:] == ["c", "u", "d", "c", "d", "c", "c"]

    def test_a_transaction_over_two_tables(self, tour: Tour) -> None:
        tour.assert_same("order_lines", ("order_id", "line"))
        assert tour.ops("order_lines") == ["r", "r", "r", "c", "c", "d", "c"]
        last = "WHERE op <> 'r' ORDER BY _sequence DESC LIMIT"
        orders = tour.pipeline.rows(
            "bronze", tour.name("orders"), "after.id, transaction.id AS t", f"{last} 2"
        )
        lines = tour.pipeline.rows("bronze", tour.name("order_lines"), "transaction.id AS t", f"{last} 4")
        assert orders.column("id").to_pylist() == [8, 6]
        assert set(lines.column("t").to_pylist()) == {orders.column("t").to_pylist()[1]}

    def test_what_was_rolled_back_never_happened(self, tour: Tour) -> None:
        found = tour.pipeline.rows("bronze", tour.name("orders"), "after.id, after.status", "WHERE op <> 'd'")
        assert not {7, 9} & set(found.column("id").to_pylist())
        assert "undone" not in found.column("status").to_pylist()

    def test_key_update(self, tour: Tour) -> None:
        columns = "op, before.id AS old, after.id AS new, previous_key.id AS previous, _sequence"
        found = tour.pipeline.rows(
            "bronze", tour.name("orders"), columns, "WHERE before.id = 3 OR after.id = 30 ORDER BY _sequence"
        ).to_pylist()
        first = found[0].pop("_sequence")
        assert found.pop(1) == {"op": "c", "old": None, "new": 30, "previous": 3, "_sequence": first + 1}
        assert found == [{"op": "d", "old": 3, "new": None, "previous": None}]

    def test_truncate(self, tour: Tour) -> None:
        tour.assert_same("emptied")
        assert tour.ops("emptied") == ["r", "r", "t", "c"]

    def test_large_values_that_the_log_leaves_out(self, tour: Tour) -> None:
        tour.assert_same("documents")
        rest = "WHERE op IN ('u', 'c') ORDER BY _sequence"
        found = tour.pipeline.rows("bronze", tour.name("documents"), "after.id, after_unavailable AS a", rest)
        left_out = {row["id"]: row["a"] for row in found.to_pylist()}
        assert left_out == {1: ["body"], 20: ["body"], 3: None}

    def test_soft_delete(self, tour: Tour) -> None:
        tour.assert_same("kept")
        gone = silver_rows(tour.pipeline, tour.name("kept"), deleted=True)
        assert [(row["id"][1], row["label"][1]) for row in gone] == [("2", "goes")]

    def test_history_of_rows(self, tour: Tour) -> None:
        tour.assert_same("prices")
        found = tour.pipeline.rows("silver", tour.name("prices")).to_pylist()
        versions = sorted(found, key=lambda row: (row["id"], row["__START_AT"]))
        assert [(row["id"], row["price"], row["__END_AT"] is None) for row in versions] == [
            *[(1, 10, False), (1, 11, False), (1, 12, True)],
            *[(2, 20, False), (3, 30, False), (4, 30, True)],
        ]
        for version, following in pairwise(versions[:3]):
            assert version["__END_AT"] == following["__START_AT"]
            assert version["__ended_at"] == following["__committed_at"]

    def test_a_table_without_a_key_that_only_sees_inserts(self, tour: Tour) -> None:
        assert_same_bag(tour.pipeline, tour.database, "readings")

    def test_equal_rows_are_counted(self, tour: Tour) -> None:
        """A table without a key whose old rows the log carries whole."""
        assert_same_bag(tour.pipeline, tour.database, "votes")

    def test_a_run_with_nothing_to_do_writes_no_batch(self, tour: Tour) -> None:
        assert tour.batches[0] < tour.batches[1]
        assert tour.batches[1] == tour.batches[2]

    # -- types

    @pytest.mark.timeout(600)
    def test_every_type_from_snapshot_and_log(
        self, database: EngineDatabase, make: Callable[..., PipelineUnderTest]
    ) -> None:
        """The same rows before and after the snapshot give what the server prints, and the same bronze."""
        types = database.typed()
        columns = ", ".join(f"{name} {ddl}" for name, (ddl, _) in types.items())
        database.execute(f"CREATE TABLE typed (id INTEGER PRIMARY KEY, {columns})")
        count = max(len(literals) for _, literals in types.values())
        rows = [
            ", ".join(literals[index] if index < len(literals) else "NULL" for _, literals in types.values())
            for index in range(count)
        ]
        database.execute(*(f"INSERT INTO typed VALUES ({index}, {row})" for index, row in enumerate(rows)))
        pipeline = make(database)
        pipeline.run()
        assert_same(pipeline, database, "typed")
        database.execute(
            *(f"INSERT INTO typed VALUES ({1000 + index}, {row})" for index, row in enumerate(rows))
        )
        pipeline.run()
        assert_same(pipeline, database, "typed")
        self.assert_snapshot_equals_log(pipeline, f"{database.schema}_typed", count)

    def assert_snapshot_equals_log(self, pipeline: PipelineUnderTest, table: str, count: int) -> None:
        found = pipeline.rows("bronze", table, "op, after, special")
        to = found.schema.field("after").type
        rows = {row["after"]["id"]: row for row in found.to_pylist()}
        assert [rows[index]["op"] for index in range(count)] == ["r"] * count
        assert [rows[1000 + index]["op"] for index in range(count)] == ["c"] * count
        for index in range(count):
            read, logged = rows[index], rows[1000 + index]
            texts = [
                {one.name: of_delta(row["after"][one.name], one.type) for one in to if one.name != "id"}
                for row in (read, logged)
            ]
            assert texts[0] == texts[1]
            assert dict(read["special"] or ()) == dict(logged["special"] or ())

    # -- changes of structure

    @pytest.mark.timeout(600)
    def test_structure_changes_while_it_runs(
        self, database: EngineDatabase, make: Callable[..., PipelineUnderTest]
    ) -> None:
        """A column added, one added with a default for rows that the log never mentions, a type widened."""
        tables = ("grown", "filled", "widened")
        for table in tables:
            database.execute(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, size INTEGER)",
                f"INSERT INTO {table} VALUES (1, 1), (2, NULL), (3, 3)",
            )
        pipeline = make(database)
        pipeline.run()
        database.execute(
            "UPDATE grown SET size = 10 WHERE id = 1",
            "ALTER TABLE grown ADD COLUMN note VARCHAR(20)",
            "INSERT INTO grown VALUES (4, 4, 'noted')",
            "UPDATE grown SET note = 'late' WHERE id = 2",
            "ALTER TABLE filled ADD COLUMN level INTEGER DEFAULT 7",
            "INSERT INTO filled VALUES (4, 4, NULL)",
            "INSERT INTO widened VALUES (4, 2147483647)",
            *self.widen("widened", "size"),
            "INSERT INTO widened VALUES (5, 9223372036854775807)",
        )
        pipeline.run()
        for table in tables:
            assert_same(pipeline, database, table)
        incidents = {(row["kind"], row["table"]) for row in pipeline.control("incidents")}
        # What a change of type did to old values the log does not say.
        again = ("filled", "widened")
        assert incidents == {("rows recomputed", f"{database.schema}.{table}") for table in again}
        database.execute("DELETE FROM grown WHERE id = 1", "UPDATE widened SET size = 0 WHERE id = 4")
        pipeline.run()
        for table in tables:
            assert_same(pipeline, database, table)

    def widen(self, table: str, column: str) -> Sequence[str]:
        """The statements that make an INTEGER column a BIGINT."""
        return [f"ALTER TABLE {table} ALTER COLUMN {column} TYPE BIGINT"]

    # -- snapshot modes, filters, targets

    @pytest.mark.timeout(600)
    def test_initial_only_reads_once_and_keeps_no_log(
        self, database: EngineDatabase, make: Callable[..., PipelineUnderTest]
    ) -> None:
        database.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)", "INSERT INTO t VALUES (1, 1), (2, 2)"
        )
        pipeline = make(database, snapshot_mode="initial_only")
        pipeline.run()
        assert_same(pipeline, database, "t")
        database.execute("INSERT INTO t VALUES (3, 3)")
        pipeline.run()
        assert ops(pipeline, f"{database.schema}_t") == ["r", "r"]
        assert not database.holds_log()

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("mode", ["no_data", "never"])
    def test_modes_without_a_snapshot(
        self, database: EngineDatabase, make: Callable[..., PipelineUnderTest], mode: str
    ) -> None:
        """Only what happens from the first start on; ``skipped.operations`` leaves operations out."""
        database.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)", "INSERT INTO t VALUES (1, 1), (2, 2)"
        )
        pipeline = make(database, snapshot_mode=mode, skipped_operations="d,t")
        pipeline.run()
        database.execute(
            "INSERT INTO t VALUES (3, 3)",
            "UPDATE t SET n = 10 WHERE id = 1",
            "DELETE FROM t WHERE id = 3",
            "TRUNCATE TABLE t",
        )
        pipeline.run()
        assert ops(pipeline, f"{database.schema}_t") == ["c", "u"]
        silver = silver_rows(pipeline, f"{database.schema}_t")
        assert sorted((row["id"][1], row["n"][1]) for row in silver) == [("1", "10"), ("3", "3")]

    @pytest.mark.timeout(600)
    def test_column_filters_keys_from_the_file_and_a_second_snapshot(
        self, database: EngineDatabase, make: Callable[..., PipelineUnderTest]
    ) -> None:
        database.execute(
            "CREATE TABLE named (code VARCHAR(10) NOT NULL, secret VARCHAR(20), label VARCHAR(20))",
            "INSERT INTO named VALUES ('a', 'hidden-1', 'one'), ('b', 'hidden-2', 'two')",
            "CREATE TABLE beside (id INTEGER PRIMARY KEY, n INTEGER)",
            "INSERT INTO beside VALUES (1, 1)",
        )
        database.whole_rows_in_log("named")
        properties = {
            "column.exclude.list": rf"{database.schema}\.named\.secret",
            "message.key.columns": f"{database.schema}.named:code",
        }
        pipeline = make(database, **properties)
        pipeline.run()
        database.execute(
            "UPDATE named SET label = 'changed', secret = 'hidden-3' WHERE code = 'a'",
            "UPDATE named SET code = 'c' WHERE code = 'b'",
            "UPDATE beside SET n = 2 WHERE id = 1",
        )
        pipeline.run("snapshot", [f"{database.schema}.named"])
        silver = silver_rows(pipeline, f"{database.schema}_named")
        wanted = [(row["code"].text, row["label"].text) for row in database.rows("named")]
        assert sorted((row["code"][1], row["label"][1]) for row in silver) == sorted(wanted)
        assert_same(pipeline, database, "beside")
        assert ops(pipeline, f"{database.schema}_named") == ["r", "r", "u", "d", "c", "r", "r"]
        bronze = pipeline.rows("bronze", f"{database.schema}_named")
        assert b"hidden" not in b"".join(
            bytes(buffer) for batch in bronze.to_batches() for buffer in _buffers(batch)
        )
        database.execute("DELETE FROM named WHERE code = 'a'")
        pipeline.run()
        silver = silver_rows(pipeline, f"{database.schema}_named")
        assert [row["code"][1] for row in silver] == ["c"]

    @pytest.mark.timeout(600)
    def test_a_table_without_a_key_that_is_taken_again(
        self, database: EngineDatabase, make: Callable[..., PipelineUnderTest]
    ) -> None:
        """Its rows cannot be told apart, so those of the first reading must go before they come again."""
        database.execute("CREATE TABLE t (n INTEGER)", "INSERT INTO t VALUES (1), (1), (2)")
        pipeline = make(database)
        pipeline.run()
        database.execute("INSERT INTO t VALUES (1), (3)")
        for _ in range(2):
            pipeline.run("snapshot", [f"{database.schema}.t"])
            assert_same_bag(pipeline, database, "t")
        database.execute("INSERT INTO t VALUES (4)")
        pipeline.run()
        assert_same_bag(pipeline, database, "t")

    # -- under load

    @pytest.mark.timeout(900)
    def test_snapshot_and_stream_at_once_under_load(
        self, database: EngineDatabase, make: Callable[..., PipelineUnderTest]
    ) -> None:
        pipeline = make(database)
        pipeline.run_limits = {"batch_rows": 500, "chunk_rows": 200}
        with database.load():
            pipeline.run("capture")
            pipeline.run("capture")
        pipeline.run()
        found = database.load_differences(pipeline)
        assert not found, "\n".join(found[:8])


def _buffers(batch: pa.RecordBatch) -> Iterator[pa.Buffer]:
    for column in batch.columns:
        yield from (buffer for buffer in column.buffers() if buffer is not None)
