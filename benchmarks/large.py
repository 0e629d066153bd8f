"""A large table under a steady load, its snapshot killed three times on the way, then proved equal.

The runs are the command line's, in processes of their own. While they go on, one session changes the table
at a steady rate and keeps how long each of its transactions took: who is locked out shows there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks import measure
from benchmarks.process import ROOT, BenchmarkFailed
from benchmarks.rounds import COLD, Measurement
from benchmarks.workload import TABLE, Database
from cdc_lib.config import parse
from cdc_lib.delta import Lake

CHANGES_PER_SECOND = 1_000
PER_TRANSACTION = 10
KILL_AT = (0.15, 0.4, 0.7)
"""Parts of the pieces that are committed when the run is killed."""
LIMIT_SECONDS = 3_600


class Load:
    """Changes at a steady rate, in a thread; a context manager. ``longest`` is in seconds."""

    def __init__(self, source: Database, rows: int) -> None:
        self._source = source
        self._rows = rows
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="bench-load", daemon=True)
        self.changes = 0
        self.longest = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise BenchmarkFailed(f"the load failed: {self._error}")

    def _run(self) -> None:
        try:
            with self._source.connection() as connection, closing(connection.cursor()) as cursor:
                self._write(cursor)
        except Exception as error:  # noqa: BLE001 - raised again where the load ends
            self._error = error

    def _write(self, cursor: Any) -> None:
        chance, began = random.Random(1), time.monotonic()
        while not self._stop.is_set():
            due = began + self.changes / CHANGES_PER_SECOND
            self._stop.wait(max(0.0, due - time.monotonic()))
            started = time.monotonic()
            cursor.execute("BEGIN")
            for _ in range(PER_TRANSACTION):
                self._change(cursor, chance)
            cursor.execute("COMMIT")
            self.longest = max(self.longest, time.monotonic() - started)
        self.seconds = time.monotonic() - began

    def _change(self, cursor: Any, chance: random.Random) -> None:
        key, kind = chance.randrange(1, self._rows + 1), chance.random()
        if kind < 0.8:
            cursor.execute(f"UPDATE {TABLE} SET amount = amount + 1, note = 'changed' WHERE id = %s", (key,))
        elif kind < 0.9:
            cursor.execute(f"DELETE FROM {TABLE} WHERE id = %s", (key,))
        else:
            new = self._rows + self.changes + 1
            cursor.execute(f"INSERT INTO {TABLE} (id, customer, note) VALUES (%s, 1, 'new')", (new,))
        self.changes += 1


class Commands:
    """``cdc`` on one pipeline file, each run in a process of its own and measured."""

    def __init__(self, folder: Path, pipeline: Mapping[str, Any], server: int) -> None:
        self.pipeline = parse(pipeline)
        self._file = folder / "pipeline.yml"
        self._file.write_text(yaml.safe_dump(dict(pipeline)), encoding="utf-8")
        self._log = folder / "cdc.log"
        self._server = server

    def measured(
        self, name: str, rows: int, runs: Sequence[tuple[Sequence[str], float | None]]
    ) -> Measurement:
        """Commands one after the other as one measurement; each with the part of the pieces to kill it at."""
        load, server = os.getloadavg()[0], measure.cpu_seconds(self._server)
        began, client, answer = time.monotonic(), 0.0, ""
        peaks = dict.fromkeys(measure.ROLES, 0)
        for command, part in runs:
            with self._started(command) as (process, peak):
                answer = self._finished(process, part)
                client += peak.cpu
            peaks = {role: max(peaks[role], peak.bytes[role]) for role in peaks}
        seconds = time.monotonic() - began
        server = measure.cpu_seconds(self._server) - server
        said = json.loads(answer) if answer.startswith(("{", "[")) else {}
        return Measurement(name, COLD, 0, 0, seconds, rows, client, server, peaks, load, said)

    @contextmanager
    def _started(self, command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], _Watch]]:
        with self._log.open("a", encoding="utf-8") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "cdc_lib", *command, str(self._file)],
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )
        watch = _Watch(process.pid)
        with watch.watching():
            yield process, watch

    def _finished(self, process: subprocess.Popen[str], part: float | None) -> str:
        until = time.monotonic() + LIMIT_SECONDS
        while part is not None and self._done() < part:
            if process.poll() is not None or time.monotonic() > until:
                raise BenchmarkFailed(f"the run ended before {part:.0%} of the pieces; see {self._log}")
            time.sleep(0.2)
        if part is not None:
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
        if process.returncode not in ((0, 1) if part is None else (-signal.SIGKILL,)):
            raise BenchmarkFailed(f"cdc ended with {process.returncode}; see {self._log}")
        return output

    def _done(self) -> float:
        """The part of the planned pieces whose rows are committed."""
        lake = Lake(self.pipeline.target)
        rows = lake.rows(lake.ref("control", "chunks"), ["number", "state"])
        planned = {row["number"] for row in rows if row["state"] == "planned"}
        done = {row["number"] for row in rows if row["state"] == "done"}
        return len(done) / len(planned) if planned else 0.0


def measured(
    folder: Path, pipeline: Mapping[str, Any], source: Database, rows: int
) -> tuple[list[Measurement], dict[str, Any]]:
    """Snapshot, silver and comparison of a table of ``rows`` under load; the facts of the load.

    :raises BenchmarkFailed: a run failed, or silver is not equal to the source.
    """
    commands = Commands(folder, pipeline, source.pid)
    with Load(source, rows) as load:
        runs = [*((["capture"], part) for part in KILL_AT), (["capture"], None)]
        snapshot = commands.measured("snapshot, killed 3 times", rows, runs)
        silver = commands.measured("run, after it", rows, [(["run"], None)])
        proof = commands.measured("reconcile", rows, [(["reconcile", "--json"], None)])
    if not proof.answer.get("same"):
        raise BenchmarkFailed(f"silver is not equal to the source: {proof.answer}")
    facts = {
        "rows": rows,
        "changes": load.changes,
        "changes_per_second": round(load.changes / load.seconds),
        "longest_transaction_ms": round(load.longest * 1000),
    }
    return [snapshot, silver, proof], facts


class _Watch(measure.Peak):
    """Memory of a process tree, and the CPU that it was last seen to have used."""

    def __init__(self, root: int) -> None:
        super().__init__(root)
        self.cpu = 0.0

    def look(self) -> None:
        super().look()
        self.cpu = max(self.cpu, measure.cpu_seconds(self._root))
