"""The notebooks, cell by cell, against a pipeline on an embedded PostgreSQL, over Spark Connect."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from notebooks.run import cells
from tests.engines.connect_server import without_spark
from tests.engines.pipelines import ROOT, PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase

pytestmark = pytest.mark.timeout(300)

NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").glob("*.py") if path.name != "run.py")
SHOP = (
    "CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, since timestamptz)",
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, status text, total numeric(12,2))",
    "INSERT INTO customers VALUES (1, 'Ann', '2025-01-01Z'), (2, 'Bob', 'infinity')",
    "INSERT INTO orders VALUES (1, 1, 'new', 10), (2, 2, 'new', 20.50), (3, 2, 'paid', 1)",
)


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(recording_postgres) as made:
        made.execute(*SHOP)
        yield made


def run(pipeline: PipelineUnderTest, name: str, **widgets: str) -> tuple[list[list[dict[str, Any]]], str]:
    """The rows of each thing that the notebook displayed, and what it printed."""
    answer = pipeline.folder / "shown.json"
    words = [f"{key}={value}" for key, value in {"pipeline": str(pipeline.write()), **widgets}.items()]
    path = ROOT / "notebooks" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.notebook_process", str(path), str(answer), *words],
        cwd=ROOT,
        env={**without_spark(), "CDC_SPARK_REMOTE": pipeline.spark.remote},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [shown["rows"] for shown in json.loads(answer.read_text("utf-8"))], done.stdout


@pytest.mark.slow
def test_from_a_pipeline_file_to_explored_silver(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    """All three, in the order in which a person would take them."""
    pipeline = make_pipeline(database.database)
    pipeline.tables = [{"match": "public[.]orders", "scd": 2}]
    quickstart(pipeline)
    database.execute("UPDATE orders SET status = 'paid' WHERE id = 1", "DELETE FROM orders WHERE id = 3")
    operate(pipeline)
    explore(pipeline)


def quickstart(pipeline: PipelineUnderTest) -> None:
    (tables, *rows), said = run(pipeline, "quickstart")
    assert "public.customers: snapshot" in said
    assert [(row["table"], row["state"], row["rows_in_bronze"]) for row in tables] == [
        ("public.customers", "streaming", 2),
        ("public.orders", "streaming", 3),
    ]
    customers, orders, current = rows
    assert sorted(row["name"] for row in customers) == ["Ann", "Bob"]
    assert len(orders) == len(current) == 3
    assert re.findall(r"public\.\w+: \d rows, \w+", said) == [
        "public.customers: 2 rows, equal",
        "public.orders: 3 rows, equal",
    ]


def operate(pipeline: PipelineUnderTest) -> None:
    (tables, runs, incidents, signals), said = run(pipeline, "operate", snapshot="public.orders")
    assert {row["table"]: row["state"] for row in tables} == dict.fromkeys(
        ("public.customers", "public.orders"), "streaming"
    )
    assert {(row["verb"], row["outcome"]) for row in runs} == {("run", "done"), ("reconcile", "done")}
    assert incidents == []
    (signal,) = signals
    assert json.loads(signal["data"]) == {"data-collections": ["public.orders"]}
    assert signal["status"] is None, "nobody has answered yet"
    assert "public.orders: log" in said
    pipeline.run()
    assert [(row["id"], row["status"]) for row in pipeline.control("signal_answers")] == [
        (signal["id"], "accepted")
    ]


def explore(pipeline: PipelineUnderTest) -> None:
    (totals, newest, history, kinds, changes, *special), said = run(pipeline, "explore_silver")
    assert [(row["status"], row["orders"], row["total"]) for row in totals] == [
        ("new", 1, "20.50"),
        ("paid", 1, "10.00"),
    ]
    assert {(row["id"], row["name"]) for row in newest} == {(1, "Ann"), (2, "Bob")}
    versions = [(row["status"], row["until"] is None) for row in history if row["id"] == 1]
    assert versions == [("new", False), ("paid", True)]
    assert {row["op"]: row["changes"] for row in kinds} == {"d": 1, "u": 1}
    assert [(row["op"], row["id"], row["status"]) for row in changes] == [("d", 3, None), ("u", 1, "paid")]
    assert "public_customers: __special" in said
    assert [(row["name"], row["since"], row["__special"]) for row in special[0]] == [
        ("Bob", None, {"since": "infinity"})
    ]


# -- what Databricks makes of the files


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_a_notebook_that_databricks_reads(path: Path) -> None:
    found = cells(path.read_text("utf-8"))
    assert found[0].language == "md", "it begins by saying what it is for"
    assert {cell.language for cell in found} <= {"python", "sql", "md", "pip"}
    for cell in found:
        if cell.language == "python":
            assert "%" not in {line[:1] for line in cell.text.splitlines()}
            assert not re.search(r"sparkContext|_jvm|_jsc|\.rdd\b", cell.text), "not on Spark Connect"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_installs_is_this_package_with_extras_it_has(path: Path) -> None:
    (install,) = (cell.text for cell in cells(path.read_text("utf-8")) if cell.language == "pip")
    found = re.fullmatch(r'install --quiet "(\.\.)\[([\w,]+)\]"', install)
    assert found is not None
    assert (path.parent / found[1] / "pyproject.toml").is_file()
    assert set(found[2].split(",")) <= set(metadata("cdc-lib").get_all("Provides-Extra") or ())


def test_a_file_that_is_no_notebook_is_refused() -> None:
    with pytest.raises(ValueError, match="first line"):
        cells("print(1)")


def test_cells_are_told_apart() -> None:
    source = """\
# Databricks notebook source
# MAGIC %md
# MAGIC # Title
# MAGIC text

# COMMAND ----------

x = 1
# COMMAND ----------

# MAGIC %sql SELECT 1

# COMMAND ----------
"""
    assert [(cell.language, cell.text.strip()) for cell in cells(source)] == [
        ("md", "# Title\ntext"),
        ("python", "x = 1"),
        ("sql", "SELECT 1"),
    ]
