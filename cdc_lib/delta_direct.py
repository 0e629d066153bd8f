"""Small reads and writes of Delta tables on a local path with delta-rs: no JVM, milliseconds each.

Control tables on a path live here altogether. delta-rs writes a commit only if no other process wrote that
version (an atomic link), but does *not* skip a transaction version that it has already seen, and even lets
it go back. So every write with a :class:`Txn` reads the version on the very handle that commits.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_lib.errors import FixConfiguration, RetryLater

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

COMPACT_EVERY = 100
"""Versions of a table after which its small files are put together."""

COMMIT_TRIES = 10
"""How often files are offered to a table to which others commit at the same time."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Txn:
    """Identity of a write: Delta takes a version of an application once, and never an older one after it."""

    app_id: str
    version: int


class Conflict(RetryLater):
    """Another process committed to the table at the same time, and the two do not go together."""


def conflict(table: str) -> Conflict:
    return Conflict(
        f"another process wrote to {table} at the same time",
        why="Delta accepts one of two commits that read what the other changes",
        remedy="run again",
    )


def open_table(path: str) -> DeltaTable | None:
    """The table at ``path`` as of now; None if there is none."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError
    except ModuleNotFoundError as error:
        raise FixConfiguration(
            "tables on a path need delta-rs",
            why=f"module {error.name} is missing",
            remedy="pip install 'cdc-lib[local]'",
        ) from None
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        return None


def create(path: str, schema: pa.Schema, comment: str, properties: Mapping[str, str]) -> None:
    """Create an empty table unless it exists; field metadata ``comment`` become column comments."""
    from deltalake import DeltaTable

    DeltaTable.create(
        path,
        schema,
        mode="ignore",
        description=comment or None,
        configuration=dict(properties),
        # Properties of our own.
        raise_if_key_not_exists=False,
    )


def transaction_version(path: str, app_id: str) -> int | None:
    """The newest transaction version of an application in the table; None if there is none."""
    table = open_table(path)
    return None if table is None else table.transaction_version(app_id)


def read(
    path: str, columns: Sequence[str] | None, where: Mapping[str, Any] | None
) -> list[dict[str, Any]] | None:
    """Rows that equal ``where``; None if delta-rs cannot read this table (deletion vectors and the like)."""
    table = open_table(path)
    if table is None:
        return []
    if not _is_plain(table):
        # delta-rs reads mapped columns by their logical names, as NULL, and says nothing.
        return None
    schema = schema_of(table)
    named = [*dict.fromkeys([*(columns or schema.names), *(where or {})])]
    wanted = pa.schema([schema.field(name) for name in named])
    files = _absolute(path, pa.table(table.get_add_actions(flatten=True)))
    rows = pa.concat_tables([_rows_of(file, wanted) for file in files] or [wanted.empty_table()])
    if where:
        rows = rows.filter(_filter(where))
    return to_rows(rows.select(columns) if columns else rows)


def _rows_of(file: str, schema: pa.Schema) -> pa.Table:
    # Not as a dataset: its scanner's threads may outlive it, and then abort the process as that ends.
    opened = pq.ParquetFile(file)
    there = set(opened.schema_arrow.names)
    found = opened.read([name for name in schema.names if name in there], use_threads=False)
    columns = [
        found.column(field.name).cast(field.type)
        if field.name in there
        else pa.chunked_array([pa.nulls(found.num_rows, field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def append(path: str, rows: Rows, txn: Txn | None, metadata: Mapping[str, Any] | None) -> None:
    """Append rows; in silence none if ``txn`` is not newer than what the table has, as Spark does.

    :raises Conflict: the same transaction was committed meanwhile.
    """
    from deltalake import write_deltalake
    from deltalake.exceptions import CommitFailedError

    table = existing(path)
    if txn is not None and has(table, txn):
        return
    data = from_rows(rows, schema_of(table))
    for _ in range(COMMIT_TRIES):
        try:
            write_deltalake(table, data, mode="append", commit_properties=_commit(txn, metadata))
            break
        except CommitFailedError as error:
            # Rows that were deleted meanwhile are no reason not to add others; the same transaction is.
            table = existing(path)
            if txn is not None and has(table, txn):
                raise conflict(path) from error
    else:
        raise conflict(path)
    if table.version() % COMPACT_EVERY == 0:
        compact(path)


def compact(path: str) -> None:
    """Rewrite the files as one: there is one for each append, and a thousand of them take seconds to read.

    One process at a time, and from the newest version: of two that do it to the same files delta-rs notices
    nothing, and leaves every row twice.
    """
    from deltalake.exceptions import CommitFailedError

    with (Path(path) / "_delta_log" / ".compacting").open("ab") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # Somebody changed rows meanwhile: the next one to come by does it.
        with suppress(CommitFailedError):
            existing(path).optimize.compact()


@dataclass(frozen=True)
class NewFile:
    """A Parquet file in a table's folder that no version names yet; ``stats`` as in the Delta protocol."""

    name: str
    size: int
    stats: str


PLAIN_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
"""Table features under which a file of rows can be added as it is."""


def takes_files(path: str) -> bool:
    """Whether files of rows may be added to the table as it is: none of its features (column mapping,
    constraints, widened types) needs looking after."""
    return _is_plain(existing(path))


def _is_plain(table: DeltaTable) -> bool:
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    # Below version 7 features have no names; up to 2 there are only the plain ones.
    return features <= PLAIN_FEATURES and (protocol.min_writer_version <= 2 or bool(features))


def size(path: str) -> int:
    """Bytes of the files of the table's newest version."""
    return sum(sizes(path))


