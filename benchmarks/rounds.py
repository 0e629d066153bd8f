"""Rounds: every system in turn, side by side, in an order that rotates, cold and warm apart.

*cold*: from the start of a new process to the answer. *warm*: in one long-lived process per system, after
rounds that are thrown away. Each round's rows are verified, outside the measured time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.process import Worker

WARM, COLD = "warm", "cold"


@dataclass(frozen=True)
class Job:
    """One execution of a system: what to ask its worker for, and what becomes of the result.

    ``verify`` raises if the rows are wrong; ``clean`` is called in any case.
    """

    task: str
    arguments: Mapping[str, Any]
    rows: int
    verify: Callable[[Mapping[str, Any]], None]
    clean: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class System:
    """Something that is measured. ``prepare`` makes the job of a round from a name no other round has."""

    name: str
    prepare: Callable[[str], Job]
    environ: Mapping[str, str] = field(default_factory=dict)
    cold: bool = True


@dataclass(frozen=True)
class Plan:
    """How often. ``discarded`` warm rounds come before the first one that counts."""

    rounds: int
    cold_rounds: int
    discarded: int = 1


@dataclass(frozen=True)
class Measurement:
    """One round of one system. ``client_cpu`` is of the worker's whole process tree; ``rss`` peaks in bytes
    by role (``measure.ROLES``); ``place`` is the system's turn in its round; ``answer`` what it said.
    """

    system: str
    mode: str
    round: int
    place: int
    seconds: float
    rows: int
    client_cpu: float
    server_cpu: float
    rss: Mapping[str, int]
    load: float
    answer: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Bench:
    """Measures jobs in workers. ``server`` is the process id of the database server."""

    def __init__(self, folder: Path, server: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._server = server
        self._say = say

    def run(self, systems: Sequence[System], plan: Plan) -> list[Measurement]:
        """Warm rounds, then cold ones; none of the discarded."""
        return [*self._warm(systems, plan), *self._cold(systems, plan)]

    def _warm(self, systems: Sequence[System], plan: Plan) -> Iterator[Measurement]:
        if not plan.rounds:
            return
        with ExitStack() as stack:
            workers = {system.name: stack.enter_context(self._worker(system)) for system in systems}
            for number in range(-plan.discarded, plan.rounds):
                for place, system in enumerate(_rotated(systems, number)):
                    name = f"{system.name}_w{number + plan.discarded}"
                    found = self._measured(workers[system.name], system.prepare(name), number >= 0)
                    if number >= 0:
                        yield self._told(system, WARM, number, place, found)

    def _cold(self, systems: Sequence[System], plan: Plan) -> Iterator[Measurement]:
        systems = [system for system in systems if system.cold]
        for number in range(plan.cold_rounds):
            for place, system in enumerate(_rotated(systems, number)):
                job = system.prepare(f"{system.name}_c{number}")
                began = time.perf_counter()
                with self._worker(system) as worker:
                    found = self._measured(worker, job, True, began)
                yield self._told(system, COLD, number, place, found)

    def _worker(self, system: System) -> Worker:
        return Worker(self._folder / f"{system.name}.log", system.environ)

    def _measured(self, worker: Worker, job: Job, counts: bool, began: float | None = None) -> dict[str, Any]:
        """Time one job. A worker that began with it is charged for all it has used."""
        load = os.getloadavg()[0]
        client = 0.0 if began is not None else measure.cpu_seconds(worker.pid)
        server = measure.cpu_seconds(self._server)
        peak = measure.Peak(worker.pid)
        try:
            with peak.watching():
                start = time.perf_counter() if began is None else began
                answer = worker.ask(job.task, job.arguments)
                seconds = time.perf_counter() - start
            client = measure.cpu_seconds(worker.pid) - client
            server = measure.cpu_seconds(self._server) - server
            job.verify(answer)
        finally:
            job.clean()
        return {
            "seconds": seconds,
            "rows": job.rows,
            "client_cpu": client,
            "server_cpu": server,
            "rss": peak.bytes,
            "load": load,
            "answer": answer,
        }

    def _told(self, system: System, mode: str, number: int, place: int, found: dict[str, Any]) -> Measurement:
        result = Measurement(system.name, mode, number, place, **found)
        rate = result.rows / result.seconds
        self._say(f"  {mode} {number + 1} {system.name:16} {result.seconds:7.2f} s  {rate:>11,.0f} rows/s")
        return result


def _rotated(systems: Sequence[System], number: int) -> list[System]:
    by = number % len(systems) if systems else 0
    return [*systems[by:], *systems[:by]]
