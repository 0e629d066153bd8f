"""What dashboards and alerts say of a pipeline, asked of control tables that real runs have filled.

A story: a first snapshot is killed halfway, goes on, changes are captured and later applied, runs fail, days
pass. At each stage some of the queries are asked; every one at least once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.bundle.queries import alerts, columns_of, control_columns, dashboard, datasets
from tests.engines import kill
from tests.engines.conformance import ops
from tests.engines.connect_server import ConnectServer
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import source_section
from tests.servers import postgresql
from tests.servers.postgresql import Database

pytestmark = pytest.mark.slow

QUERIES = datasets(dashboard())
Rows = list[dict[str, Any]]
LIMITS = {"batch_rows": 200, "chunk_rows": 100, "threads": 1}
MESSAGE = '{"message": "hello"}'
REFUSED = "changed in a way its bronze table cannot take"


@dataclass
class Story:
    """What was asked at each stage, and what the queries answered."""

    pipeline: PipelineUnderTest
    database: Database
    said: dict[str, dict[str, Rows]] = field(default_factory=dict)
    fired: dict[str, dict[str, bool]] = field(default_factory=dict)
    alerts: dict[str, dict[str, Rows]] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)

    @property
    def control(self) -> str:
        """The schema of the catalog in which the control tables are registered."""
        return f"{self.pipeline.name}_control"

    def register(self) -> None:
        """Runs on a path need no Spark and take a tenth of the time; the queries find the same tables."""
        self.sql(f"CREATE SCHEMA {self.control}")
        for name in control_columns():
            folder = self.pipeline.lake / "control" / name
            self.sql(f"CREATE TABLE {self.control}.{name} USING DELTA LOCATION '{folder}'")

    def sql(self, query: str) -> Rows:
        found: Rows = self.pipeline.spark.sql(query, self.pipeline.folder).to_pylist()
        return found

    def ask(self, stage: str, *names: str, **limits: str) -> None:
        """The answers of these datasets, and of all alerts."""
        self.sql(f"USE spark_catalog.{self.control}")
        self.said[stage] = {name: self.sql(QUERIES[name]) for name in names}
        self.sql("USE spark_catalog.default")
        found = alerts(self.pipeline.name, "spark_catalog", self.control, **limits)
        self.alerts[stage] = {name: self.sql(alert.sql) for name, alert in found.items()}
        self.fired[stage] = {name: alert.fires(self.alerts[stage][name]) for name, alert in found.items()}

    def one(self, stage: str, dataset: str, **where: Any) -> dict[str, Any]:
        (row,) = [row for row in self.said[stage][dataset] if all(row[key] == where[key] for key in where)]
        return row


def write_and_tell(story: Story) -> None:
    """Changes, of which some wait for silver."""
    story.database.execute(
        "ALTER TABLE orders ADD COLUMN note text",
        "INSERT INTO orders SELECT g, 'new', 'n' FROM generate_series(1001, 1003) g",
        "UPDATE orders SET status = 'paid' WHERE id IN (1, 2)",
        "DELETE FROM orders WHERE id = 3",
    )
    story.pipeline.run("capture")
    story.ask("captured", "tables", "schema_changes")
    story.database.execute(
        "ALTER TABLE lines ADD COLUMN price integer DEFAULT 5",
        "INSERT INTO lines VALUES (3, 1, 'fig', 5)",
    )
    story.sql(f"INSERT INTO {story.control}.signals (id, type, data) VALUES ('s1', 'log', '{MESSAGE}')")
    story.pipeline.run()
    story.known["ops"] = [
        op for table in ("orders", "lines") for op in ops(story.pipeline, f"public_{table}")
    ]
    story.ask("applied", "tables", "schema_changes", "throughput", "delays", "runs", "incidents", "signals")


def fail(story: Story) -> None:
    """A run that meets a change which bronze cannot take; a table in trouble; a day later."""
    story.database.execute(
        "ALTER TABLE lines ALTER COLUMN article TYPE integer USING 7", "INSERT INTO lines VALUES (9, 1, 1)"
    )
    story.known["failure"] = story.pipeline.attempt()
    story.sql(
        f"UPDATE {story.control}.tables SET state = 'bronze_only', reason = 'no key', remedy = 'add a key' "
        "WHERE source_table = 'empty'"
    )
    story.ask("failed", "overview", "attention", "states", "not_yet", alert_retained_gib="1")
    later = "INTERVAL 5 HOURS"
    story.sql(
        f"UPDATE {story.control}.runs SET started_at = started_at - {later}, ended_at = ended_at - {later}"
    )
    story.sql(
        f"UPDATE {story.control}.watermarks SET committed_at = committed_at - {later}, "
        f"source_committed_at = source_committed_at - {later}"
    )
    kept = (
        "map_concat(map_filter(metrics, (k, v) -> NOT k LIKE 'source.%'), map('source.retained_bytes', 8e8, "
    )
    story.sql(f"UPDATE {story.control}.runs SET metrics = {kept} 'source.headroom_bytes', 2e8))")
    story.ask("later", "overview")


@pytest.fixture(scope="module")
def story(
    recording_postgres: EmbeddedPostgres,
    connect_server: ConnectServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("monitored")
    with postgresql.database(recording_postgres) as database:
        pipeline = PipelineUnderTest(
            connect_server, folder, database.name, source_section(database, folder), LIMITS
        )
        story = Story(pipeline, database)
        database.execute(
            "CREATE TABLE orders (id integer PRIMARY KEY, status text)",
            "INSERT INTO orders SELECT g, 'new' FROM generate_series(1, 1000) g",
            "CREATE TABLE lines (order_id integer, line integer, article text, PRIMARY KEY (order_id, line))",
            "INSERT INTO lines VALUES (1, 1, 'apple'), (1, 2, 'pear')",
            "CREATE TABLE empty (id integer PRIMARY KEY)",
            "ANALYZE",
        )
        kill.killed(pipeline, "committed:4", "capture")
        story.register()
        story.known["pieces"] = pieces(pipeline)
        story.ask("killed", "snapshots", "overview", "throughput")
        pipeline.run()
        story.ask("done", "snapshots", "overview", "tables", "states", "attention")
        write_and_tell(story)
        fail(story)
        yield story


def pieces(pipeline: PipelineUnderTest) -> dict[str, tuple[int, int]]:
    """Planned and done pieces by table id, counted in Python."""
    rows = pipeline.control("chunks")
    planned = {(row["table_id"], row["number"]) for row in rows if row["state"] == "planned"}
    done = {(row["table_id"], row["number"]) for row in rows if row["state"] == "done"}
    return {
        table: (sum(key == table for key, _ in planned), sum(key == table for key, _ in done))
        for table in {key for key, _ in planned}
    }


QUIET = {"lag": False, "silence": False, "errored": False, "retention": False, "structure": False}


def firing(*names: str) -> Mapping[str, bool]:
    return {**QUIET, **dict.fromkeys(names, True)}


@pytest.mark.timeout(600)
def test_every_query_was_asked_and_has_the_columns_that_the_validator_sees(story: Story) -> None:
    asked = {name: rows for said in story.said.values() for name, rows in said.items() if rows}
    assert asked.keys() == QUERIES.keys()
    tables = control_columns()
    for name, rows in asked.items():
        assert list(rows[0]) == columns_of(QUERIES[name], tables)


def test_a_snapshot_that_was_killed_is_half_done(story: Story) -> None:
    orders = story.one("killed", "snapshots", table="public.orders")
    assert (orders["pieces"], orders["pieces_done"]) in story.known["pieces"].values()
    assert 0 < orders["pieces_done"] < orders["pieces"]
    assert (orders["progress"], orders["state"]) == ("under way", "snapshot")
    assert orders["share_done"] == pytest.approx(orders["pieces_done"] / orders["pieces"], abs=0.001)
    overview = story.one("killed", "overview")
    assert (overview["tables"], overview["last_outcome"]) == (3, None)
    assert overview["snapshots"] >= 1
    assert 0 < sum(row["rows"] for row in story.said["killed"]["throughput"]) < 1002
    assert story.fired["killed"] == QUIET


def test_a_snapshot_that_is_complete(story: Story) -> None:
    snapshots = story.said["done"]["snapshots"]
    assert {row["table"]: row["progress"] for row in snapshots}["public.orders"] == "complete"
    assert {row["table"]: row["rows"] for row in story.said["done"]["tables"]} == {
        "public.orders": 1000,
        "public.lines": 2,
        "public.empty": 0,
    }
    assert [(row["state"], row["tables"]) for row in story.said["done"]["states"]] == [("streaming", 3)]
    assert story.said["done"]["attention"] == []


def test_what_is_in_order_alarms_nobody(story: Story) -> None:
    overview = story.one("done", "overview")
    assert (overview["last_outcome"], overview["errored"]) == ("done", 0)
    assert 0 <= overview["lag_minutes"] < 10
    assert 0 <= overview["minutes_since_success"] <= overview["lag_minutes"]
    assert story.fired["done"] == QUIET


def test_changes_that_silver_lacks_are_told_and_a_new_column_waits(story: Story) -> None:
    orders = story.one("captured", "tables", table="public.orders")
    assert (orders["inserts"], orders["updates"], orders["deletes"]) == (3, 2, 1)
    assert (orders["snapshot_rows"], orders["log_rows"], orders["silver"]) == (1000, 6, "behind")
    assert orders["silver_batch"] < orders["last_batch"]
    assert story.one("captured", "tables", table="public.lines")["silver"] == "up to date"
    change = story.one("captured", "schema_changes", table="public.orders")
    assert (change["column"], change["kind"], change["status"]) == ("note", "added", "waiting for silver")
    assert story.fired["captured"] == firing("structure")
    (told,) = story.alerts["captured"]["structure"]
    assert (told["waiting"], told["changes"]) == (1, "public.orders.note added")


def test_applied_changes_wait_no_more(story: Story) -> None:
    assert story.one("applied", "tables", table="public.orders")["silver"] == "up to date"
    found = {(row["table"], row["column"], row["status"]) for row in story.said["applied"]["schema_changes"]}
    assert found == {("public.orders", "note", "in silver"), ("public.lines", "price", "in silver")}
    assert story.fired["applied"] == QUIET


def test_throughput_and_delay_are_those_of_the_batches(story: Story) -> None:
    rows = story.said["applied"]["throughput"]
    by_kind = {kind: sum(row["rows"] for row in rows if row["kind"] == kind) for kind in ("snapshot", "log")}
    read = story.known["ops"].count("r")
    assert read > 1002
    assert by_kind == {"snapshot": read, "log": len(story.known["ops"]) - read}
    delays = [row["delay_seconds"] for row in story.said["applied"]["delays"]]
    assert delays
    assert all(0 <= delay < 300 for delay in delays)


def test_runs_say_what_they_did_and_what_the_source_kept(story: Story) -> None:
    runs = sorted(story.said["applied"]["runs"], key=lambda row: row["started_at"])
    assert [(run["verb"], run["outcome"]) for run in runs] == [
        ("run", "done"),
        ("capture", "done"),
        ("run", "done"),
    ]
    assert (runs[1]["bronze_rows"], runs[1]["silver_rows"]) == (6, 0)
    # Noted, though six rows are no MiB: NULL would not compare.
    assert all(run["behind_mib"] >= 0 and run["retained_gib"] >= 0 for run in runs)


def test_a_table_that_is_read_again_and_a_signal_are_told(story: Story) -> None:
    incident = story.one("applied", "incidents")
    assert (incident["kind"], incident["table"]) == ("rows recomputed", "public.lines")
    signal = story.one("applied", "signals")
    assert (signal["id"], signal["type"], signal["status"]) == ("s1", "log", "accepted")
    assert signal["answer"]


def test_a_failed_run_and_an_errored_table_come_with_their_remedy(story: Story) -> None:
    failure = story.known["failure"]
    assert REFUSED in failure.what
    overview = story.one("failed", "overview")
    assert (overview["last_outcome"], overview["last_error"]) == ("failed", failure.what)
    assert overview["last_remedy"] == failure.remedy
    assert overview["errored"] == 1
    problems = {
        row["what"]: (row["name"], row["problem"], row["remedy"]) for row in story.said["failed"]["attention"]
    }
    assert problems["run"] == ("run", failure.what, failure.remedy)
    assert problems["table"] == ("public.empty", "no key", "add a key")
    states = {row["state"]: row["tables"] for row in story.said["failed"]["states"]}
    assert states == {"streaming": 2, "bronze_only, errored": 1}
    assert story.fired["failed"] == firing("errored", "structure")
    (told,) = story.alerts["failed"]["errored"]
    assert (told["errored"], told["table_names"], told["to_do"]) == (1, "public.empty", "add a key")
    assert failure.remedy in story.alerts["failed"]["structure"][0]["to_do"]


def test_silence_lag_and_retention_alarm_after_hours(story: Story) -> None:
    overview = story.one("later", "overview")
    assert 300 <= overview["lag_minutes"] < 330
    assert 300 <= overview["minutes_since_success"] < 330
    assert (overview["retained_gib"], overview["headroom_gib"]) == (0.745, 0.186)
    assert story.fired["later"] == firing("lag", "silence", "retention", "errored", "structure")
    (told,) = story.alerts["later"]["retention"]
    assert told["percent_of_limit"] == pytest.approx(80)


def test_what_is_not_recorded_yet_says_so(story: Story) -> None:
    found = {row["control_table"]: (row["rows"], row["meaning"]) for row in story.said["failed"]["not_yet"]}
    assert found.keys() == {"transactions", "notifications"}
    assert all(rows == 0 and "not recorded by this version" in meaning for rows, meaning in found.values())


# -- the same on a laptop, without a JVM


def test_status_for_others_says_what_a_run_did(
    recording_postgres: EmbeddedPostgres, connect_server: ConnectServer, tmp_path: Path
) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    with postgresql.database(recording_postgres) as database:
        pipeline = PipelineUnderTest(
            connect_server, tmp_path, database.name, source_section(database, tmp_path)
        )
        database.execute("CREATE TABLE t (id integer PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
        pipeline.run()
        database.execute("INSERT INTO t VALUES (3)", "DELETE FROM t WHERE id = 1")
        pipeline.run()
        page = tmp_path / "page.html"
        process = pipeline.start("status", "--html", str(page), "--prometheus", str(tmp_path / "cdc.prom"))
        assert process.wait(120) == 0, process.communicate()
    text = (tmp_path / "cdc.prom").read_text(encoding="utf-8")
    found = {
        (sample.name, sample.labels.get("table", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["debezium_metrics_RowsScanned", "public.t"] == 2
    assert found["debezium_metrics_TotalNumberOfCreateEventsSeen", ""] == 1
    assert found["debezium_metrics_TotalNumberOfDeleteEventsSeen", ""] == 1
    assert found["debezium_metrics_SnapshotCompleted", ""] == 1
    assert found["cdc_table_rows_total", "public.t"] == 4
    assert found["cdc_up", ""] == 1
    html = page.read_text(encoding="utf-8")
    assert "public.<wbr>t" in html
    assert "Rows into bronze" in html
    assert json.dumps(found["cdc_last_run_failed", ""]) == "0.0"
