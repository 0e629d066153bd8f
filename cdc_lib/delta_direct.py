"""Small reads and writes of Delta tables on a local path with delta-rs: no JVM, milliseconds each.

Control tables on a path live here altogether. delta-rs writes a commit only if no other process wrote that
version (an atomic link), but does *not* skip a transaction version that it has already seen, and even lets
it go back. So every write with a :class:`Txn` reads the version on the very handle that commits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from cdc_lib.errors import FixConfiguration, RetryLater

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

COMPACT_EVERY = 100
"""Versions of a table after which its small files are put together."""

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
    )


def transaction_version(path: str, app_id: str) -> int | None:
    """The newest transaction version of an application in the table; None if there is none."""
    table = open_table(path)
    return None if table is None else table.transaction_version(app_id)


def read(
    path: str, columns: Sequence[str] | None, where: Mapping[str, Any] | None
) -> list[dict[str, Any]] | None:
    """Rows that equal ``where``; None if delta-rs cannot read this table (deletion vectors and the like)."""
    from deltalake.exceptions import DeltaProtocolError

    table = open_table(path)
    if table is None:
        return []
    try:
        dataset = table.to_pyarrow_dataset()
    except DeltaProtocolError:
        return None
    return to_rows(dataset.to_table(columns=columns and list(columns), filter=_filter(where)))


def append(path: str, rows: Rows, txn: Txn | None, metadata: Mapping[str, Any] | None) -> None:
    """Append rows; in silence none if ``txn`` is not newer than what the table has, as Spark does.

    :raises Conflict: the same transaction was committed meanwhile.
    """
    from deltalake import write_deltalake
    from deltalake.exceptions import CommitFailedError

    table = _existing(path)
    if txn is not None and _has(table, txn):
        return
    data = from_rows(rows, _schema(table))
    try:
        write_deltalake(table, data, mode="append", commit_properties=_commit(txn, metadata))
    except CommitFailedError as error:
        raise conflict(path) from error
    # Another process may be at it too; then its compaction does.
    with suppress(CommitFailedError):
        _compact_now_and_then(table)


def _compact_now_and_then(table: DeltaTable) -> None:
    """A file for each append: a thousand of them take seconds to read, so they are rewritten as one."""
    if table.version() % COMPACT_EVERY == 0:
        table.optimize.compact()


def upsert(path: str, rows: Rows, keys: Sequence[str], txn: Txn | None) -> None:
    """Replace the rows with equal ``keys``, insert the others, in one commit; ``txn`` as in :func:`append`.

    :raises Conflict: the rows, or the transaction, were changed meanwhile.
    """
    from deltalake.exceptions import CommitFailedError

    table = _existing(path)
    if txn is not None and _has(table, txn):
        return
    condition = " AND ".join(f'target."{key}" = source."{key}"' for key in keys)
    try:
        (
            table.merge(
                from_rows(rows, _schema(table)),
                predicate=condition,
                source_alias="source",
                target_alias="target",
                commit_properties=_commit(txn, None),
            )
            .when_matched_update_all()
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


def _existing(path: str) -> DeltaTable:
    table = open_table(path)
    if table is None:
        raise FixConfiguration(
            f"there is no Delta table at {path}",
            why="it was deleted or moved",
            remedy="put it back; a run creates tables that are missing at its start only",
        )
    return table


def _has(table: DeltaTable, txn: Txn) -> bool:
    known = table.transaction_version(txn.app_id)
    return known is not None and known >= txn.version


def _schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _commit(txn: Txn | None, metadata: Mapping[str, Any] | None) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata=None if metadata is None else {"userMetadata": json.dumps(metadata, sort_keys=True)},
        app_transactions=None if txn is None else [Transaction(txn.app_id, txn.version)],
    )


def _filter(where: Mapping[str, Any] | None) -> ds.Expression | None:
    found: ds.Expression | None = None
    for name, wanted in (where or {}).items():
        term = _term(ds.field(name), wanted)
        found = term if found is None else found & term
    return found


def _term(field: ds.Expression, wanted: Any) -> ds.Expression:
    if isinstance(wanted, tuple):
        _, bound = wanted
        return field > pa.scalar(bound)
    return field.is_null() if wanted is None else field == pa.scalar(wanted)
