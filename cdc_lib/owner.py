"""Who may write: one runner per pipeline, by a lease that is renewed while it works."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from types import TracebackType

from typing_extensions import Self

from cdc_lib.control import Control
from cdc_lib.control.leases import Lease
from cdc_lib.errors import CdcError

log = logging.getLogger("cdc_lib.owner")


class Owner:
    """Holds the pipeline's lease between enter and exit; a context manager.

    :param incarnation: the pipeline's, where its lease is lost; otherwise the lease says.
    :raises RetryLater: on enter, another runner holds it.
    """

    def __init__(self, control: Control, seconds: int, incarnation: str = "") -> None:
        self._control = control
        self._seconds = seconds
        self._incarnation = incarnation
        self._runner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._renewed = 0.0
        self._lost: CdcError | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="cdc-lease", daemon=True)
        self.lease: Lease

    def __enter__(self) -> Self:
        self._renewed = time.monotonic()
        self.lease = self._control.leases.acquire(self._runner, self._seconds, self._incarnation)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if self._lost is None:
            self._control.leases.release(self.lease)

    def confirm(self) -> None:
        """Before a step that others must not take at the same time: the lease is still ours.

        A process that was paused for longer than its lease asks the table again.

        :raises RetryLater: it was taken over.
        """
        if self._lost is not None:
            raise self._lost
        if time.monotonic() - self._renewed > self._seconds:
            self._renew()

    def _keep(self) -> None:
        while not self._done.wait(self._seconds / 3):
            try:
                self._renew()
            except CdcError as error:
                log.error("lease lost runner=%s", self._runner)
                self._lost = error
                return

    def _renew(self) -> None:
        with self._lock:
            started = time.monotonic()
            self.lease = self._control.leases.renew(self.lease, self._seconds)
            self._renewed = started
