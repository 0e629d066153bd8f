"""Would decoding the log on Spark's workers pay? The decoder here, and the same bytes decoded by two tasks.

    python -m benchmarks.spreading [--events 1000000] [--rounds 3]

The log is that of ``benchmarks/decode.py``. *here*: decoded and staged as a run does it, by one thread.
*spread*: cut at a transaction, written to files, and decoded and staged by two Spark tasks, in workers that
are warm. What the server needs to send the log, and the numbering of rows across tasks, is in neither.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.decode import decoded, log
from cdc_lib.change import ChangeBatch
from cdc_lib.spark_session import start_local

TASKS = 2
_TAG = 26
"""Where a row of the COPY has the message's first byte: its kind."""


@dataclass(frozen=True)
class DecodeFile:
    """A task: decode one file of log, and stage what comes out."""

    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                rows = load(Path(self.folder) / f"{part}.log")
                count = stage(decoded(rows), Path(self.folder) / f"{part}.arrow")
                yield pa.RecordBatch.from_pydict({"rows": [count]})


def stage(batches: Iterator[ChangeBatch], path: Path) -> int:
    count, writer = 0, None
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_stream(str(path), batch.rows.schema)
        writer.write_batch(batch.rows)
        count += batch.rows.num_rows
    if writer is not None:
        writer.close()
    return count


def save(rows: Sequence[bytes], path: Path) -> None:
    lengths = struct.pack(f"<q{len(rows)}i", len(rows), *map(len, rows))
    path.write_bytes(lengths + b"".join(rows))


def load(path: Path) -> list[bytes]:
    content = path.read_bytes()
    (count,) = struct.unpack_from("<q", content)
    lengths, at, rows = struct.unpack_from(f"<{count}i", content, 8), 8 + 4 * count, []
    for length in lengths:
        rows.append(content[at : at + length])
        at += length
    return rows


def cut(rows: list[bytes]) -> list[list[bytes]]:
    """Parts that begin with a transaction; each needs the table's structure, which stands in the first."""
    structure = next(row for row in rows if row[_TAG : _TAG + 1] == b"R")
    middle = next(at for at in range(len(rows) // 2, len(rows)) if rows[at][_TAG : _TAG + 1] == b"B")
    return [rows[:middle], [rows[middle], structure, *rows[middle + 1 :]]]


def here(rows: list[bytes], folder: Path) -> int:
    return stage(decoded(rows), folder / "here.arrow")


def spread(spark: Any, rows: list[bytes], folder: Path) -> int:
    for number, part in enumerate(cut(rows)):
        save(part, folder / f"{number}.log")
    frame = spark.range(0, TASKS, 1, TASKS).mapInArrow(DecodeFile(str(folder)), "rows BIGINT")
    return sum(row["rows"] for row in frame.collect())


def measured(work: Callable[[], int], events: int, rounds: int) -> str:
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        count = work()
        seconds.append(time.perf_counter() - begin)
        assert count == events, f"{count} rows of {events} came out"
    return ", ".join(f"{one:.2f}" for one in sorted(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    spark = start_local(master=f"local[{TASKS}]")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for identity, full in (("FULL", True), ("DEFAULT", False)):
            rows = log(options.events, full)
            spread(spark, rows, folder)
            print(f"{identity}: {options.events:,} changes, {sum(map(len, rows)) / 1e6:.0f} MB")
            one = measured(partial(here, rows, folder), options.events, options.rounds)
            two = measured(partial(spread, spark, rows, folder), options.events, options.rounds)
            print(f"  here, s: {one}; spread, s: {two}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
