"""Bronze: one append-only Delta table per source table, with Debezium's envelope and typed images.

Staged Arrow files are appended in one commit a table and batch, by Spark's Delta writer or, on a path, by
this process (``bronze_direct``). The commit's transaction version is the batch number. Delta skips a version
it has seen *or a lower one* in silence, so every append is verified: a commit with our incarnation and batch
must be in the history (DESIGN section 5).
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa

from cdc_lib import bronze_direct
from cdc_lib.change import change_schema
from cdc_lib.delta import Commit, Field, Lake, TableRef, Txn
from cdc_lib.errors import ResnapshotNeeded
from cdc_lib.nested_types import ddl, quoted
from cdc_lib.schema import Table, TableId
from cdc_lib.source import Finding
from cdc_lib.spark_session import send_by_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdc_lib.staging import StagedTable

HISTORY = 200
"""Commits that are searched for ours; maintenance adds a few between two of ours, never hundreds."""

_COMMENTS: Mapping[str, str] = {
    "op": "c create, u update, d delete, r read by a snapshot, t truncate",
    "before": "the row before the change, as far as the log carries it",
    "after": "the row after the change",
    "before_unavailable": "columns of before that the log did not carry: NULL there means not known",
    "after_unavailable": "columns of after that the log did not carry: NULL there means not known",
    "special": "server text of values that their column cannot hold, by column",
    "previous_key": "on a create that is half of a key update: the old key",
    "source": "where in the source's log the change stands",
    "transaction": "transaction id, and the row's place in it",
    "position": "sort key of the commit, or of the snapshot, that the row belongs to",
}
_OWN: tuple[Field, ...] = (
    Field("ts_ms", "BIGINT", "when the row was written here, in milliseconds since the epoch"),
    Field("_batch", "BIGINT", "number of the batch that brought the row"),
    Field("_sequence", "BIGINT", "total order over all tables: batch << 32 | place in the batch"),
    Field("_position", "STRING", _COMMENTS["position"]),
    Field("_schema_version", "INT", "version of the table's structure that the row was read under"),
)
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")
"""Characters that Delta takes in column names only under column mapping (Delta's protocol)."""
_UNSAFE = re.compile(r"[^\w$-]")


@dataclass(frozen=True)
class Marks:
    """Whose table it is; written into its properties."""

    pipeline: str
    incarnation: str
    table_id: str


# -- names


def table_name(table: TableId) -> str:
    """Name of a source table in bronze and silver: ``schema_table``, unsafe characters as ``_``."""
    return _UNSAFE.sub("_", f"{table.schema}_{table.name}")


def table_collisions(tables: Iterable[TableId]) -> list[Finding]:
    """Source tables that would share one table of ours; Spark does not tell upper from lower case."""
    return [
        Finding(
            "error",
            name,
            f"{' and '.join(str(table) for table in sharing)} would both be written to the table {name}",
            "capture them in different pipelines, or leave one out (table.include.list)",
        )
        for name, sharing in _sharing(tables, table_name)
    ]


def column_collisions(table: Table) -> list[Finding]:
    """Columns that differ in case alone: Spark refuses Id beside ID, also inside a struct."""
    return [
        Finding(
            "error",
            str(table.id),
            f"columns {' and '.join(sharing)} differ in case alone, which Spark cannot tell apart",
            f"leave one out: column.exclude.list: {re.escape(str(table.id))}\\.{re.escape(sharing[-1])}",
        )
        for _, sharing in _sharing(table.names, str)
    ]


def _sharing(items: Iterable[Any], name: Any) -> list[tuple[str, list[Any]]]:
    taken: defaultdict[str, list[Any]] = defaultdict(list)
    for item in items:
        taken[name(item).lower()].append(item)
    return [(key, sharing) for key, sharing in sorted(taken.items()) if len(sharing) > 1]


# -- the table


def fields(table: Table, source: pa.DataType) -> list[Field]:
    """Bronze's columns for a table; ``source`` is the engine's struct of position fields."""
    envelope = [
        Field(field.name, ddl(field.type), _COMMENTS[field.name], arrow=field.type)
        for field in change_schema(table, source)
        if field.name not in ("position", "ordinal")
    ]
    return [*envelope, *_OWN]


def properties(table: Table, marks: Marks) -> dict[str, str]:
    """Bronze's table properties; unclustered, statistics on the two columns that ranges are cut by."""
    found = {
        # Wide structs would push these two out of the first 32 columns that have statistics by default.
        "delta.dataSkippingStatsColumns": "_batch,_sequence",
        "cdc.pipeline": marks.pipeline,
        "cdc.incarnation": marks.incarnation,
        "cdc.table_id": marks.table_id,
        "cdc.source_table": str(table.id),
    }
    if any(not _NEEDS_MAPPING.isdisjoint(name) for name in table.names):
        found["delta.columnMapping.mode"] = "name"
    return found


def ensure(lake: Lake, ref: TableRef, table: Table, source: pa.DataType, marks: Marks) -> None:
    """Create the bronze table unless it exists. New columns and wider types come with the append."""
    if not lake.exists(ref):
        comment = f"Changes of {table.id}, as captured by pipeline {marks.pipeline}"
        wanted = properties(table, marks)
        lake.create(ref, fields(table, source), comment=comment, properties=wanted)


# -- appending


def append(
    lake: Lake,
    ref: TableRef,
    staged: StagedTable,
    *,
    batch: int,
    txn: Txn,
    metadata: Mapping[str, Any],
) -> None:
    """Append a batch's staged rows of one table in one commit; :func:`verify` afterwards.

    :raises Conflict: somebody else committed this batch, or changed the table's structure, meanwhile.
    """
    if not staged.parts:
        return
    schema = _row_schema(staged)
    held = lake.arrow_schema(ref)
    evolves = any(not _covers(held.field(name).type, schema.field(name).type) for name in _IMAGES)
    if not evolves and lake.takes_files(ref):
        assert ref.path is not None
        bronze_direct.append(ref.path, staged.parts, schema, held, batch=batch, txn=txn, metadata=metadata)
        return
    if evolves:
        _allow_evolution(lake, ref, staged.table, held)
    frame = _staged_frame(lake.spark, staged, schema)
    lake.append(ref, _envelope(frame, batch), txn=txn, metadata=metadata, merge_schema=evolves)


_IMAGES = ("before", "after", "previous_key", "source", "transaction")


def _row_schema(staged: StagedTable) -> pa.Schema:
    """Arrow schema of the rows as they reach Spark: the newest structure, and the row's own version.

    A column that was dropped inside the batch stays: rows from before the drop have values in it.
    """
    schemas = [_schema_of(part.path) for part in staged.parts]
    newest = change_schema(staged.table, schemas[0].field("source").type)
    for index, name in enumerate(newest.names):
        if name in ("before", "after"):
            olds = [schema.field(name).type for schema in schemas]
            newest = newest.set(index, pa.field(name, _with_dropped(newest.field(name).type, olds)))
    return newest.append(pa.field("_schema_version", pa.int32()))


def _schema_of(path: str) -> pa.Schema:
    with pa.OSFile(path) as file, pa.ipc.open_stream(file) as stream:
        return stream.schema


def _with_dropped(newest: pa.StructType, olds: Iterable[pa.StructType]) -> pa.StructType:
    fields = {field.name: field for field in newest}
    for old in olds:
        for field in old:
            fields.setdefault(field.name, field)
    return pa.struct(list(fields.values()))


# A Spark Connect server refuses one of two sessions' threads that register the same name at the same time.
_registering = threading.Lock()
_registered: WeakSet[SparkSession] = WeakSet()


def _staged_frame(spark: SparkSession, staged: StagedTable, schema: pa.Schema) -> DataFrame:
    from cdc_lib import bronze_reader

    with _registering:
        if spark not in _registered:
            send_by_value(spark, bronze_reader)
            spark.dataSource.register(bronze_reader.StagedFiles)
            _registered.add(spark)
    parts = json.dumps([(part.path, part.version, part.base) for part in staged.parts])
    columns = ", ".join(f"{quoted(field.name)} {ddl(field.type)}" for field in schema)
    serialized = base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")
    reader = spark.read.format(bronze_reader.FORMAT).schema(columns)
    frame: DataFrame = reader.option("files", parts).option("arrow", serialized).load()
    return frame


def _envelope(frame: DataFrame, batch: int) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.select(
        *[F.col(name) for name in _COMMENTS if name != "position"],
        F.lit(int(time.time() * 1000)).cast("bigint").alias("ts_ms"),
        F.lit(batch).cast("bigint").alias("_batch"),
        (F.lit(batch << 32).cast("bigint") + F.col("ordinal")).alias("_sequence"),
        F.col("position").alias("_position"),
        F.col("_schema_version"),
    )


def _covers(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of type ``held`` takes ``wanted`` as it is; a struct may hold more fields."""
    if not pa.types.is_struct(wanted):
        return bool(held == wanted)
    return all(
        held.get_field_index(field.name) >= 0 and _covers(held.field(field.name).type, field.type)
        for field in wanted
    )


def _allow_evolution(lake: Lake, ref: TableRef, table: Table, held: pa.Schema) -> None:
    """Table features that a change of structure needs and that cannot come with the append itself. Not
    before: readers of other makes do without as long as they can."""
    needed = {}
    if any(not _NEEDS_MAPPING.isdisjoint(name) for name in table.names):
        needed["delta.columnMapping.mode"] = "name"
    after = {field.name: field.type for field in held.field("after").type}
    if any(after.get(column.name, column.type) != column.type for column in table.columns):
        needed["delta.enableTypeWidening"] = "true"
    missing = needed.items() - lake.properties(ref).items()
    if missing:
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in sorted(missing))
        lake.execute(f"ALTER TABLE {ref.sql} SET TBLPROPERTIES ({pairs})")


# -- reading


def batches(lake: Lake, ref: TableRef, after: int, upto: int) -> DataFrame:
    """The rows with ``after < _batch <= upto``."""
    from pyspark.sql import functions as F

    rows = lake.table_files(ref, "_batch", after + 1, upto)
    return rows.where((F.col("_batch") > after) & (F.col("_batch") <= upto))


# -- whose commits


def find_commit(lake: Lake, ref: TableRef, incarnation: str, batch: int) -> Commit | None:
    """Our commit of a batch, if it is in the table's history and no RESTORE has undone it.

    :raises ResnapshotNeeded: somebody else changed rows after it.
    """
    foreign: Commit | None = None
    for commit in standing(lake.history(ref, limit=HISTORY)):
        if not is_ours(commit, incarnation):
            foreign = commit if commit.changes_data else foreign
        elif (commit.metadata or {}).get("batch") == batch:
            if foreign is not None:
                raise _changed(ref, foreign, commit.version)
            return commit
    return None


def _changed(ref: TableRef, foreign: Commit, version: int) -> ResnapshotNeeded:
    return ResnapshotNeeded(
        f"{ref.sql} was changed by somebody else ({foreign.operation}, version {foreign.version})",
        why="rows of a batch that is not committed yet may be missing from it",
        remedy=f"undo it: RESTORE TABLE {ref.sql} TO VERSION AS OF {version}",
    )


def verify(lake: Lake, ref: TableRef, incarnation: str, batch: int) -> Commit:
    """The commit that :func:`append` must have made.

    :raises ResnapshotNeeded: there is none: Delta skipped the append in silence.
    """
    found = find_commit(lake, ref, incarnation, batch)
    if found is None:
        raise ResnapshotNeeded(
            f"batch {batch} did not arrive in {ref.sql}",
            why="Delta has recorded this batch, or a later one, before and skipped the append: "
            "the control tables are older than the table (restored from a copy, or moved)",
            remedy="put the newest control tables back, or start a new pipeline name, which snapshots again",
        )
    return found


def foreign_commits(lake: Lake, ref: TableRef, remembered: int, incarnation: str) -> list[Commit]:
    """Commits above the ``remembered`` version that changed rows and are not ours, newest first.

    What a RESTORE to the remembered version, or a later one, has undone does not count, nor does that
    RESTORE. A table that is gone, or has fewer versions than remembered, was replaced: reported as its
    newest commit.
    """
    newest = lake.version(ref)
    if newest < remembered:
        return lake.history(ref, limit=1) or [Commit(newest, "DROP TABLE", None, True)]
    found = lake.history(ref, since=remembered + 1, limit=newest - remembered) if newest > remembered else []
    return [
        commit
        for commit in standing(found, remembered)
        if commit.changes_data and not is_ours(commit, incarnation)
    ]


def standing(newest_first: Iterable[Commit], floor: int = 0) -> Iterator[Commit]:
    """The commits whose rows are still in the table: those under a RESTORE (not below ``floor``) are not."""
    ceiling: int | None = None
    for commit in newest_first:
        if ceiling is not None and commit.version > ceiling:
            continue
        if commit.restored is not None and commit.restored >= floor:
            ceiling = commit.restored
        else:
            yield commit


def is_ours(commit: Commit, incarnation: str) -> bool:
    return commit.metadata is not None and commit.metadata.get("incarnation") == incarnation
