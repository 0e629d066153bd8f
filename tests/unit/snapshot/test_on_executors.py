"""Pieces that tasks read: whatever Spark does with the tasks, a batch has each piece once.

Spark is a stand-in that runs the pickled function as Spark may: in any number of lanes, twice, or never. The
source is a stand-in as well; the real ones are in ``tests/engines/postgresql/test_executors.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps, loads

from cdc_lib.change import ChangeBatch, change_schema
from cdc_lib.config import parse
from cdc_lib.errors import FixConfiguration, FixSource, Interrupted, RetryLater
from cdc_lib.metrics import Metrics
from cdc_lib.pipeline import Pipeline
from cdc_lib.position import Position
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.snapshot import on_executors
from cdc_lib.snapshot.on_executors import Executors, Piece
from cdc_lib.source import Chunk, PieceRefused
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.staging import LOG_BASE, BatchStage, StagedTable, load_whole

SOURCE = pa.struct([pa.field("ts_us", pa.int64())])
T = Table(TableId("public", "t"), (Column("id", pa.int64(), "bigint"),), ("id",), version=3)
P = PostgresPosition("1", 1, 100)

Runs = Callable[[Callable[[int], list[dict[str, Any]]], int], list[dict[str, Any]]]


def once(run: Callable[[int], list[dict[str, Any]]], lanes: int) -> list[dict[str, Any]]:
    return [row for lane in range(lanes) for row in run(lane)]


def every_task_twice(run: Callable[[int], list[dict[str, Any]]], lanes: int) -> list[dict[str, Any]]:
    """Both attempts write; the answer of the first is lost with its executor."""
    once(run, lanes)
    return once(run, lanes)


def one_answer_less(run: Callable[[int], list[dict[str, Any]]], lanes: int) -> list[dict[str, Any]]:
    return once(run, lanes)[:-1]


@dataclass
class Spark:
    """As much of a session as is used."""

    runs: Runs = once
    jobs: list[bytes] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    interrupted: threading.Event = field(default_factory=threading.Event)

    def range(self, start: int, end: int, step: int, partitions: int) -> Spark:
        assert (start, step, partitions) == (0, 1, end)
        self.lanes.append(end)
        return self

    def mapInArrow(self, function: Any, schema: str) -> Spark:
        assert schema == "piece INT, answer STRING"
        self.jobs.append(dumps(function))
        return self

    def addTag(self, tag: str) -> None:
        pass

    def interruptTag(self, tag: str) -> None:
        self.interrupted.set()

    def collect(self) -> list[dict[str, Any]]:
        def run(lane: int) -> list[dict[str, Any]]:
            given = pa.RecordBatch.from_pydict({"id": [lane]})
            return [row for batch in loads(self.jobs[-1])(iter([given])) for row in batch.to_pylist()]

        return self.runs(run, self.lanes[-1])


@dataclass
class Pieces:
    """A source whose piece n has the rows n*10, n*10 + 1, ..., one fewer each."""

    fails: dict[int, list[Exception]] = field(default_factory=dict)
    asked: list[tuple[int, Position]] = field(default_factory=list)

    def incremental(self, spec: Any) -> Pieces:
        return self

    def __enter__(self) -> Pieces:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rows(self, chunk: Chunk, after: Position, expected: Table) -> Iterator[ChangeBatch]:
        assert expected == T
        self.asked.append((chunk.number, after))
        for part in range(2):
            rows = [
                {"op": "r", "after": {"id": chunk.number * 10 + at}, "ordinal": at, "source": {"ts_us": 1}}
                for at in range(part * 2, part * 2 + 2)
            ]
            yield ChangeBatch(T, pa.RecordBatch.from_pylist(rows, change_schema(T, SOURCE)))
            if self.fails.get(chunk.number):
                raise self.fails[chunk.number].pop(0)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Pieces:
    made = Pieces()
    monkeypatch.setattr(on_executors, "open_source", lambda config: made)
    monkeypatch.setattr(on_executors, "PAUSE", 0.0)
    return made


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return parse(
        {
            "name": "shop",
            "source": {
                "connector.class": "postgresql",
                "database.hostname": "localhost",
                "database.user": "cdc",
                "database.dbname": "shop",
            },
            "target": {"path": str(tmp_path / "lake")},
            "run": {"threads": 2, "snapshot_on": "executors"},
        }
    )


@pytest.fixture
def stage(tmp_path: Path) -> BatchStage:
    return BatchStage(tmp_path / "staging", 7, log_base=LOG_BASE)


def executors(spark: Spark, pipeline: Pipeline, stop: threading.Event | None = None) -> Executors:
    return Executors(lambda: spark, pipeline, Metrics(), stop or threading.Event())


def pieces(count: int) -> list[Piece]:
    return [Piece(Chunk(T.id, number), "table-1", T) for number in range(count)]


def staged(stage: BatchStage) -> StagedTable:
    stage.close()
    contents = load_whole(stage.folder.parent, stage.number)
    assert contents is not None, "the manifest must hold what was read elsewhere, and where it is"
    (table,) = contents.tables
    return table


def rows_of(table: StagedTable) -> list[tuple[int, int]]:
    """Ordinal and key of every staged row, as whoever appends them reads them."""
    found = []
    for part in table.parts:
        with pa.OSFile(part.path) as file, pa.ipc.open_stream(file) as stream:
            for row in stream.read_all().to_pylist():
                found.append((row["ordinal"] + part.base, row["after"]["id"]))
    return sorted(found)


@pytest.mark.parametrize("runs", [once, every_task_twice])
def test_each_piece_is_in_the_batch_once(
    runs: Runs, source: Pieces, pipeline: Pipeline, stage: BatchStage
) -> None:
    assert executors(Spark(runs), pipeline).read(stage, P, pieces(5)) == []
    table = staged(stage)
    keys = [number * 10 + at for number in range(5) for at in range(4)]
    assert rows_of(table) == list(enumerate(keys))
    assert sorted(table.chunks) == [0, 1, 2, 3, 4]
    assert table.rows == table.facts.rows == 20
    assert {after for _, after in source.asked} == {P}


def test_what_no_answer_names_goes_with_the_batch(
    source: Pieces, pipeline: Pipeline, stage: BatchStage
) -> None:
    executors(Spark(every_task_twice), pipeline).read(stage, P, pieces(3))
    assert len(list(stage.folder.glob("*.arrow"))) == 6
    assert len(staged(stage).parts) == 3
    stage.discard()
    assert not stage.folder.exists()


def test_as_many_connections_at_once_as_there_are_threads(
    source: Pieces, pipeline: Pipeline, stage: BatchStage
) -> None:
    spark = Spark()
    executors(spark, pipeline).read(stage, P, pieces(5))
    executors(spark, pipeline).read(stage, P, pieces(1))
    assert spark.lanes == [2, 1]


def test_a_piece_without_an_answer_ends_the_batch(
    source: Pieces, pipeline: Pipeline, stage: BatchStage
) -> None:
    with pytest.raises(RetryLater, match="did not answer for every piece"):
        executors(Spark(one_answer_less), pipeline).read(stage, P, pieces(3))


def test_a_piece_that_fails_is_read_again_from_its_beginning(
    source: Pieces, pipeline: Pipeline, stage: BatchStage
) -> None:
    source.fails = {1: [RetryLater("connection lost"), RetryLater("connection lost")]}
    executors(Spark(), pipeline).read(stage, P, pieces(2))
    assert [key for _, key in rows_of(staged(stage))] == [0, 1, 2, 3, 10, 11, 12, 13]
    assert [number for number, _ in source.asked].count(1) == 3
    assert len(list(stage.folder.glob("*.arrow"))) == 2, "what was begun and given up is deleted at once"


@pytest.mark.parametrize("error", [RetryLater("lost"), FixSource("no right", why="w", remedy="GRANT")])
def test_an_error_arrives_as_what_it_is(
    error: Exception, source: Pieces, pipeline: Pipeline, stage: BatchStage
) -> None:
    source.fails = {0: [error] * 3}
    with pytest.raises(type(error)) as caught:
        executors(Spark(), pipeline).read(stage, P, pieces(2))
    assert str(caught.value) == str(error)


def test_a_refused_piece_is_not_tried_again_by_the_task(
    source: Pieces, pipeline: Pipeline, stage: BatchStage
) -> None:
    source.fails = {1: [PieceRefused("another structure")]}
    refused = executors(Spark(), pipeline).read(stage, P, pieces(3))
    assert [piece.chunk.number for piece in refused] == [1]
    assert sorted(staged(stage).chunks) == [0, 2]


def test_a_folder_that_is_not_shared_is_noticed(
    source: Pieces, pipeline: Pipeline, stage: BatchStage
) -> None:
    def elsewhere(run: Callable[[int], list[dict[str, Any]]], lanes: int) -> list[dict[str, Any]]:
        answers = once(run, lanes)
        next(stage.folder.glob("*.arrow")).unlink()
        return answers

    with pytest.raises(FixConfiguration, match="is not there"):
        executors(Spark(elsewhere), pipeline).read(stage, P, pieces(2))


def test_a_stop_does_not_wait_for_the_tasks(source: Pieces, pipeline: Pipeline, stage: BatchStage) -> None:
    stop, spark = threading.Event(), Spark()

    def long(run: Callable[[int], list[dict[str, Any]]], lanes: int) -> list[dict[str, Any]]:
        stop.set()
        assert spark.interrupted.wait(20)
        raise RuntimeError("canceled")

    spark.runs = long
    with pytest.raises(Interrupted):
        executors(spark, pipeline, stop).read(stage, P, pieces(2))


def test_rows_that_a_change_supersedes_go_and_the_others_keep_their_places(
    source: Pieces, pipeline: Pipeline, stage: BatchStage
) -> None:
    executors(Spark(), pipeline).read(stage, P, pieces(2))
    stage.filter_chunks("table-1", lambda rows: rows.filter(pa.array([False] + [True] * (len(rows) - 1))))
    table = staged(stage)
    assert rows_of(table) == [(1, 1), (3, 3), (5, 11), (7, 13)]
    assert table.rows == table.facts.rows == 4


def test_a_table_whose_structure_changed_has_no_pieces_in_the_batch(
    source: Pieces, pipeline: Pipeline, stage: BatchStage
) -> None:
    executors(Spark(), pipeline).read(stage, P, pieces(2))
    stage.filter_chunks("table-1", None)
    stage.close()
    assert stage.contents().empty
    assert not list(stage.folder.glob("*.arrow"))


def test_more_rows_than_stand_below_the_log_are_refused(
    source: Pieces, pipeline: Pipeline, tmp_path: Path
) -> None:
    with pytest.raises(OverflowError):
        executors(Spark(), pipeline).read(BatchStage(tmp_path, 1, log_base=7), P, pieces(2))


def spark_failure(text: str) -> Exception:
    from pyspark.errors import PythonException

    raised: Exception = PythonException(message=text)
    return raised


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("...\nModuleNotFoundError: No module named 'cdc_lib'\n", FixConfiguration, "cannot import cdc_lib"),
        ("...\nValueError: the row is (1, 'secret')\n", RetryLater, "ValueError"),
        ("Job aborted: ExecutorLostFailure (executor 1 exited)", RetryLater, "an error of Spark itself"),
    ],
)
def test_what_spark_says_is_not_repeated(text: str, error: type[Exception], told: str) -> None:
    found = on_executors._explained(spark_failure(text))
    assert type(found) is error
    assert told in str(found)
    assert "secret" not in str(found)
