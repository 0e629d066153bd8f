"""What Unity Catalog knows of our tables beyond their columns: tags, and the primary key as information.

Tags come from the pipeline file (``tags:`` and ``pii:`` of a table rule) and are set before rows arrive, so
that a policy on them holds from the first row. The key tells optimiser and BI tools what a row is; it is not
enforced (RELY: it holds, since MERGE keeps it). Other catalogs have neither; that is said once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cdc_lib.delta import Lake, TableRef, literal
from cdc_lib.errors import FixConfiguration
from cdc_lib.nested_types import quoted

if TYPE_CHECKING:
    from cdc_lib.pipeline import TableRule
    from cdc_lib.silver import SilverTable

PII = "pii"
"""Tag of columns that ``pii:`` names; its value is ``true``."""
IMAGES = ("before", "after", "previous_key", "special")
"""Columns of bronze that hold the row's values: fields of a struct have no tags of their own."""

log = logging.getLogger("cdc_lib.unity")


class Governor:
    """Brings tables to what the pipeline file says of them. One for a run; safe for several threads."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._unity: bool | None = None
        self._done: set[str] = set()

    def bronze(self, ref: TableRef, rule: TableRule) -> None:
        """Set the tags of a bronze table, once a run.

        :raises FixConfiguration: the catalog refuses.
        """
        marked = {name: {PII: "true"} for name in IMAGES if rule.pii}
        if (rule.tags or marked) and ref.sql not in self._done and self._is_unity(ref):
            for statement in self._tags(ref, rule.tags, marked):
                self._say(ref, statement)
            self._done.add(ref.sql)

    def silver(self, target: SilverTable, rule: TableRule) -> None:
        """Set tags and key of a silver table, as its structure is now.

        :raises FixConfiguration: the catalog refuses.
        """
        ref = target.silver
        if self._is_unity(ref):
            marked = {name: {PII: "true"} for name in rule.pii if name in target.table.names}
            for statement in (*self._tags(ref, rule.tags, marked), *self._key(target)):
                self._say(ref, statement)

    def _is_unity(self, ref: TableRef) -> bool:
        if self._unity is None:
            self._unity = is_unity(self._lake, ref)
            if not self._unity:
                log.info("no Unity Catalog here: tags and informational keys are left out")
        return self._unity

    def _tags(
        self, ref: TableRef, tags: Mapping[str, str], columns: Mapping[str, Mapping[str, str]]
    ) -> Iterator[str]:
        """Statements for the tags that are not there yet. Those that somebody else set stay."""
        if not (tags or columns):
            return
        held, held_columns = self._held_tags(ref)
        if missing := dict(tags.items() - held.items()):
            yield f"ALTER TABLE {ref.sql} SET TAGS ({_pairs(missing)})"
        for column, wanted in columns.items():
            if missing := dict(wanted.items() - held_columns.get(column, {}).items()):
                yield f"ALTER TABLE {ref.sql} ALTER COLUMN {quoted(column)} SET TAGS ({_pairs(missing)})"

    def _held_tags(self, ref: TableRef) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        views = f"{quoted(ref.catalog or '')}.information_schema"
        where = f"WHERE schema_name = {literal(ref.schema)} AND table_name = {literal(ref.name)}"
        table = self._lake.execute(f"SELECT tag_name, tag_value FROM {views}.table_tags {where}")  # noqa: S608
        found = self._lake.execute(
            f"SELECT column_name, tag_name, tag_value FROM {views}.column_tags {where}"  # noqa: S608
        )
        columns: dict[str, dict[str, str]] = {}
        for row in found:
            columns.setdefault(row["column_name"], {})[row["tag_name"]] = row["tag_value"]
        return {row["tag_name"]: row["tag_value"] for row in table}, columns

    def _key(self, target: SilverTable) -> Iterator[str]:
        """Statements that make the table's key the one of the source; none if it is."""
        wanted = key_of(target)
        held = self._held_key(target.silver)
        alter = f"ALTER TABLE {target.silver.sql}"
        if held == wanted:
            return
        nullable = {field.name: field.nullable for field in self._lake.fields(target.silver)}
        if held:
            yield f"{alter} DROP PRIMARY KEY IF EXISTS CASCADE"
        # A column that was dropped at the source stays here, and is NULL from now on.
        for name in held:
            if name not in wanted and nullable.get(name) is False:
                yield f"{alter} ALTER COLUMN {quoted(name)} DROP NOT NULL"
        for name in wanted:
            if nullable[name]:
                yield f"{alter} ALTER COLUMN {quoted(name)} SET NOT NULL"
        if wanted:
            yield f"{alter} ADD PRIMARY KEY ({', '.join(map(quoted, wanted))}) RELY"

    def _held_key(self, ref: TableRef) -> tuple[str, ...]:
        views = f"{quoted(ref.catalog or '')}.information_schema"
        same = " AND ".join(
            f"c.{name} = k.{name}" for name in ("constraint_schema", "constraint_name", "table_name")
        )
        rows = self._lake.execute(
            f"SELECT k.column_name, k.ordinal_position FROM {views}.key_column_usage k "  # noqa: S608
            f"JOIN {views}.table_constraints c ON {same} "
            f"WHERE c.constraint_type = 'PRIMARY KEY' AND k.table_schema = {literal(ref.schema)} "
            f"AND k.table_name = {literal(ref.name)}"
        )
        return tuple(row["column_name"] for row in sorted(rows, key=lambda row: int(row["ordinal_position"])))

    def _say(self, ref: TableRef, statement: str) -> None:
        from pyspark.errors import PySparkException

        try:
            self._lake.execute(statement)
        except PySparkException as error:
            raise FixConfiguration(
                f"Unity Catalog refuses a tag or a key of {ref}",
                why=f"{error.getCondition() or type(error).__name__}: {statement}",
                remedy="whoever runs this must own the table, and may need ASSIGN on a governed tag; or take "
                "the tag out of the table's rule",
            ) from error


def is_unity(lake: Lake, ref: TableRef) -> bool:
    """Whether the table's catalog is one of Unity Catalog on Databricks."""
    from pyspark.errors import PySparkException

    if ref.catalog in (None, "spark_catalog", "hive_metastore"):
        return False
    try:
        lake.execute("SELECT current_metastore()")
    except PySparkException:
        # A function that only Databricks has.
        return False
    return True


def key_of(target: SilverTable) -> tuple[str, ...]:
    """What identifies a row of silver; empty if that may be NULL, which a primary key may not."""
    columns = [target.table.column(name) for name in target.table.key]
    if not columns or any(column.nullable for column in columns):
        return ()
    return (*target.table.key, *([target.sequence] if target.history else []))


def _pairs(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in sorted(tags.items()))
