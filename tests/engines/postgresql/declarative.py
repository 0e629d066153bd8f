"""Runs the repository's declarative pipeline on open-source Spark, in the JVM of the other engine tests.

Delta's tables do not say that they support MERGE, so a catalog is put around Delta's that does
(``MergingDeltaCatalog.java``). It is compiled here and given to one session alone.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.pipelines import cli, spark_connect_pipeline
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.sql import SparkSession

from cdc_lib.spark_session import jars_folder

ROOT = Path(__file__).resolve().parents[3]
JAVA = Path(__file__).with_name("MergingDeltaCatalog.java")


def absent() -> str | None:
    """Why this cannot be run here, None if it can."""
    if shutil.which("javac") is None:
        return "no javac, which makes Delta's catalog one that open-source AUTO CDC takes"
    return None if _delta_jars() else "Delta's JARs have not been downloaded yet"


def _delta_jars() -> list[Path]:
    return sorted((jars_folder() / "jars").glob("io.delta_*.jar"))


def build_catalog(folder: Path) -> Path:
    """The compiled catalog as a JAR."""
    spark_jars = Path(pyspark.__path__[0]) / "jars" / "*"
    path = ":".join(map(str, [spark_jars, *_delta_jars()]))
    classes = folder / "classes"
    subprocess.run(["javac", "-proc:none", "-cp", path, "-d", str(classes), str(JAVA)], check=True)
    jar = folder / "merging-catalog.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for file in sorted(classes.rglob("*.class")):
            archive.write(file, file.relative_to(classes))
    return jar


@contextmanager
def declarative_session(remote: str, jar: Path) -> Iterator[SparkSession]:
    """A session whose catalog AUTO CDC takes."""
    session = SparkSession.builder.remote(remote).create()
    try:
        session.addArtifacts(str(jar))
        session.conf.set("spark.sql.catalog.spark_catalog", "cdc.test.MergingDeltaCatalog")
        session.conf.set("spark.sql.sources.default", "delta")
        yield session
    finally:
        session.stop()


def update(session: SparkSession, folder: Path, schema: str, configuration: Mapping[str, str]) -> list[str]:
    """One update of ``pipelines/declarative``, as ``spark-pipelines run`` does it; what it reported."""
    for name, value in configuration.items():
        session.conf.set(name, value)
    spec = cli.unpack_pipeline_spec(
        {
            "name": "silver",
            "storage": (folder / "storage").as_uri(),
            "libraries": [{"glob": {"include": "pipelines/declarative/**"}}],
        }
    )
    graph = spark_connect_pipeline.create_dataflow_graph(session, None, schema, dict(configuration))
    registry = SparkConnectGraphElementRegistry(session, graph)
    cli.register_definitions(ROOT / "spark-pipeline.yml", registry, spec, session, graph)
    events = spark_connect_pipeline.start_run(session, graph, None, False, None, False, spec.storage)
    return [_message(event) for event in events]


def _message(event: Mapping[str, Any]) -> str:
    result = event.get("pipeline_event_result")
    return "" if result is None else str(result.event.message)
