"""Pieces of tables read by Spark tasks, where the executors reach the source (``run.snapshot_on``).

A task does what a thread of the run does: it opens a session of its own at the source, reads a piece, and
writes the rows to a file in the staging folder. It answers with what it wrote, and the run does the rest, in
its own order: the position that the pieces must show is fixed before the tasks begin, the end of the log is
taken when all have answered, and only then is anything sealed.

A task may run twice (a lost executor, a retry, speculation), or go on when nobody waits for it any more. Each
attempt writes a file under a name of its own, and only files in an answer that arrived are part of the batch;
the others go with the batch's folder.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdc_lib import errors
from cdc_lib.change import ChangeBatch
from cdc_lib.errors import CdcError, FixConfiguration, Interrupted, RetryLater
from cdc_lib.facts import Facts
from cdc_lib.faults import reach_in_worker
from cdc_lib.handover import Handover, handed_over
from cdc_lib.metrics import Metrics
from cdc_lib.pipeline import Pipeline
from cdc_lib.position import Position
from cdc_lib.schema import Table
from cdc_lib.source import Chunk, PieceRefused, SharedView, SnapshotSpec, open_source
from cdc_lib.staged_files import Part, PieceFile, write_piece
from cdc_lib.staging import CHUNK_LANE, BatchStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("cdc_lib.snapshot")

ATTEMPTS = 3
"""How often a task tries a piece before it answers that the source does not answer."""
PAUSE = 1.0
SCHEMA = "piece INT, answer STRING"

_ERRORS = {cls.__name__: cls for cls in (PieceRefused, *vars(errors).values()) if isinstance(cls, type)}
_OF_SPARK = ("pyspark", "py4j", "grpc")
_RAISED = re.compile(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception|Interrupt))\b", re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """A piece to read, and the structure that its table is expected to have."""

    chunk: Chunk
    table_id: str
    expected: Table


@dataclass(frozen=True)
class ReadPieces:
    """What a task does: function of ``mapInArrow``, a row in for each lane, a row out for each piece.

    One lane is one task and one connection at a time. ``view``: the consistent view to read in, or None where
    each piece is read in a view of its own that shows everything up to ``after``.
    """

    handover: Handover
    folder: str
    after: Position
    pieces: tuple[Piece, ...]
    lanes: int
    view: SharedView | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for lane in batch.column(0).to_pylist():
                yield from self._lane(lane)

    def _lane(self, lane: int) -> Iterator[pa.RecordBatch]:
        for number in range(lane, len(self.pieces), self.lanes):
            answer = self._answer(self.pieces[number])
            yield pa.RecordBatch.from_pydict(
                {"piece": pa.array([number], pa.int32()), "answer": [json.dumps(answer)]}
            )

    def _answer(self, piece: Piece) -> dict[str, Any]:
        """What was written, or the error: as an answer it is the run's to judge, as an exception Spark would
        only repeat the task."""
        try:
            return self._written(piece)
        except CdcError as error:
            return {"error": type(error).__name__, "told": [error.what, error.why, error.remedy]}

    def _written(self, piece: Piece) -> dict[str, Any]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._read(piece)
            except RetryLater as error:
                if isinstance(error, PieceRefused) or attempt == ATTEMPTS:
                    raise
                time.sleep(PAUSE * attempt)
        raise AssertionError

    def _read(self, piece: Piece) -> dict[str, Any]:
        lane = f"{CHUNK_LANE}{piece.chunk.number}-{uuid.uuid4().hex}"
        path = Path(self.folder) / f"{piece.table_id}-{piece.expected.version}-{lane}.arrow"
        written = write_piece(path, self._rows(piece), piece.expected)
        reach_in_worker("piece.written")
        return {"part": asdict(written.part), "facts": written.facts.to_json()}

    def _rows(self, piece: Piece) -> Iterator[ChangeBatch]:
        source = open_source(self.handover.received())
        if self.view is not None:
            yield from _noting(source.joined(self.view, piece.chunk, piece.expected))
        else:
            with source.incremental(SnapshotSpec([piece.chunk.table])) as session:
                yield from _noting(session.rows(piece.chunk, self.after, piece.expected))


def _noting(rows: Iterator[ChangeBatch]) -> Iterator[ChangeBatch]:
    """The rows; a fault may strike when the first of them have come."""
    for batch in rows:
        reach_in_worker("piece.opened")
        yield batch


class Executors:
    """Spark's workers as readers of pieces, one job at a time: ``run.threads`` bounds the source's load."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        pipeline: Pipeline,
        metrics: Metrics,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._metrics = metrics
        self._stop = stop
        self._one_job = threading.Lock()

    def read(
        self, stage: BatchStage, after: Position, pieces: Sequence[Piece], view: SharedView | None = None
    ) -> list[Piece]:
        """Stage these pieces; those that were refused.

        :raises CdcError: what a task met, or what kept the tasks from coming to their end.
        """
        lanes, started = min(self._pipeline.run.threads, len(pieces)), time.monotonic()
        with self._one_job, handed_over(self._pipeline.source, stage.folder) as handover:
            work = ReadPieces(handover, str(stage.folder), after, tuple(pieces), lanes, view)
            answers = self._answers(work)
        if sorted(answers) != list(range(len(pieces))):
            raise RetryLater(
                "Spark did not answer for every piece",
                why=f"{len(pieces)} were asked for, answers came for {len(answers)}",
                remedy="run again; what was read is thrown away",
            )
        refused = []
        for piece, answer in zip(pieces, (answers[number] for number in sorted(answers)), strict=True):
            if answer.get("error") == PieceRefused.__name__:
                refused.append(piece)
            else:
                stage.adopt_chunk(piece.table_id, piece.chunk.number, piece.expected, _file(answer))
        self._metrics.count("executors.pieces", "", len(pieces) - len(refused))
        seconds = time.monotonic() - started
        log.info("executors read pieces=%d tasks=%d seconds=%.1f", len(pieces), lanes, seconds)
        return refused

    def _answers(self, work: ReadPieces) -> dict[int, dict[str, Any]]:
        tag = f"cdc-{uuid.uuid4().hex}"
        spark = self._spark()
        with ThreadPoolExecutor(1, "cdc-executors") as pool:
            job = pool.submit(_collected, spark, work, tag)
            while not self._ended(job):
                if self._stop.is_set():
                    spark.interruptTag(tag)
                    _ = job.exception()
                    raise Interrupted("stopped while executors read pieces; this batch was not sealed")
        if (failure := job.exception()) is not None:
            raise _explained(failure)
        return {row["piece"]: json.loads(row["answer"]) for row in job.result()}

    def _ended(self, job: Future[Any]) -> bool:
        try:
            job.exception(timeout=0.2)
        except NotYet:
            return job.done()
        return True


