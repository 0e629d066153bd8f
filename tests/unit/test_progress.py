"""Rates and time left are arithmetic over a clock that the test moves; output goes where it belongs."""

from __future__ import annotations

import io
import logging
import threading

import pytest
from rich.console import Console

from cdc_lib.progress import (
    QUIET,
    WINDOW,
    LiveProgress,
    LogProgress,
    Meter,
    Progress,
    Tally,
    for_console,
    seconds,
    size,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def terminal(height: int = 30) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=160, height=height)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_rate_is_taken_over_the_window() -> None:
    meter = Meter()
    meter.add(1000, now=0.0)
    meter.add(1000, now=2.0)
    assert meter.rate(now=4.0) == 500.0
    # Both bursts have left the window: a stall shows as a stall.
    assert meter.rate(now=2.0 + WINDOW + 1) == 0.0
    assert meter.total == 2000


def test_no_rate_from_the_first_instant() -> None:
    meter = Meter()
    meter.add(50_000, now=10.0)
    assert meter.rate(now=10.0) == 0.0


def test_time_left_follows_plan_and_rate() -> None:
    clock = Clock()
    tally = Tally(clock)
    tally.snapshot_planned("public.orders", 10_000, 4)
    assert tally.seconds_left() is None
    tally.rows("public.orders", "snapshot", 2_000)
    clock.now += 4
    assert tally.seconds_left() == pytest.approx(16.0)


def test_time_left_is_not_promised_beyond_the_plan() -> None:
    clock = Clock()
    tally = Tally(clock)
    tally.snapshot_planned("public.orders", 100, 1)
    tally.rows("public.orders", "snapshot", 150)
    clock.now += 1
    assert tally.seconds_left() is None


def test_counts_from_several_threads_add_up() -> None:
    tally = Tally()

    def work() -> None:
        for _ in range(1000):
            tally.rows("public.orders", "bronze", 3)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.total("bronze") == 12_000


def test_log_lines_have_figures_and_no_escape_codes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cdc_lib.progress")
    clock = Clock()
    with LogProgress(interval=60, clock=clock) as progress:
        progress.phase("capture")
        progress.rows("public.orders", "log", 700)
        clock.now += 7
        progress.position("0/1A2B3C4D", behind_bytes=512, behind_seconds=1.25)
        progress.batch(4, rows=700, seconds=0.5)
    (line,) = caplog.messages
    assert line.split() == [
        "step=capture",
        "log_rows=700",
        "log_rate=100/s",
        "position=0/1A2B3C4D",
        "behind_bytes=512",
        "behind_seconds=1.2",
        "batch=4",
    ]


def test_log_repeats_itself_only_after_long_silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cdc_lib.progress")
    clock = Clock()
    with LogProgress(interval=60, clock=clock) as progress:
        progress.phase("apply")
        progress.write()
        progress.write()
        assert caplog.messages == ["step=apply"]
        clock.now += QUIET
        progress.write()
    assert caplog.messages == ["step=apply", "step=apply"]


def test_log_ticks_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cdc_lib.progress")
    with LogProgress(interval=0.01) as progress:
        progress.phase("snapshot")
        ticked = threading.Event()
        for _ in range(500):
            if caplog.messages or ticked.wait(0.01):
                break
        assert caplog.messages == ["step=snapshot"]


def test_live_table_shows_plan_and_lag_and_restores_the_cursor() -> None:
    console = terminal()
    with LiveProgress(console) as progress:
        progress.phase("snapshot")
        progress.snapshot_planned("public.orders", 50_000, 2)
        progress.rows("public.orders", "snapshot", 12_345)
        progress.position("0/16B3748", behind_bytes=2048, behind_seconds=3.0)
        progress.note("slot created")
    text = shown(console)
    assert "12,345 of 50,000" in text
    assert "2.0 KiB behind" in text
    assert "slot created" in text
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert text.rfind(show) > text.rfind(hide) >= 0


def test_live_table_keeps_within_the_screen() -> None:
    console = terminal(height=10)
    with LiveProgress(console) as progress:
        for number in range(40):
            progress.rows(f"public.t{number:02}", "log", 1)
    assert "and 34 more tables" in shown(console)


def test_closing_twice_is_allowed() -> None:
    progress = LiveProgress(terminal())
    progress.close()
    progress.close()


def test_the_console_decides() -> None:
    plain = Console(file=io.StringIO(), force_terminal=False)
    with for_console(plain) as progress:
        assert isinstance(progress, LogProgress)
    with for_console(terminal()) as progress:
        assert isinstance(progress, LiveProgress)


def test_the_base_class_accepts_every_call() -> None:
    with Progress() as progress:
        progress.phase("x")
        progress.snapshot_planned("t", None, 0)
        progress.rows("t", "silver", 1)
        progress.position("p", None, None)
        progress.batch(1, 1, 1.0)
        progress.note("n")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 1024**3, "5.0 GiB"), (3 * 1024**4, "3.0 TiB")],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(("amount", "text"), [(-1, "0s"), (8.4, "8s"), (185, "3m05s"), (7440, "2h04m")])
def test_seconds(amount: float, text: str) -> None:
    assert seconds(amount) == text