def sizes(path: str) -> list[int]:
    """Bytes of each file of the table's newest version."""
    found: list[int] = pa.table(existing(path).get_add_actions(flatten=True)).column("size_bytes").to_pylist()
    return found


def files(path: str) -> list[str]:
    """Paths of the newest version's files."""
    return _absolute(path, pa.table(existing(path).get_add_actions(flatten=True)))


def files_with(path: str, column: str, low: int, high: int) -> list[str]:
    """Paths of the newest version's files that may have rows with ``low <= column <= high``."""
    found = pa.table(existing(path).get_add_actions(flatten=True))
    bounds = [f"{which}.{column}" for which in ("min", "max")]
    if not set(bounds) <= set(found.column_names):
        return _absolute(path, found)
    least, most = (found.column(name) for name in bounds)
    apart = pc.or_kleene(pc.greater(least, high), pc.less(most, low))
    return _absolute(path, found.filter(pc.invert(pc.fill_null(apart, False))))


def _absolute(path: str, files: pa.Table) -> list[str]:
    return [str(Path(path) / unquote(name)) for name in files.column("path").to_pylist()]


def add_files(path: str, files: Sequence[NewFile], txn: Txn, metadata: Mapping[str, Any]) -> bool:
    """Commit files that were written into the table's folder; False, and nothing done, if the table has
    ``txn`` or a later version of it already.

    :raises Conflict: other processes kept committing.
    """
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction

    now = int(time.time() * 1000)
    actions = [AddAction(file.name, file.size, {}, now, True, file.stats) for file in files]
    for _ in range(COMMIT_TRIES):
        table = existing(path)
        if has(table, txn):
            return False
        try:
            # No retries of its own: it would commit above a version that it has not asked for our txn.
            properties = _commit(txn, metadata, retries=0)
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)
            return True
        except CommitFailedError:
            continue
    raise conflict(path)


def delete(path: str, predicate: str) -> None:
    """Delete the rows that meet an SQL predicate.

    :raises Conflict: other processes kept committing what does not go together with it.
    """
    from deltalake.exceptions import CommitFailedError

    for _ in range(COMMIT_TRIES):
        try:
            existing(path).delete(predicate)
            return
        except CommitFailedError:
            continue
    raise conflict(path)


def upsert(path: str, rows: Rows, keys: Sequence[str], txn: Txn | None, version: str | None = None) -> None:
    """Replace the rows with equal ``keys``, insert the others, in one commit; ``txn`` as in :func:`append`.

    :param version: a column that must be greater than in the row that is replaced.

    :raises Conflict: the rows, or the transaction, were changed meanwhile.
    """
    from deltalake.exceptions import CommitFailedError

    table = existing(path)
    if txn is not None and has(table, txn):
        return
    condition = " AND ".join(f'target."{key}" = source."{key}"' for key in keys)
    newer = f'target."{version}" < source."{version}"' if version else None
    try:
        (
            table.merge(
                from_rows(rows, schema_of(table)),
                predicate=condition,
                source_alias="source",
                target_alias="target",
                commit_properties=_commit(txn, None),
            )
            .when_matched_update_all(newer)
            .when_not_matched_insert_all()
            .execute()
        )
    except CommitFailedError as error:
        raise conflict(path) from error


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Arrow rows as dictionaries, maps as dictionaries too."""
    maps = [field.name for field in table.schema if pa.types.is_map(field.type)]
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for name in maps:
            if row[name] is not None:
                row[name] = dict(row[name])
    return rows


def from_rows(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Dictionaries as an Arrow table of ``schema``; absent values are NULL.

    :raises KeyError: a row has a value that the table has no column for.
    """
    for row in rows:
        if unknown := set(row) - set(schema.names):
            raise KeyError(f"no column {', '.join(sorted(unknown))}")
    return pa.Table.from_arrays([_column(rows, field) for field in schema], schema=schema)


def _column(rows: Rows, field: pa.Field) -> pa.Array:
    values: Iterable[Any] = (row.get(field.name) for row in rows)
    if pa.types.is_map(field.type):
        values = (None if value is None else list(value.items()) for value in values)
    return pa.array(list(values), field.type)


def existing(path: str) -> DeltaTable:
    """The table at ``path`` as of now.

    :raises FixConfiguration: there is none.
    """
    table = open_table(path)
    if table is None:
        raise FixConfiguration(
            f"there is no Delta table at {path}",
            why="it was deleted or moved",
            remedy="put it back; a run creates tables that are missing at its start only",
        )
    return table


def has(table: DeltaTable, txn: Txn) -> bool:
    """Whether the table has this transaction, or a later one of the same application."""
    known = table.transaction_version(txn.app_id)
    return known is not None and known >= txn.version


def schema_of(table: DeltaTable) -> pa.Schema:
    """The table's columns as Arrow types."""
    return pa.schema(table.schema().to_arrow())


def _commit(
    txn: Txn | None, metadata: Mapping[str, Any] | None, retries: int | None = None
) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata=None if metadata is None else {"userMetadata": json.dumps(metadata, sort_keys=True)},
        max_commit_retries=retries,
        app_transactions=None if txn is None else [Transaction(txn.app_id, txn.version)],
    )


def _filter(where: Mapping[str, Any] | None) -> pc.Expression | None:
    found: pc.Expression | None = None
    for name, wanted in (where or {}).items():
        term = _term(pc.field(name), wanted)
        found = term if found is None else found & term
    return found


def _term(field: pc.Expression, wanted: Any) -> pc.Expression:
    if isinstance(wanted, tuple):
        _, bound = wanted
        return field > pa.scalar(bound)
    return field.is_null() if wanted is None else field == pa.scalar(wanted)
