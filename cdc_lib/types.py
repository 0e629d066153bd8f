"""Arrow types and the Spark SQL types they become, as one table.

Engines speak Arrow and never import Spark; tables are created from DDL text. The text form is also what
the schema history stores, so it must parse back: ``arrow_type(spark_type(t)) == t`` for every type here.
"""

from __future__ import annotations

import re

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

_SCALARS: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
}
_BY_NAME = {name: arrow for arrow, name in _SCALARS.items()}
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_ARRAY = re.compile(r"ARRAY<(.+)>")

MAX_DECIMAL_PRECISION = 38
"""Largest precision of Spark's and Delta's DECIMAL."""


def spark_type(arrow: pa.DataType) -> str:
    """Spark SQL DDL text of a column's Arrow type.

    :raises TypeError: no column of ours has this type.
    """
    if arrow in _SCALARS:
        return _SCALARS[arrow]
    if pa.types.is_decimal128(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    if pa.types.is_list(arrow):
        return f"ARRAY<{spark_type(arrow.value_type)}>"
    raise TypeError(f"no Spark type for {arrow}")


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type of Spark SQL DDL text, for the types columns can have.

    :raises ValueError: the text is not a type that a captured column can have.
    """
    upper = text.strip().upper()
    if upper in _BY_NAME:
        return _BY_NAME[upper]
    if found := _DECIMAL.fullmatch(upper):
        precision, scale = int(found[1]), int(found[2])
        if not 0 <= scale <= precision <= MAX_DECIMAL_PRECISION or precision == 0:
            raise ValueError(f"{text}: precision is 1 to {MAX_DECIMAL_PRECISION}, scale 0 to precision")
        return pa.decimal128(precision, scale)
    if found := _ARRAY.fullmatch(upper):
        return pa.list_(arrow_type(found[1]))
    known = ", ".join(sorted(_BY_NAME))
    raise ValueError(f"{text}: not a column type; known: {known}, DECIMAL(p,s), ARRAY<...>")


_WIDER: dict[str, tuple[str, ...]] = {
    "TINYINT": ("SMALLINT", "INT", "BIGINT", "DOUBLE"),
    "SMALLINT": ("INT", "BIGINT", "DOUBLE"),
    "INT": ("BIGINT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
    "DATE": ("TIMESTAMP_NTZ",),
}


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether Delta's type widening takes a column from ``old`` to ``new`` without touching old data.

    Source: Delta protocol, type widening: integers and float upwards, decimals whose integer digits and
    scale do not shrink, integers to a decimal that holds them.
    """
    if pa.types.is_decimal128(new):
        if pa.types.is_decimal128(old):
            digits_kept = new.precision - new.scale >= old.precision - old.scale
            return bool(new != old and new.scale >= old.scale and digits_kept)
        digits = {pa.int8(): 10, pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}.get(old)
        return digits is not None and new.precision - new.scale >= digits
    if old in _SCALARS and new in _SCALARS:
        return _SCALARS[new] in _WIDER.get(_SCALARS[old], ())
    return False
