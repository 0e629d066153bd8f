"""The page of ``cdc status --html``: what it says, that nothing of it comes from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from cdc_lib.control.incidents import Incident
from cdc_lib.monitoring import plots
from cdc_lib.monitoring.attention import attention
from cdc_lib.monitoring.page import number, render, view
from cdc_lib.status import TableStatus
from tests.unit.monitoring.overviews import HOSTILE, LONG, NOW, ago, empty, quiet, run, troubled

LOOK = plots.Look("Rows", lambda amount: f"{amount:g}", [("second", "read"), ("first", "changed")])
EMPTY_TAGS = {"meta", "input", "rect", "wbr"}


class Page(HTMLParser):
    """Text and tags; complains of tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.text += data

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.tags if name == tag)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render([troubled(), quiet(), empty()]))


def test_nothing_comes_from_elsewhere(page: Page) -> None:
    asked = {name for _, attributes in page.tags for name in attributes} & {"src", "href", "srcset", "action"}
    assert asked == set()
    assert not re.search(r"url\(|@import|https?:", render([troubled()]))


def test_names_and_messages_are_text_whatever_they_hold(page: Page) -> None:
    assert HOSTILE in page.text
    assert len(list(page.all("script"))) == 1
    told = quiet(incidents=[Incident("kind", "t", "", 1, "<img src=x onerror=alert(1)>", "", ago(hours=1))])
    assert not list(Page(render([told])).all("img"))


def test_an_errored_table_comes_first_with_its_remedy(page: Page) -> None:
    assert page.text.index(LONG) < page.text.index("sales.orders_000")
    assert page.text.count(f"give {LONG} a primary key") >= 2
    assert view(troubled()).rows[0].status.table == LONG
    assert view(troubled()).rows[1].reading


def test_hundreds_of_tables_are_all_there_and_can_be_searched(page: Page) -> None:
    assert all(f"sales.orders_{table:03d}" in page.text for table in range(298))
    assert [each["type"] for each in page.all("input")] == ["search"]


def test_what_a_screen_reader_needs(page: Page) -> None:
    (html,) = page.all("html")
    assert html["lang"] == "en"
    assert all(each.get("aria-label") for each in page.all("svg"))
    assert all(each.get("scope") == "col" for each in page.all("th"))
    assert all(each.get("aria-label") for each in page.all("input"))
    assert [each.get("name") for each in page.all("meta")] == [None, "viewport"]


def test_a_pipeline_that_never_ran_says_what_to_do() -> None:
    text = Page(render([empty()])).text
    assert "nothing captured yet" in text
    assert "cdc run" in text
    assert "the source did not answer within 2 s" in text
    assert "None so far." in text


def test_the_verdict_is_that_of_the_worst() -> None:
    assert [view(each).verdict for each in (quiet(), empty(), troubled())] == ["good", "warning", "error"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (12_345, "12,345"), (1_250_000, "1.2 M"), (3.4e9, "3.4 bn")]
)
def test_counts_for_people(count: float, text: str) -> None:
    assert number(count) == text


# -- what needs attention


def test_what_is_in_order_needs_nobody() -> None:
    assert attention(quiet()) == []


def test_silence_is_told_after_two_hours() -> None:
    failed = run(1, "failed", error="no route", remedy="open the port")
    last = run(119)
    assert [each.what for each in attention(quiet(runs=[last, failed], last_run=failed))] == [
        "the last run failed: no route"
    ]
    last = run(122)
    told = attention(quiet(runs=[last, failed], last_run=failed))
    assert [each.what for each in told] == ["the last run failed: no route", "no run ended well for 2h01m"]


def test_a_first_run_that_fails_is_told_once() -> None:
    failed = run(1, "failed", error="no route")
    assert [each.what for each in attention(quiet(runs=[failed], last_run=failed))] == [
        "the last run failed: no route"
    ]


def test_a_run_that_is_under_way_is_no_silence() -> None:
    started = quiet(runs=[run(400)], committed_at=ago(minutes=1), running=True)
    assert attention(started) == []
    assert [each.level for each in attention(replace(started, running=False))] == ["error"]


