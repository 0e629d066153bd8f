"""``cdc`` as the task of a job: the same commands, for a runner that knows success and exceptions only.

Databricks calls an entry point inside a Python process of its own. It has no use for exit codes and repeats
whatever failed, be there hope or not. So the retries are made here, where the reason is known: what passes
(exit code 3: connection lost, another run at work) is tried again after a pause, everything else fails at
once and wakes somebody once. What the job shows is then the error's own what, why and to do.
"""

from __future__ import annotations

import logging
import time
from types import TracebackType

from typer.main import get_command

from cdc_lib.cli.app import app
from cdc_lib.cli.defects import defect
from cdc_lib.errors import CdcError, RetryLater

PAUSES = (15.0, 45.0, 120.0)
"""Seconds before each further attempt: together longer than a failover or a dead runner's lease, and short
enough for somebody who waits to hear that the address is wrong."""

log = logging.getLogger(__name__)


def main() -> None:
    """Entry point ``cdc-task``: returns if all is well, raises what went wrong."""
    for pause in PAUSES:
        try:
            return _once()
        except RetryLater as error:
            log.warning("trying again seconds=%d reason=%s", pause, error.what)
            time.sleep(pause)
    return _once()


def _once() -> None:
    code: object = None
    try:
        with _Boundary():
            get_command(app)()
    except SystemExit as end:
        code = end.code
    if code:
        raise CdcError(
            f"the command ended with exit code {code}",
            why="a finding, a difference or a mistake in its words: it is in the output above",
            remedy="do what the output says, then run the job again",
        )


class _Boundary:
    """Lets our own errors and exits through, and keeps the text of all others out of the job's pages."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, Exception) and not issubclass(kind, CdcError):
            raise defect(kind) from None
