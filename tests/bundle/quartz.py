"""Cron expressions as Quartz reads them: seconds first, and exactly one of the two day fields is ``?``.

From the CronTrigger page of Quartz's documentation. Databricks refuses a bad one at deploy time only.
"""

from __future__ import annotations

import calendar
import re

_MONTHS = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name}
# Quartz begins with Sunday, Python with Monday.
_DAYS = {name.upper(): (number + 1) % 7 + 1 for number, name in enumerate(calendar.day_abbr)}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("seconds", 0, 59, {}),
    ("minutes", 0, 59, {}),
    ("hours", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 1, 7, _DAYS),
    ("year", 1970, 2099, {}),
)
_SPECIAL = {
    "day of month": re.compile(r"L|L-\d+|LW|\d+W"),
    "day of week": re.compile(r"L|(\d|[A-Z]{3})L|(\d|[A-Z]{3})#[1-5]"),
}


def mistake(expression: str) -> str | None:
    """What is wrong with a cron expression, or None."""
    fields = expression.split()
    if len(fields) not in (6, 7):
        return f"expected 6 or 7 fields, got {len(fields)}"
    if (fields[3] == "?") == (fields[5] == "?"):
        return "exactly one of day of month and day of week must be ?"
    for text, (name, low, high, words) in zip(fields, _FIELDS, strict=False):
        for item in text.split(","):
            if not _item(item, name, low, high, words):
                return f"{item} is not possible for {name}"
    return None


def _item(item: str, name: str, low: int, high: int, words: dict[str, int]) -> bool:
    if name in _SPECIAL and (item == "?" or _SPECIAL[name].fullmatch(item)):
        return True
    span, slash, step = item.partition("/")
    if slash and not (step.isdigit() and 0 < int(step) <= high):
        return False
    if span == "*":
        return True
    numbers = [words.get(part, int(part) if part.isdigit() else -1) for part in span.split("-")]
    return len(numbers) <= 2 and all(low <= number <= high for number in numbers)
