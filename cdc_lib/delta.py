"""The one door to Delta tables: create, append, DML with transaction ids, rows, history.

Tables lie under a path, one folder a layer, or in the schemas of a catalog. Spark is used in SQL and
DataFrame calls alone, so that the same code runs on a laptop, a cluster, Spark Connect and serverless. On a
path, control tables and everything a status needs are read and written without a JVM (``delta_direct``,
``delta_log``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdc_lib import delta_direct as direct
from cdc_lib import delta_log as log
from cdc_lib.delta_direct import Conflict, Rows, Txn
from cdc_lib.delta_log import ROWS_UNCHANGED, Commit, parse_metadata, restored_version
from cdc_lib.errors import FixConfiguration
from cdc_lib.nested_types import arrow_of_json, ddl_of_json, quoted
from cdc_lib.own_sessions import OwnSessions, conflicts, view_name
from cdc_lib.spark_session import session
from cdc_lib.table_ref import Field, Layer, TableRef, arrow_schema, literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdc_lib.config import Target

__all__ = ["Commit", "Conflict", "Field", "Lake", "Layer", "TableRef", "Txn", "literal", "view_name"]

_TXN_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_GLOB = frozenset("*?[]{},\\")
"""Characters by which Spark takes a path of plain files for a pattern."""
_FEATURES = ("delta.enable", "delta.columnMapping")
"""Properties that bring table features along, which Spark sets up."""
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class Lake:
    """The tables of one target. Spark starts when something first needs it. Safe for several threads."""

    def __init__(self, target: Target, session: Callable[[], SparkSession] = session) -> None:
        self._target = target
        self._open_session = session
        self._session: SparkSession | None = None
        self._own = OwnSessions(lambda: self.spark)
        self._lock = threading.RLock()
        self._takes_txn: bool | None = None

    @property
    def spark(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                self._session = self._open_session()
            return self._session

    def ref(self, layer: Layer, name: str) -> TableRef:
        """The table ``name`` of a layer; it need not exist."""
        schema: str = getattr(self._target, layer)
        if self._target.path is None:
            return TableRef(layer, name, None, self._target.catalog, schema)
        path = Path(self._target.path).absolute() / schema / name
        return TableRef(layer, name, str(path), None, schema)

    def tables(self, layer: Layer) -> list[TableRef]:
        """The tables that exist in a layer, whoever made them; in a catalog also views."""
        schema: str = getattr(self._target, layer)
        if self._target.path is not None:
            folders = (Path(self._target.path).absolute() / schema).glob("*/_delta_log")
            return [self.ref(layer, folder.parent.name) for folder in sorted(folders)]
        within = ".".join(quoted(part) for part in (self._target.catalog or "", schema) if part)
        if not self.spark.catalog.databaseExists(within):
            return []
        rows = self.spark.sql(f"SHOW TABLES IN {within}").collect()
        return [self.ref(layer, row.tableName) for row in rows if not row.isTemporary]

    # -- what a table is

    def exists(self, ref: TableRef) -> bool:
        if ref.path is not None:
            return bool(log.versions(ref.path))
        return bool(self.spark.catalog.tableExists(ref.sql))

    def create(
        self,
        ref: TableRef,
        fields: Sequence[Field],
        *,
        comment: str | None = "",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create an empty table unless it exists."""
        if self.exists(ref):
            return
        if self._creates_directly(ref, properties or {}):
            direct.create(str(ref.path), arrow_schema(fields), comment or "", properties or {})
            return
        # Unity Catalog may refuse even IF NOT EXISTS to those who need not create schemas.
        if ref.path is None and not self.spark.catalog.databaseExists(ref.schema_sql):
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {ref.schema_sql}").collect()
        columns = ", ".join(field.sql for field in fields)
        statement = f"CREATE TABLE IF NOT EXISTS {ref.sql} ({columns}) USING DELTA"
        if comment:
            statement += f" COMMENT {literal(comment)}"
        if properties:
            pairs = (f"{literal(key)} = {literal(value)}" for key, value in properties.items())
            statement += f" TBLPROPERTIES ({', '.join(pairs)})"
        self.spark.sql(statement).collect()

    def _creates_directly(self, ref: TableRef, properties: Mapping[str, str]) -> bool:
        plain = not any(name.startswith(_FEATURES) for name in properties)
        return _is_direct(ref) or (ref.path is not None and self._target.direct and plain)

    def takes_files(self, ref: TableRef) -> bool:
        """Whether files of rows may be added to the table past Spark (``target.writer``)."""
        return ref.path is not None and self._target.direct and direct.takes_files(ref.path)

    def properties(self, ref: TableRef) -> dict[str, str]:
        """The table's properties; empty if it does not exist."""
        if ref.path is not None:
            table = direct.open_table(ref.path)
            return {} if table is None else dict(table.metadata().configuration)
        if not self.exists(ref):
            return {}
        return {row[0]: row[1] for row in self.spark.sql(f"SHOW TBLPROPERTIES {ref.sql}").collect()}

    def fields(self, ref: TableRef) -> list[Field]:
        """The table's columns as they are now."""
        return [
            Field(
                field["name"],
                ddl_of_json(field["type"]),
                field["metadata"].get("comment"),
                field["nullable"],
            )
            for field in self._schema_json(ref)["fields"]
        ]

    def plain_bytes(self, ref: TableRef) -> int | None:
        """Size of the newest version's files on a path; None in a catalog, or if the table uses features
        beyond plain files of rows."""
        if ref.path is None or not direct.takes_files(ref.path):
            return None
        return direct.size(ref.path)

    def arrow_schema(self, ref: TableRef) -> pa.Schema:
        """The table's columns as they are now, as Arrow types."""
        fields = self._schema_json(ref)["fields"]
        return pa.schema([pa.field(field["name"], arrow_of_json(field["type"])) for field in fields])

    def _schema_json(self, ref: TableRef) -> dict[str, Any]:
        if ref.path is not None:
            table = direct.open_table(ref.path)
            if table is not None:
                found: dict[str, Any] = json.loads(table.schema().to_json())
                return found
        parsed: dict[str, Any] = json.loads(self.table(ref).schema.json())
        return parsed

    # -- writing

    def append(
        self,
        ref: TableRef,
        frame: DataFrame,
        *,
        txn: Txn | None = None,
        metadata: Mapping[str, Any] | None = None,
        merge_schema: bool = False,
    ) -> None:
        """Append a frame; in silence nothing if the table has ``txn`` or a later version of it already.

        :raises Conflict: somebody committed at the same time what does not go together with this.
        """
        options: dict[str, str] = {}
        if txn is not None:
            options |= {"txnAppId": txn.app_id, "txnVersion": str(txn.version)}
        if metadata is not None:
            options["userMetadata"] = json.dumps(metadata, sort_keys=True)
        if merge_schema:
            options["mergeSchema"] = "true"
        writer = frame.write.format("delta").mode("append").options(**options)
        with conflicts(ref.sql):
            if ref.path is not None:
                writer.save(ref.path)
            else:
                writer.saveAsTable(ref.sql)

    def append_rows(
        self,
        ref: TableRef,
        rows: Rows,
        *,
        txn: Txn | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a few rows to a control table; absent columns are NULL. ``txn`` as in :meth:`append`."""
        if _is_direct(ref):
            direct.append(str(ref.path), rows, txn, metadata)
        else:
            self.append(ref, self._frame(ref, rows, self.spark), txn=txn, metadata=metadata)

    def upsert_rows(
        self,
        ref: TableRef,
        rows: Rows,
        keys: Sequence[str],
        *,
        txn: Txn | None = None,
        version: str | None = None,
    ) -> None:
        """Replace the rows with equal ``keys`` and insert the others, in one commit.

        :param version: a column that must be greater than in the row that is replaced, else nothing happens:
            compare and swap that also holds where a platform takes no ``txn``.
        :raises Conflict: somebody changed the same rows at the same time.
        """
        if _is_direct(ref):
            direct.upsert(str(ref.path), rows, keys, txn, version)
            return
        condition = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)
        newer = f" AND t.{quoted(version)} < s.{quoted(version)}" if version else ""
        given = view_name()
        self.execute(
            f"MERGE INTO {ref.sql} t USING {given} s ON {condition} "
            f"WHEN MATCHED{newer} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            txn=txn if txn is not None and self.supports_dml_txn else None,
            views={given: self._frame(ref, rows, self.spark)},
        )

    def execute(
        self,
        statement: str,
        *,
        txn: Txn | None = None,
        metadata: Mapping[str, Any] | None = None,
        views: Mapping[str, DataFrame] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Run one statement, in a session of its own if it needs settings; its result rows (for DML, Delta's
        counts).

        :param txn: the statement changes nothing if its table has this version, or a later one, already.
        :param metadata: noted with the commit where the platform takes such a setting (``supports_dml_txn``).
        :param settings: of the session, for this statement alone.
        :param views: frames that the statement may name, by names that nobody else uses (``view_name``).
        :raises Conflict: somebody changed the same rows at the same time.
        :raises FixConfiguration: ``txn`` is given and this platform does not take it (``supports_dml_txn``).
        """
        if txn is not None and not self.supports_dml_txn:
            raise FixConfiguration(
                "this Spark does not take transaction ids for MERGE, UPDATE and DELETE",
                why=f"it refuses the setting {_TXN_ID}",
                remedy="run on a cluster that does",
            )
        settings = dict(settings or {})
        if txn is not None:
            settings |= {_TXN_ID: txn.app_id, _TXN_VERSION: str(txn.version)}
        if metadata is not None and self.supports_dml_txn:
            settings[_USER_METADATA] = json.dumps(metadata, sort_keys=True)
        with conflicts(statement), self._own.using(settings, views or {}) as spark:
            rows = spark.sql(statement).collect()
        return [row.asDict(recursive=True) for row in rows]

    @property
    def supports_dml_txn(self) -> bool:
        """Whether MERGE, UPDATE and DELETE can carry a transaction id and metadata. These are settings of a
        session; serverless compute takes six, and these are not among them (``tests/serverless.py``)."""
        with self._lock:
            if self._takes_txn is None:
                probe = {_TXN_ID: "cdc-lib/probe", _TXN_VERSION: "0", _USER_METADATA: "{}"}
                self._takes_txn = self._own.accepts(probe)
            return self._takes_txn

    def sync(self, ref: TableRef, since_version: int) -> None:
        """Flush the versions after ``since_version`` to disk, on a path; elsewhere storage is durable."""
        if ref.path is not None:
            log.sync(ref.path, since_version)

    # -- reading

    def table(self, ref: TableRef) -> DataFrame:
        """The table as a frame of :attr:`spark`."""
        if ref.path is not None:
            found: DataFrame = self.spark.read.format("delta").load(ref.path)
        else:
            found = self.spark.table(ref.sql)
        return found

    def table_files(self, ref: TableRef, column: str, low: int, high: int) -> DataFrame:
        """At least the rows of the table with ``low <= column <= high``, the whole table if need be.

        On a path the files that can have them are looked up here: Spark's own way through the log of a table
        costs two jobs and half a second a query.
        """
        if ref.path is None or not _GLOB.isdisjoint(ref.path) or not direct.takes_files(ref.path):
            return self.table(ref)
        files = direct.files_with(ref.path, column, low, high)
        if not files:
            return self.table(ref)
        columns = ", ".join(f"{quoted(field.name)} {field.type}" for field in self.fields(ref))
        found: DataFrame = self.spark.read.schema(columns).parquet(*files)
        return found

    def plain_files(self, ref: TableRef) -> list[str] | None:
        """Paths of the newest version's files, where they alone are the table; None where it takes Spark to
        read it (in a catalog; deletion vectors, mapped columns)."""
        if ref.path is None or not direct.takes_files(ref.path):
            return None
        return direct.files(ref.path)

    def table_at(self, ref: TableRef, version: int) -> DataFrame:
        """The table as it was at a version, however often it is read."""
        if ref.path is not None:
            found: DataFrame = self.spark.read.format("delta").load(ref.path, versionAsOf=version)
            return found
        return self.spark.sql(f"SELECT * FROM {ref.sql} VERSION AS OF {int(version)}")  # noqa: S608  quoted

    def rows(
        self,
        ref: TableRef,
        columns: Sequence[str] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Rows whose columns equal ``where`` (or exceed it, given as ``(">", bound)``), in no order; none if
        the table does not exist."""
        if ref.path is not None:
            found = direct.read(ref.path, columns, where)
            if found is not None:
                return found
        elif not self.exists(ref):
            return []
        from pyspark.sql import functions as F

        frame = self.table(ref)
        for name, value in (where or {}).items():
            column = F.col(quoted(name))
            above = isinstance(value, tuple)
            frame = frame.where(column > F.lit(value[1]) if above else column.eqNullSafe(F.lit(value)))
        if columns is not None:
            frame = frame.select(*map(quoted, columns))
        return direct.to_rows(frame.toArrow())

    def history(self, ref: TableRef, since: int = 0, limit: int = 50) -> list[Commit]:
        """The newest commits from version ``since`` on, newest first."""
        if ref.path is not None:
            return log.commits(ref.path, since, limit)
        found = self.spark.sql(f"DESCRIBE HISTORY {ref.sql} LIMIT {int(limit)}").collect()
        return [
            Commit(
                version=row.version,
                operation=row.operation,
                metadata=parse_metadata(row.userMetadata),
                changes_data=row.operation not in ROWS_UNCHANGED,
                restored=restored_version(row.operation, row.operationParameters),
            )
            for row in sorted(found, key=lambda row: -int(row.version))
            if row.version >= since
        ]

    def version(self, ref: TableRef) -> int:
        """The newest version; -1 if the table does not exist."""
        if ref.path is not None:
            return max(log.versions(ref.path), default=-1)
        if not self.exists(ref):
            return -1
        return self.history(ref, limit=1)[0].version

    def transaction_version(self, ref: TableRef, app_id: str) -> int | None:
        """The newest transaction version of an application; None if none, or unreadable (in a catalog)."""
        return None if ref.path is None else direct.transaction_version(ref.path, app_id)

    def _frame(self, ref: TableRef, rows: Rows, spark: SparkSession) -> DataFrame:
        schema = self.table(ref).schema
        values = [tuple(row.get(name) for name in schema.fieldNames()) for row in rows]
        frame: DataFrame = spark.createDataFrame(values, schema)
        return frame


def _is_direct(ref: TableRef) -> bool:
    return ref.path is not None and ref.layer == "control"
