"""One text per value, so that a Delta column and a server's own output can be compared.

Both sides are brought to the same form by code that shares nothing with the package: the server's text
through Python's own parsers, Delta's value from Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

Text = str | None


def of_server(text: Text, to: pa.DataType) -> Text:
    """The canonical text of what the server prints, for a column that Delta holds as ``to``.

    A list's text is a JSON array of the server's texts of its elements.
    """
    if text is None:
        return None
    if pa.types.is_list(to):
        return json.dumps([of_server(item, to.value_type) for item in json.loads(text)])
    if pa.types.is_boolean(to):
        return {"t": "true", "f": "false", "true": "true", "false": "false"}[text]
    if pa.types.is_floating(to):
        return _float(float(np.float32(text)) if to == pa.float32() else float(text))
    if pa.types.is_decimal(to):
        return _decimal(Decimal(text), to.scale)
    if pa.types.is_timestamp(to):
        return _timestamp(datetime.fromisoformat(_six_digits(text.removesuffix("+00"))))
    if pa.types.is_binary(to):
        return "\\x" + bytes.fromhex(text.removeprefix("\\x")).hex()
    return text


def of_delta(value: Any, to: pa.DataType) -> Text:
    """The canonical text of a value from a Delta table."""
    if value is None:
        return None
    if pa.types.is_list(to):
        return json.dumps([of_delta(item, to.value_type) for item in value])
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Decimal):
        return _decimal(value, to.scale)
    if isinstance(value, datetime):
        return _timestamp(value.replace(tzinfo=None))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value)


def rows_of_delta(table: pa.Table, columns: list[str]) -> list[dict[str, Text]]:
    """Rows of a silver table; a value that its column cannot hold is taken from ``__special``."""
    types = {name: table.schema.field(name).type for name in columns}
    specials = _maps(table, "__special")
    found = []
    for index, values in enumerate(table.select(columns).to_pylist()):
        row = {name: of_delta(values[name], types[name]) for name in columns}
        found.append(row | {name: text for name, text in specials[index].items() if name in row})
    return found


def _maps(table: pa.Table, column: str) -> list[Mapping[str, str]]:
    if column not in table.column_names:
        return [{}] * table.num_rows
    return [dict(value or ()) for value in table.column(column).to_pylist()]


def _float(value: float) -> str:
    return repr(value)


def _decimal(value: Decimal, scale: int) -> str:
    # Shown with all digits of the column: PostgreSQL prints numeric(10,-2) without any after the point.
    return f"{value:.{scale}f}"


def _timestamp(value: datetime) -> str:
    text = f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond:06d}"
    return text.rjust(26, "0")


def _six_digits(text: str) -> str:
    # Python 3.10 reads fractions of 3 or 6 digits only.
    whole, point, fraction = text.partition(".")
    return f"{whole}.{fraction:0<6}" if point else text
