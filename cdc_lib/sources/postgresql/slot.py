"""The replication slot: the server's bookmark that keeps the log for us."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_lib.errors import CdcError, FixConfiguration, ResnapshotNeeded, RetryLater
from cdc_lib.sources.postgresql.connection import execute, rows
from cdc_lib.sources.postgresql.errors import translated
from cdc_lib.sources.postgresql.position import PostgresPosition, format_lsn, parse_lsn

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

PLUGIN = "pgoutput"
FREE_SECONDS = 10
"""How long to wait for another session to leave the slot: a killed runner's session needs a moment to end."""
CREATE_SECONDS = 120
"""How long the creation of a slot may wait for running write transactions to end."""

_STATE = """
    SELECT s.plugin, s.database = pg_catalog.current_database(), s.active_pid, s.confirmed_flush_lsn::text,
           s.wal_status, s.safe_wal_size,
           pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), s.restart_lsn)
    FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s
"""
# A transaction that has written holds the creation up; a prepared one without any session.
_OLDEST_WRITER = """
    SELECT 'process ' || pid || ' of ' || coalesce(usename::text, '?') || ', ' || coalesce(state, '?')
           || ', since ' || xact_start
    FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL AND xact_start IS NOT NULL
    UNION ALL
    SELECT 'prepared transaction ' || gid || ', since ' || prepared FROM pg_catalog.pg_prepared_xacts
    LIMIT 1
"""


@dataclass(frozen=True)
class SlotState:
    """One row of ``pg_replication_slots``. ``confirmed`` is where the slot starts to give out changes."""

    plugin: str | None
    same_database: bool
    active_pid: int | None
    confirmed: int | None
    wal_status: str | None
    headroom_bytes: int | None
    retained_bytes: int | None

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost" or self.confirmed is None


def slot_state(connection: Connection, name: str) -> SlotState | None:
    """The slot of that name, None if there is none."""
    with translated("the replication slots cannot be read"):
        found = rows(connection, _STATE, (name,))
    if not found:
        return None
    plugin, same, pid, confirmed, status, headroom, retained = found[0]
    return SlotState(
        plugin,
        bool(same),
        pid,
        None if confirmed is None else parse_lsn(confirmed),
        status,
        headroom,
        None if retained is None else int(retained),
    )


def assert_usable(state: SlotState | None, name: str) -> None:
    """The slot, if there is one, is ours to read at all.

    :raises FixConfiguration: it belongs to another plug-in or database.
    :raises ResnapshotNeeded: the server has thrown its log away.
    """
    if state is None:
        return
    _assert_ours(state, name)
    if state.lost:
        raise slot_lost(name)


def _assert_ours(state: SlotState, name: str) -> None:
    if state.plugin != PLUGIN or not state.same_database:
        raise FixConfiguration(
            f"the slot {name} is not a slot of {PLUGIN} in this database",
            why=f"its plug-in is {state.plugin or 'none, it is a physical slot'}",
            remedy="set slot.name to another name; each pipeline needs a slot of its own",
        )


def slot_lost(name: str) -> ResnapshotNeeded:
    return ResnapshotNeeded(
        f"the log behind the slot {name} is gone",
        why="the slot fell further behind than max_slot_wal_keep_size allows, or was invalidated",
        remedy="take all tables again: cdc snapshot",
    )


def assert_continues(connection: Connection, name: str, committed: PostgresPosition) -> None:
    """The slot still has everything after ``committed``.

    :raises ResnapshotNeeded: it is gone, lost, or was moved past us.
    """
    state = slot_state(connection, name)
    if state is None:
        raise ResnapshotNeeded(
            f"the replication slot {name} does not exist any more",
            why="it was dropped, or the server was upgraded or failed over without it; the changes after "
            f"{committed} can no longer be read",
            remedy="take all tables again: cdc snapshot",
        )
    assert_usable(state, name)
    if state.confirmed is not None and state.confirmed > committed.lsn:
        raise ResnapshotNeeded(
            f"the slot {name} was moved past what we have committed",
            why=f"it starts at {format_lsn(state.confirmed)}, we have committed up to {committed}: somebody "
            "else has read from it, or it was created anew",
            remedy="if another reader uses this slot, give the pipeline its own (slot.name); "
            "then take all tables again: cdc snapshot",
        )


