"""What a pipeline file says, as typed and frozen values: what to read, where to put it, and how.

``config.py`` makes them from a file. Passwords are references (``secrets.py``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from cdc_lib.properties import expression, matches, property_table
from cdc_lib.schema import Table, TableId
from cdc_lib.secrets import SecretRef
from cdc_lib.types import arrow_type, spark_type
from cdc_lib.yaml_source import Remark


@dataclass(frozen=True, repr=False)
class SourceConfig:
    """The ``source:`` section: Debezium's properties, typed, with the defaults of ours.

    ``engine`` is canonical (``postgresql``); ``name`` is the pipeline's name, Debezium's topic.prefix.
    ``rules`` are the file's table rules, whose column types the source gives its columns; ``window_bytes`` is
    how much log it opens at once.
    """

    engine: str
    name: str
    values: Mapping[str, Any]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, compare=False)
    rules: tuple[TableRule, ...] = ()
    window_bytes: int = 1 << 30

    def __getitem__(self, prop: str) -> Any:
        """The typed value, or the default.

        :raises KeyError: no such property exists; a mistake in the program, not in the file.
        """
        row = property_table(self.engine)[prop]
        if prop in self.values:
            return self.values[prop]
        return row.derived(self.name) if row.derived else row.default

    def is_set(self, prop: str) -> bool:
        """Whether the file gives the property; KeyError as above."""
        return property_table(self.engine)[prop] is not None and prop in self.values

    def secret(self, prop: str) -> str | None:
        """A password, resolved now; None if the file gives none.

        :raises FixConfiguration: what its reference names is missing or cannot be read.
        """
        value = self[prop]
        return value.resolve(self.environ) if isinstance(value, SecretRef) else value

    def captures(self, table: TableId) -> bool:
        """Whether the schema and table filters let a table through."""
        return self._passes("schema", table.schema) and self._passes("table", str_of(table))

    def keeps(self, table: TableId, column: str) -> bool:
        """Whether the column filters let a column through. Key columns are kept whatever this says."""
        return self._passes("column", f"{str_of(table)}.{column}")

    def captures_message(self, prefix: str) -> bool:
        """Whether the filters let logical messages with this prefix through."""
        return self._passes("message.prefix", prefix)

    def key_columns(self, table: TableId) -> tuple[str, ...] | None:
        """The key that ``message.key.columns`` gives a table, or None."""
        entries = self["message.key.columns"]
        return next((columns for pattern, columns in entries if matches([pattern], str_of(table))), None)

    def rule(self, table: TableId) -> TableRule:
        """The first rule that matches the table, or one with the defaults."""
        return rule_for(self.rules, table)

    def column_type(self, table: TableId, column: str) -> pa.DataType | None:
        """The type that the file gives a column, or None."""
        text = self.rule(table).columns.get(column)
        return None if text is None else arrow_type(text)

    def _passes(self, kind: str, name: str) -> bool:
        include, exclude = self[f"{kind}.include.list"], self[f"{kind}.exclude.list"]
        return (not include or matches(include, name)) and not matches(exclude, name)

    def __repr__(self) -> str:
        return f"SourceConfig({self.engine}, {self.name!r}, sets {', '.join(sorted(self.values))})"

    def __reduce__(self) -> tuple[Any, ...]:
        # The environment stays behind: it holds the passwords that the references name.
        return _source_config, (self.engine, self.name, dict(self.values), self.rules, self.window_bytes)


def _source_config(
    engine: str, name: str, values: dict[str, Any], rules: tuple[TableRule, ...], window_bytes: int
) -> SourceConfig:
    return SourceConfig(engine, name, values, rules=rules, window_bytes=window_bytes)


def str_of(table: TableId) -> str:
    """The name that filters are matched against: schema and table with a dot between, without quotes."""
    return f"{table.schema}.{table.name}"


# -- the other sections; messages never repeat a value, since it may come from a reference ----------------


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a whole number")
    return value


def _layer(value: Any) -> Any:
    if isinstance(value, str) and not value.replace("_", "a").replace("-", "a").isalnum():
        raise ValueError("expected a name of letters, digits, _ and -")
    return value


def _local_path(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("expected a path")
    if isinstance(value, str) and "://" in value:
        raise ValueError("expected a path of this machine; tables in cloud storage need a catalog")
    return value


def _match(value: Any) -> Any:
    if isinstance(value, str):
        try:
            expression(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
    return value


def _column_type(value: Any) -> Any:
    if isinstance(value, Mapping):
        raise ValueError(
            "masks are not yet supported; ignoring one would write values that were to be hidden"
        )
    if not isinstance(value, str):
        return value
    try:
        return spark_type(arrow_type(value))
    except ValueError:
        pass
    raise ValueError("not a column type; write it as Spark does: BIGINT, STRING, DECIMAL(38,9), ARRAY<INT>")


Count = Annotated[int, Field(gt=0), BeforeValidator(_number)]
Layer = Annotated[str, BeforeValidator(_layer)]
LocalPath = Annotated[Path, BeforeValidator(_local_path)]

LOCAL_CATALOG = "spark_catalog"
"""Spark's own catalog; a staging folder is not needed with it, since everything is on one machine."""


