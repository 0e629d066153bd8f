"""The systems that are measured, as jobs: what each needs for a round, and how its rows are proven right."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import checksum
from benchmarks.checksum import Checksum
from benchmarks.peer import ENVIRONMENT
from benchmarks.process import BenchmarkFailed, Worker
from benchmarks.rounds import Job, System
from benchmarks.workload import BRONZE, PUBLICATION, TABLE, Database, Operations

FLOOR, OURS, BY_SPARK, PEER = "copy-discard", "cdc-lib", "cdc-lib-spark", "prototype"

WRITERS: Mapping[str, str] = {OURS: "direct", BY_SPARK: "spark"}
"""What appends to bronze, by system."""

LOG_COLUMNS = ("op", "before", "after")


@dataclass(frozen=True)
class Backlog:
    """A log that every round reads anew, and what it must lead to."""

    operations: Operations
    state: Checksum
    full: bool


def pipeline(
    database: Database, folder: Path, slot: str, mode: str, publication: str | None = None
) -> dict[str, Any]:
    """A pipeline file's content. With ``publication`` it reads one that is there, else it makes its own."""
    server = database.server
    source: dict[str, Any] = {
        "connector.class": "postgresql",
        "database.hostname": server.host,
        "database.port": server.port,
        "database.user": server.user,
        "database.password": f"${{file:{server.folder / 'password'}}}",
        "database.dbname": "postgres",
        "table.include.list": TABLE.replace(".", "[.]"),
        "snapshot.mode": mode,
        "slot.name": slot,
        "publication.name": publication or slot,
    }
    if publication is not None:
        source["publication.autocreate.mode"] = "disabled"
    return {"name": slot, "source": source, "target": {"path": str(folder)}}


# -- the floor


def floor(database: Database, rows: int) -> System:
    """``COPY table TO STDOUT`` thrown away."""

    def verify(answer: Mapping[str, Any]) -> None:
        if answer["rows"] != rows:
            raise BenchmarkFailed(f"the floor read {answer['rows']} rows of {rows}")

    def prepare(name: str) -> Job:
        return Job("floor", {"dsn": database.dsn, "table": TABLE}, rows, verify)

    return System(FLOOR, prepare)


# -- into bronze


def snapshot(database: Database, folder: Path, state: Checksum, system: str = OURS) -> System:
    """The table into bronze: a new pipeline, slot and publication each round."""

    def prepare(name: str) -> Job:
        slot, lake = _identifier(name), folder / name

        def clean() -> None:
            database.drop_slot(slot)
            database.execute(f"DROP PUBLICATION IF EXISTS {slot}")
            shutil.rmtree(lake, ignore_errors=True)

        made = _written_by(system, pipeline(database, lake, slot, "initial"))
        return Job("capture", {"pipeline": made}, state.rows, lambda _: verify_snapshot(lake, state), clean)

    return System(system, prepare)


def verify_snapshot(lake: Path, state: Checksum) -> None:
    """Bronze holds the source's rows, each read by the snapshot and no other."""
    log = checksum.read_files(lake / "bronze" / BRONZE, [*LOG_COLUMNS, "_sequence"])
    operations = set(log.column("op").unique().to_pylist())
    if operations != {"r"}:
        raise BenchmarkFailed(f"bronze of a snapshot has operations {sorted(operations)}")
    if len(log.column("_sequence").unique()) != log.num_rows:
        raise BenchmarkFailed("bronze has a _sequence twice")
    checksum.require_equal("bronze", checksum.of_rows(checksum.replayed(log, ["_sequence"])), state)
    if log.num_rows != state.rows:
        raise BenchmarkFailed(f"bronze has {log.num_rows} rows for {state.rows} of the source")


def backlog(database: Database, folder: Path, log: Backlog, system: str = OURS) -> System:
    """The log into bronze: a new pipeline each round, on a copy of the slot."""

    def prepare(name: str) -> Job:
        slot, lake = _identifier(name), folder / name
        database.copy_slot(slot)
        made = _written_by(system, pipeline(database, lake, slot, "no_data", PUBLICATION))
        check = _log_check("bronze", lake / "bronze" / BRONZE, ["_sequence"], log)
        return Job("capture", {"pipeline": made}, log.operations.rows, check, _dropping(database, slot, lake))

    return System(system, prepare)


def _written_by(system: str, made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "target": {**made["target"], "writer": WRITERS[system]}}


def prototype(database: Database, folder: Path, log: Backlog, path: Path) -> System:
    """The same log through the prototype, from its own copy of the slot."""

    def prepare(name: str) -> Job:
        slot, lake = _identifier(name), folder / name
        database.copy_slot(slot)
        where = {"slot": slot, "publication": PUBLICATION, "upto": database.end_of_log()}
        arguments = {
            "prototype": str(path.absolute()),
            "dsn": database.dsn,
            "log": where,
            "table": str(lake / "table"),
            "staging": str(lake / "staging"),
        }
        check = _log_check("the prototype's table", lake / "table", ["commit_lsn", "seq"], log)
        return Job("peer", arguments, log.operations.rows, check, _dropping(database, slot, lake))

    return System(PEER, prepare, ENVIRONMENT, cold=False)


def _log_check(what: str, path: Path, order: list[str], log: Backlog) -> Callable[[Mapping[str, Any]], None]:
    def check(_: Mapping[str, Any]) -> None:
        found = checksum.read_files(path, [*LOG_COLUMNS, *order])
        checksum.require_log(what, found, order, log.operations, full=log.full)
        checksum.require_equal(what, checksum.of_rows(checksum.replayed(found, order)), log.state)

    return check


# -- into silver


@dataclass(frozen=True)
class Apply:
    """What one way to bring bronze into silver is measured on: ``rows`` to apply, which lead to ``state``."""

    name: str
    rows: int
    state: Checksum
    cold: bool = True


def apply(template: Mapping[str, Any], folder: Path, work: Apply, reader: Worker) -> System:
    """Bronze into silver, on a copy of a lake that was prepared up to there.

    :param template: the pipeline that prepared it.
    :param reader: reads the written table, outside the measured process.
    """
    prepared = Path(template["target"]["path"])

    def prepare(round_name: str) -> Job:
        lake = folder / round_name
        shutil.copytree(prepared, lake)
        arguments = {"pipeline": {**template, "target": {"path": str(lake)}}}
        return Job(
            "apply", arguments, work.rows, lambda _: verify_silver(reader, lake, work.state), _removing(lake)
        )

    return System(work.name, prepare, cold=work.cold)


def verify_silver(reader: Worker, lake: Path, state: Checksum) -> None:
    """Silver holds the source's rows."""
    found = Checksum(**reader.ask("checksum", {"path": str(lake / "silver" / BRONZE)}))
    checksum.require_equal("silver", found, state)


# -- cleaning up


def _dropping(database: Database, slot: str, lake: Path) -> Callable[[], None]:
    def clean() -> None:
        database.drop_slot(slot)
        shutil.rmtree(lake, ignore_errors=True)

    return clean


def _removing(lake: Path) -> Callable[[], None]:
    return lambda: shutil.rmtree(lake, ignore_errors=True)


def _identifier(name: str) -> str:
    return "bench_" + name.replace("-", "_")
