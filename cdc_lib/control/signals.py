"""``control.signals``, where people INSERT, and ``control.signal_answers``, what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field


@dataclass(frozen=True)
class Signal:
    id: str
    type: str
    data: str | None
    at: datetime | None


@dataclass(frozen=True)
class Answer:
    id: str
    outcome: str
    message: str


class Signals(ControlTable):
    """Written by people: ``INSERT INTO control.signals (pipeline, id, type, data) VALUES (...)``."""

    NAME = "signals"
    COMMENT = "Requests to a pipeline; INSERT here. Answers are in signal_answers."
    FIELDS = (
        Field("id", "STRING", "Any text that is not taken yet."),
        Field("type", "STRING", "execute-snapshot or log."),
        Field("data", "STRING", 'JSON, as in Debezium: {"data-collections": ["public.orders"]}.'),
        Field("at", "TIMESTAMP", "When it was asked, optional."),
    )

    def load(self) -> list[Signal]:
        """All signals of the pipeline, oldest first; those without a time come last, by id."""
        rows = [Signal(row["id"] or "", row["type"] or "", row["data"], row["at"]) for row in self.select()]
        return sorted(rows, key=lambda signal: (signal.at is None, signal.at or now(), signal.id))


class Answers(ControlTable):
    """Append-only."""

    NAME = "signal_answers"
    COMMENT = "What came of the signals."
    FIELDS = (
        Field("id", "STRING", "The signal's id."),
        Field("outcome", "STRING", "accepted or rejected."),
        Field("message", "STRING", "What is done, or why not."),
        Field("at", "TIMESTAMP", "When it was answered."),
    )

    def ids(self) -> set[str]:
        return {row["id"] for row in self.select()}

    def add(self, answers: Sequence[Answer]) -> None:
        self.insert([{**asdict(answer), "at": now()} for answer in answers])
