"""Step 3 of the ladder: read the signals that people inserted, and answer each exactly once.

A signal is a row in ``control.signals`` (id, type, data), as in Debezium. To add a type: write a function
that takes the parsed ``data`` and the captured tables, returns what is :class:`Accepted`, and raises
:class:`Rejected`; then name it in :data:`ACTIONS`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_lib.captured import Captured
from cdc_lib.control import Control
from cdc_lib.control.signals import Answer, Signal
from cdc_lib.schema import TableId

log = logging.getLogger("cdc_lib.signals")


class Rejected(ValueError):
    """A signal that cannot be carried out; the text says why and what to do."""


@dataclass(frozen=True)
class Accepted:
    """What a signal asks for: tables to read whole, a line for the log. ``text`` is the answer."""

    text: str
    tables: Sequence[TableId] = ()
    message: str | None = None


Action = Callable[[Mapping[str, Any], Captured], Accepted]


@dataclass(frozen=True)
class Considered:
    """An unanswered signal, and what is to be said to it; ``accepted`` is None if it is rejected."""

    signal: Signal
    answer: Answer
    accepted: Accepted | None = None


def answer_signals(control: Control, captured: Captured) -> list[TableId]:
    """Answer what is unanswered, oldest first; the tables that signals ask to snapshot.

    The answer is written after the table states that carry the work, by the caller's next step; a signal
    that was acted on but not answered is acted on again, which does no harm.
    """
    considered = consider_signals(control, captured)
    for each in considered:
        if each.accepted is not None and each.accepted.message is not None:
            log.info("signal message=%s", each.accepted.message)
    if considered:
        control.answers.add([each.answer for each in considered])
    return wanted_tables(considered)


def consider_signals(control: Control, captured: Captured) -> list[Considered]:
    """What is to be answered to the unanswered signals, oldest first; writes nothing."""
    answered = control.answers.ids()
    return [_considered(signal, captured) for signal in control.signals.load() if signal.id not in answered]


def wanted_tables(considered: Sequence[Considered]) -> list[TableId]:
    """The tables that accepted signals ask to snapshot."""
    return [table for each in considered if each.accepted for table in each.accepted.tables]


def _considered(signal: Signal, captured: Captured) -> Considered:
    try:
        accepted = _act(signal, captured)
    except Rejected as reason:
        return Considered(signal, Answer(signal.id, "rejected", str(reason)))
    return Considered(signal, Answer(signal.id, "accepted", accepted.text), accepted)


def _act(signal: Signal, captured: Captured) -> Accepted:
    action = ACTIONS.get(signal.type)
    if action is None:
        raise Rejected(f"no signal of type {signal.type!r}; known: {', '.join(sorted(ACTIONS))}")
    try:
        data = json.loads(signal.data or "{}")
    except ValueError:
        raise Rejected("data is not JSON") from None
    if not isinstance(data, dict):
        raise Rejected("data is not a JSON object")
    return action(data, captured)


def _execute_snapshot(data: Mapping[str, Any], captured: Captured) -> Accepted:
    """Debezium's ``execute-snapshot``: ``data-collections`` holds names or anchored expressions."""
    names = data.get("data-collections")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Rejected('data needs "data-collections": a list of table names or expressions')
    unknown = sorted(set(data) - {"data-collections", "type"})
    if unknown:
        raise Rejected(f"not yet supported: {', '.join(unknown)}")
    kind = str(data.get("type", "blocking")).lower()
    if kind != "blocking":
        raise Rejected(f'type {kind!r} is not yet supported; "blocking" is')
    tables = [entry.id for entry in captured if any(_matches(name, entry.id) for name in names)]
    if names and not tables:
        raise Rejected("no captured table has one of these names")
    return Accepted(f"{len(tables)} tables are read again by this run", tables)


def _matches(expression: str, table: TableId) -> bool:
    try:
        return str(table) == expression or re.fullmatch(expression, str(table), re.IGNORECASE) is not None
    except re.error:
        raise Rejected(f"{expression!r} is not an expression") from None


def _log(data: Mapping[str, Any], captured: Captured) -> Accepted:
    """Debezium's ``log``: write ``message`` to the log."""
    message = data.get("message")
    if not isinstance(message, str):
        raise Rejected('data needs "message": a text')
    return Accepted("logged", message=message)


ACTIONS: Mapping[str, Action] = {"execute-snapshot": _execute_snapshot, "log": _log}
