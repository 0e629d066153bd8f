"""The wall clock, asked in one place.

Clocks jump: a virtual machine wakes up, somebody sets the time, the next run is on a machine whose clock is
behind. So no order is taken from it; batch numbers, versions and transaction ids give that. It says when a
lease runs out, whether a heartbeat is due, and the times that people read.

Tests let it jump: ``CDC_CLOCK_SHIFT`` names a file with the seconds by which it is off, read at each call.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path


def now() -> datetime:
    """The present, in UTC."""
    found = datetime.now(timezone.utc)
    file = os.environ.get("CDC_CLOCK_SHIFT")
    return found if file is None else found + timedelta(seconds=float(Path(file).read_text(encoding="ascii")))
