"""``cdc demo``: everything once, on a machine that has nothing, with the proof at the end.

Starts a PostgreSQL of its own with a shop under live writes, runs a pipeline against it in rounds, stops the
writes, and compares silver with the source row by row. The folder stays, so that its tables can be queried.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cdc_lib import shop
from cdc_lib.bronze import table_name
from cdc_lib.cli import output
from cdc_lib.cli.reports import show_next_commands, show_status, show_throughput
from cdc_lib.cli.stopping import before_exit_at_once
from cdc_lib.config import Pipeline, load
from cdc_lib.delta import Lake
from cdc_lib.embedded import EmbeddedPostgres
from cdc_lib.errors import FixConfiguration, Interrupted
from cdc_lib.progress import for_console
from cdc_lib.runner import Runner
from cdc_lib.schema import TableId
from cdc_lib.spark_session import QUICK, start_local
from cdc_lib.status import read_status, read_throughput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = ".cdc-demo"
VERSION = 16

PIPELINE = """\
# Written by cdc demo. Its server runs only while the demo does: cdc demo --keep leaves it up.
name: demo
source:
  connector.class: postgresql
  database.hostname: {host}
  database.port: {port}
  database.user: {user}
  database.password: ${{file:{password}}}
  database.dbname: {dbname}
  table.include.list: public[.].*
target:
  path: {lake}
"""


@dataclass(frozen=True)
class Comparison:
    """A source table against its silver table, as multisets of whole rows in canonical text."""

    table: str
    source_rows: int
    silver_rows: int
    only_source: int
    only_silver: int

    @property
    def equal(self) -> bool:
        return not self.only_source and not self.only_silver


def run_demo(folder: Path, *, seconds: int, keep: bool, stop: threading.Event) -> bool:
    """Run the demo; True if silver equals the source.

    :param seconds: how long to capture while the shop is written to, from the first run on.
    :param keep: wait for a signal at the end, with the server up.
    """
    console = output.stdout()
    prepare(folder)
    server = EmbeddedPostgres(folder / "server", version=VERSION, fsync=False)
    with before_exit_at_once(lambda: server.stop("immediate")), server:
        console.print(f"PostgreSQL {VERSION} runs on {server.host}:{server.port}, in {folder / 'server'}")
        place = shop.Server(server.host, server.port, server.user, server.password)
        shop.create(place)
        pipeline = load(write_pipeline(folder, server, place.dbname))
        lake = Lake(pipeline.target, _quick_session)
        console.print("A shop is filled, and three writers keep changing it while it is captured.")
        capture_while_writing(pipeline, lake, place, seconds=seconds, stop=stop)
        console.print("The writers have stopped and a last run has caught up.\n")
        show_throughput(read_throughput(pipeline), console)
        show_status(read_status(pipeline), console)
        same = show_comparisons([compare(lake, place, table) for table in shop.TABLES], console)
        show_next_commands(folder / "demo.yml", console)
        if keep:
            console.print(f"\nThe database stays up: {place}. Ctrl-C ends it.")
            stop.wait()
    return same


def _quick_session() -> SparkSession:
    return start_local(extra=QUICK)


def prepare(folder: Path) -> None:
    """Make the folder; an earlier demo in it is removed.

    :raises FixConfiguration: the folder holds something else.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise FixConfiguration(
            f"the folder {folder} is not empty",
            why="the demo begins with an empty folder, and this one holds something that no demo made",
            remedy="name another: cdc demo --folder some/new/folder",
        )
    if folder.exists():
        EmbeddedPostgres(folder / "server", version=VERSION).remove()
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def write_pipeline(folder: Path, server: EmbeddedPostgres, dbname: str) -> Path:
    """The pipeline file; the password stays in the server's folder and is referred to."""
    path = folder / "demo.yml"
    text = PIPELINE.format(
        host=server.host,
        port=server.port,
        user=server.user,
        password=(folder / "server" / "password").absolute(),
        dbname=dbname,
        lake=(folder / "lake").absolute(),
    )
    path.write_text(text, encoding="utf-8")
    return path


def capture_while_writing(
    pipeline: Pipeline, lake: Lake, place: shop.Server, *, seconds: int, stop: threading.Event
) -> None:
    """Snapshot and rounds of capture under live writes, then one more run after the last write.

    :raises Interrupted: ``stop`` was set.
    """
    with for_console(output.stderr()) as progress:
        begun = time.monotonic()
        with shop.Writers(place) as writers:
            while True:
                Runner(pipeline, progress=progress, stop=stop, lake=lake).run()
                if time.monotonic() - begun >= seconds:
                    break
                if stop.wait(1):
                    raise Interrupted("stopped on request")
            writers.stop()
        Runner(pipeline, progress=progress, stop=stop, lake=lake).run()


# -- the proof


def compare(lake: Lake, place: shop.Server, table: str) -> Comparison:
    """All rows of both sides, read by their own drivers; equal only if every value has the same text."""
    columns = shop.columns(place, table)
    source = counted(shop.rows(place, table, columns))
    silver = counted(silver_rows(lake, TableId("public", table), columns))
    return Comparison(
        table,
        source_rows=source.total(),
        silver_rows=silver.total(),
        only_source=(source - silver).total(),
        only_silver=(silver - source).total(),
    )


def silver_rows(lake: Lake, table: TableId, columns: Sequence[str]) -> Iterable[Sequence[Any]]:
    """The source's columns of a silver table, as Python values."""
    found = lake.table(lake.ref("silver", table_name(table))).select(*columns).toArrow()
    return zip(*(found.column(name).to_pylist() for name in columns), strict=True)


def counted(rows: Iterable[Sequence[Any]]) -> Counter[tuple[str, ...]]:
    """Rows in canonical text with how often each occurs."""
    return Counter(tuple(canonical(value) for value in row) for row in rows)


def canonical(value: Any) -> str:
    """Text in which two values are equal only if type and value are: 1, 1.0 and true all differ."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"instant {value.astimezone(timezone.utc).isoformat()}"
    if isinstance(value, list):
        return f"list [{', '.join(map(canonical, value))}]"
    return f"{type(value).__name__} {value!r}"


def show_comparisons(comparisons: Sequence[Comparison], console: Console) -> bool:
    """The tables side by side; True if all are equal."""
    console.print("Silver against the source, every value of every row:")
    output.show_table(
        ["table", "rows in source", "rows in silver", "only in source", "only in silver", ""],
        [
            (
                c.table,
                c.source_rows,
                c.silver_rows,
                c.only_source,
                c.only_silver,
                "equal" if c.equal else "DIFFERENT",
            )
            for c in comparisons
        ],
        console,
    )
    same = all(comparison.equal for comparison in comparisons)
    console.print("Silver equals the source." if same else "Silver DIFFERS from the source.")
    return same
