"""Windows against a source that changes at every moment: silver equals the source at L after every batch.

The source here is a model with a log, views, and commits that are in the log before they are visible. The
code under test reads it through the contract, stages real batches, and what is staged is applied by the plain
rule "in order of ordinals". Silver must never hold a wrong value: right, or listed as not known, and that
only where a row moved to another key without its large column. Such rows are read by their keys until none
is left; then silver is whole.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdc_lib.captured import Captured, CapturedTable
from cdc_lib.change import ChangeBatch, LogEvent, Progress, TransactionEnd, change_schema
from cdc_lib.control.tables import State, TableState
from cdc_lib.position import Position
from cdc_lib.reading import ReadBatch, Reading
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.settling import BY_KEY
from cdc_lib.snapshot.incremental import window_batches
from cdc_lib.source import Chunk, PieceRefused, Span

SOURCE = pa.struct([pa.field("ts_us", pa.int64())])
T = TableId("public", "t")
KEYS = range(24)
UNKNOWN = "not known"

Values = dict[str, Any]


def structure(*names: str) -> Table:
    columns = [Column("id", pa.int64(), "bigint")] + [Column(name, pa.string(), "text") for name in names]
    return Table(T, tuple(columns), ("id",))


@dataclass(frozen=True, eq=False)
class Lsn(Position):
    """Where the model's log stands."""

    number: int
    unseen: frozenset[int] = frozenset()

    @property
    def history(self) -> str:
        return "model"

    @property
    def sort_key(self) -> str:
        return f"{self.number:012d}"

    def to_dict(self) -> dict[str, Any]:
        return {"lsn": self.number}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Lsn:
        return cls(data["lsn"])

    def __str__(self) -> str:
        return str(self.number)


@dataclass
class Model:
    """A table, its log and all its past states. ``lagging``: in the log, not visible yet."""

    chance: random.Random
    table: Table = field(default_factory=lambda: structure("small", "large"))
    log: list[list[Values]] = field(default_factory=list)
    structures: list[Table] = field(default_factory=list)
    states: list[dict[int, Values]] = field(default_factory=lambda: [{}])
    lagging: list[int] = field(default_factory=list)
    counter: int = 0
    guarded: bool = True

    @property
    def newest(self) -> dict[int, Values]:
        return self.states[-1]

    def visible(self) -> dict[int, Values]:
        """What a view shows now; commits become visible in the order of the log."""
        return self.states[self.lagging[0] - 1] if self.lagging else self.newest

    def happen(self, most: int = 3) -> None:
        """Some transactions, or none."""
        for _ in range(self.chance.randrange(most + 1)):
            self._transaction()
        if self.lagging and self.chance.random() < 0.5:
            self.lagging.clear()

    def fresh(self) -> str:
        self.counter += 1
        return f"v{self.counter}"

    def row(self, values: Mapping[str, Any]) -> Values:
        return {name: values.get(name) for name in self.table.names}

    def _transaction(self) -> None:
        state = {key: dict(values) for key, values in self.newest.items()}
        events: list[Values] = []
        for _ in range(self.chance.choice([1, 1, 2, 4])):
            self._statement(state, events)
        if self.chance.random() < 0.03:
            self.table = structure(*self.table.names[1:], f"added{len(self.states)}")
            state = {key: {**self.row({}), **values} for key, values in state.items()}
        self.log.append(events)
        self.structures.append(self.table)
        self.states.append(state)
        if self.lagging or self.chance.random() < 0.1:
            self.lagging.append(len(self.log))

    def _statement(self, state: dict[int, Values], events: list[Values]) -> None:
        kind = self.chance.choices(["insert", "update", "delete", "move", "truncate"], [5, 8, 3, 4, 0.3])[0]
        free = [key for key in KEYS if key not in state]
        taken = list(state)
        if kind == "insert" and free:
            key = self.chance.choice(free)
            state[key] = self.row({"id": key, "small": self.fresh(), "large": self.fresh()})
            events.append({"op": "c", "after": dict(state[key])})
        elif kind == "update" and taken:
            key = self.chance.choice(taken)
            state[key]["small"] = self.fresh()
            if self.chance.random() < 0.4:
                state[key]["large"] = self.fresh()
                events.append({"op": "u", "after": dict(state[key])})
            else:
                events.append({"op": "u", **self._without_large(state[key])})
        elif kind == "delete" and taken:
            key = self.chance.choice(taken)
            del state[key]
            events.append({"op": "d", "before": self.row({"id": key})})
        elif kind == "move" and taken and free:
            old, new = self.chance.choice(taken), self.chance.choice(free)
            state[new] = {**state.pop(old), "id": new, "small": self.fresh()}
            events.append({"op": "d", "before": self.row({"id": old})})
            events.append({"op": "c", "previous_key": {"id": old}, **self._without_large(state[new])})
        elif kind == "truncate":
            state.clear()
            events.append({"op": "t"})

    def _without_large(self, values: Values) -> Values:
        return {"after": {**values, "large": None}, "after_unavailable": ["large"]}


