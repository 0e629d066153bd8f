"""PostgreSQL types: what each becomes in Arrow, and which conversion takes its server text there.

A table, :data:`_RULES`, holds every type we know. All other types arrive as the server's text and are
marked ``known=False``, so that ``check`` can say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from cdc_lib.sources.postgresql import arrays, bytea, convert
from cdc_lib.sources.postgresql.convert import Converter
from cdc_lib.types import MAX_DECIMAL_PRECISION, TIMESTAMP, TIMESTAMP_NTZ

Kind = Literal["base", "enum", "domain", "array", "range", "multirange", "composite", "pseudo"]


@dataclass(frozen=True)
class PgType:
    """One row of ``pg_type``.

    ``name`` is what ``source_type`` shows. ``element_oid`` is set for true arrays only (kind ``array``:
    the element type's ``typarray`` is this type), not for ``int2vector`` and the like, whose text differs.
    ``base_oid`` and ``base_typmod`` are a domain's ``typbasetype`` and ``typtypmod``.
    """

    oid: int
    name: str
    kind: Kind = "base"
    element_oid: int = 0
    base_oid: int = 0
    base_typmod: int = -1


class TypeCatalog:
    """Types by OID: those given, the built-in ones, and those that ``fetch`` finds on demand.

    ``fetch`` is asked once for each OID that is not known, a type created while we run.
    """

    def __init__(
        self, types: Iterable[PgType] = (), fetch: Callable[[int], PgType | None] | None = None
    ) -> None:
        self._types: dict[int, PgType] = {**_BUILTIN, **{one.oid: one for one in types}}
        self._fetch = fetch

    def get(self, oid: int) -> PgType | None:
        """The type, or None when nobody knows it."""
        if oid not in self._types and self._fetch is not None:
            found = self._fetch(oid)
            if found is not None:
                self._types[oid] = found
        return self._types.get(oid)


@dataclass(frozen=True)
class Handling:
    """The user's representations, Debezium's ``*.mode`` properties; None is ours (``docs/properties.md``)."""

    decimal: Literal["precise", "double", "string"] | None = None
    time: Literal["adaptive", "adaptive_time_microseconds", "connect"] | None = None
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] | None = None


@dataclass(frozen=True)
class ColumnType:
    """How one column is held (``arrow``), called (``source_type``) and converted from server text."""

    arrow: pa.DataType
    source_type: str
    convert: Converter = field(compare=False)
    known: bool = True


Rule = Callable[[int, Handling], tuple[pa.DataType, Converter]]


def column_type(
    oid: int, typmod: int, catalog: TypeCatalog, handling: Handling, override: pa.DataType | None = None
) -> ColumnType:
    """The one place that decides how a column is held.

    ``override`` is the specification's own type for the column; values that do not fit it are misfits.
    """
    own = _own_type(oid, typmod, catalog, handling)
    if override is None or override == own.arrow:
        return own
    return ColumnType(override, own.source_type, text_to(override))


def text_to(arrow: pa.DataType) -> Converter:
    """The converter from server text to any type that a column can have.

    :raises TypeError: columns cannot have this type.
    """
    if pa.types.is_list(arrow):
        return arrays.listing(text_to(arrow.value_type))
    if pa.types.is_decimal128(arrow):
        return convert.decimal(arrow.precision, arrow.scale)
    if arrow not in _TEXT_TO:
        raise TypeError(f"no conversion from PostgreSQL's text to {arrow}")
    return _TEXT_TO[arrow]


def _own_type(oid: int, typmod: int, catalog: TypeCatalog, handling: Handling) -> ColumnType:
    found = catalog.get(oid)
    if found is None:
        return ColumnType(pa.string(), f"oid {oid}", convert.text, known=False)
    if found.kind == "domain":
        base = _own_type(found.base_oid, found.base_typmod, catalog, handling)
        return ColumnType(base.arrow, found.name, base.convert, base.known)
    if found.kind == "array":
        return _array_type(_own_type(found.element_oid, typmod, catalog, handling))
    if found.kind == "enum" or found.name.rpartition(".")[2] == "citext":
        return ColumnType(pa.string(), found.name, convert.text)
    if oid not in _RULES:
        return ColumnType(pa.string(), found.name, convert.text, known=False)
    arrow, converter = _RULES[oid](typmod, handling)
    return ColumnType(arrow, _called(found, typmod), converter)


def _array_type(element: ColumnType) -> ColumnType:
    name = f"{element.source_type}[]"
    if not element.known or pa.types.is_list(element.arrow):
        return ColumnType(pa.string(), name, convert.text, known=False)
    return ColumnType(pa.list_(element.arrow), name, arrays.listing(element.convert))


def _always(arrow: pa.DataType, converter: Converter) -> Rule:
    return lambda typmod, handling: (arrow, converter)


def _numeric(typmod: int, handling: Handling) -> tuple[pa.DataType, Converter]:
    if handling.decimal == "double":
        return pa.float64(), convert.double
    if handling.decimal == "string" or typmod < 0:
        return pa.string(), convert.text
    precision, scale = numeric_digits(typmod)
    # A scale below zero or above the precision (PostgreSQL 15) is written with the zeros it stands for.
    wide = max(precision - min(scale, 0), scale)
    if wide > MAX_DECIMAL_PRECISION:
        return pa.string(), convert.text
    return pa.decimal128(wide, max(scale, 0)), convert.decimal(wide, max(scale, 0))


def numeric_digits(typmod: int) -> tuple[int, int]:
    """Precision and scale of ``numeric(p,s)``; the scale is an 11 bit number with a sign (``numeric.c``)."""
    return (typmod - 4) >> 16 & 0xFFFF, ((typmod - 4 & 0x7FF) ^ 1024) - 1024


def _timestamp(typmod: int, handling: Handling) -> tuple[pa.DataType, Converter]:
    if handling.time is None:
        return TIMESTAMP_NTZ, convert.timestamp
    coarse = handling.time == "connect" or 0 <= typmod <= 3
    return pa.int64(), convert.epoch_millis if coarse else convert.epoch_micros


def _time(typmod: int, handling: Handling) -> tuple[pa.DataType, Converter]:
    if handling.time is None:
        return pa.string(), convert.text
    if handling.time == "connect" or (handling.time == "adaptive" and 0 <= typmod <= 3):
        return pa.int32(), convert.midnight_millis
    return pa.int64(), convert.midnight_micros


def _date(typmod: int, handling: Handling) -> tuple[pa.DataType, Converter]:
    return (pa.date32(), convert.date) if handling.time is None else (pa.int32(), convert.epoch_days)


def _bytea(typmod: int, handling: Handling) -> tuple[pa.DataType, Converter]:
    return _BINARY_MODES[handling.binary or "bytes"]


_BINARY_MODES: Mapping[str, tuple[pa.DataType, Converter]] = {
    "bytes": (pa.binary(), bytea.binary),
    "hex": (pa.string(), bytea.hexadecimal),
    "base64": (pa.string(), bytea.base64),
    "base64-url-safe": (pa.string(), bytea.base64_url_safe),
}

_TEXT_TO: Mapping[pa.DataType, Converter] = {
    pa.bool_(): convert.boolean,
    pa.int8(): convert.tiny,
    pa.int16(): convert.small,
    pa.int32(): convert.integer,
    pa.int64(): convert.big,
    pa.float32(): convert.real,
    pa.float64(): convert.double,
    pa.string(): convert.text,
    pa.binary(): bytea.binary,
    pa.date32(): convert.date,
    TIMESTAMP: convert.timestamptz,
    TIMESTAMP_NTZ: convert.timestamp,
}

_TEXT = _always(pa.string(), convert.text)

# OID, OID of its array, name in SQL with the place of the modifiers, rule (src/include/catalog/pg_type.dat).
_KNOWN: tuple[tuple[int, int, str, Rule], ...] = (
    (16, 1000, "boolean", _always(pa.bool_(), convert.boolean)),
    (17, 1001, "bytea", _bytea),
    (18, 1002, '"char"', _TEXT),
    (19, 1003, "name", _TEXT),
    (20, 1016, "bigint", _always(pa.int64(), convert.big)),
    (21, 1005, "smallint", _always(pa.int16(), convert.small)),
    (23, 1007, "integer", _always(pa.int32(), convert.integer)),
    (25, 1009, "text", _TEXT),
    (26, 1028, "oid", _always(pa.int64(), convert.big)),
    (114, 199, "json", _TEXT),
    (700, 1021, "real", _always(pa.float32(), convert.real)),
    (701, 1022, "double precision", _always(pa.float64(), convert.double)),
    (1042, 1014, "character{}", _TEXT),
    (1043, 1015, "character varying{}", _TEXT),
    (1082, 1182, "date", _date),
    (1083, 1183, "time{} without time zone", _time),
    (1114, 1115, "timestamp{} without time zone", _timestamp),
    (1184, 1185, "timestamp{} with time zone", _always(TIMESTAMP, convert.timestamptz)),
    (1186, 1187, "interval{}", _TEXT),
    (1266, 1270, "time{} with time zone", _TEXT),
    (1700, 1231, "numeric{}", _numeric),
    (2950, 2951, "uuid", _TEXT),
    (3802, 3807, "jsonb", _TEXT),
)
_RULES: Mapping[int, Rule] = {oid: rule for oid, _, _, rule in _KNOWN}
_NAMES: Mapping[int, str] = {oid: name for oid, _, name, _ in _KNOWN}
_BUILTIN: Mapping[int, PgType] = {
    **{oid: PgType(oid, name.replace("{}", "")) for oid, _, name, _ in _KNOWN},
    **{array: PgType(array, f"{name}[]", "array", element_oid=oid) for oid, array, name, _ in _KNOWN},
}

_MODIFIERS: Mapping[int, Callable[[int], str]] = {
    1042: lambda typmod: f"({typmod - 4})",
    1043: lambda typmod: f"({typmod - 4})",
    1083: lambda typmod: f"({typmod})",
    1114: lambda typmod: f"({typmod})",
    1184: lambda typmod: f"({typmod})",
    1186: lambda typmod: "" if typmod & 0xFFFF == 0xFFFF else f"({typmod & 0xFFFF})",
    1266: lambda typmod: f"({typmod})",
    1700: lambda typmod: "({},{})".format(*numeric_digits(typmod)),
}


def _called(found: PgType, typmod: int) -> str:
    """The name as ``format_type`` writes it, so that structures read from catalog and log are equal."""
    modifiers = _MODIFIERS[found.oid](typmod) if typmod >= 0 and found.oid in _MODIFIERS else ""
    return _NAMES[found.oid].format(modifiers)