def _collected(spark: SparkSession, work: ReadPieces, tag: str) -> list[Any]:
    # Tags belong to the thread that starts a job.
    spark.addTag(tag)
    # A partition for each lane, without a shuffle that could join some.
    rows: list[Any] = spark.range(0, work.lanes, 1, work.lanes).mapInArrow(work, SCHEMA).collect()
    return rows


def _file(answer: dict[str, Any]) -> PieceFile:
    if "error" in answer:
        what, why, remedy = answer["told"]
        raise _ERRORS[answer["error"]](what, why=why, remedy=remedy)
    return PieceFile(Part(**answer["part"]), Facts.from_json(answer["facts"]))


def _explained(failure: BaseException) -> BaseException:
    """Spark's own words hold the code and may hold rows: only what kind of exception it was is told."""
    if type(failure).__module__.partition(".")[0] not in _OF_SPARK:
        return failure
    text = str(failure)
    kinds = sorted({kind for kind in _RAISED.findall(text) if kind != "PythonException"})
    if "ModuleNotFoundError" in kinds and "cdc_lib" in text:
        return FixConfiguration(
            "Spark's workers cannot import cdc_lib",
            why="run.snapshot_on is executors, and the package is installed for the driver only",
            remedy="install it on the cluster (a library of the job, or PYTHONPATH), or read at the driver",
        )
    return RetryLater(
        "the Spark tasks that read pieces failed",
        why=f"they ended with {', '.join(kinds) or 'an error of Spark itself'}; nothing of them is sealed",
        remedy="look into the executors' logs; run again, or read at the driver (run.snapshot_on: driver)",
    )
