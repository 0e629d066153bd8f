"""Nothing that runs on Spark uses what Spark Connect and serverless compute do not have.

The few places that do are for other platforms, and are named here with their reason; ``tests/engines`` shows
that none of them is needed on serverless compute (``test_serverless.py``).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.connect_rules import Violation, violations

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cdc_lib", "notebooks", "pipelines", "resources")

ELSEWHERE: dict[tuple[str, str, str], str] = {
    ("cdc_lib/spark_session.py", "context", "SparkContext"): "starts a JVM of this machine's own",
    ("cdc_lib/spark_session.py", "jvm", "pyspark.java_gateway"): "starts a JVM of this machine's own",
    ("cdc_lib/spark_session.py", "jvm", "_gateway"): "whether that JVM runs already",
    ("cdc_lib/spark_session.py", "session", "newSession"): "classic sessions only",
    ("cdc_lib/spark_session.py", "session", "cloneSession"): "asked for by hasattr; done without (fence.py)",
    (
        "cdc_lib/own_sessions.py",
        "setting",
        "a variable",
    ): "transaction ids, where the probe said they are taken",
    ("cdc_lib/own_sessions.py", "global view", "createGlobalTempView"): "for siblings of a session",
    ("cdc_lib/own_sessions.py", "global view", "global_temp."): "for siblings of a session",
    ("cdc_lib/own_sessions.py", "jvm", "py4j"): "what classic sessions raise",
    ("cdc_lib/unity.py", "hive", "hive_metastore"): "told from Unity Catalog",
    ("cdc_lib/silver/moves.py", "cache", "localCheckpoint"): "computed again where it is refused",
}

PLANTED = {
    "spark._jvm.java.lang.System.exit(0)": ("jvm", "_jvm"),
    "spark._jsc": ("jvm", "_jsc"),
    "frame._jdf.schema()": ("jvm", "_jdf"),
    "spark._jsparkSession": ("jvm", "_jsparkSession"),
    "from py4j.java_gateway import JavaGateway": ("jvm", "py4j"),
    "from delta.tables import DeltaTable": ("jvm", "delta.tables"),
    "from delta import tables": ("jvm", "delta.tables"),
    "spark.sparkContext": ("context", "sparkContext"),
    "from pyspark import SparkContext": ("context", "SparkContext"),
    "frame.rdd.map(f)": ("rdd", "rdd"),
    "sc.parallelize([1]).toDF()": ("context", "parallelize"),
    "from pyspark.rdd import RDD": ("rdd", "pyspark.rdd"),
    "frame.toJSON()": ("rdd", "toJSON"),
    "spark.cloneSession()": ("session", "cloneSession"),
    "spark.newSession()": ("session", "newSession"),
    "frame.cache()": ("cache", "cache"),
    "frame.select('a').persist()": ("cache", "persist"),
    "frame.unpersist()": ("cache", "unpersist"),
    "frame.checkpoint()": ("cache", "checkpoint"),
    "frame.localCheckpoint()": ("cache", "localCheckpoint"),
    "spark.catalog.cacheTable('t')": ("cache", "cacheTable"),
    "spark.sql('CACHE TABLE t')": ("cache", "CACHE TABLE"),
    "spark.sql('refresh table t')": ("cache", "refresh table"),
    "frame.createOrReplaceGlobalTempView('v')": ("global view", "createOrReplaceGlobalTempView"),
    "spark.table('global_temp.v')": ("global view", "global_temp."),
    "spark.sql('CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1')": ("global view", "GLOBAL TEMP"),
    "spark.conf.set('spark.databricks.delta.schema.autoMerge.enabled', 'true')": (
        "setting",
        "spark.databricks.delta.schema.autoMerge.enabled",
    ),
    "spark.conf.set(name, 'true')": ("setting", "a variable"),
    "spark.sql('SET spark.sql.adaptive.enabled = false')": ("setting", "spark.sql.adaptive.enabled"),
    "spark.read.text('dbfs:/tmp/x')": ("dbfs", "dbfs:/"),
    "open('/dbfs/tmp/x')": ("dbfs", "/dbfs/"),
    "spark.table('hive_metastore.a.b')": ("hive", "hive_metastore"),
    "spark.sql('CREATE TABLE t (a INT) STORED AS ORC')": ("hive", "STORED AS ORC"),
    "frame.select(F.input_file_name())": ("input file", "input_file_name"),
    "spark.sql('SELECT input_file_name() FROM t')": ("input file", "input_file_name("),
    "frame.writeStream.trigger(processingTime='1 second')": ("trigger", "trigger"),
    "# MAGIC %sql SET spark.sql.adaptive.enabled = false": ("setting", "spark.sql.adaptive.enabled"),
}
ALLOWED = (
    "spark.conf.set('spark.sql.session.timeZone', 'UTC')",
    "spark.sql('SET spark.sql.shuffle.partitions = 1')",
    "frame.writeStream.trigger(availableNow=True)",
    "import functools\n@functools.cache\ndef f(): ...\nfunctools.cache(f)",
    "open('/Volumes/main/a/b/x')",
    "spark.sql('UPDATE t SET a = 1')",
    "Resources.conf",
)


@pytest.mark.parametrize("code", PLANTED)
def test_a_planted_use_is_found(code: str) -> None:
    rule, said = PLANTED[code]
    assert (rule, said) in {(hit.rule, hit.said) for hit in violations(f"\n{code}\n")}


def test_the_line_is_named() -> None:
    assert violations("a = 1\nb = spark._jvm\n") == [Violation(2, "jvm", "_jvm")]


@pytest.mark.parametrize("code", ALLOWED)
def test_what_serverless_takes_is_let_through(code: str) -> None:
    assert violations(code) == []


def found_in_code() -> dict[tuple[str, str, str], str]:
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert len(files) > 100
    return {
        (name, hit.rule, hit.said): f"{name}:{hit.line}: {hit.rule}: {hit.said}"
        for path in files
        for name in [path.relative_to(ROOT).as_posix()]
        for hit in violations(path.read_text(encoding="utf-8"))
    }


def test_our_code_uses_none_but_for_other_platforms() -> None:
    found = found_in_code()
    assert [text for place, text in found.items() if place not in ELSEWHERE] == []


def test_no_exception_is_left_behind() -> None:
    assert ELSEWHERE.keys() - found_in_code().keys() == set()
