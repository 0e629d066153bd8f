"""What ``cdc maintain`` says, and what it refuses before it touches anything."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from cdc_lib.cli.maintained import show_maintained
from cdc_lib.config import Pipeline, parse
from cdc_lib.errors import FixConfiguration
from cdc_lib.maintenance import Expired, Maintained, TableUpkeep, refuse_short_retention

DONE = Maintained(
    planned=False,
    tables=(
        TableUpkeep("bronze.public_orders", files=1200, bytes=5 << 20, files_after=1, removed=40),
        TableUpkeep("silver.public_orders", files=3, bytes=1 << 20, files_after=3),
        TableUpkeep("bronze.public_t", 9, 900, 9, left="left as it is: changed by [somebody]", finding=True),
    ),
    expired=(Expired("watermarks", 5000),),
)


def shown(found: Maintained) -> str:
    console = Console(file=io.StringIO(), width=200)
    show_maintained(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def pipeline(tmp_path: Path, **maintain: int) -> Pipeline:
    source = {
        "connector.class": "postgresql",
        "database.hostname": "localhost",
        "database.user": "cdc",
        "database.password": "${env:NOT_NEEDED}",
        "database.dbname": "shop",
    }
    target = {"path": str(tmp_path)}
    return parse({"name": "shop", "source": source, "target": target, "maintain": maintain})


def test_it_shows_where_something_was_done_and_what_was_left() -> None:
    text = shown(DONE)
    assert "bronze.public_orders" in text
    assert "silver.public_orders" not in text
    assert "bronze.public_t: left as it is: changed by [somebody]" in text
    assert "1 of 3 tables, 40 files removed, 5,000 rows dropped." in text
    assert not DONE.good


def test_a_plan_says_that_nothing_was_written() -> None:
    table = TableUpkeep("bronze.public_orders", files=12, bytes=100, files_after=None)
    text = shown(Maintained(planned=True, tables=(table,)))
    assert "fewer" in text
    assert "Nothing was written; it would be: 1 of 1 tables" in text


def test_less_than_a_week_is_refused_unless_forced(tmp_path: Path) -> None:
    with pytest.raises(FixConfiguration, match="168 of a week") as caught:
        refuse_short_retention(pipeline(tmp_path, vacuum_hours=167), forced=False)
    assert "--force" in caught.value.remedy
    refuse_short_retention(pipeline(tmp_path, vacuum_hours=1), forced=True)
    refuse_short_retention(pipeline(tmp_path), forced=False)


def test_what_is_kept_shapes_no_row(tmp_path: Path) -> None:
    """A batch that was sealed before the change can still be repeated after it."""
    assert pipeline(tmp_path, keep_days=7).fingerprint() == pipeline(tmp_path).fingerprint()


@pytest.mark.parametrize("given", [{"keep_days": 0}, {"vacuum_hours": -1}])
def test_nothing_is_not_kept_for_no_time(tmp_path: Path, given: dict[str, int]) -> None:
    with pytest.raises(FixConfiguration, match="greater than 0"):
        pipeline(tmp_path, **given)
