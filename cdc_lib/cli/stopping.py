"""Ends a command on SIGINT and SIGTERM: after the current step when asked once, at once when asked twice.

The work runs in a thread of its own and the main thread only waits. A signal is then handled at once,
however long a driver or Spark stays in a call, and Spark cannot put its own handler in the place of ours
(it does so when it is started from the main thread).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from cdc_lib.errors import Interrupted

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = "\x1b[?25h"

_last_wishes: list[Callable[[], None]] = []


@contextmanager
def before_exit_at_once(wish: Callable[[], None]) -> Iterator[None]:
    """While open, ``wish`` is carried out even if the process is told to end at once."""
    _last_wishes.append(wish)
    try:
        yield
    finally:
        _last_wishes.remove(wish)


def run_stoppable(work: Callable[[threading.Event], T], *, patient: bool = True) -> T:
    """Run ``work`` with an event that the first signal sets.

    :param patient: False for commands that change nothing: already the first signal ends them.
    """
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set() or not patient:
            exit_at_once()
        stop.set()
        _say("stopping after the current step; once more to stop at once")

    # Only a main thread may set handlers; who calls us from another one (a notebook) stops us by other means.
    ours = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, handle) for number in ours}
    executor = ThreadPoolExecutor(1, thread_name_prefix="command")
    try:
        return _result(executor.submit(work, stop))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        executor.shutdown()


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None


def exit_at_once() -> None:
    """End the process without unwinding; what is durable is whole, and the next run goes on from there."""
    for wish in reversed(_last_wishes):
        wish()
    if sys.stderr.isatty():
        os.write(2, SHOW_CURSOR.encode())
    os._exit(Interrupted.exit_code)


def _say(text: str) -> None:
    # Not print: the handler may have interrupted a print that holds the stream's lock.
    os.write(2, f"\n{text}\n".encode())
