"""The format ``cdc``: what Spark asks first, and which reader answers the rest.

Spark pickles these objects and sends them to Python processes of its own. So they hold plain values; every
connection is opened, and every password looked up, where rows are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from cdc_lib.datasource.options import CdcOptions, read_options
from cdc_lib.datasource.rows import row_ddl
from cdc_lib.errors import RetryLater
from cdc_lib.schema import Table
from cdc_lib.source import open_source

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class CdcDataSource(DataSource):  # type: ignore[misc]
    """``format("cdc")``. Options: ``pipeline``, path of a pipeline file, or properties of a source by
    their names; ``table``; ``chunkRows`` and ``onePosition`` for batch reads; ``maxBytesPerTrigger`` for
    streams."""

    @classmethod
    def name(cls) -> str:
        return "cdc"

    def schema(self) -> str:
        options = read_options(self.options)
        with open_source(options.source) as source:
            return row_ddl(source.describe(options.table), source.source_type)

    def reader(self, schema: StructType) -> DataSourceReader:
        from cdc_lib.datasource.batch import TableReader

        options = read_options(self.options)
        return TableReader(options, _described(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from cdc_lib.datasource.stream import ChangeReader

        options = read_options(self.options).for_stream()
        return ChangeReader(options, _described(options, schema))


def _described(options: CdcOptions, schema: StructType) -> Table:
    """The table's structure, which must be the one that Spark was told."""
    with open_source(options.source) as source:
        table = source.describe(options.table)
    if tuple(schema["after"].dataType.fieldNames()) != table.names:
        raise RetryLater(
            f"{options.table} changed its structure while the query was planned", remedy="start it again"
        )
    return table
