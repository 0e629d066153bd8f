"""The text of silver's MERGE: from one row per key (``reduce.outcomes``, as view ``changes``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdc_lib.facts import Truncate
from cdc_lib.nested_types import quoted
from cdc_lib.silver.events import Shape
from cdc_lib.silver.table import (
    COMMITTED_AT,
    DELETED_AT,
    END_AT,
    ENDED_AT,
    SEQUENCE,
    SPECIAL,
    START_AT,
    UNAVAILABLE,
    text,
)

_NO_NAMES = "CAST(array() AS ARRAY<STRING>)"
_NO_TEXTS = "CAST(map() AS MAP<STRING, STRING>)"


@dataclass(frozen=True)
class Merge:
    """``silver`` is the table in SQL, ``meta`` which of the optional meta columns it has, ``changes`` the
    view's name."""

    silver: str
    shape: Shape
    meta: frozenset[str]
    changes: str = "changes"

    def sql(self) -> str:
        """One MERGE. ``s`` rows are applied only onto older ``t`` rows, whatever is replayed."""
        newer = f"s.sq > {_held(SEQUENCE)}"
        soft = self.shape.soft
        clauses = [
            f"MERGE INTO {self.silver} AS t USING {self.changes} AS s ON {self.on()}",
            "" if soft else f"WHEN MATCHED AND {newer} AND s.deleted THEN DELETE",
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {_assignments(self._updates())}",
            f"WHEN NOT MATCHED{'' if soft else ' AND NOT s.deleted'} THEN {_insert(self.inserts())}",
            self._truncates(),
        ]
        return "\n".join(filter(None, clauses))

    def inserts(self) -> dict[str, str]:
        """Column of silver to expression over ``s`` for a row that silver does not have."""
        shape = self.shape
        row = {name: f"s.{k}" for k, name in (shape.keys | shape.values).items()}
        row = {name: row[name] for name in shape.table.names}
        row |= {SEQUENCE: "s.sq", COMMITTED_AT: "s.at"}
        optional = {
            DELETED_AT: "s.deleted_at",
            UNAVAILABLE: _unless_empty("s.missing"),
            SPECIAL: "s.special",
        }
        return row | {name: value for name, value in optional.items() if name in self.meta}

    def _updates(self) -> dict[str, str]:
        row = self.inserts()
        if not self.shape.partial:
            return row
        for v, name in self.shape.partial.items():
            row[name] = f"CASE WHEN {self.fills()} AND {_lacks(name)} THEN t.{quoted(name)} ELSE s.{v} END"
        if UNAVAILABLE in self.meta:
            still = f"array_intersect(s.missing, coalesce(t.{UNAVAILABLE}, {_NO_NAMES}))"
            row[UNAVAILABLE] = _unless_empty(f"CASE WHEN {self.fills()} THEN {still} ELSE s.missing END")
        if SPECIAL in self.meta:
            row[SPECIAL] = self._special()
        return row

    def _special(self) -> str:
        """Texts of ``s``, and those of the values that stay as ``t`` has them."""
        kept = f"map_filter(coalesce(t.{SPECIAL}, {_NO_TEXTS}), (name, v) -> array_contains(s.missing, name))"
        both = f"map_concat(coalesce(s.special, {_NO_TEXTS}), {kept})"
        return f"CASE WHEN {self.fills()} THEN {_unless_empty(both)} ELSE s.special END"

    def fills(self) -> str:
        """Whether ``t`` is of the same life as ``s``, so that it has the values that ``s`` is missing."""
        same_life = f"(s.start IS NULL OR t.{SEQUENCE} >= s.start)"
        return f"({same_life} AND (t.{DELETED_AT} IS NULL OR s.deleted))" if self.shape.soft else same_life

    def on(self) -> str:
        """The key's equality; rows of a table without a key match nothing."""
        if not self.shape.keys:
            return "false"
        return " AND ".join(f"t.{quoted(name)} <=> s.{k}" for k, name in self.shape.keys.items())

    def _truncates(self) -> str:
        truncates = self.shape.survey.truncates
        if not truncates:
            return ""
        older = f"WHEN NOT MATCHED BY SOURCE AND {_held(SEQUENCE)} < {truncates[-1].sequence}"
        if not self.shape.soft:
            return f"{older} THEN DELETE"
        at = _first_after(truncates, SEQUENCE, lambda each: _timestamp(each.committed_us))
        row = {
            SEQUENCE: _first_after(truncates, SEQUENCE, lambda each: str(each.sequence)),
            COMMITTED_AT: at,
            DELETED_AT: at,
        }
        return f"{older} AND t.{DELETED_AT} IS NULL THEN UPDATE SET {_assignments(row)}"