class ModelLog:
    """A reader of the model's log; transactions one by one, as they were."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def read(self, after: Lsn, upto: Lsn) -> Iterator[LogEvent]:
        ordinal = 0
        for number in range(after.number + 1, upto.number + 1):
            table = self._model.structures[number - 2] if number > 1 else self._model.structures[0]
            events = self._model.log[number - 1]
            if events:
                rows = [{"ordinal": ordinal + i, "position": "", **one} for i, one in enumerate(events)]
                batch = pa.RecordBatch.from_pylist(rows, change_schema(table, SOURCE))
                yield ChangeBatch(table, batch)
                ordinal += len(events)
            yield TransactionEnd(self._end(number, after), ordinal)
        yield Progress(self._end(upto.number, after))

    def _end(self, number: int, after: Lsn) -> Lsn:
        pending = {one for one in self._model.lagging if one <= number}
        return Lsn(number, frozenset(pending))


class ModelSource:
    """The part of the source contract that a window uses."""

    source_type = SOURCE

    def __init__(self, model: Model) -> None:
        self.model = model

    def span(self) -> Span:
        self.model.happen()
        return Span(None, Lsn(len(self.model.log)))

    def log(self, tables: Sequence[TableId], schemas: Mapping[TableId, Table]) -> ModelLog:
        return ModelLog(self.model)


class ModelSession:
    """Pieces, with transactions before, between and after the rows."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def table(self, table: TableId) -> Table:
        return self.model.table

    def rows(self, chunk: Chunk, after: Lsn, expected: Table) -> Iterator[ChangeBatch]:
        model = self.model
        model.happen()
        if model.guarded and after.unseen & set(model.lagging):
            model.lagging.clear()
        if not expected.same_structure(model.table):
            raise PieceRefused("changed", remedy="")
        shown = [dict(values) for key, values in sorted(model.visible().items()) if key in asked(chunk)]
        half = len(shown) // 2
        for part in (shown[:half], shown[half:]):
            rows = [{"op": "r", "after": values, "ordinal": i} for i, values in enumerate(part)]
            yield ChangeBatch(expected, pa.RecordBatch.from_pylist(rows, change_schema(expected, SOURCE)))
            model.happen(1)


def asked(chunk: Chunk) -> Container[int]:
    """The keys of a piece."""
    if chunk.keys is not None:
        return set(chunk.keys.column("id").to_pylist())
    low, high = int(chunk.lower[0]) if chunk.lower else 0, int(chunk.upper[0]) if chunk.upper else 99
    return range(low, high)


class Silver:
    """The plain rule: every row in order of its ordinal."""

    def __init__(self) -> None:
        self.rows: dict[int, Values] = {}

    def lacking(self) -> list[int]:
        """Keys of rows with a value that is not known."""
        return [key for key, values in self.rows.items() if UNKNOWN in values.values()]

    def apply(self, batch: ReadBatch) -> None:
        left: dict[int, Values] = {}
        for row in sorted(_staged(batch), key=lambda row: row["ordinal"]):
            self._one(row, left)

    def _one(self, row: Values, left: dict[int, Values]) -> None:
        if row["op"] == "t":
            self.rows.clear()
            return
        image = row["after"] if row["op"] != "d" else row["before"]
        key = image["id"]
        if row["op"] == "d":
            left[key] = self.rows.pop(key, {})
            return
        lacking = set(row["after_unavailable"] or ())
        old = self.rows.get(key, {}) if row["op"] == "u" else {}
        if row["previous_key"] is not None:
            old = left.get(row["previous_key"]["id"], {})
        self.rows[key] = {
            name: old.get(name, UNKNOWN) if name in lacking else value for name, value in image.items()
        }


