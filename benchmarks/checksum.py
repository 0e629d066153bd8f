"""Whether a system wrote what the server has: sums of row hashes, computed apart from the code under test.

The server hashes its rows in SQL, we hash what is in the Parquet files of a table, read with pyarrow (silver,
which has deletion vectors, by Spark): nothing of the product. Each row becomes one text in which every type
has one form that both sides can make exactly (doubles as their bits, times as microseconds), so equal sums
mean equal values in all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import md5
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.process import BenchmarkFailed
from benchmarks.workload import COLUMNS, TABLE, Database, Operations
from cdc_lib.spark_session import session

NULL = "\\N"
SEPARATOR = "\x1f"
_SLICE = 1 << 18
"""Rows hashed at once; keeps the texts far below the 2 GB that one Arrow string array holds."""


@dataclass(frozen=True)
class Checksum:
    """``total`` is the sum of the rows' hashes modulo 2^64: the order of rows does not matter."""

    rows: int
    total: int


# -- one text form per type, for both sides

_SQL: Mapping[str, str] = {
    "timestamptz": "(extract(epoch FROM {0}) * 1000000)::bigint::text",
    "date": "({0} - date '1970-01-01')::text",
    "double precision": "('x' || encode(float8send({0}), 'hex'))::bit(64)::bigint::text",
}


def _text(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _microseconds(column: pa.Array) -> pa.Array:
    return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(pa.string())


def _days(column: pa.Array) -> pa.Array:
    return column.cast(pa.int32()).cast(pa.string())


def _bits(column: pa.Array) -> pa.Array:
    return column.view(pa.int64()).cast(pa.string())


_ARROW: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    "timestamptz": _microseconds,
    "date": _days,
    "double precision": _bits,
}


def row_texts(rows: pa.Table | pa.StructArray) -> pa.Array:
    """One text a row, of the source's columns only."""
    columns = [_column(rows, name) for name in COLUMNS]
    texts = [
        pc.fill_null(_ARROW.get(type_, _text)(column), NULL)
        for column, type_ in zip(columns, COLUMNS.values(), strict=True)
    ]
    return pc.binary_join_element_wise(*texts, SEPARATOR)


def _column(rows: pa.Table | pa.StructArray, name: str) -> pa.Array:
    if isinstance(rows, pa.StructArray):
        return rows.flatten()[rows.type.get_field_index(name)]
    return rows.column(name).combine_chunks()


# -- sums


def of_server(database: Database) -> Checksum:
    """The source table as it is now."""
    forms = [
        f"coalesce({_SQL.get(type_, '{0}::text').format(name)}, E'\\\\N')" for name, type_ in COLUMNS.items()
    ]
    row = " || E'\\x1f' || ".join(forms)
    query = f"""
        SELECT count(*), coalesce(sum(('x' || left(md5({row}), 16))::bit(64)::bigint::numeric), 0)::text
        FROM {TABLE}
    """
    rows, total = database.execute(query)[0]
    return Checksum(int(rows), int(total) % 2**64)


def of_rows(rows: pa.Table) -> Checksum:
    """Rows with the source's columns; others are left out."""
    total = 0
    for start in range(0, rows.num_rows, _SLICE):
        total += _total(row_texts(rows.slice(start, _SLICE).combine_chunks()))
    return Checksum(rows.num_rows, total % 2**64)


def _total(texts: pa.Array) -> int:
    digests = b"".join(md5(text, usedforsecurity=False).digest()[:8] for text in _bytes(texts))
    # Wraps around at 2^64, as the sum of the other side is cut to.
    return int(np.frombuffer(digests, dtype=">u8").astype(np.uint64).sum(dtype=np.uint64))


def _bytes(texts: pa.Array) -> Iterator[bytes]:
    """The values of a string array without offset, as bytes."""
    _, offsets, data = pa.concat_arrays([texts]).buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[: len(texts) + 1].tolist()
    raw = data.to_pybytes() if data is not None else b""
    return (raw[start:end] for start, end in pairwise(bounds))


def require_equal(what: str, found: Checksum, expected: Checksum) -> None:
    """:raises BenchmarkFailed: they differ."""
    if found != expected:
        raise BenchmarkFailed(f"{what} does not equal the source: {found} instead of {expected}")


# -- logs


def replayed(log: pa.Table, order: Sequence[str]) -> pa.Table:
    """The state that a log of changes leads to, from an empty table. ``order`` columns give log order."""
    keys, places = _sorted(log, order)
    last = np.append(keys[1:] != keys[:-1], True) if len(keys) else np.empty(0, bool)
    newest = log.take(pa.array(places[last]))
    alive = newest.filter(pc.not_equal(newest.column("op"), "d"))
    rows = alive.column("after").combine_chunks()
    return pa.table(dict(zip([field.name for field in rows.type], rows.flatten(), strict=True)))


def require_log(
    what: str, log: pa.Table, order: Sequence[str], operations: Operations, *, full: bool
) -> None:
    """The log has exactly the operations that the server executed; with full before-images, each one is the
    row that the change before it left.

    :raises BenchmarkFailed: it has not.
    """
    counted = {pair["values"]: pair["counts"] for pair in pc.value_counts(log.column("op")).to_pylist()}
    found = Operations(counted.pop("c", 0), counted.pop("u", 0), counted.pop("d", 0))
    if found != operations or counted:
        raise BenchmarkFailed(f"{what} has {found} and {counted} instead of {operations}")
    if full:
        _require_chain(what, log, order)


def _require_chain(what: str, log: pa.Table, order: Sequence[str]) -> None:
    keys, places = _sorted(log, order)
    follows = np.flatnonzero(keys[1:] == keys[:-1]) + 1
    for start in range(0, len(follows), _SLICE):
        part = follows[start : start + _SLICE]
        before = _image(log, "before", places[part])
        after = _image(log, "after", places[part - 1])
        if not before.equals(after):
            raise BenchmarkFailed(f"{what} has a before-image that is not the row before it")


def _image(log: pa.Table, name: str, places: npt.NDArray[np.int64]) -> pa.Array:
    return row_texts(log.select([name]).take(pa.array(places)).column(name).combine_chunks())


def _sorted(log: pa.Table, order: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Keys and row numbers of a log, by key and then log order."""
    keys = pc.coalesce(*(pc.struct_field(log.column(image), "id") for image in ("after", "before")))
    numbers = keys.to_numpy()
    places = np.lexsort([*(log.column(name).to_numpy() for name in reversed(order)), numbers])
    return numbers[places], places


# -- tables


def read_files(path: Path, columns: Sequence[str]) -> pa.Table:
    """Rows of a Delta table that has no deletion vectors, straight from its current files."""
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

    return ds.dataset(DeltaTable(path).file_uris(), format="parquet").to_table(columns=list(columns))


def of_table(path: str) -> dict[str, int]:
    """Sum of a Delta table that has deletion vectors and widened types, which delta-rs does not read: Spark
    reads it, in a worker of its own, and no code of the product is involved."""
    spark = session()
    rows = spark.read.format("delta").load(path).select(*COLUMNS).toArrow()
    return asdict(of_rows(rows))