def test_retention_is_measured_against_the_limit_there_or_ours() -> None:
    gib = 1 << 30
    assert attention(quiet(retained_bytes=69 * gib, headroom_bytes=31 * gib)) == []
    (told,) = attention(quiet(retained_bytes=70 * gib, headroom_bytes=30 * gib))
    assert "70% of its limit" in told.what
    assert attention(quiet(retained_bytes=13 * gib)) == []
    assert len(attention(quiet(retained_bytes=14 * gib))) == 1


def test_lag_counts_only_while_the_source_has_more() -> None:
    assert attention(quiet(lag_bytes=0, lag_seconds=9999.0)) == []
    assert [each.level for each in attention(quiet(lag_bytes=1, lag_seconds=3601.0))] == ["warning"]


def test_incidents_that_healed_or_are_old_are_no_news() -> None:
    def incident(remedy: str, hours: float) -> Incident:
        return Incident("kind", "t", "public.t", 1, "what", remedy, ago(hours=hours))

    told = quiet(
        incidents=[incident("nothing: it is read again", 1), incident("look", 25), incident("look", 23)]
    )
    assert [(each.what, each.remedy) for each in attention(told)] == [("public.t: what", "look")]
    errored = TableStatus("public.t", "bronze_only", 1, 0, 5, "what", "look")
    both = quiet(incidents=told.incidents, tables=[errored])
    assert [each.level for each in attention(both)] == ["error"]


# -- plots


def test_bars_stand_for_equal_spans_of_time_up_to_now() -> None:
    points = [(NOW - timedelta(minutes=minutes), [("first", 2.0)]) for minutes in (58, 57.9, 30)]
    plot = plots.over_time(LOOK, points, NOW, most=False)
    assert plot is not None
    assert len(plot.bars) == 2
    assert "a bar every 1 min" in plot.summary
    heights = [sum(box.height for box in bar.boxes) for bar in plot.bars]
    assert heights == [100.0, 50.0]
    # 58 minutes before the end of 59 minutes' room, and 30.
    places = [bar.boxes[0].x + bar.boxes[0].width / 2 for bar in plot.bars]
    assert places == pytest.approx([100 * 0.5 / 59, 100 * 28.5 / 59])


def test_a_bar_is_the_sum_or_the_largest() -> None:
    points = [(NOW, [("first", 2.0)]), (NOW, [("first", 3.0)])]
    tops = {most: plots.over_time(LOOK, points, NOW, most=most) for most in (False, True)}
    assert [plot.top for plot in tops.values() if plot] == ["5", "3"]


def test_a_small_part_is_seen_and_stacks_stay_inside() -> None:
    plot = plots.over_time(LOOK, [(NOW, [("second", 1_000_000.0), ("first", 1.0)])], NOW, most=False)
    assert plot is not None
    below, above = plot.bars[0].boxes
    assert above.height >= 1.0
    assert above.y >= 0
    assert above.y + above.height == pytest.approx(below.y)


def test_the_newest_run_stands_at_the_right() -> None:
    plot = plots.one_each(LOOK, [(ago(hours=2), [("first", 1.0)]), (ago(hours=1), [("first", 1.0)])])
    assert plot is not None
    last = plot.bars[-1].boxes[0]
    assert last.x + last.width == pytest.approx(100, abs=1)
    assert plots.one_each(LOOK, []) is None


def test_a_plot_says_in_words_what_it_shows() -> None:
    plot = plots.over_time(LOOK, [(NOW, [("second", 4.0), ("first", 1.0)])], NOW, most=False)
    assert plot is not None
    assert plot.bars[0].label.endswith(": 4 read, 1 changed")
    assert plot.summary.endswith("Highest: 5.")


def test_a_snapshot_under_way_shows_its_share() -> None:
    table = TableStatus("public.big", "snapshot", 1, 0, 10)
    progress = troubled().snapshots["sales.orders_005"]
    text = Page(render([quiet(tables=[table], snapshots={"public.big": progress})])).text
    assert "snapshot, 29 of 48 pieces" in text