def _staged(batch: ReadBatch) -> list[Values]:
    rows: list[Values] = []
    for table in batch.stage.tables.values():
        for part in table.parts:
            with pa.memory_map(part.path) as file, pa.ipc.open_stream(file) as stream:
                rows += stream.read_all().to_pylist()
    return rows


def reading(model: Model, folder: Path) -> Reading:
    state = TableState("t1", T.schema, T.name, "t", "t", State.SNAPSHOT)
    run = SimpleNamespace(threads=1)
    pipeline = SimpleNamespace(source={"skipped.operations": ()}, run=run)
    progress = SimpleNamespace(rows=lambda *_: None)
    return Reading(
        ModelSource(model),  # type: ignore[arg-type]
        [T],
        pipeline,  # type: ignore[arg-type]
        Captured([CapturedTable(state)]),
        folder,
        progress,  # type: ignore[arg-type]
        threading.Event(),
        batch_rows=model.chance.choice([1, 8, 20]),
    )


def play(seed: int, folder: Path, guarded: bool = True) -> None:
    chance = random.Random(seed)
    model = Model(chance, guarded=guarded)
    for _ in range(12):
        model.happen()
    model.lagging.clear()
    cuts = sorted(chance.sample(KEYS[1:], chance.randrange(4)))
    bounds = [None, *((str(cut),) for cut in cuts), None]
    chunks = [Chunk(T, i, bounds[i], bounds[i + 1], rows=8) for i in range(len(cuts) + 1)]
    silver, done = Silver(), set[int]()
    reader = reading(model, folder)
    upto = Lsn(len(model.log))

    def take(pieces: Sequence[Chunk]) -> None:
        nonlocal upto
        for batch in window_batches(reader, ModelSession(model), pieces, upto, 1):  # type: ignore[arg-type]
            silver.apply(batch)
            done.update(number for table in batch.stage.tables.values() for number in table.chunks)
            batch.stage.discard()
            assert isinstance(batch.upto, Lsn)
            upto = batch.upto
            read = [chunks[number] for number in done if number < BY_KEY]
            complain(silver, model.states[upto.number], read, seed)

    take(chunks)
    assert done == set(range(len(chunks)))
    for _ in range(50):
        if not (lacking := sorted(silver.lacking())):
            return
        take([Chunk(T, BY_KEY, keys=pa.table({"id": lacking}))])
    raise AssertionError(f"seed {seed}: {lacking} are not known after 50 windows")


def complain(silver: Silver, true: Mapping[int, Values], done: Sequence[Chunk], seed: int) -> None:
    covered = {key for key in KEYS if any(key in asked(chunk) for chunk in done)}
    missing = {key for key in true if key in covered and key not in silver.rows}
    assert not missing, f"seed {seed}: {missing} missing"
    extra = set(silver.rows) - set(true)
    assert not extra, f"seed {seed}: {extra} should be gone"
    for key, values in silver.rows.items():
        for name, value in values.items():
            assert value in (true[key][name], UNKNOWN), f"seed {seed}: {key}.{name}"
            if value == UNKNOWN:
                assert name == "large", f"seed {seed}: {key}.{name} is not known"


@pytest.mark.parametrize(
    "block", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 10))]
)
def test_silver_is_never_wrong(block: int, tmp_path: Path) -> None:
    for seed in range(block * 100, (block + 1) * 100):
        play(seed, tmp_path)


def test_without_the_visibility_guard_rows_are_lost(tmp_path: Path) -> None:
    def search() -> None:
        for seed in range(400):
            play(seed, tmp_path, guarded=False)

    with pytest.raises(AssertionError, match="seed"):
        search()
