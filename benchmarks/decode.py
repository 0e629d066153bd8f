"""Speed of the PostgreSQL decoder alone, on messages made here: no server, no Spark.

    python benchmarks/decode.py [--events 500000] [--rounds 5]

The shape of the log is that of ``docs/benchmarks.md``: ten columns, transactions of 100 changes, 60 %
inserts, 30 % updates, 10 % deletes, once with replica identity FULL and once with DEFAULT.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Iterator

from cdc_lib.change import ChangeBatch
from cdc_lib.schema import TableId
from cdc_lib.sources.postgresql.decode import LogDecoder
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.relations import CaptureRules

CHUNK = 32_768
PER_TRANSACTION = 100
NUMERIC_12_2 = (12 << 16 | 2) + 4
COLUMNS = (
    ("id", 20, -1),
    ("customer", 23, -1),
    ("note", 25, -1),
    ("amount", 1700, NUMERIC_12_2),
    ("created", 1184, -1),
    ("active", 16, -1),
    ("day", 1082, -1),
    ("score", 701, -1),
    ("token", 2950, -1),
    ("comment", 25, -1),
)


def row(lsn: int, message: bytes) -> bytes:
    """One row of the COPY: lsn, xid, data."""
    return struct.pack(">hiqiii", 3, 8, lsn, 4, 1, len(message)) + message


def relation(identity: bytes) -> bytes:
    head = b"R" + struct.pack(">I", 1) + b"public\0orders\0" + identity + struct.pack(">H", len(COLUMNS))
    flags = [identity == b"f" or name == "id" for name, _, _ in COLUMNS]
    return head + b"".join(
        bytes([flag]) + name.encode() + b"\0" + struct.pack(">Ii", oid, typmod)
        for flag, (name, oid, typmod) in zip(flags, COLUMNS, strict=True)
    )


def values(number: int) -> list[bytes | None]:
    return [
        str(number).encode(),
        str(number % 1000).encode(),
        b"note %024d" % number,
        b"%d.%02d" % (number % 100_000, number % 100),
        b"2026-03-%02d 12:%02d:%02d.%06d+00" % (number % 28 + 1, number % 60, number % 59, number % 999_999),
        b"t" if number % 2 else b"f",
        b"2026-03-%02d" % (number % 28 + 1),
        repr(number / 7).encode(),
        b"00000000-0000-4000-8000-%012x" % number,
        None if number % 3 == 0 else b"comment %d" % number,
    ]


def image(cells: list[bytes | None]) -> bytes:
    parts = [b"n" if cell is None else b"t" + struct.pack(">i", len(cell)) + cell for cell in cells]
    return struct.pack(">H", len(cells)) + b"".join(parts)


def change(number: int, full: bool) -> bytes:
    new = values(number)
    key: list[bytes | None] = [new[0], *[None] * (len(COLUMNS) - 1)]
    old = b"O" + image(new) if full else b"K" + image(key)
    head = struct.pack(">I", 1)
    kind = number % 10
    if kind < 6:
        return b"I" + head + b"N" + image(new)
    if kind < 9:
        return b"U" + head + (old if full else b"") + b"N" + image(new)
    return b"D" + head + old


def log(events: int, full: bool) -> list[bytes]:
    """The rows of a log with this many changes."""
    rows, lsn = [], 1 << 24
    for first in range(0, events, PER_TRANSACTION):
        end = lsn + 128 * (PER_TRANSACTION + 1)
        rows.append(row(lsn, b"B" + struct.pack(">qqI", end, first, first)))
        if first == 0:
            rows.append(row(lsn, relation(b"f" if full else b"d")))
        for number in range(first, min(first + PER_TRANSACTION, events)):
            lsn += 128
            rows.append(row(lsn, change(number, full)))
        rows.append(row(end, b"C" + struct.pack(">Bqqq", 0, end, end + 48, first)))
        lsn = end + 48
    return rows


def decoded(rows: list[bytes]) -> Iterator[ChangeBatch]:
    start, end = (PostgresPosition("1", 1, lsn) for lsn in (0, 1 << 60))
    rules = CaptureRules(captured=lambda table: table == TableId("public", "orders"))
    decoder = LogDecoder(rules, {}, after=start, upto=end)
    for first in range(0, len(rows), CHUNK):
        yield from (
            event for event in decoder.feed(rows[first : first + CHUNK]) if isinstance(event, ChangeBatch)
        )
    yield from (event for event in decoder.finish() if isinstance(event, ChangeBatch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for name, full in (("FULL", True), ("DEFAULT", False)):
        rows = log(options.events, full)
        rates = []
        for _ in range(options.rounds):
            begin = time.perf_counter()
            count = sum(batch.rows.num_rows for batch in decoded(rows))
            rates.append(count / (time.perf_counter() - begin))
            assert count == options.events, f"{count} rows of {options.events} came out"
        shown = ", ".join(f"{rate / 1000:,.0f}k" for rate in sorted(rates))
        print(f"{name:8} {sum(map(len, rows)) / 1e6:6.0f} MB   events/s: {shown}")


if __name__ == "__main__":
    main()
