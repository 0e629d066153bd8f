"""A place in a source's change log, as a value.

A position has three parts. *Epoch*: which history it belongs to (server identity, timeline, reset
count). *Through*: everything committed up to here has been emitted. *Resume*: where reading must start
again, the oldest transaction that was open (equal to *through* where the source keeps track itself).
Order is epoch, then through; ``Source.release`` uses resume.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from functools import total_ordering
from typing import Any, TypeVar

P = TypeVar("P", bound="Position")


@total_ordering
class Position(ABC):
    """Immutable, totally ordered within one history, with a JSON round trip.

    Subclasses are frozen dataclasses, one per engine.
    """

    @property
    @abstractmethod
    def history(self) -> str:
        """Identity of the server whose log this is; positions of two histories have no order."""

    @property
    @abstractmethod
    def sort_key(self) -> str:
        """Fixed-width text whose text order is the position order (epoch, then through)."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; :meth:`from_dict` turns it back."""

    @classmethod
    @abstractmethod
    def from_dict(cls: type[P], data: dict[str, Any]) -> P:
        """The inverse of :meth:`to_dict`."""

    @abstractmethod
    def __str__(self) -> str:
        """The form an operator of this engine knows (an LSN, a GTID set, a resume token)."""

    def bytes_since(self, earlier: Position) -> int | None:
        """How much log lies between ``earlier`` and here; None where positions do not count bytes."""
        return None

    def plain(self: P) -> P:
        """This place without what only snapshots need to know of it: equal positions have equal JSON then."""
        return self

    def capped(self: P, after: P, max_bytes: int) -> P:
        """This place, or the one ``max_bytes`` of log behind ``after`` if that comes first. Where positions
        do not count bytes: this place."""
        return self

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls: type[P], text: str) -> P:
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self.history, self.sort_key) == (other.history, other.sort_key)

    def __lt__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        if self.history != other.history:
            raise ValueError(f"positions of two histories have no order: {self} and {other}")
        return self.sort_key < other.sort_key

    def __hash__(self) -> int:
        return hash((self.history, self.sort_key))
