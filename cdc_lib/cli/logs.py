"""Where log lines of a command go: to standard error, one a line, in UTC, with ``key=value`` at the end."""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

FORMAT = "%(asctime)sZ %(levelname)s %(name)s %(message)s"


class CurrentStderr(logging.StreamHandler[TextIO]):
    """Asks for ``sys.stderr`` at each line: a live display puts itself there while it runs."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class Tail(logging.Filter):
    """Adds ``pipeline=`` to every line, since several pipelines may write to one job log."""

    def __init__(self) -> None:
        super().__init__()
        self.pipeline = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if self.pipeline:
            record.msg = f"{record.msg} pipeline={self.pipeline.replace('%', '%%')}"
        return True


_tail = Tail()


def configure(*, terminal: bool, debug: bool) -> None:
    """A terminal shows progress itself and needs only warnings; a job's log gets everything of note."""
    formatter = logging.Formatter(FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = CurrentStderr()
    handler.setFormatter(formatter)
    handler.addFilter(_tail)
    logger = logging.getLogger("cdc_lib")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if debug else logging.WARNING if terminal else logging.INFO)


def name_pipeline(name: str) -> None:
    """From here on, lines say which pipeline they are about."""
    _tail.pipeline = name
