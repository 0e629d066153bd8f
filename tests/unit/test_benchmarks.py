"""The benchmarks' own judgement: wrong rows are found, and gates say what the figures say."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from benchmarks import checksum, measure, report
from benchmarks.process import BenchmarkFailed
from benchmarks.workload import Operations

ROW = pa.struct(
    [
        ("id", pa.int64()),
        ("customer", pa.int32()),
        ("note", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("created", pa.timestamp("us", "UTC")),
        ("active", pa.bool_()),
        ("day", pa.date32()),
        ("score", pa.float64()),
        ("token", pa.string()),
        ("comment", pa.string()),
    ]
)


def row(number: int, **changes: Any) -> dict[str, Any]:
    values = {
        "id": number,
        "customer": number * 7,
        "note": f"note {number}",
        "amount": Decimal(number) / 4,
        "created": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=number),
        "active": number % 2 == 0,
        "day": dt.date(2026, 1, 1) + dt.timedelta(days=number),
        "score": number / 3,
        "token": f"token {number}",
        "comment": None if number % 3 else "comment",
    }
    return {**values, **changes}


def rows(*values: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(values), schema=pa.schema(list(ROW)))


def log(*changes: tuple[str, dict[str, Any] | None, dict[str, Any] | None]) -> pa.Table:
    operations, before, after = zip(*changes, strict=True)
    return pa.table(
        {
            "op": list(operations),
            "before": pa.array(before, ROW),
            "after": pa.array(after, ROW),
            "_sequence": range(len(changes)),
        }
    )


class TestChecksum:
    def test_order_of_rows_does_not_matter(self) -> None:
        assert checksum.of_rows(rows(row(1), row(2))) == checksum.of_rows(rows(row(2), row(1)))

    @pytest.mark.parametrize(
        "change",
        [
            {"customer": 8},
            {"note": "Note 1"},
            {"amount": Decimal("0.26")},
            {"created": dt.datetime(2026, 1, 1, 0, 0, 0, 2, tzinfo=dt.timezone.utc)},
            {"active": True},
            {"day": dt.date(2026, 1, 3)},
            {"score": 0.3333333333333334},
            {"token": None},
            {"comment": ""},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_any_other_value_is_another_sum(self, change: dict[str, Any]) -> None:
        assert checksum.of_rows(rows(row(1))) != checksum.of_rows(rows(row(1, **change)))

    def test_values_swapped_between_rows_are_found(self) -> None:
        swapped = rows(row(1, note="note 2"), row(2, note="note 1"))
        assert checksum.of_rows(rows(row(1), row(2))) != checksum.of_rows(swapped)

    def test_values_moved_between_columns_are_found(self) -> None:
        one, other = row(1, note="a", token="b"), row(1, note="b", token="a")
        assert checksum.of_rows(rows(one)) != checksum.of_rows(rows(other))

    def test_a_row_twice_is_found(self) -> None:
        with pytest.raises(BenchmarkFailed, match="bronze does not equal the source"):
            checksum.require_equal(
                "bronze", checksum.of_rows(rows(row(1), row(1))), checksum.of_rows(rows(row(1)))
            )


class TestReplay:
    CHANGES = (
        ("c", None, row(1)),
        ("c", None, row(2)),
        ("u", row(1), row(1, note="changed")),
        ("d", row(2), None),
        ("c", None, row(3)),
        ("d", row(3), None),
        ("c", None, row(3, note="again")),
    )

    def test_the_newest_row_of_each_living_key_remains(self) -> None:
        found = checksum.replayed(log(*self.CHANGES), ["_sequence"])
        assert checksum.of_rows(found) == checksum.of_rows(rows(row(1, note="changed"), row(3, note="again")))

    def test_rows_may_be_stored_in_any_order(self) -> None:
        stored = log(*self.CHANGES).take([4, 6, 2, 0, 5, 3, 1])
        expected = checksum.of_rows(checksum.replayed(log(*self.CHANGES), ["_sequence"]))
        assert checksum.of_rows(checksum.replayed(stored, ["_sequence"])) == expected

    def test_operations_and_before_images_of_a_right_log_pass(self) -> None:
        checksum.require_log("log", log(*self.CHANGES), ["_sequence"], Operations(4, 1, 2), full=True)

    def test_a_lost_change_is_found_even_if_the_state_is_right(self) -> None:
        lacking = log(*self.CHANGES[:4], self.CHANGES[6])
        with pytest.raises(BenchmarkFailed, match="instead of"):
            checksum.require_log("log", lacking, ["_sequence"], Operations(4, 1, 2), full=False)

    def test_a_wrong_before_image_is_found(self) -> None:
        wrong = log(*self.CHANGES[:2], ("u", row(1, score=0.5), row(1, note="changed")), *self.CHANGES[3:])
        with pytest.raises(BenchmarkFailed, match="before-image"):
            checksum.require_log("log", wrong, ["_sequence"], Operations(4, 1, 2), full=True)


def result(name: str, *measured: tuple[str, int, float], python: int = 1, size: int = 1_000_000) -> Any:
    return {
        "benchmark": name,
        "settings": {"rows": size},
        "measurements": [
            {
                "system": system,
                "mode": "warm",
                "round": number,
                "rows": 1000,
                "seconds": seconds,
                "rss": {"python": python},
            }
            for system, number, seconds in measured
        ],
    }


class TestGates:
    def test_a_ratio_is_taken_inside_each_round(self) -> None:
        # The machine was three times slower in the second round; the ratio is not.
        rounds = result(
            "snapshot",
            *(("copy-discard", 0, 1.0), ("cdc-lib", 0, 2.0)),
            *(("copy-discard", 1, 3.0), ("cdc-lib", 1, 6.0)),
        )
        assert report.ratio(rounds, "cdc-lib", "copy-discard") == report.Spread(0.5, 0.5, 0.5)

    @pytest.mark.parametrize(("seconds", "met"), [(2.9, True), (3.1, False)])
    def test_snapshot_needs_a_third_of_the_floor(self, seconds: float, met: bool) -> None:
        rounds = result("snapshot", ("copy-discard", 0, 1.0), ("cdc-lib", 0, seconds))
        assert report.gates({"snapshot": rounds})[0].met is met

    @pytest.mark.parametrize(("seconds", "met"), [(1.4, True), (1.5, False)])
    def test_backlog_needs_seven_tenths_of_the_prototype(self, seconds: float, met: bool) -> None:
        rounds = result("backlog-full", ("prototype", 0, 1.0), ("cdc-lib-spark", 0, seconds))
        assert report.gates({"backlog-full": rounds})[1].met is met

    @pytest.mark.parametrize(("python", "met"), [(500_000_000, True), (500_000_001, False)])
    def test_the_highest_memory_of_all_rounds_counts(self, python: int, met: bool) -> None:
        rounds = result("memory", ("cdc-lib", 0, 1.0), python=1)
        rounds["measurements"] += result("memory", ("cdc-lib", 1, 1.0), python=python)["measurements"]
        assert report.gates({"memory": rounds})[3].met is met

    def test_without_the_peer_a_gate_is_not_measured(self) -> None:
        assert report.gates({"backlog-full": result("backlog-full", ("cdc-lib", 0, 1.0))})[1].met is None

    def test_a_small_run_neither_meets_nor_misses(self) -> None:
        rounds = result("snapshot", ("copy-discard", 0, 1.0), ("cdc-lib", 0, 9.0), size=1000)
        assert report.gates({"snapshot": rounds})[0].met is None


class TestMeasuring:
    BUSY = "import time; e = time.process_time() + 0.3\nwhile time.process_time() < e: pass\n"
    PARENT = (
        "import os, subprocess, sys\n"
        "from benchmarks.measure import cpu_seconds\n"
        "before = cpu_seconds(os.getpid())\n"
        "subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"
        "print(cpu_seconds(os.getpid()) - before)\n"
    )

    def test_cpu_of_children_that_have_ended_counts(self) -> None:
        """In a process of its own: this one may have other children, which come and go."""
        command = [sys.executable, "-c", self.PARENT, self.BUSY]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        assert float(done.stdout) >= 0.25

    def test_a_child_is_in_the_tree_and_its_memory_counts(self) -> None:
        code = "b = bytearray(100 << 20)\nprint('x', flush=True); input()"
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            found = [process.pid for _, process in measure.tree(os.getpid())]
            used = measure.memory(child.pid)["python"]
            child.communicate(b"\n")
        assert child.pid in found
        assert used > 100 << 20
