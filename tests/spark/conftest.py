"""One Spark session for all tests here: Spark Connect to a tuned JVM, so that the code is safe for it.

``CDC_TEST_SPARK=classic`` runs the same tests on a classic session.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_lib.config import Target
from cdc_lib.delta import Lake
from cdc_lib.spark_session import QUICK, start_local

TUNED = {
    **QUICK,
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.connect.grpc.binding.port": "0",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # With this, the client asks the server that it started for its port, and test runs do not collide.
    os.environ.setdefault("SPARK_TESTING", "1")
    connect = os.environ.get("CDC_TEST_SPARK", "connect") == "connect"
    session = start_local(master="local[2]", connect=connect, extra=TUNED)
    yield session
    session.stop()


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(path=tmp_path / "lake")


@pytest.fixture
def lake(spark: SparkSession, target: Target) -> Lake:
    """Tables in a folder of the test's own."""
    return Lake(target, lambda: spark)


@pytest.fixture
def catalog_lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """Tables in schemas of Spark's own catalog, named after the test's folder."""
    name = tmp_path.name.replace("-", "_")
    target = Target(
        catalog="spark_catalog",
        bronze=f"{name}_b",
        silver=f"{name}_s",
        control=f"{name}_c",
        staging=tmp_path / "staging",
    )
    yield Lake(target, lambda: spark)
    for schema in (target.bronze, target.silver, target.control):
        spark.sql(f"DROP SCHEMA IF EXISTS `{schema}` CASCADE").collect()


@pytest.fixture
def no_jvm() -> Callable[[], SparkSession]:
    """A session opener for a lake that must do without Spark."""

    def refuse() -> SparkSession:
        raise AssertionError("this needs Spark")

    return refuse


@pytest.fixture
def at_once() -> Callable[..., list[object]]:
    """Calls functions at the same moment, each in its thread; results or exceptions, in order."""

    def run(*calls: Callable[[], object]) -> list[object]:
        barrier = threading.Barrier(len(calls))
        results: list[object] = [None] * len(calls)

        def call(index: int) -> None:
            barrier.wait()
            try:
                results[index] = calls[index]()
            except Exception as error:  # noqa: BLE001  the test looks at it
                results[index] = error

        threads = [threading.Thread(target=call, args=(index,)) for index in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return run
