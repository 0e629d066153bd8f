"""Facts of the server we are connected to: its identity, its timeline and how far its log has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from cdc_lib.errors import ResnapshotNeeded, RetryLater
from cdc_lib.sources.postgresql.connection import rows
from cdc_lib.sources.postgresql.errors import translated
from cdc_lib.sources.postgresql.position import PostgresPosition, format_lsn, parse_lsn

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

FLUSH_SECONDS = 30
"""Longest wait for the log to reach the disk. ``wal_writer_delay`` is at most 10 seconds."""

_POSITION = """
    SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
           pg_catalog.substr(pg_catalog.pg_walfile_name(lsn), 1, 8), lsn::text,
           pg_catalog.current_setting('wal_block_size')::int,
           pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))
    FROM pg_catalog.pg_current_wal_insert_lsn() lsn
"""
_PAGE_HEADER, _SEGMENT_HEADER = 24, 40
"""Bytes before the first record of a WAL page, and of a segment's first page (access/xlog_internal.h)."""


def current_position(connection: Connection) -> PostgresPosition:
    """Where the log ends now: at or behind every commit that any session can see."""
    with translated("the server's log position cannot be read"):
        [(system, timeline, lsn, page, segment)] = rows(connection, _POSITION)
    return PostgresPosition(system, int(timeline, 16), _end_of_record(parse_lsn(lsn), page, segment))


def _end_of_record(lsn: int, page: int, segment: int) -> int:
    """Where the last record ends, from where the next one will start.

    On an idle server whose last record fills a page (or after a switch of segments) the next record starts
    behind the new page's header, which nobody flushes until there is one.
    """
    header = _SEGMENT_HEADER if lsn % segment < page else _PAGE_HEADER
    return lsn - header if lsn % page == header else lsn


def flushed_position(connection: Connection) -> PostgresPosition:
    """The end of the log, once it is on the server's disk."""
    position = current_position(connection)
    wait_until_flushed(connection, position)
    return position


def wait_until_flushed(connection: Connection, position: PostgresPosition) -> None:
    """Wait until the log up to ``position`` is on the server's disk.

    With asynchronous commit a row is visible before its commit is flushed, and peek reads flushed log only:
    an end position taken too early would leave such a row out of this batch and of every later one.

    :raises RetryLater: it does not get there in :data:`FLUSH_SECONDS`.
    """
    deadline = time.monotonic() + FLUSH_SECONDS
    while True:
        with translated("the server's log position cannot be read"):
            [(flushed,)] = rows(connection, "SELECT pg_catalog.pg_current_wal_flush_lsn()::text")
        if parse_lsn(flushed) >= position.lsn:
            return
        if time.monotonic() > deadline:
            raise RetryLater(
                f"the server has not written its log up to {position} to disk in {FLUSH_SECONDS} s",
                why=f"it has come to {flushed}; its disk or WAL writer may be overloaded",
                remedy="look at the server's load and run again",
            )
        time.sleep(0.02)


def assert_same_history(
    connection: Connection, replication: Callable[[], Connection], committed: PostgresPosition
) -> None:
    """Prove that the server's log is a continuation of ours. ``replication`` opens a connection that speaks
    the replication protocol; it is only asked for after a failover.

    :raises ResnapshotNeeded: another cluster, a log that ends before us, or a branch that left before us.
    """
    now = current_position(connection)
    if now.system != committed.system:
        raise _diverged("this is another database cluster", f"{now.system}, and we know {committed.system}")
    if now.timeline < committed.timeline or now.lsn < committed.lsn:
        raise _diverged(
            "the server's log ends before what we have already read",
            f"it is at {now} on timeline {now.timeline}, we at {committed} on timeline {committed.timeline}; "
            "it was restored from an older backup, or lost log when it failed over",
        )
    if now.timeline > committed.timeline:
        with closing(replication()) as history:
            _assert_on_branch(history, now.timeline, committed)


def _assert_on_branch(history: Connection, timeline: int, committed: PostgresPosition) -> None:
    with translated("the server's timeline history cannot be read"):
        [(_, content)] = rows(history, f"TIMELINE_HISTORY {timeline:d}")
    switches = _switch_points(content if isinstance(content, str) else bytes(content).decode())
    left_at = switches.get(committed.timeline)
    if left_at is None or left_at < committed.lsn:
        raise _diverged(
            "the server has gone on from a point before what we have already read",
            f"timeline {committed.timeline} was left at "
            f"{'an unknown place' if left_at is None else format_lsn(left_at)}, we are at {committed}",
        )


def _switch_points(content: str) -> dict[int, int]:
    """Timeline and the LSN where it was left, from the file that access/transam/timeline.c describes."""
    lines = (line.split(None, 2) for line in content.splitlines())
    return {int(parts[0]): parse_lsn(parts[1]) for parts in lines if len(parts) >= 2 and parts[0].isdigit()}


def _diverged(what: str, why: str) -> ResnapshotNeeded:
    return ResnapshotNeeded(what, why=why, remedy="take all tables again: cdc snapshot")
