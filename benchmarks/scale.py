"""The figures of ``docs/scaling.md``: what many tables cost, and what it costs to read by Spark tasks.

    python -m benchmarks.scale tables [--count 1000]       captures of many small tables
    python -m benchmarks.scale executors [--rows 1000000]  one table, by threads and by tasks on two executors

Both start a server of their own. Each line is one run in a process of its own, with its seconds alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa

from cdc_lib import config
from cdc_lib.embedded import EmbeddedPostgres
from cdc_lib.runner import Runner
from cdc_lib.spark_session import start_local

CLUSTER = "local-cluster[2,1,1024]"


@contextmanager
def served(folder: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(folder / "server", settings={"wal_level": "logical", "max_wal_size": "4GB"})
    server.start()
    try:
        yield server
    finally:
        server.remove()


def execute(server: EmbeddedPostgres, *statements: str) -> list[tuple[Any, ...]]:
    where = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
    with closing(psycopg2.connect(dbname="postgres", **where)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def pipeline(server: EmbeddedPostgres, folder: Path, name: str, **run: Any) -> dict[str, Any]:
    source = {
        "connector.class": "postgresql",
        "database.hostname": server.host,
        "database.port": server.port,
        "database.user": server.user,
        "database.password": f"${{file:{_secret(server, folder)}}}",
        "database.dbname": "postgres",
        "table.include.list": r"public\..*",
    }
    return {"name": name, "source": source, "target": {"path": str(folder / name)}, "run": run}


def _secret(server: EmbeddedPostgres, folder: Path) -> Path:
    path = folder / "password"
    path.write_text(server.password, encoding="utf-8")
    return path


def run(what: str, given: Mapping[str, Any], master: str = "") -> None:
    """``cdc capture`` in a new process; prints what it took."""
    environ = {**os.environ, "PYTHONPATH": os.getcwd(), **(_own_spark(given) if master else {})}
    command = [sys.executable, "-m", "benchmarks.scale", "run", json.dumps(given), "--master", master]
    output = subprocess.run(command, check=True, env=environ, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(output.splitlines()[-1])
    commits = sum(1 for _ in Path(given["target"]["path"]).glob("*/*/_delta_log/*.json"))
    print(
        f"{what:32} {found['seconds']:8.1f} s  {found['mb']:6.0f} MB  {commits:7,} commits so far", flush=True
    )


def _own_spark(given: Mapping[str, Any]) -> dict[str, str]:
    """A Spark that executors can be started from: a package from PyPI lacks the layout."""
    import pyspark

    home = Path(given["target"]["path"] + "-spark")
    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (home / entry.name).symlink_to(entry)
    return {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}


def run_here(given: Mapping[str, Any], master: str) -> None:
    if master:
        spark = start_local(master=master, extra={"spark.executor.memory": "1g"})
        # Python workers are started once an executor, and stay.
        spark.range(0, 2, 1, 2).mapInArrow(_as_it_is, "id BIGINT").collect()
    begin = time.perf_counter()
    with Runner(config.parse(given)) as runner:
        runner.capture()
    seconds = time.perf_counter() - begin
    high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "mb": high}))


def _as_it_is(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def tables(folder: Path, count: int) -> None:
    with served(folder) as server:
        names = [f"t{number:05d}" for number in range(count)]
        execute(server, *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in names))
        execute(
            server, *(f"INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 10) i" for name in names)
        )
        given = pipeline(server, folder, "many")
        run(f"{count:,} tables, first run", given)
        run("nothing changed", given)
        execute(server, *(f"UPDATE {name} SET v = 'w' WHERE id = 1" for name in names))
        run("a row of each changed", given)
        execute(server, f"UPDATE {names[0]} SET v = 'x' WHERE id = 1")
        run("a row of one changed", given)


def executors(folder: Path, rows: int) -> None:
    with served(folder) as server:
        execute(
            server,
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, note text, amount numeric(12,2), "
            "created timestamptz, active boolean, day date, score float8, token uuid, comment text)",
            "INSERT INTO orders SELECT i, i % 1000, 'note ' || i, i / 7.0, now(), i % 2 = 0, current_date, "
            f"i / 3.0, gen_random_uuid(), 'comment ' || i FROM generate_series(1, {rows}) i",
            "VACUUM ANALYZE orders",
        )
        [(size,)] = execute(server, "SELECT pg_table_size('orders')")
        print(f"{rows:,} rows, {size / rows:.0f} bytes of table each")
        for snapshot_on in ("driver", "executors", "driver", "executors"):
            name = f"by_{snapshot_on}_{time.time_ns()}"
            given = pipeline(server, folder, name, snapshot_on=snapshot_on, threads=2, batch_rows=500_000)
            run(f"{rows:,} rows by the {snapshot_on}", given, CLUSTER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["tables", "executors", "run"])
    parser.add_argument("given", nargs="?")
    parser.add_argument("--master", default="")
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    if options.what == "run":
        run_here(json.loads(options.given), options.master)
        return
    with tempfile.TemporaryDirectory(prefix="cdc-scale-") as name:
        if options.what == "tables":
            tables(Path(name), options.count)
        else:
            executors(Path(name), options.rows)


if __name__ == "__main__":
    main()
