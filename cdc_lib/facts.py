"""What kinds of rows a batch brings of a table, noted while they pass by.

Silver's reduction is only as elaborate as its rows need. A query over bronze could find that out, but costs
more than the rest of a small merge; counted on the way, it is nearly free (``docs/decisions/0007``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lib.change import Op
from cdc_lib.schema import Table


@dataclass(frozen=True)
class Truncate:
    """A truncate; ``committed_us`` is its commit time in microseconds since the epoch."""

    sequence: int
    committed_us: int | None


@dataclass(frozen=True)
class Facts:
    """Of some rows of one table; add them up with ``+``.

    ``unavailable``: columns that some after-image does not carry. ``oldest``: lowest schema version of a row
    that is no truncate. ``moves``: rows that are half of a key update; ``lacking_moves`` of them do not carry
    all columns, and ``oldest_move`` is their lowest schema version. ``specials``: rows with server text for a
    column; ``key_specials`` of them for a key column. ``counts``: rows by operation; no merge depends on
    them, monitoring adds them up.
    """

    rows: int = 0
    ops: frozenset[str] = frozenset()
    truncates: tuple[Truncate, ...] = ()
    unavailable: frozenset[str] = frozenset()
    oldest: int | None = None
    moves: int = 0
    lacking_moves: int = 0
    oldest_move: int | None = None
    specials: int = 0
    key_specials: int = 0
    counts: Mapping[str, int] = field(default_factory=dict, compare=False)

    def __add__(self, other: Facts) -> Facts:
        return Facts(
            self.rows + other.rows,
            self.ops | other.ops,
            tuple(sorted({*self.truncates, *other.truncates}, key=lambda each: each.sequence)),
            self.unavailable | other.unavailable,
            _lowest(self.oldest, other.oldest),
            self.moves + other.moves,
            self.lacking_moves + other.lacking_moves,
            _lowest(self.oldest_move, other.oldest_move),
            self.specials + other.specials,
            self.key_specials + other.key_specials,
            dict(Counter(self.counts) + Counter(other.counts)),
        )

    def to_json(self) -> str:
        data = asdict(self) | {"ops": sorted(self.ops), "unavailable": sorted(self.unavailable)}
        return json.dumps({key: value for key, value in data.items() if value})

    @classmethod
    def from_json(cls, text: str) -> Facts:
        data: dict[str, Any] = json.loads(text)
        truncates = tuple(Truncate(**each) for each in data.pop("truncates", ()))
        ops, unavailable = (frozenset(data.pop(name, ())) for name in ("ops", "unavailable"))
        return cls(ops=ops, unavailable=unavailable, truncates=truncates, **data)


def facts_of(rows: pa.RecordBatch, table: Table, batch: int) -> Facts:
    """The facts of staged rows (:func:`~cdc_lib.change.change_schema`, ordinals final) of a batch."""
    counts = {each["values"]: each["counts"] for each in pc.value_counts(rows.column("op")).to_pylist()}
    ops = frozenset(counts)
    plain = ops - {Op.TRUNCATE.value}
    moved = pc.is_valid(rows.column("previous_key"))
    moves = pc.sum(moved).as_py() or 0
    lacks = pc.fill_null(pc.greater(pc.list_value_length(rows.column("after_unavailable")), 0), False)
    specials = _with_text(rows, table.names)
    return Facts(
        rows=rows.num_rows,
        ops=ops,
        truncates=_truncates(rows, batch) if Op.TRUNCATE.value in ops else (),
        unavailable=frozenset(pc.unique(rows.column("after_unavailable").flatten()).to_pylist()),
        oldest=table.version if plain else None,
        moves=moves,
        lacking_moves=pc.sum(pc.and_(moved, lacks)).as_py() or 0 if moves else 0,
        oldest_move=table.version if moves else None,
        specials=specials,
        key_specials=_with_text(rows, table.key) if specials else 0,
        counts=counts,
    )


def _truncates(rows: pa.RecordBatch, batch: int) -> tuple[Truncate, ...]:
    found = rows.filter(pc.equal(rows.column("op"), Op.TRUNCATE.value))
    source = found.column("source")
    times = pc.struct_field(source, "ts_us") if _has_field(source, "ts_us") else pa.nulls(len(found))
    pairs = zip(found.column("ordinal").to_pylist(), times.to_pylist(), strict=True)
    return tuple(Truncate((batch << 32) + ordinal, us) for ordinal, us in pairs)


def _has_field(column: pa.Array, name: str) -> bool:
    return bool(column.type.get_field_index(name) >= 0)


def _with_text(rows: pa.RecordBatch, names: tuple[str, ...]) -> int:
    """Rows whose ``special`` has one of these columns."""
    special = rows.column("special")
    if special.null_count == len(special) or not names:
        return 0
    wanted = pc.is_in(special.keys, value_set=pa.array(names)).to_numpy(zero_copy_only=False)
    offsets = special.offsets.to_numpy() - special.offsets[0].as_py()
    sums = np.concatenate([[0], np.cumsum(wanted)])
    return int(np.count_nonzero(sums[offsets[1:]] > sums[offsets[:-1]]))


def _lowest(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
