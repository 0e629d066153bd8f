"""``make hunt SEED=1 MINUTES=30``: random schemas and histories under a runner that keeps dying.

Each round makes a database of its own, captures it while it is written to, kills the runner at random points,
and in between lets the writes rest and compares silver with the source, every value of every row. The round's
seed is printed before it starts, and is all that is needed to look for the same again: the schema and the
statements follow from it, their timing does not.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cdc_lib import faults
from tests.engines import kill, workload
from tests.engines.conformance import assert_same, assert_same_bag
from tests.engines.connect_server import ConnectServer
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.test_conformance import PostgresDatabase
from tests.hunt.history import Writer
from tests.servers import postgresql
from tests.servers.postgresql import Server

ENDED = (0, 3, -signal.SIGKILL)
"""How a run may end: done, to be run again, killed."""


def play(seed: int, server: Server, spark: ConnectServer, folder: Path, steps: int = 8) -> str:
    """One round; what it did, in words.

    :raises AssertionError: silver is not the source, or a run ended as it may not.
    """
    chance = random.Random(seed)
    with PostgresDatabase(server) as database:
        writer = Writer(database, random.Random(seed))
        writer.create()
        pipeline = _pipeline(chance, database, spark, folder)
        done = []
        for step in range(steps):
            writer.start()
            try:
                done.append(_step(chance, pipeline))
            finally:
                writer.stop()
            if step % 3 == 2 or step == steps - 1:
                _compare(pipeline, database, writer)
        process = pipeline.start("reconcile")
        output = kill.finished(process)
        assert process.returncode == 0, f"reconcile ended with {process.returncode}:\n{output}"
        return f"{writer.transactions} transactions, {writer.added} columns added, {', '.join(done)}"


def _pipeline(
    chance: random.Random, database: PostgresDatabase, spark: ConnectServer, folder: Path
) -> PipelineUnderTest:
    limits: dict[str, Any] = {
        "batch_rows": chance.choice([200, 2_000, 100_000]),
        "chunk_rows": chance.choice([20, 60, 10_000]),
        "threads": chance.choice([1, 2]),
        "snapshot": chance.choice(["incremental", "incremental", "consistent"]),
    }
    source = database.source(folder, {})
    made = PipelineUnderTest(spark, folder, database.name, source, limits)
    made.writer = chance.choice(["direct", "direct", "spark"])
    made.tables = [
        {"match": r"public\.other", "scd": 2},
        {"match": r"public\.third", "delete": chance.choice(["soft", "hard"])},
    ]
    return made


def _step(chance: random.Random, pipeline: PipelineUnderTest) -> str:
    """A run that is killed, most of the time, or one that is not."""
    verb = chance.choice(["run", "run", "capture"])
    arguments: Sequence[str] = (verb,)
    if chance.random() < 0.15:
        verb = "snapshot"
        arguments = (verb,)
    if chance.random() < 0.3:
        fault, environment = "", {}
    else:
        fault = f"{chance.choice(faults.POINTS)}:{chance.choice([1, 1, 2, 3])}"
        environment = {"CDC_FAULT": fault}
    process = pipeline.start(*arguments, **environment)
    output = kill.finished(process)
    assert process.returncode in ENDED, f"{verb} {fault} ended with {process.returncode}:\n{output}"
    return f"{verb} {'killed at ' + fault if process.returncode < 0 else 'ended'}"


def _compare(pipeline: PipelineUnderTest, database: PostgresDatabase, writer: Writer) -> None:
    pipeline.run()
    for table in writer.tables:
        if table.key is None:
            assert_same_bag(pipeline, database, table.name)
        else:
            assert_same(pipeline, database, table.name, table.key_names)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make hunt", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=30)
    chosen = parser.parse_args(arguments)
    deadline = time.monotonic() + chosen.minutes * 60
    with ExitStack() as stack:
        # Only what went well is removed.
        root = Path(tempfile.mkdtemp(prefix="cdc-hunt-"))
        server = stack.enter_context(postgresql.running("16", workload.SETTINGS))
        spark = stack.enter_context(ConnectServer(root / "spark.log"))
        seed, rounds = chosen.seed, 0
        while time.monotonic() < deadline:
            folder = root / str(seed)
            print(f"seed {seed} in {folder}: ", end="", flush=True)
            folder.mkdir()
            print(play(seed, server, spark, folder), flush=True)
            seed, rounds = seed + 1, rounds + 1
            shutil.rmtree(folder)
    shutil.rmtree(root)
    print(f"{rounds} rounds, silver equal to the source after each")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
