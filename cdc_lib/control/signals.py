"""Signals, which people insert, and the answers to them, which runs write."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Annotated

from cdc_lib.clock import now
from cdc_lib.control.row import ControlTable, Stored

_LONG_AGO = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Signal:
    """Something a person asks the next run to do; columns as in Debezium's signal table."""

    id: Annotated[str, Stored("STRING", "any text that no other signal has")]
    type: Annotated[str, Stored("STRING", "what to do: execute-snapshot, log")]
    data: Annotated[str, Stored("STRING", "parameters, a JSON object")] = ""
    at: Annotated[datetime | None, Stored("TIMESTAMP", "when it was inserted; may be left out")] = None


class Signals(ControlTable[Signal]):
    """Inserted by people: ``INSERT INTO control.signals (id, type, data) VALUES (...)``."""

    name = "signals"
    comment = "Insert a row to ask the next run for something; the answer appears in signal_answers"
    row = Signal

    def load(self) -> list[Signal]:
        """Signals for this pipeline, or for none by name, oldest first."""
        rows = self._lake.rows(self.ref)
        ours = [row for row in rows if row["pipeline"] in (None, "", self._pipeline)]
        found = [
            Signal(row["id"] or _made_up(row), row["type"] or "", row["data"] or "", row["at"])
            for row in ours
        ]
        return sorted(found, key=lambda signal: (signal.at or _LONG_AGO, signal.id))

    def named(self) -> list[Signal]:
        """Signals that name this pipeline; without an id if they were inserted without one."""
        return self._select()

    def add(self, signal: Signal) -> None:
        """What an INSERT does."""
        self._append([signal])


def _made_up(row: dict[str, object]) -> str:
    """A signal without an id still gets an answer."""
    text = repr((row["type"], row["data"], row["at"]))
    return f"unnamed-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Answer:
    """What became of a signal."""

    id: Annotated[str, Stored("STRING", "id of the signal")]
    status: Annotated[str, Stored("STRING", "accepted or rejected")]
    text: Annotated[str, Stored("STRING", "what is done, or why not")]
    at: Annotated[datetime, Stored("TIMESTAMP", "when it was answered")] = field(default_factory=now)


class Answers(ControlTable[Answer]):
    """The answers of a pipeline."""

    name = "signal_answers"
    comment = "What became of each signal"
    row = Answer

    def ids(self) -> set[str]:
        """Ids of the signals that have an answer."""
        return {answer.id for answer in self.load()}

    def add(self, answers: Sequence[Answer]) -> None:
        self._append(answers)
