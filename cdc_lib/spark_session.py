"""Where a Spark session comes from: Databricks' own, a Spark Connect server, or a JVM on this machine.

Everything else in the package takes a session and uses only calls that work on all three. The local JVM
is tuned for many small commits (``docs/benchmarks.md``), starts without chatter, and writes what it has to
say to a log file in the cache folder.

Environment: ``CDC_SPARK_REMOTE`` (``sc://...``), ``CDC_JARS`` (folder of Delta's JARs),
``CDC_DRIVER_MEMORY`` (default 3g), ``CDC_SPARK_CONF`` (a JSON object of settings that win over ours).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cdc_lib.errors import FixConfiguration
from cdc_lib.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_starting = threading.Lock()

LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # The default of 50 partitions costs 1.5 s for each small commit.
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM lists a folder by so many tasks; the default of 10,000 takes minutes for a handful of files.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # Change data is nearly unique; building dictionaries to throw them away took a quarter of the CPU.
    "spark.hadoop.parquet.enable.dictionary": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Spark's default, INT96, is read by others as nanoseconds, which end in the year 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # What silver merges from is read at fixed versions of bronze, so that both passes see the same.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
}

# Delta's POM lists libraries that Spark already carries (80 MB) and Unity Catalog's client, not needed here.
_CARRIED_BY_SPARK = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "io.unitycatalog:unitycatalog-client",
    "io.unitycatalog:unitycatalog-hadoop",
    "io.delta:delta-kernel-api",
    "io.delta:delta-kernel-defaults",
    "io.delta:delta-kernel-unitycatalog",
)

# Generated code fills the default code cache, and then the JVM does little but sweep it.
_JVM = "-XX:ReservedCodeCacheSize=512m"
QUICK: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmn256m",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # A handful of rows is sooner done than code for them is compiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For runs of few rows: no code is generated for them, the JVM's first compiler is enough, and the cores are
left to the work. Writing millions of rows is several times slower with it."""

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n
"""


def session() -> SparkSession:
    """The session to work in: the active one, a Spark Connect server's, or a new local one.

    :raises FixConfiguration: PySpark or Java is missing, or Spark does not start.
    """
    with _starting, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from pyspark.sql import SparkSession
        except ModuleNotFoundError as error:
            raise FixConfiguration(
                "PySpark is not installed",
                why=f"module {error.name} is missing",
                remedy="pip install 'cdc-lib[local]'",
            ) from None
        active: SparkSession | None = SparkSession.getActiveSession()
        if active is not None:
            return active
        if "DATABRICKS_RUNTIME_VERSION" in os.environ:
            found: SparkSession = SparkSession.builder.getOrCreate()
            return found
        url = os.environ.get("CDC_SPARK_REMOTE")
        if url is not None:
            remote: SparkSession = SparkSession.builder.remote(url).getOrCreate()
            return remote
        return start_local()


def is_connect(spark: SparkSession) -> bool:
    """Whether the session talks to a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def send_by_value(spark: SparkSession, *modules: ModuleType) -> None:
    """Let what is in these modules travel whole to Spark's Python workers: a Spark Connect server need not
    have this package installed."""
    if is_connect(spark):
        from pyspark import cloudpickle

        for module in modules:
            cloudpickle.register_pickle_by_value(module)


def sibling(spark: SparkSession) -> SparkSession:
    """A second session of the same application with settings and views of its own.

    :raises FixConfiguration: this Spark Connect server cannot open one.
    """
    if not is_connect(spark):
        fresh: SparkSession = spark.newSession()
        return fresh
    if not hasattr(spark, "cloneSession"):
        raise FixConfiguration(
            "this Spark Connect client cannot open a second session",
            why="PySpark older than 4.1 has no cloneSession",
            remedy="use a newer runtime",
        )
    clone: SparkSession = spark.cloneSession()
    # Left to the garbage collector of an ending interpreter, closing its channel waits for ever.
    atexit.register(clone.client.close)
    return clone


def cache_folder() -> Path:
    """The folder of this user's cache that belongs to this package."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdc-lib"


def jars_folder() -> Path:
    """Where Delta's JARs are kept once they have been downloaded."""
    return Path(os.environ.get("CDC_JARS") or cache_folder() / "jars").resolve()