def wait_until_free(connection: Connection, name: str) -> None:
    """Wait until no session reads from the slot, at most :data:`FREE_SECONDS`.

    :raises RetryLater: one still does.
    """
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        state = slot_state(connection, name)
        if state is None or state.active_pid is None:
            return
        if time.monotonic() > deadline:
            raise RetryLater(
                f"another session reads from the slot {name}",
                why=f"server process {state.active_pid} holds it: another runner, or one that was killed and "
                "whose session has not ended yet",
                remedy=f"stop it, or SELECT pg_terminate_backend({state.active_pid}), and run again",
            )
        time.sleep(0.1)


def advance(connection: Connection, name: str, upto: PostgresPosition) -> None:
    """Let the server forget the log up to ``upto``; nothing happens if it already has.

    :raises ResnapshotNeeded: the slot is gone or lost.
    """
    wait_until_free(connection, name)
    if not is_behind(connection, name, upto):
        return
    with translated(f"the slot {name} cannot be moved to {upto}"):
        execute(
            connection, "SELECT pg_catalog.pg_replication_slot_advance(%s, %s::pg_lsn)", (name, str(upto))
        )


def is_behind(connection: Connection, name: str, upto: PostgresPosition) -> bool:
    """Whether the slot still holds log up to ``upto``, which :func:`advance` lets go.

    :raises ResnapshotNeeded: the slot is gone or lost.
    """
    state = slot_state(connection, name)
    if state is None or state.lost:
        raise slot_lost(name)
    return state.confirmed is not None and state.confirmed < upto.lsn


def drop_lost(connection: Connection, name: str) -> None:
    """Drop the slot if the server has thrown its log away; it then only takes one of max_replication_slots.

    :raises FixConfiguration: it is not ours to drop.
    """
    state = slot_state(connection, name)
    if state is None or not state.lost:
        return
    _assert_ours(state, name)
    with translated(f"the lost slot {name} cannot be dropped"):
        execute(connection, "SELECT pg_catalog.pg_drop_replication_slot(%s)", (name,))


@dataclass(frozen=True)
class CreatedSlot:
    """Where a new slot starts, and the exported snapshot that holds exactly what was committed before."""

    consistent_point: int
    snapshot: str


class HeldUp(RetryLater):
    """A transaction that the new slot waits for waits itself for a lock of ours: neither ever ends."""


def _never() -> bool:
    return False


def create_slot(
    connection: Connection, name: str, *, temporary: bool, held_up: Callable[[], bool] = _never
) -> CreatedSlot:
    """Create a slot and export its snapshot over a replication connection. The snapshot lives until the next
    command there, a temporary slot until the connection ends.

    Waits for running write transactions. libpq waits in C, deaf to signals, so a thread does it for us.

    :param held_up: whether one of them waits for us; asked now and then.
    :raises HeldUp: one does.
    :raises RetryLater: they do not end in :data:`CREATE_SECONDS`.
    """
    from psycopg2.extensions import quote_ident

    kind = "TEMPORARY " if temporary else ""
    quoted = quote_ident(name, connection)
    command = f"CREATE_REPLICATION_SLOT {quoted} {kind}LOGICAL {PLUGIN} EXPORT_SNAPSHOT"
    results: list[list[tuple[object, ...]] | CdcError] = []

    def run() -> None:
        try:
            with translated(f"the replication slot {name} cannot be created"):
                results.append(rows(connection, command))
        except CdcError as error:
            results.append(error)

    thread = threading.Thread(target=run, name="cdc-create-slot", daemon=True)
    thread.start()
    stuck = _join(thread, connection, held_up)
    result = results[0]
    if isinstance(result, CdcError):
        raise HeldUp(result.what, why=result.why, remedy=result.remedy) if stuck else result
    _, point, snapshot, _ = result[0]
    return CreatedSlot(parse_lsn(str(point)), str(snapshot))


def _join(thread: threading.Thread, connection: Connection, held_up: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + CREATE_SECONDS
    stuck = False
    try:
        thread.join(0.5)
        while thread.is_alive() and not stuck and time.monotonic() < deadline:
            thread.join(0.2)
            stuck = thread.is_alive() and held_up()
        return stuck
    finally:
        if thread.is_alive():
            connection.cancel()
            thread.join()


class naming_blockers:
    """Say which transaction held a slot's creation up when it was given up."""

    def __init__(self, control: Connection) -> None:
        self._control = control

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, RetryLater) or isinstance(error, HeldUp):
            return
        found = rows(self._control, _OLDEST_WRITER)
        if found:
            raise RetryLater(
                error.what,
                why=f"a running transaction must end first: {found[0][0]}",
                remedy="end it, then run again",
            ) from None
