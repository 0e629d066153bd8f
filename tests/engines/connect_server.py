"""One JVM for all engine tests: a process with Spark, Delta and a Spark Connect server in it.

Starting a JVM takes ten times as long as a small run. Tests that kill a runner start only its Python side,
as a client of this server; all others let this process run the pipeline itself, which costs no start at
all. So both ways to reach Spark are tested, and the test process needs no session of its own.

The process reads one JSON request a line and answers with one line; it ends with its standard input.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from typing_extensions import Self

from cdc_lib.spark_session import QUICK, jars_folder

_SETTINGS = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    **QUICK,
}


@dataclass
class Outcome:
    """How a run ended; ``error`` is the class of what it raised, empty if nothing."""

    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""
    exit_code: int = 0
    what: str = ""
    why: str = ""
    remedy: str = ""
    trace: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    """What the verb returned, where that is more than metrics."""

    @property
    def text(self) -> str:
        return "\n".join((self.error, self.what, self.why, self.remedy))


class RunFailed(AssertionError):
    """A run that should have succeeded; carries its traceback."""


class ConnectServer:
    """The process, as a test sees it; a context manager.

    :param master: ``local-cluster[...]`` for executors that are processes of their own.
    :param settings: of Spark, beside ours.
    :param environment: of the process, and so of what it starts.
    """

    def __init__(
        self,
        log: Path,
        master: str = "local[2]",
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.connect_server", master, json.dumps(settings or {})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=Path(__file__).resolve().parents[2],
            # Other processes clear old logs out of the common cache folder.
            env={
                **without_spark(),
                "CDC_JARS": str(jars_folder()),
                "XDG_CACHE_HOME": str(log.parent),
                **(environment or {}),
            },
            # A session of its own: a Ctrl-C must not reach the JVM before the tests are done with it.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.remote = str(self._answer()["remote"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    def run(self, pipeline: Path, verb: str = "run", tables: Sequence[str] = (), **options: Any) -> Outcome:
        """Run a verb on a pipeline file; its error is the answer."""
        asked = {"do": "run", "pipeline": str(pipeline), "verb": verb, "tables": list(tables)}
        answer = self._ask({**asked, "options": options})
        return Outcome(**answer)

    def sql(self, query: str, folder: Path) -> pa.Table:
        """Rows of a query, by way of a file in ``folder``."""
        answer = self._ask({"do": "sql", "query": query, "file": str(folder / "answer.arrow")})
        if answer["trace"]:
            raise RunFailed(answer["trace"])
        with pa.OSFile(str(folder / "answer.arrow")) as file:
            return pa.ipc.open_stream(file).read_all()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RunFailed(f"the Spark process ended with {self._process.wait(10)}; see {self._log.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def own_spark_home(folder: Path) -> dict[str, str]:
    """What the environment of a local cluster needs: it starts its executors from, and lets them write into,
    a Spark of its own, where a package from PyPI has neither the layout nor the rights for it."""
    import pyspark

    for entry in Path(pyspark.__file__).parent.iterdir():
        (folder / entry.name).symlink_to(entry)
    return {"SPARK_HOME": str(folder), "SPARK_SCALA_VERSION": "2.13"}


def without_spark() -> dict[str, str]:
    """The environment without what a Spark session in this process has left there for its own workers."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}


def _serve() -> None:
    # Whatever prints in this process must not end up between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    from cdc_lib.spark_session import start_local

    port = _free_port()
    master, settings = sys.argv[1], json.loads(sys.argv[2])
    extra = {**_SETTINGS, "spark.connect.grpc.binding.port": str(port), **settings}
    spark = start_local(master=master, extra=extra)
    answers.write(json.dumps({"remote": f"sc://127.0.0.1:{port}"}).encode() + b"\n")
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answer = _run(request) if request["do"] == "run" else _query(spark, request)
        answers.write(json.dumps(answer).encode() + b"\n")
    spark.stop()


def _run(request: dict[str, Any]) -> dict[str, Any]:
    from cdc_lib.config import load
    from cdc_lib.errors import CdcError
    from cdc_lib.runner import Runner

    try:
        with Runner(load(Path(request["pipeline"]))) as runner:
            verb = getattr(runner, request["verb"])
            done = verb(*filter(None, [request["tables"]]), **request["options"])
            result = done.to_dict() if hasattr(done, "to_dict") else {}
            return {"metrics": dict(done.metrics), "result": result}
    except CdcError as error:
        told = {"what": error.what, "why": error.why, "remedy": error.remedy}
        kind = {"error": type(error).__name__, "exit_code": error.exit_code}
        return {**told, **kind, "trace": traceback.format_exc()}
    except Exception as error:  # noqa: BLE001 - the test is told and fails
        return {"error": type(error).__name__, "exit_code": 1, "trace": traceback.format_exc()}


def _query(spark: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        table = spark.sql(request["query"]).toArrow()
        with pa.OSFile(request["file"], "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    except Exception:  # noqa: BLE001 - the test is told and fails
        return {"trace": traceback.format_exc()}
    return {"trace": ""}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    _serve()
