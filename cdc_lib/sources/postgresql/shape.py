"""From the catalog's tables to captured tables: filters, key choice and column types applied."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_lib.errors import FixConfiguration
from cdc_lib.pipeline import SourceConfig
from cdc_lib.schema import Column, Identity, Table, TableId
from cdc_lib.sources.postgresql.catalog import Attribute, Relation
from cdc_lib.sources.postgresql.types import ColumnType, Handling, TypeCatalog, column_type


@dataclass(frozen=True)
class Shape:
    """What the configuration says about the form of captured tables."""

    config: SourceConfig

    @property
    def handling(self) -> Handling:
        return Handling(
            decimal=self.config["decimal.handling.mode"],
            time=self.config["time.precision.mode"],
            binary=self.config["binary.handling.mode"],
        )

    def key(self, relation: Relation) -> tuple[str, ...]:
        """``message.key.columns`` if it names this table, else the table's own key."""
        return self.config.key_columns(relation.id) or relation.natural_key

    def keeps(self, relation: Relation, name: str) -> bool:
        """Whether a column is captured. Generated columns are not in the log; key columns always stay."""
        if relation.attribute(name).generated:
            return False
        return name in self.key(relation) or self.config.keeps(relation.id, name)

    def table(self, relation: Relation, types: TypeCatalog) -> Table:
        """The captured form of a table.

        :raises FixConfiguration: ``message.key.columns`` names a column that cannot be a key column.
        """
        key = self.key(relation)
        assert_key(relation, key)
        columns = tuple(
            Column(
                attribute.name,
                held.arrow,
                held.source_type,
                nullable=not attribute.not_null,
                comment=attribute.comment,
                default=attribute.default,
            )
            for attribute, held in self.columns(relation, types)
        )
        return Table(relation.id, columns, key=key, identity=relation.identity, comment=relation.comment)

    def columns(self, relation: Relation, types: TypeCatalog) -> list[tuple[Attribute, ColumnType]]:
        """The captured columns in the table's order, and how each is held."""
        return [
            (attribute, self._held(relation, attribute, types))
            for attribute in relation.attributes
            if self.keeps(relation, attribute.name)
        ]

    def _held(self, relation: Relation, attribute: Attribute, types: TypeCatalog) -> ColumnType:
        asked = self.config.column_type(relation.id, attribute.name)
        return column_type(attribute.type_oid, attribute.typmod, types, self.handling, asked)


def assert_key(relation: Relation, key: tuple[str, ...]) -> None:
    """A chosen key exists, and the log carries it for every update and delete.

    :raises FixConfiguration: it does not.
    """
    captured = {attribute.name for attribute in relation.attributes if not attribute.generated}
    if missing := [name for name in key if name not in captured]:
        raise FixConfiguration(
            f"message.key.columns: {relation.id} has no column {', '.join(missing)}",
            why="the column does not exist or is generated, and generated columns are not in the log",
            remedy=f"name columns among {', '.join(sorted(captured))}",
        )
    if relation.identity is Identity.KEY and not set(key) <= set(relation.logged_key):
        raise FixConfiguration(
            f"message.key.columns: the key of {relation.id} is not in the log",
            why=f"with its replica identity, updates and deletes carry only {', '.join(relation.logged_key)}",
            remedy=f"ALTER TABLE {quoted(relation.id)} REPLICA IDENTITY FULL, or drop the entry",
        )


def quoted(table: TableId) -> str:
    """The name for SQL text that people paste; statements we run are composed by the driver."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in (table.schema, table.name))
