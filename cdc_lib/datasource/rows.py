"""The rows that the format gives: bronze's envelope, without what only a batch of ``cdc run`` has.

``_position`` is the sort key of the commit (or of the snapshot), ``_ordinal`` the row's place behind it:
together they order all changes of a table. No Spark here.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lib.change import change_schema
from cdc_lib.errors import FixConfiguration
from cdc_lib.nested_types import ddl, quoted
from cdc_lib.schema import Table

RENAMED = {"position": "_position", "ordinal": "_ordinal"}


def row_schema(table: Table, source: pa.DataType) -> pa.Schema:
    """Arrow schema of the rows; ``source`` is the engine's struct of position fields."""
    fields = change_schema(table, source)
    return pa.schema([field.with_name(RENAMED.get(field.name, field.name)) for field in fields])


def row_ddl(table: Table, source: pa.DataType) -> str:
    """The same for Spark."""
    return ", ".join(f"{quoted(field.name)} {ddl(field.type)}" for field in row_schema(table, source))


def rows_of(batch: pa.RecordBatch, declared: Table, held: Table, first: int = 0) -> pa.RecordBatch:
    """A change batch, read under the structure ``held``, as rows of the ``declared`` one.

    Columns that the structure did not have are NULL and listed as not carried, as in bronze.

    :param first: what to add to the ordinals.
    :raises FixConfiguration: the structure has more than was declared.
    """
    # Written for bronze's staged files, whose rows have the same problem.
    from cdc_lib.bronze_reader import conform

    refuse_unknown(declared, held)
    target = change_schema(declared, batch.schema.field("source").type)
    if first:
        place = batch.schema.get_field_index("ordinal")
        batch = batch.set_column(place, "ordinal", pc.add(batch.column(place), first))
    rows = conform(batch, target, held.version)
    schema = row_schema(declared, batch.schema.field("source").type)
    return pa.RecordBatch.from_arrays(rows.columns, schema=schema)


def refuse_unknown(declared: Table, held: Table) -> None:
    """:raises FixConfiguration: a column came, or changed its type, after the query was planned."""
    known = {column.name: column.type for column in declared.columns}
    differing = [column.name for column in held.columns if known.get(column.name) != column.type]
    if differing:
        raise FixConfiguration(
            f"{held.id} has columns that this query does not know as they are now: {', '.join(differing)}",
            why="its structure changed in the log; the rows of a query have the structure that the table had "
            "when the query started",
            remedy="start the query again, from its checkpoint; its target must take the new columns",
        )
