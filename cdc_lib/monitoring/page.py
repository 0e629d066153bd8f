"""Pipelines as one page of HTML that needs nothing else: no server, no script from elsewhere, no font.

The template has the words, ``plots`` the shapes; here is what they are about.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from cdc_lib import __version__
from cdc_lib.control.tables import State
from cdc_lib.monitoring import plots
from cdc_lib.monitoring.attention import (
    Attention,
    at_risk,
    attention,
    is_late,
    last_success,
    retention_percent,
)
from cdc_lib.monitoring.overview import Overview
from cdc_lib.progress import seconds, size
from cdc_lib.status import TableStatus

Verdict = Literal["good", "warning", "error"]
WORDS: dict[Verdict, str] = {"good": "in order", "warning": "look at it", "error": "needs you"}
STATES: dict[str, str] = {
    State.STREAMING.value: "streaming",
    State.SETTLE.value: "settling",
    State.SNAPSHOT.value: "snapshot",
    State.BRONZE_ONLY.value: "bronze only",
}
OUTCOMES = [("good", "done"), ("calm", "going on"), ("warning", "interrupted"), ("error", "failed")]
ROWS = [("second", "from snapshots"), ("first", "from the log")]
SLOWEST = [("first", "the slowest batch")]
KEPT = "source.retained_bytes"
NEWEST = 20
"""Entries of a list of events."""


@dataclass(frozen=True)
class Tile:
    """One figure. ``share`` of a limit, in percent, is drawn as a bar."""

    name: str
    value: str
    detail: str = ""
    verdict: Verdict = "good"
    share: float | None = None


@dataclass(frozen=True)
class Row:
    """One table of the source, as the page lists it."""

    status: TableStatus
    inserted: int
    updated: int
    deleted: int
    pieces: int
    done: int

    @property
    def reading(self) -> bool:
        """Whether its snapshot is under way."""
        return self.status.state == State.SNAPSHOT.value and self.pieces > 0

    @property
    def percent(self) -> int:
        return 100 * self.done // max(1, self.pieces)

    @property
    def behind(self) -> bool:
        """Whether bronze has batches of it that silver lacks."""
        return self.status.applied < self.status.batch


@dataclass(frozen=True)
class View:
    """What the template shows of one pipeline."""

    overview: Overview
    verdict: Verdict
    attention: Sequence[Attention]
    tiles: Sequence[Tile]
    plots: Sequence[plots.Plot]
    states: Sequence[tuple[str, int]]
    rows: Sequence[Row]


def render(overviews: Sequence[Overview]) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("cdc_lib.monitoring"),
        # Names of tables and messages of servers may hold anything.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number, clock=plots.clock_text, iso=datetime.isoformat, breakable=breakable
    )
    template = environment.get_template("page.html.j2")
    return template.render(
        views=[view(overview) for overview in overviews],
        at=max(overview.at for overview in overviews),
        version=__version__,
        words=WORDS,
        state_names=STATES,
        newest=NEWEST,
    )


def view(overview: Overview) -> View:
    """What there is to show, worst first."""
    found = attention(overview)
    levels = {each.level for each in found}
    verdict: Verdict = "error" if "error" in levels else "warning" if levels else "good"
    counts = Counter(table.state for table in overview.status.tables)
    return View(
        overview,
        verdict,
        found,
        list(_tiles(overview)),
        list(_plots(overview)),
        [(state, counts[state]) for state in STATES if counts[state]],
        sorted(_rows(overview), key=lambda row: (not row.status.reason, not row.reading, row.status.table)),
    )


def number(count: float) -> str:
    """A count for people: ``812``, ``12,345``, ``1.2 M``, ``3.4 bn``."""
    for unit, name in ((1e9, "bn"), (1e6, "M")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:,.0f}"


def breakable(name: str) -> Markup:
    """A name that may go on in a new line where its words end."""
    return Markup(re.sub(r"([._])", r"\1<wbr>", str(escape(name))))


def _tiles(overview: Overview) -> Iterator[Tile]:
    status = overview.status
    yield _lag(overview)
    yield _last_run(overview)
    if status.delay_seconds is not None:
        yield Tile("Delay", seconds(status.delay_seconds), "from the source's commit to ours, last batch")
    yield _kept(overview)
    rows = sum(table.rows for table in status.tables)
    log = sum(batch.log_rows for batch in overview.batches)
    yield Tile(
        "Rows in bronze", number(rows), f"{number(log)} of them changes, in {number(status.batch)} batches"
    )


def _lag(overview: Overview) -> Tile:
    status = overview.status
    if status.committed_at is None:
        return Tile("Lag", "–", "nothing captured yet")
    if status.lag_bytes == 0:
        return Tile("Lag", "none", f"caught up at {status.position}")
    behind = (
        "the source does not say how much" if status.lag_bytes is None else f"{size(status.lag_bytes)} of log"
    )
    return Tile("Lag", seconds(status.lag_seconds or 0), behind, "warning" if is_late(overview) else "good")


def _last_run(overview: Overview) -> Tile:
    run, good = overview.status.last_run, last_success(overview)
    if run is None:
        return Tile("Last run", "–", "a run is under way" if overview.running else "none has ended yet")
    detail = f"{run.outcome}, took {seconds((run.ended_at - run.started_at).total_seconds())}"
    if run.outcome == "failed" and good is not None:
        detail += f"; the last good one {seconds((overview.at - good).total_seconds())} ago"
    ago = f"{seconds((overview.at - run.ended_at).total_seconds())} ago"
    return Tile("Last run", ago, detail, "error" if run.outcome == "failed" else "good")


def _kept(overview: Overview) -> Tile:
    status, percent = overview.status, retention_percent(overview)
    if status.retained_bytes is None or percent is None:
        return Tile("Log kept at the source", "–", status.source_error or "it does not say")
    limit = "no limit set there"
    if status.headroom_bytes is not None:
        limit = f"{size(status.headroom_bytes)} left before it drops the log"
    bad = at_risk(overview)
    share = min(100.0, percent) if status.headroom_bytes is not None or bad else None
    return Tile(
        "Log kept at the source", size(status.retained_bytes), limit, "error" if bad else "good", share
    )


def _plots(overview: Overview) -> Iterator[plots.Plot]:
    batches, runs = overview.batches, overview.runs
    kinds = {outcome: kind for kind, outcome in OUTCOMES}
    parts = [(b.committed_at, [("second", b.snapshot_rows), ("first", b.log_rows)]) for b in batches]
    delays = [(b.committed_at, [("first", b.delay)]) for b in batches if b.delay is not None]
    took = [(r.started_at, [(kinds[r.outcome], r.metrics.get("seconds", 0.0))]) for r in runs]
    kept = [(r.started_at, [("first", r.metrics[KEPT])]) for r in runs if KEPT in r.metrics]
    made = [
        plots.over_time(plots.Look("Rows into bronze", number, ROWS), parts, overview.at, most=False),
        plots.over_time(
            plots.Look("Delay behind the source", seconds, SLOWEST), delays, overview.at, most=True
        ),
        plots.one_each(plots.Look("Duration of runs", seconds, OUTCOMES), took),
        plots.over_time(
            plots.Look("Log kept at the source", _size, [("first", "kept")]), kept, overview.at, most=True
        ),
    ]
    return (plot for plot in made if plot is not None)


def _size(count: float) -> str:
    return size(round(count))


def _rows(overview: Overview) -> Iterator[Row]:
    for table in overview.status.tables:
        counts = overview.events.get(table.table, {})
        progress = overview.snapshots.get(table.table)
        pieces, done = (progress.pieces, progress.done) if progress else (0, 0)
        yield Row(table, counts.get("c", 0), counts.get("u", 0), counts.get("d", 0), pieces, done)
