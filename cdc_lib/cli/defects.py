"""What is shown of an exception that nobody foresaw: its kind, and its text only to who asks for it."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from cdc_lib.cli import output
from cdc_lib.errors import CdcError


def debugging() -> bool:
    """Whether ``--debug`` was given."""
    return logging.getLogger("cdc_lib").isEnabledFor(logging.DEBUG)


def unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The interpreter's last resort (``sys.excepthook``)."""
    if debugging():
        sys.__excepthook__(kind, error, trace)
        return
    output.show_error(defect(kind), debug=False)


def defect(kind: type[BaseException]) -> CdcError:
    """The error that stands for one that nobody foresaw."""
    return CdcError(
        f"unexpected {kind.__name__}",
        # Its text may repeat a row or a connection string, and job logs are read by many.
        why="no class of ours describes it, so its message is not shown here",
        remedy="this is a defect of cdc-lib: run the command again with --debug and report what it prints",
    )
