"""``format("cdc")``: batch reads equal the table; a stream gives every change once, over restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxBytes

from cdc_lib.datasource import CdcDataSource
from cdc_lib.datasource.options import read_options
from cdc_lib.datasource.stream import ChangeReader
from cdc_lib.errors import FixConfiguration
from cdc_lib.source import open_source
from tests.engines.connect_server import ConnectServer
from tests.engines.postgresql.conftest import source_section
from tests.servers import postgresql
from tests.servers.postgresql import Database, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgresql.running("16") as started:
        yield started


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    with postgresql.database(server) as made:
        made.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note text, total numeric(12,2), placed timestamptz)",
            "INSERT INTO orders SELECT i, 'note ' || i, i / 4.0, 'epoch' FROM generate_series(1, 100) i",
        )
        yield made


@pytest.fixture
def file(database: Database, tmp_path: Path) -> Path:
    """A pipeline file; the password is in a file beside it."""
    path = tmp_path / "shop.yml"
    content = {
        "name": database.name,
        "source": source_section(database, tmp_path),
        "target": {"path": str(tmp_path / "lake")},
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def spark(connect_server: ConnectServer) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(connect_server.remote).create()
    session.dataSource.register(CdcDataSource)
    yield session
    session.stop()


def read(spark: SparkSession, file: Path, table: str = "public.orders", **options: Any) -> DataFrame:
    frame: DataFrame = spark.read.format("cdc").option("pipeline", str(file)).options(**options).load(table)
    return frame


def as_stored(frame: DataFrame) -> list[tuple[Any, ...]]:
    found = frame.select("after.*").toArrow().to_pylist()
    return sorted(tuple(row.values()) for row in found)


class TestBatch:
    def test_equals_the_table(self, spark: SparkSession, database: Database, file: Path) -> None:
        frame = read(spark, file, chunkRows=30)
        assert as_stored(frame) == database.rows("SELECT * FROM orders ORDER BY id")
        parts = frame.selectExpr("spark_partition_id() AS part", "_position").distinct().collect()
        assert len({part for part, _ in parts}) > 2
        assert len({position for _, position in parts}) == 1

    def test_of_a_table_without_a_key_in_one_view(
        self, spark: SparkSession, database: Database, file: Path
    ) -> None:
        database.execute("CREATE TABLE log (line text)", "INSERT INTO log VALUES ('a'), ('a'), (NULL)")
        found = read(spark, file, "public.log").select("op", "after.line").toArrow().to_pylist()
        assert sorted((row["op"], str(row["line"])) for row in found) == [
            ("r", "None"),
            ("r", "a"),
            ("r", "a"),
        ]
        assert database.rows("SELECT count(*) FROM pg_replication_slots") == [(0,)]

    def test_from_properties_without_a_file(
        self, spark: SparkSession, database: Database, tmp_path: Path
    ) -> None:
        properties = {name: str(value) for name, value in source_section(database, tmp_path).items()}
        frame = spark.read.format("cdc").options(**properties).option("table", "public.orders").load()
        assert frame.where("after.id = 7").select("after.note").collect()[0][0] == "note 7"


class TestStream:
    @pytest.mark.slow
    def test_every_change_once_over_restarts(
        self, spark: SparkSession, database: Database, file: Path, tmp_path: Path
    ) -> None:
        self.run(spark, file, tmp_path)
        database.execute(*[f"INSERT INTO orders VALUES ({i}, repeat('x', 500))" for i in range(200, 220)])
        self.run(spark, file, tmp_path)
        database.execute(
            "UPDATE orders SET note = 'new' WHERE id = 1", "UPDATE orders SET id = 3000 WHERE id = 3"
        )
        self.run(spark, file, tmp_path)
        database.execute("DELETE FROM orders WHERE id = 200", "TRUNCATE orders")
        self.run(spark, file, tmp_path)
        stored = spark.read.format("delta").load(str(tmp_path / "changes"))
        found = stored.selectExpr("op", "coalesce(after.id, before.id) AS id", "_position", "_ordinal")
        rows = [tuple(row) for row in found.orderBy("_position", "_ordinal").collect()]
        inserts = [("c", i) for i in range(200, 220)]
        expected = [*inserts, ("u", 1), ("d", 3), ("c", 3000), ("d", 200), ("t", None)]
        assert [row[:2] for row in rows] == expected
        # The limit cut the inserts into several micro-batches, of which each writes one file.
        assert (
            stored.where("op = 'c' AND after.id < 300").select("_metadata.file_path").distinct().count() > 1
        )

    @pytest.mark.slow
    def test_a_run_that_failed_is_repeated(
        self, spark: SparkSession, database: Database, file: Path, tmp_path: Path
    ) -> None:
        self.run(spark, file, tmp_path)
        database.execute("INSERT INTO orders VALUES (200), (201)")
        log = tmp_path / "changes" / "_delta_log"
        log.rename(tmp_path / "aside")
        log.write_text("not a folder")
        with pytest.raises(Exception, match=r"changes|_delta_log"):
            self.run(spark, file, tmp_path)
        log.unlink()
        (tmp_path / "aside").rename(log)
        self.run(spark, file, tmp_path)
        found = spark.read.format("delta").load(str(tmp_path / "changes")).select("after.id").collect()
        assert sorted(row[0] for row in found) == [200, 201]

    @staticmethod
    def run(spark: SparkSession, file: Path, folder: Path) -> None:
        """What gathered since the last run, into a Delta table."""
        frame = spark.readStream.format("cdc").option("pipeline", str(file))
        frame = frame.option("table", "public.orders").option("maxBytesPerTrigger", 8000).load()
        query = (
            frame.writeStream.format("delta")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "changes"))
        )
        query.awaitTermination()


class TestOffsets:
    """The stream's reader, called as Spark calls it."""

    @pytest.fixture
    def reader(self, file: Path) -> ChangeReader:
        return self.planned(file)

    @staticmethod
    def planned(file: Path) -> ChangeReader:
        options = read_options({"pipeline": str(file), "table": "public.orders"}).for_stream()
        with open_source(options.source) as source:
            return ChangeReader(options, source.describe(options.table))

    @staticmethod
    def rows(reader: ChangeReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
        shipped = cloudpickle.loads(cloudpickle.dumps(reader))
        return pa.Table.from_batches(
            [batch for part in reader.partitions(start, end) for batch in shipped.read(part)]
        )

    @staticmethod
    def confirmed(database: Database) -> str:
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name LIKE '%orders'"
        ((lsn,),) = database.rows(query)
        return str(lsn)

    def test_a_range_gives_the_same_rows_again(self, database: Database, reader: ChangeReader) -> None:
        start = reader.initialOffset()
        database.execute("UPDATE orders SET total = 0 WHERE id < 50", "DELETE FROM orders WHERE id = 1")
        end = reader.latestOffset(start, None)
        first = self.rows(reader, start, end)
        assert first.num_rows == 50
        database.execute("INSERT INTO orders VALUES (900)")
        assert self.rows(reader, start, end).equals(first)

    def test_the_slot_stays_behind_what_is_committed(self, database: Database, reader: ChangeReader) -> None:
        start = reader.initialOffset()
        database.execute("DELETE FROM orders")
        end = reader.latestOffset(start, None)
        self.rows(reader, start, end)
        assert self.confirmed(database) == start["lsn"]
        reader.commit(end)
        assert self.confirmed(database) == end["lsn"]

    def test_a_restarted_query_releases_what_was_committed_last(
        self, database: Database, file: Path, reader: ChangeReader
    ) -> None:
        start = reader.initialOffset()
        database.execute("DELETE FROM orders")
        end = reader.latestOffset(start, None)
        # Under Trigger.AvailableNow, nobody tells this reader that the batch was committed.
        self.planned(file).latestOffset(end, None)
        assert self.confirmed(database) == end["lsn"]

    def test_a_range_is_limited_and_the_last_one_ends_where_it_was_promised(
        self, database: Database, reader: ChangeReader
    ) -> None:
        start = reader.initialOffset()
        database.execute("UPDATE orders SET note = repeat('y', 300)")
        reader.prepareForTriggerAvailableNow()
        database.execute("INSERT INTO orders VALUES (900)")
        found: list[int] = []
        while (end := reader.latestOffset(start, ReadMaxBytes(5000))) != start:
            parts = reader.partitions(start, end)
            found.append(sum(batch.num_rows for part in parts for batch in reader.read(part)))
            start = end
        assert len(found) > 5
        # One transaction, however large; and nothing of what came after the query was started.
        assert [rows for rows in found if rows] == [100]

    def test_offsets_are_plain_json(self, reader: ChangeReader) -> None:
        start = reader.initialOffset()
        assert list(start) == ["system", "timeline", "lsn"]
        assert json.dumps(reader.latestOffset(start, None)) == json.dumps(reader.latestOffset(start, None))

    def test_a_column_that_came_later_is_said_and_there_after_a_restart(
        self, database: Database, file: Path, reader: ChangeReader
    ) -> None:
        start = reader.initialOffset()
        database.execute(
            "INSERT INTO orders VALUES (901)",
            "ALTER TABLE orders ADD COLUMN extra int",
            "INSERT INTO orders (id, extra) VALUES (902, 7)",
        )
        end = reader.latestOffset(start, None)
        with pytest.raises(FixConfiguration, match=r"columns that this query does not know.*extra"):
            self.rows(reader, start, end)
        rows = self.rows(self.planned(file), start, end).select(["after", "after_unavailable"]).to_pylist()
        assert [(row["after"]["id"], row["after"]["extra"], row["after_unavailable"]) for row in rows] == [
            (901, None, ["extra"]),
            (902, 7, None),
        ]


class TestPasswords:
    def test_no_password_is_in_what_travels_or_is_shown(
        self, spark: SparkSession, database: Database, file: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        password = database.server.password
        reader = TestOffsets.planned(file)
        assert password.encode() not in cloudpickle.dumps(reader)
        read(spark, file).explain(extended=True)
        assert password not in capfd.readouterr().out
