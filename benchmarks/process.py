"""The benchmark's end of a worker process: start, ask, stop, whatever happens."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

ROOT = Path(__file__).resolve().parent.parent
ANSWER_SECONDS = 600
STOP_SECONDS = 30


class BenchmarkFailed(Exception):
    """A system failed or gave wrong rows: its times mean nothing."""


class Worker:
    """A process of ``benchmarks.worker``; a context manager. ``log`` gets all it prints."""

    def __init__(self, log: Path, environ: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                cwd=ROOT,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Have one task done and wait for it.

        :raises BenchmarkFailed: it failed, or did not end in :data:`ANSWER_SECONDS`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = json.dumps({"task": task, "arguments": arguments}) + "\n"
        with suppress(BrokenPipeError):
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        if not ready:
            raise BenchmarkFailed(f"{task} did not end in {ANSWER_SECONDS} s")
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkFailed(f"{task} failed:\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the process, and its JVM with it; a worker that does not end is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()

    def _tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-25:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.stop()
