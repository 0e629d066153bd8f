"""Bronze as AUTO CDC wants it: one row a change, with the values that hold after it.

What the merge can do and AUTO CDC cannot, because each row there stands for itself:

* a *value that is not known* (an unchanged large value, which the log leaves out) would become NULL. With
  Lakeflow's ``columns_to_update`` the row names the columns it carries, and the others stay as they are; only
  texts and bytes, since the server text of other values (``__special``) could not stay with them.
  ``ignore_null_updates`` would not do: it takes a real NULL for a value that is not known.
* a *truncate* needs ``apply_as_truncates``, which removes rows only from tables of SCD type 1.
* a row *created under a new key* lacks values that only the row under its old key has.

A row that cannot be expressed ends the update with an error, in the row's sequence, so that it is never
passed over. With ``unknown_listed``, values that are not known are NULL instead and the row lists their
columns in ``__unavailable``, as silver does where the merge knows no better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lib.declarative.specification import CARRIED, OP, TableFlow
from cdc_lib.silver.table import COMMITTED_AT, DELETED_AT, SEQUENCE, SPECIAL, UNAVAILABLE
from cdc_lib.types import spark_type

STRINGS = "array<string>"


@dataclass(frozen=True)
class Engine:
    """What AUTO CDC can be told here."""

    truncates: bool = False
    partial: bool = False
    history: bool = False


@dataclass(frozen=True)
class Changes:
    """The rows of one table's bronze as changes. ``carries``: rows say in ``__carried`` what they carry."""

    flow: TableFlow
    engine: Engine
    unknown_listed: bool = False

    @property
    def carries(self) -> bool:
        """Only where an earlier row has what a partial one leaves out; else that would be NULL, unlisted."""
        return self.engine.partial and self.flow.snapshotted and not self.flow.history

    @property
    def truncates(self) -> bool:
        return self.engine.truncates and not self.flow.history and not self.flow.soft

    def of(self, bronze: DataFrame) -> DataFrame:
        """The change rows; columns of the source first, in their order."""
        key = {name: self._key(name) for name in self.flow.table.key}
        columns = [
            (key[name] if name in key else self._value(name)).alias(name) for name in self.flow.table.names
        ]
        meta = [
            F.when(self._problem().isNotNull(), F.raise_error(self._problem()))
            .otherwise(F.col("_sequence"))
            .cast("bigint")
            .alias(SEQUENCE),
            F.timestamp_micros("source.ts_us").alias(COMMITTED_AT),
            *self._deleted_at(),
            F.when(F.size(self._open()) > 0, self._open()).alias(UNAVAILABLE),
            self._special().alias(SPECIAL),
            F.col("op").alias(OP),
            *([self._carried().alias(CARRIED)] if self.carries else []),
        ]
        return bronze.select(*columns, *meta)

    # -- values

    def _key(self, name: str) -> Column:
        after, before = self._image("after", name), self._image("before", name)
        elsewhere = (F.col("op") == "d") | _contains("after_unavailable", name)
        return F.when(elsewhere, before).otherwise(after)

    def _value(self, name: str) -> Column:
        """From ``after`` if it is there, else from ``before``; NULL under a structure without the column."""
        here = F.when(_contains("after_unavailable", name) | _deleted(), self._image("before", name))
        return F.when(self._known(name), here.otherwise(self._image("after", name)))

    def _image(self, image: str, name: str) -> Column:
        if name in self.flow.absent:
            return F.lit(None).cast(spark_type(self.flow.table.column(name).type))
        return F.col(image)[name]

    def _known(self, name: str) -> Column:
        since = self.flow.since.get(name, 1)
        return F.col("_schema_version") >= since if since > 1 else F.lit(True)

    def _unknown(self) -> Column:
        """Names of the columns whose values this row does not say; empty if it says all."""
        lists = F.coalesce("after_unavailable", F.array().cast(STRINGS))
        in_before = F.coalesce("before_unavailable", F.array().cast(STRINGS))
        rest = F.when(
            (F.col("op") == "u") & F.col("before").isNotNull(), F.array_intersect(lists, in_before)
        ).otherwise(lists)
        rest = F.when(_deleted(), in_before if self.flow.soft else F.array().cast(STRINGS)).otherwise(rest)
        versions = [part for name in self.flow.values for part in (F.lit(name), F.lit(self._since(name)))]
        if not versions:
            return F.array().cast(STRINGS)
        since = F.create_map(*versions)
        # Names of key columns, and of columns that are gone or did not exist then, say nothing.
        return F.filter(rest, lambda name: F.coalesce(since[name] <= F.col("_schema_version"), F.lit(False)))

    def _since(self, name: str) -> int:
        return self.flow.since.get(name, 1)

    def _special(self) -> Column:
        """Server text of values that their column cannot hold. A map has no order, which a history needs to
        tell versions apart, so it is JSON there."""
        entries = [F.struct(F.lit(name).alias("name"), self._text(name).alias("text")) for name in self._all]
        found = F.filter(F.array(*entries), lambda entry: entry["text"].isNotNull())
        texts = F.when(F.col("special").isNotNull() & (F.size(found) > 0), F.map_from_entries(found))
        return F.to_json(texts) if self.flow.history else texts

    @property
    def _all(self) -> tuple[str, ...]:
        return self.flow.table.names

    def _text(self, name: str) -> Column:
        special = F.col("special")
        in_update = (F.col("op") == "u") & _contains("after_unavailable", name)
        text = F.when(in_update, special[f"before.{name}"]).otherwise(special[name])
        return F.when(self._known(name), text)

    def _deleted_at(self) -> list[Column]:
        when = F.when(_deleted(), F.timestamp_micros("source.ts_us"))
        return [when.alias(DELETED_AT)] if self.flow.soft else []

    # -- what cannot be expressed

    def _kept(self) -> Column:
        """Columns whose values stay as an earlier row of the key set them. One that is created has none."""
        texts = [column.name for column in self.flow.table.columns if _is_text(column.type)]
        if not self.carries or not texts:
            return F.array().cast(STRINGS)
        kept = F.array_intersect(self._unknown(), _array(texts))
        return F.when(F.col("op") == "c", F.array().cast(STRINGS)).otherwise(kept)

    def _open(self) -> Column:
        """Columns whose values are not known and cannot be had."""
        return F.array_except(self._unknown(), self._kept()) if self.carries else self._unknown()

    def _carried(self) -> Column:
        """The columns that this row sets. What is listed as not known stays so until a whole row comes."""
        meta = [SEQUENCE, COMMITTED_AT, SPECIAL, *([DELETED_AT] if self.flow.soft else [])]
        every = [*self._all, *meta, UNAVAILABLE]
        partial = F.array_except(_array(every), F.array_append(self._kept(), UNAVAILABLE))
        lists = (F.size(self._kept()) == 0) | (F.size(self._open()) > 0)
        return F.when(lists, F.array_except(_array(every), self._kept())).otherwise(partial)

    def _problem(self) -> Column:
        """What is wrong with a row, NULL if nothing. Texts, never values."""
        flow = self.flow
        keys = _array(flow.table.key)
        held = F.coalesce(F.arrays_overlap(F.map_keys("special"), keys), F.lit(False))
        problem = F.when(held, F.lit(f"{flow.table.id}: {_NO_KEY}"))
        if not self.truncates:
            problem = problem.when(F.col("op") == "t", F.lit(f"{flow.table.id}: {_TRUNCATED}"))
        if not self.unknown_listed:
            problem = problem.when(F.size(self._open()) > 0, F.lit(f"{flow.table.id}: {_NOT_KNOWN}"))
        return problem


