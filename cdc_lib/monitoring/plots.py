"""Small plots as SVG shapes, without a library: bars over time and a bar a run.

Only shapes are SVG, stretched to the width there is; words are HTML beside them, so that they can be read on
a phone and by a screen reader. All coordinates are percentages of the plot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

MOST = 60
"""Bars of a plot; more could not be told apart on a phone."""
FEWEST = 12
"""Bars that there is always room for, so that the first ones are not blocks."""
WIDTHS = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
"""Seconds that a bar may stand for."""
GAP = 0.18
"""Share of a bar's room that is left empty."""

Stacked = Sequence[tuple[str, float]]
"""What a bar is made of, from the bottom: class and amount."""
Point = tuple[datetime, Stacked]


@dataclass(frozen=True)
class Box:
    """One piece of a bar."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Bar:
    """One bar, with what its tooltip says."""

    boxes: Sequence[Box]
    label: str


@dataclass(frozen=True)
class Plot:
    """``top``, ``left`` and ``right`` are what stands at its edges; ``summary`` is for who cannot see it."""

    title: str
    summary: str
    top: str
    left: str
    right: str
    bars: Sequence[Bar]
    legend: Sequence[tuple[str, str]] = ()
    """Class and meaning."""


@dataclass(frozen=True)
class Look:
    """What a plot says. ``show``: an amount in words; ``legend``: class and meaning, the lowest first."""

    title: str
    show: Callable[[float], str]
    legend: Sequence[tuple[str, str]]

    def told(self, parts: Stacked) -> str:
        """The amounts in words."""
        meanings = dict(self.legend)
        found = [f"{self.show(amount)} {meanings[kind]}" for kind, amount in parts if amount]
        return ", ".join(found) or self.show(0)


@dataclass(frozen=True)
class _Column:
    """Where a bar stands, and what it shows."""

    place: int
    at: datetime
    parts: Stacked

    @property
    def height(self) -> float:
        return sum(amount for _, amount in self.parts)


def over_time(look: Look, points: Iterable[Point], until: datetime, *, most: bool) -> Plot | None:
    """Bars of equal spans of time, up to ``until``; None if there is nothing to show.

    :param most: a bar shows the largest of its points, else their sum.
    """
    found = sorted(points, key=lambda point: point[0])
    if not found:
        return None
    first, last = found[0][0].timestamp(), max(found[-1][0], until).timestamp()
    width = next((width for width in WIDTHS if (last - first) / width < MOST - 1), WIDTHS[-1])
    start = first // width * width
    sums: dict[int, dict[str, float]] = {}
    for at, parts in found:
        bucket = sums.setdefault(int((at.timestamp() - start) // width), {})
        for kind, amount in parts:
            before = bucket.get(kind, 0.0)
            bucket[kind] = max(before, amount) if most else before + amount
    columns = [
        _Column(place, _time(start + place * width), [(kind, kept.get(kind, 0.0)) for kind, _ in look.legend])
        for place, kept in sorted(sums.items())
    ]
    room = int((last - start) // width) + 1
    return _plot(look, columns, (_time(start), _time(last)), room, f"a bar every {_width_text(width)}")


def one_each(look: Look, points: Sequence[Point]) -> Plot | None:
    """A bar for each of the newest points, oldest first; None if there are none."""
    kept = points[-MOST:]
    if not kept:
        return None
    room = max(len(kept), FEWEST)
    columns = [_Column(place, *point) for place, point in enumerate(kept, room - len(kept))]
    return _plot(look, columns, (kept[0][0], kept[-1][0]), room, "a bar a run")


def clock_text(at: datetime) -> str:
    """A time for people, in UTC."""
    return f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M}"


def _plot(
    look: Look, columns: Sequence[_Column], span: tuple[datetime, datetime], room: int, each: str
) -> Plot:
    highest = look.show(max(column.height for column in columns))
    first, last = map(clock_text, span)
    used = {kind for column in columns for kind, amount in column.parts if amount}
    return Plot(
        look.title,
        f"{look.title}, {first} to {last} UTC, {each}. Highest: {highest}.",
        highest,
        first if first != last else "",
        last,
        _bars(look, columns, room),
        [(kind, meaning) for kind, meaning in look.legend if kind in used],
    )


def _bars(look: Look, columns: Sequence[_Column], room: int) -> list[Bar]:
    highest = max(column.height for column in columns)
    return [
        Bar(_boxes(column, room, highest), f"{clock_text(column.at)}: {look.told(column.parts)}")
        for column in columns
    ]


def _boxes(column: _Column, room: int, highest: float) -> list[Box]:
    width = 100.0 / room
    # What is there must be seen, however small it is beside the highest; the largest part makes room for it.
    heights = {kind: max(1.5, 100.0 * amount / highest) for kind, amount in column.parts if amount > 0}
    if heights:
        largest = max(heights, key=lambda kind: heights[kind])
        heights[largest] -= max(0.0, sum(heights.values()) - 100.0)
    boxes, base = [], 100.0
    for kind, height in heights.items():
        base -= height
        boxes.append(Box(kind, (column.place + GAP / 2) * width, base, width * (1 - GAP), height))
    return boxes


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def _width_text(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"