@dataclass(frozen=True)
class CountMerge(Merge):
    """The MERGE of a table without a key, from the rows that were ever added and are touched now
    (``keyless.counted``): a copy of a row is its sequence."""

    def sql(self) -> str:
        clauses = [
            f"MERGE INTO {self.silver} AS t USING {self.changes} AS s ON t.{SEQUENCE} = s.sq",
            "WHEN MATCHED AND s.deleted THEN DELETE",
            f"WHEN NOT MATCHED AND NOT s.deleted THEN {_insert(self.inserts())}",
            self._truncates(),
        ]
        return "\n".join(filter(None, clauses))


@dataclass(frozen=True)
class VersionMerge:
    """The MERGE of a history, from one row per version (``versions.versions``): a version is its key and its
    start. What has ended stays as it is."""

    silver: str
    shape: Shape
    meta: frozenset[str]
    changes: str = "changes"

    def sql(self) -> str:
        key = " AND ".join(f"t.{quoted(name)} <=> s.{k}" for k, name in self.shape.keys.items())
        is_open = f"t.{END_AT} IS NULL"
        row = self.inserts()
        changed = {name: value for name, value in row.items() if name not in (START_AT, COMMITTED_AT)}
        clauses = [
            f"MERGE INTO {self.silver} AS t USING {self.changes} AS s ON {key} AND t.{START_AT} = s.sq",
            f"WHEN MATCHED AND {is_open} THEN UPDATE SET {_assignments(changed)}",
            f"WHEN NOT MATCHED THEN {_insert(row)}",
            self._truncates(),
        ]
        return "\n".join(filter(None, clauses))

    def inserts(self) -> dict[str, str]:
        """Column of silver to expression over ``s``."""
        row = {name: f"s.{k}" for k, name in (self.shape.keys | self.shape.values).items()}
        row = {name: row[name] for name in self.shape.table.names}
        row |= {START_AT: "s.sq", END_AT: "s.end_at", COMMITTED_AT: "s.at", ENDED_AT: "s.ended_at"}
        optional = {UNAVAILABLE: _unless_empty("s.missing"), SPECIAL: "s.special"}
        return row | {name: value for name, value in optional.items() if name in self.meta}

    def _truncates(self) -> str:
        truncates = self.shape.survey.truncates
        if not truncates:
            return ""
        ended = {
            END_AT: _first_after(truncates, START_AT, lambda each: str(each.sequence)),
            ENDED_AT: _first_after(truncates, START_AT, lambda each: _timestamp(each.committed_us)),
        }
        older = f"t.{END_AT} IS NULL AND {_held(START_AT)} < {truncates[-1].sequence}"
        return f"WHEN NOT MATCHED BY SOURCE AND {older} THEN UPDATE SET {_assignments(ended)}"


def _first_after(truncates: Sequence[Truncate], column: str, value: Callable[[Truncate], str]) -> str:
    """What the first truncate after row ``t``, whose ``column`` is its sequence, says."""
    steps = [f"WHEN {_held(column)} < {each.sequence} THEN {value(each)}" for each in truncates]
    return f"CASE {' '.join(steps)} END"


def _held(column: str) -> str:
    """Order of silver's row. One that somebody else put there has none, and is older than any change."""
    return f"coalesce(t.{column}, -1)"


def _timestamp(micros: int | None) -> str:
    return "CAST(NULL AS TIMESTAMP)" if micros is None else f"timestamp_micros({micros})"


def _lacks(name: str) -> str:
    return f"array_contains(s.missing, {text(name)})"


def _unless_empty(collection: str) -> str:
    """NULL for an empty array or map (maps have no equality, so NULLIF would not do)."""
    return f"CASE WHEN size({collection}) > 0 THEN {collection} END"


def _assignments(row: dict[str, str]) -> str:
    return ", ".join(f"t.{quoted(name)} = {value}" for name, value in row.items())


def _insert(row: dict[str, str]) -> str:
    columns = ", ".join(map(quoted, row))
    return f"INSERT ({columns}) VALUES ({', '.join(row.values())})"  # noqa: S608  names are quoted