_NOT_KNOWN = (
    "a change lacks values that the log did not carry. Why: AUTO CDC would write NULL for them here. To do: "
    "ALTER TABLE ... REPLICA IDENTITY FULL keeps later changes whole; for those that bronze has, set "
    "cdc.not_known to list (NULL, and the column's name in __unavailable), or leave silver to cdc apply"
)
_TRUNCATED = (
    "the table was truncated. Why: AUTO CDC cannot express that here (SCD type 2, soft deletes, or no "
    "apply_as_truncates). To do: leave silver to cdc apply, or skipped.operations: t, if its rows may stay"
)
_NO_KEY = (
    "a key has a value that its column cannot hold. Why: rows would be taken for one another. To do: give "
    "the column another type (columns: {...: STRING}) under a new pipeline name"
)


def _is_text(kind: pa.DataType) -> bool:
    """Whether any value the server has fits, so that none has server text beside it."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _array(names: Sequence[str]) -> Column:
    return F.array(*map(F.lit, names))


def _contains(names: str, name: str) -> Column:
    return F.coalesce(F.array_contains(names, name), F.lit(False))


def _deleted() -> Column:
    return F.col("op") == "d"


def read_bronze(spark: SparkSession, flow: TableFlow) -> DataFrame:
    """Bronze as a stream. Commits that take rows away (a batch that is undone, upkeep) are passed over: what
    came with the rows comes again, under a higher sequence."""
    reader = spark.readStream.option("skipChangeCommits", "true")
    if flow.bronze.path is not None:
        return reader.format("delta").load(flow.bronze.path)
    return reader.table(flow.bronze.sql)
