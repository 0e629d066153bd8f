"""Counters of one run, as they go into ``control.runs``."""

from __future__ import annotations

import threading
from collections import Counter


class Metrics:
    """Thread-safe counters named ``<what>.rows.<table>`` or plainly ``<what>``."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, what: str, table: str, amount: float) -> None:
        name = f"{what}.rows.{table}" if table else what
        with self._lock:
            self._counts[name] += amount  # type: ignore[assignment]

    def set(self, what: str, value: float) -> None:
        with self._lock:
            self._counts[what] = value  # type: ignore[assignment]

    def take(self) -> dict[str, float]:
        """What was counted so far; counting begins anew."""
        with self._lock:
            taken = {name: float(value) for name, value in self._counts.items()}
            self._counts.clear()
            return taken
