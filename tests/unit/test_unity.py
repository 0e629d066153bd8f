"""Tags and keys in Unity Catalog: the statements that are said to a catalog that stands in for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from cdc_lib.config import TableRule
from cdc_lib.delta import Field, Lake
from cdc_lib.errors import FixConfiguration
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.silver import SilverTable
from cdc_lib.table_ref import Layer, TableRef
from cdc_lib.unity import Governor

TAGS = {"domain": "sales", "owner's": "ann"}


@dataclass
class StandIn:
    """Answers what Unity Catalog is asked about itself, and notes what it is told."""

    unity: bool = True
    table_tags: dict[str, str] = field(default_factory=dict)
    column_tags: dict[str, dict[str, str]] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    refuses: str = ""
    told: list[str] = field(default_factory=list)
    asked: int = 0

    def execute(self, statement: str) -> list[dict[str, Any]]:
        if statement.startswith("SELECT"):
            self.asked += 1
            return self._answer(statement)
        if self.refuses and self.refuses in statement:
            raise AnalysisException("denied")
        self.told.append(statement)
        return []

    def _answer(self, query: str) -> list[dict[str, Any]]:
        if "current_metastore" in query:
            if not self.unity:
                raise AnalysisException("there is no such function")
            return [{"current_metastore()": "aws:x:y"}]
        assert "`main`.information_schema." in query
        assert "'shop'" in query or "'shop_bronze'" in query
        if "table_tags" in query:
            return [{"tag_name": k, "tag_value": v} for k, v in self.table_tags.items()]
        if "column_tags" in query:
            return [
                {"column_name": column, "tag_name": k, "tag_value": v}
                for column, tags in self.column_tags.items()
                for k, v in tags.items()
            ]
        places = list(enumerate(self.key, start=1))
        # In no order, as SQL promises none.
        return [{"column_name": name, "ordinal_position": place} for place, name in reversed(places)]

    def fields(self, ref: TableRef) -> list[Field]:
        return [
            Field(n, "INT", nullable=n not in self.required)
            for n in ("id", "no", "old", "email", "__START_AT")
        ]

    def ref(self, layer: Layer, catalog: str = "main") -> TableRef:
        schema = {"bronze": "shop_bronze", "silver": "shop", "control": "shop_cdc"}[layer]
        return TableRef(layer, "public_t", None, catalog, schema)


def governor(catalog: StandIn) -> Governor:
    return Governor(cast(Lake, catalog))


def table(*key: str, nullable: bool = False) -> Table:
    columns = tuple(Column(name, pa.int32(), "integer", nullable=nullable) for name in ("id", "no", "email"))
    return Table(TableId("public", "t"), columns, key)


def silver(catalog: StandIn, kept: Table, **more: Any) -> SilverTable:
    where = {"bronze": catalog.ref("bronze"), "silver": catalog.ref("silver")}
    return SilverTable(kept, table_id="x", **{**where, **more})


def rule(**said: Any) -> TableRule:
    return TableRule(match=".*", **said)


T = "`main`.`shop`.`public_t`"
B = "`main`.`shop_bronze`.`public_t`"


class TestTags:
    def test_of_silver_and_its_columns(self) -> None:
        catalog = StandIn()
        governor(catalog).silver(silver(catalog, table()), rule(tags=TAGS, pii=["email", "gone"]))
        assert catalog.told == [
            f"ALTER TABLE {T} SET TAGS ('domain' = 'sales', 'owner\\'s' = 'ann')",
            f"ALTER TABLE {T} ALTER COLUMN `email` SET TAGS ('pii' = 'true')",
        ]

    def test_of_bronze_whose_structs_hold_the_values(self) -> None:
        catalog = StandIn()
        governor(catalog).bronze(catalog.ref("bronze"), rule(tags={"domain": "sales"}, pii=["email"]))
        assert catalog.told == [
            f"ALTER TABLE {B} SET TAGS ('domain' = 'sales')",
            *(
                f"ALTER TABLE {B} ALTER COLUMN `{name}` SET TAGS ('pii' = 'true')"
                for name in ("before", "after", "previous_key", "special")
            ),
        ]

    def test_only_those_that_are_not_there(self) -> None:
        catalog = StandIn(
            table_tags={"domain": "sales", "theirs": "x"}, column_tags={"email": {"pii": "true"}}
        )
        governor(catalog).silver(silver(catalog, table()), rule(tags=TAGS, pii=["email", "no"]))
        assert catalog.told == [
            f"ALTER TABLE {T} SET TAGS ('owner\\'s' = 'ann')",
            f"ALTER TABLE {T} ALTER COLUMN `no` SET TAGS ('pii' = 'true')",
        ]

    def test_bronze_is_asked_once_a_run_and_not_at_all_without_a_rule(self) -> None:
        catalog = StandIn()
        one = governor(catalog)
        one.bronze(catalog.ref("bronze"), rule())
        assert catalog.asked == 0
        for _ in range(3):
            one.bronze(catalog.ref("bronze"), rule(tags={"a": "b"}))
        assert catalog.asked == 3  # whether it is Unity Catalog, the table's tags, its columns'
        assert len(catalog.told) == 1

    def test_a_refusal_stops_before_rows_arrive(self) -> None:
        catalog = StandIn(refuses="SET TAGS")
        with pytest.raises(FixConfiguration, match="Unity Catalog refuses"):
            governor(catalog).silver(silver(catalog, table()), rule(pii=["email"]))


class TestKey:
    def test_a_primary_key_that_is_not_enforced(self) -> None:
        catalog = StandIn()
        governor(catalog).silver(silver(catalog, table("no", "id")), rule())
        assert catalog.told == [
            f"ALTER TABLE {T} ALTER COLUMN `no` SET NOT NULL",
            f"ALTER TABLE {T} ALTER COLUMN `id` SET NOT NULL",
            f"ALTER TABLE {T} ADD PRIMARY KEY (`no`, `id`) RELY",
        ]

    def test_of_a_history_a_version_is_part_of_it(self) -> None:
        catalog = StandIn(required=("id",))
        governor(catalog).silver(silver(catalog, table("id"), scd=2), rule())
        assert catalog.told[-1] == f"ALTER TABLE {T} ADD PRIMARY KEY (`id`, `__START_AT`) RELY"

    def test_nothing_is_said_again(self) -> None:
        catalog = StandIn(key=("no", "id"), required=("no", "id"))
        governor(catalog).silver(silver(catalog, table("no", "id")), rule())
        assert catalog.told == []

    @pytest.mark.parametrize("kept", [table(), table("id", nullable=True)], ids=["no key", "may be NULL"])
    def test_without_a_key_that_is_never_null(self, kept: Table) -> None:
        catalog = StandIn()
        governor(catalog).silver(silver(catalog, kept), rule())
        assert catalog.told == []

    def test_a_key_that_changed_at_the_source(self) -> None:
        """The old column stays in silver, NULL in new rows, which it must not refuse."""
        catalog = StandIn(key=("old", "id"), required=("old", "id"))
        governor(catalog).silver(silver(catalog, table("id")), rule())
        assert catalog.told == [
            f"ALTER TABLE {T} DROP PRIMARY KEY IF EXISTS CASCADE",
            f"ALTER TABLE {T} ALTER COLUMN `old` DROP NOT NULL",
            f"ALTER TABLE {T} ADD PRIMARY KEY (`id`) RELY",
        ]


@pytest.mark.parametrize("name", ["spark_catalog", "hive_metastore", "elsewhere"])
def test_other_catalogs_are_left_alone_and_that_is_said_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = StandIn(unity=False)
    one = governor(catalog)
    with caplog.at_level(logging.INFO, "cdc_lib.unity"):
        for layer in ("bronze", "silver"):
            one.bronze(catalog.ref(cast(Layer, layer), name), rule(tags=TAGS))
            one.silver(silver(catalog, table("id"), silver=catalog.ref("silver", name)), rule(tags=TAGS))
    assert catalog.told == []
    assert [record.message for record in caplog.records] == [
        "no Unity Catalog here: tags and informational keys are left out"
    ]