def local_settings(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """All settings of a local session: ours, the JARs, then ``CDC_SPARK_CONF``, then ``extra``."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J, encoding="utf-8")
    settings = {
        **LOCAL_SETTINGS,
        "spark.driver.memory": os.environ.get("CDC_DRIVER_MEMORY", "3g"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **_jar_settings(jars_folder()),
        **_settings_from_environment(),
        **(extra or {}),
    }
    options = f"{_JVM} -Dlog4j2.configurationFile={log4j.as_uri()} -Dderby.system.home={folder}"
    given = settings.get("spark.driver.extraJavaOptions")
    settings["spark.driver.extraJavaOptions"] = f"{options} {given}" if given else options
    return settings


def start_local(
    *, master: str = "local[*]", connect: bool = False, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a JVM on this machine; ``connect`` puts a Spark Connect server into it and talks to that.

    :raises FixConfiguration: Java is missing, or Spark does not start (with the end of its log).
    """
    ensure_java()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _share_package_with_workers()
    settings = local_settings(extra)
    log = cache_folder() / f"spark-{os.getpid()}.log"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _launch_jvm(settings, log)
            builder = SparkSession.builder.appName("cdc-lib").config(map=settings)
            where = builder.remote(master) if connect else builder.master(master)
            started: SparkSession = where.getOrCreate()
    except PySparkException as error:
        raise _not_started(str(error), log) from error
    _forget_old(log.parent)
    return started


def _launch_jvm(settings: Mapping[str, str], log: Path) -> None:
    # PySpark's own launch lets the JVM write to our stderr: Ivy's report, incubator warnings, log4j's advice.
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with log.open("ab") as sink:
        gateway = launch_gateway(conf, {"stdout": sink, "stderr": sink})
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _not_started(error: str, log: Path) -> FixConfiguration:
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:] if log.exists() else []
    return FixConfiguration(
        "Spark did not start",
        why="\n".join([error.strip().splitlines()[0] if error.strip() else "no reason given", *tail]),
        remedy="Spark 4 needs Java 17 or 21 (check `java -version`); the first start downloads Delta's JARs, "
        f"which needs the network once. The whole log: {log}",
    )


def _forget_old(folder: Path) -> None:
    """Each process leaves a log with little in it; keep those of the last week."""
    week_ago = time.time() - 7 * 24 * 3600
    for log in folder.glob("spark-*.log"):
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_mtime < week_ago:
                log.unlink()


def _share_package_with_workers() -> None:
    """Spark's Python workers import this package also when it runs from a checkout that is not installed."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])


def _jar_settings(folder: Path) -> dict[str, str]:
    """Local JAR files if they have been downloaded before (saves Ivy's seconds), else coordinates."""
    try:
        delta, spark = version("delta-spark"), version("pyspark")
    except PackageNotFoundError as error:
        raise FixConfiguration(
            "Delta Lake for Spark is not installed",
            why=f"package {error.name} is missing",
            remedy="pip install 'cdc-lib[local]'",
        ) from None
    artifact = f"delta-spark_{'.'.join(spark.split('.')[:2])}_2.13"
    files = [
        folder / "jars" / f"io.delta_{artifact}-{delta}.jar",
        folder / "jars" / f"io.delta_delta-storage-{delta}.jar",
    ]
    if all(file.exists() for file in files):
        return {"spark.jars": ",".join(map(str, files))}
    return {
        "spark.jars.packages": f"io.delta:{artifact}:{delta}",
        "spark.jars.excludes": ",".join(_CARRIED_BY_SPARK),
        "spark.jars.ivy": str(folder),
    }


def _settings_from_environment() -> dict[str, str]:
    text = os.environ.get("CDC_SPARK_CONF", "").strip()
    if not text:
        return {}
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise FixConfiguration(
            "CDC_SPARK_CONF is not JSON", why=str(error), remedy='write it as {"spark.driver.memory": "2g"}'
        ) from None
    if not isinstance(settings, dict):
        raise FixConfiguration(
            "CDC_SPARK_CONF is not a JSON object", remedy='write it as {"spark.driver.memory": "2g"}'
        )
    return {str(key): str(value) for key, value in settings.items()}
