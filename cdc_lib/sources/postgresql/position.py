"""PostgreSQL's place in the log: a LSN, on a timeline, of a cluster.

A timeline change (failover, point-in-time recovery) starts a new branch of the log, so the timeline is the
epoch and stands first in the order. The system identifier tells clusters apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Self

from cdc_lib.position import Position

_LSN = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_WIDTH = 24
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_HEX_PAIRS = np.stack([_HEX[np.arange(256) >> 4], _HEX[np.arange(256) & 15]], axis=1)


@dataclass(frozen=True, eq=False)
class PostgresPosition(Position):
    """Everything that ends at or before ``lsn`` has been emitted; the slot remembers where to resume.

    ``unseen``: transactions up to here that other sessions did not see yet when the position was taken
    (``visibility.py``); not part of the order.
    """

    system: str
    timeline: int
    lsn: int
    unseen: tuple[int, ...] = ()

    @property
    def history(self) -> str:
        return self.system

    @property
    def sort_key(self) -> str:
        return f"{self.timeline:08X}{self.lsn:016X}"

    def to_dict(self) -> dict[str, Any]:
        data = {"system": self.system, "timeline": self.timeline, "lsn": format_lsn(self.lsn)}
        return data | ({"unseen": list(self.unseen)} if self.unseen else {})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        unseen = tuple(int(one) for one in data.get("unseen", ()))
        return cls(str(data["system"]), int(data["timeline"]), parse_lsn(data["lsn"]), unseen)

    def __str__(self) -> str:
        return format_lsn(self.lsn)

    def bytes_since(self, earlier: Position) -> int | None:
        if not isinstance(earlier, PostgresPosition) or earlier.history != self.history:
            return None
        return self.lsn - earlier.lsn

    def plain(self) -> Self:
        return self.at(self.lsn)

    def capped(self, after: Self, max_bytes: int) -> Self:
        return self.at(min(self.lsn, after.lsn + max_bytes)) if after.history == self.history else self

    def at(self, lsn: int) -> Self:
        """Another place in the same history and timeline."""
        return type(self)(self.system, self.timeline, lsn)


def parse_lsn(text: str) -> int:
    """The number behind the server's text form, ``16/B374D848``.

    :raises ValueError: the text is not a LSN.
    """
    found = _LSN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a LSN")
    return int(found[1], 16) << 32 | int(found[2], 16)


def format_lsn(lsn: int) -> str:
    """The server's text form of a LSN."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def sort_keys(timeline: int, lsns: npt.NDArray[np.int64]) -> pa.Array:
    """:attr:`PostgresPosition.sort_key` of many LSNs at once, as strings."""
    count = len(lsns)
    octets = np.ascontiguousarray(lsns, dtype=">i8").view(np.uint8)
    text = np.empty((count, _WIDTH), np.uint8)
    text[:, :8] = np.frombuffer(f"{timeline:08X}".encode(), np.uint8)
    text[:, 8:] = _HEX_PAIRS[octets].reshape(count, 16)
    offsets = np.arange(count + 1, dtype=np.int32) * _WIDTH
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