class Target(_Section):
    """Where tables go: under a path, one folder a layer, or in the schemas of a catalog.

    ``staging`` is a folder that driver and workers both reach, for rows on their way to bronze.
    """

    path: LocalPath | None = Field(default=None, description="Folder of the tables, on a laptop.")
    catalog: Layer | None = Field(default=None, description="Catalog of the tables, on Databricks.")
    bronze: Layer = Field(default="bronze", description="Schema of the change rows.")
    silver: Layer = Field(default="silver", description="Schema of the tables that look like the source's.")
    control: Layer = Field(default="control", description="Schema of the control tables.")
    staging: LocalPath | None = Field(default=None, description="Folder for rows on their way to bronze.")
    writer: Literal["direct", "spark"] | None = Field(
        default=None,
        description="What appends to bronze: this process with delta-rs, or Spark. Default: direct under a "
        "path, spark in a catalog, which takes nothing else.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.path is None) == (self.catalog is None):
            raise ValueError("expected either path or catalog")
        if len({self.bronze.lower(), self.silver.lower(), self.control.lower()}) < 3:
            raise ValueError("bronze, silver and control must be three different names")
        if self.catalog is not None and self.writer == "direct":
            raise ValueError("with a catalog, writer must be spark: only Spark writes its tables")
        if self.catalog not in (None, LOCAL_CATALOG) and self.staging is None:
            raise ValueError(
                "with a catalog, staging is required: a folder such as /Volumes/main/shop_cdc/staging"
            )
        return self

    @property
    def direct(self) -> bool:
        """Whether bronze is written without Spark."""
        return self.path is not None and self.writer != "spark"


class TableRule(_Section):
    """What holds for the tables whose ``schema.table`` the expression ``match`` matches as a whole."""

    match: Annotated[str, BeforeValidator(_match)] = Field(
        description="Expression, as in table.include.list."
    )
    scd: Literal[1, 2] = Field(
        default=1, description="History kept in silver: 1, the rows as they are; 2, every version of a row."
    )
    delete: Literal["hard", "soft"] = Field(default="hard", description="What a delete does to silver's row.")
    columns: Mapping[str, Annotated[str, BeforeValidator(_column_type)]] = Field(
        default_factory=dict, description="Spark types of columns, instead of those of the type table."
    )
    comment: str | None = Field(
        default=None, description="Comment of silver's table, if the source has none."
    )
    comments: Mapping[str, str] = Field(
        default_factory=dict, description="Comments of silver's columns that have none at the source."
    )
    tags: Mapping[str, str] = Field(
        default_factory=dict, description="Tags of the tables, set in Unity Catalog alone."
    )
    pii: tuple[str, ...] = Field(
        default=(),
        description="Columns with personal data: tagged `pii` in Unity Catalog, as are the rows in bronze.",
    )

    def described(self, table: Table) -> Table:
        """The table with this rule's comments where the source has none."""
        columns = tuple(
            replace(column, comment=column.comment or self.comments.get(column.name))
            for column in table.columns
        )
        return replace(table, columns=columns, comment=table.comment or self.comment)

    def unknown_columns(self, table: Table) -> list[str]:
        """Columns that this rule describes and the table does not have."""
        return sorted({*self.pii, *self.comments} - set(table.names))


class ApplyConfig(_Section):
    """How bronze becomes silver."""

    mode: Literal["merge", "declarative"] = Field(
        default="merge",
        description="merge: changes are merged into silver by the run itself; declarative: silver is left to "
        "a declarative pipeline (docs/declarative.md).",
    )


class Limits(_Section):
    """How much at once; none of these changes what is written, only how."""

    batch_rows: Count = Field(default=1_000_000, description="Rows after which a batch ends, about.")
    window_mb: Count = Field(default=1024, description="Log read in one go, in MiB.")
    chunk_rows: Count = Field(default=250_000, description="Rows of one piece of a snapshot, about.")
    threads: Count = Field(default=2, description="Connections that read a snapshot at once.")
    snapshot: Literal["incremental", "consistent"] = Field(
        default="incremental",
        description="How tables are read whole: piece by piece while changes flow, or in one view.",
    )
    snapshot_on: Literal["driver", "executors"] = Field(
        default="driver",
        description="Where pieces are read: by threads of the run's own process, or by Spark tasks, whose "
        "machines must reach the source and target.staging.",
    )
    lease_seconds: Count = Field(default=60, description="How long a silent runner keeps the pipeline.")
    poll_seconds: Count = Field(default=5, description="Pause between the batches of run --continuous.")
    commit_threads: Count = Field(default=4, description="Tables that are written at once.")


class Upkeep(_Section):
    """What ``cdc maintain`` keeps."""

    keep_days: Count = Field(
        default=90, description="Age from which on rows of control tables go that nothing needs any more."
    )
    vacuum_hours: Count = Field(
        default=168,
        description="Age from which on files go that no version of a table names. Below 168, a week, only "
        "with cdc maintain --force.",
    )


_ANY_TABLE = TableRule(match=".*")
_ONLY_SAID = {"comment", "comments", "tags", "pii"}
"""Of a rule, what is said about a table and changes no row."""


def rule_for(rules: Sequence[TableRule], table: TableId) -> TableRule:
    """The first of the rules that matches the table, or one with the defaults."""
    return next((rule for rule in rules if matches([rule.match], str_of(table))), _ANY_TABLE)


@dataclass(frozen=True)
class Layout:
    """What a pipeline file says of its tables, and not of its source: enough for who never connects."""

    name: str
    target: Target
    rules: tuple[TableRule, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """One pipeline file. ``notices``: what is accepted without effect, or worth a second look."""

    name: str
    source: SourceConfig
    target: Target
    apply: ApplyConfig = field(default_factory=ApplyConfig)
    run: Limits = field(default_factory=Limits)
    path: Path | None = None
    notices: tuple[Remark, ...] = ()
    maintain: Upkeep = field(default_factory=Upkeep)

    @property
    def staging(self) -> Path:
        """Folder of this pipeline for rows on their way to bronze: as given, else beside the tables."""
        if self.target.staging is not None:
            return self.target.staging / self.name
        beside = self.target.path or Path.home() / ".cache" / "cdc_lib"
        return beside.absolute() / "_staging" / self.name

    def rule(self, table: TableId) -> TableRule:
        """The first rule that matches the table, or one with the defaults."""
        return self.source.rule(table)

    @property
    def tables(self) -> tuple[TableRule, ...]:
        return self.source.rules

    def fingerprint(self) -> str:
        """Hash of everything that decides what rows look like: filters, keys, types, rules.

        Not of addresses, passwords and limits; a property that is set to its default changes nothing.
        """
        shaping = (row.name for row in property_table(self.source.engine).rows if row.shapes)
        content = {
            "engine": self.source.engine,
            "source": {name: self.source[name] for name in shaping},
            "tables": [rule.model_dump(mode="json", exclude=_ONLY_SAID) for rule in self.tables],
            "apply": self.apply.model_dump(mode="json"),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=sorted).encode()).hexdigest()
