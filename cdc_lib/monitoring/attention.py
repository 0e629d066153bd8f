"""What of a pipeline somebody should look at now, worst first, each with what to do.

The limits are those that the bundle's alerts have by default (``databricks.yml``); a test holds them
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from cdc_lib.monitoring.overview import Overview
from cdc_lib.progress import seconds, size

Level = Literal["error", "warning"]

LAG_MINUTES = 60
"""How old the newest captured change may be while the source has more."""
SILENCE_MINUTES = 120
"""How long ago a run may have ended well."""
RETAINED_GIB = 20
"""Log that the source may keep for us where it has no limit of its own."""
RETENTION_PERCENT = 70
"""Share of that limit from which on it is at risk."""
RECENT = timedelta(days=1)
"""How long an incident counts as news."""


@dataclass(frozen=True)
class Attention:
    """One thing to look at."""

    level: Level
    what: str
    remedy: str = ""


def attention(overview: Overview) -> list[Attention]:
    """What is wrong, errors first."""
    found = [*_runs(overview), *_tables(overview), *_source(overview), *_incidents(overview)]
    return sorted(found, key=lambda each: each.level != "error")


def retention_percent(overview: Overview) -> float | None:
    """How much of what the source would keep for us it keeps; None if it did not say."""
    status = overview.status
    if status.retained_bytes is None:
        return None
    limit = (
        RETAINED_GIB << 30 if status.headroom_bytes is None else status.retained_bytes + status.headroom_bytes
    )
    return 100.0 * status.retained_bytes / max(1, limit)


def at_risk(overview: Overview) -> bool:
    """Whether the source is near the end of what it keeps for us."""
    percent = retention_percent(overview)
    return percent is not None and percent >= RETENTION_PERCENT


def is_late(overview: Overview) -> bool:
    """Whether there has been more at the source for too long."""
    status = overview.status
    return bool(status.lag_bytes) and (status.lag_seconds or 0) > LAG_MINUTES * 60


def last_success(overview: Overview) -> datetime | None:
    """When a run ended well, or, of one that is under way, when it last committed."""
    ended = [run.ended_at for run in overview.runs if run.outcome in ("done", "going on")]
    if overview.running and overview.status.committed_at:
        ended.append(overview.status.committed_at)
    return max(ended, default=None)


def _runs(overview: Overview) -> Iterator[Attention]:
    run = overview.status.last_run
    if run is not None and run.outcome == "failed":
        yield Attention("error", f"the last {run.verb} failed: {run.error}", run.remedy)
    # One that has never ended well is late only some time after its first try.
    since = last_success(overview) or min((run.started_at for run in overview.runs), default=overview.at)
    if overview.at - since > timedelta(minutes=SILENCE_MINUTES):
        ago = seconds((overview.at - since).total_seconds())
        yield Attention("error", f"no run ended well for {ago}", "cdc run, and see what its schedule does")


def _tables(overview: Overview) -> Iterator[Attention]:
    for table in overview.status.tables:
        if table.reason:
            yield Attention("error", f"{table.table}: {table.reason}", table.remedy)


def _source(overview: Overview) -> Iterator[Attention]:
    status = overview.status
    if status.source_error:
        yield Attention("warning", f"the source: {status.source_error}", "cdc check")
    if is_late(overview):
        behind = (
            f"{size(status.lag_bytes or 0)} of log are not captured, for {seconds(status.lag_seconds or 0)}"
        )
        yield Attention("warning", behind, "cdc run; if that is under way, it catches up")
    if at_risk(overview):
        kept, percent = size(status.retained_bytes or 0), retention_percent(overview)
        yield Attention(
            "error",
            f"the source keeps {kept} of log for us, {percent:.0f}% of its limit",
            "cdc run before it drops the log; a larger limit at the source gives time",
        )


def _incidents(overview: Overview) -> Iterator[Attention]:
    said = {(table.table, table.reason) for table in overview.status.tables}
    for incident in reversed(overview.incidents):
        # What heals by itself is history, not a task; what a table still says is said already.
        heals = incident.remedy.startswith("nothing") or (incident.table, incident.message) in said
        if overview.at - incident.at <= RECENT and not heals:
            name = f"{incident.table}: " if incident.table else ""
            yield Attention("warning", f"{name}{incident.message}", incident.remedy)
