"""What is registered with the engine that runs a declarative pipeline, without engine and JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import pipelines
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)

from cdc_lib import bronze
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal
from cdc_lib.control.schema_history import SchemaVersion
from cdc_lib.control.tables import State, TableState
from cdc_lib.control.watermarks import Watermark
from cdc_lib.declarative import register
from cdc_lib.declarative.changes import Engine
from cdc_lib.declarative.flows import Flows, engine_here
from cdc_lib.declarative.specification import LeftOut, Plan, TableFlow
from cdc_lib.delta import Lake
from cdc_lib.errors import FixConfiguration
from cdc_lib.pipeline import TableRule, Target
from cdc_lib.schema import Column, Identity, Table, TableId
from cdc_lib.source import Chunk
from cdc_lib.table_ref import TableRef

LAKEFLOW = Engine(truncates=True, partial=True, history=True)
OPEN_SOURCE = Engine()
SOURCE = pa.struct([pa.field("ts_us", pa.int64())])


@dataclass
class Registry(GraphElementRegistry):  # type: ignore[misc]
    """Keeps what is registered."""

    outputs: list[Any] = field(default_factory=list)
    flows: list[Any] = field(default_factory=list)
    cdc: list[Any] = field(default_factory=list)

    def register_output(self, output: Any) -> None:
        self.outputs.append(output)

    def register_flow(self, flow: Any) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: Any) -> None:
        self.cdc.append(flow)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise AssertionError("no SQL is registered")


@pytest.fixture
def registry() -> Iterator[Registry]:
    kept = Registry()
    with graph_element_registration_context(kept):
        yield kept


@pytest.fixture
def lakeflow(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The parameters of Databricks' function, as its documentation has them; the calls."""
    calls: list[dict[str, Any]] = []

    def create_auto_cdc_flow(
        target: str,
        source: str,
        keys: list[str],
        sequence_by: str,
        ignore_null_updates: bool = False,
        columns_to_update: str | None = None,
        apply_as_deletes: str | None = None,
        apply_as_truncates: str | None = None,
        column_list: list[str] | None = None,
        except_column_list: list[str] | None = None,
        stored_as_scd_type: str = "1",
        track_history_column_list: list[str] | None = None,
        track_history_except_column_list: list[str] | None = None,
        name: str | None = None,
        once: bool = False,
    ) -> None:
        calls.append({name: value for name, value in locals().items() if value and name != "calls"})

    monkeypatch.setattr(pipelines, "create_auto_cdc_flow", create_auto_cdc_flow)
    return calls


def table(name: str = "orders", key: tuple[str, ...] = ("id",), identity: Identity = Identity.KEY) -> Table:
    columns = (Column("id", pa.int64(), "bigint", id=1), Column("note", pa.string(), "text", id=2))
    return Table(TableId("public", name), columns, key, identity, version=1, comment="what was ordered")


def flow(of: Table | None = None, catalog: str | None = "main", **rule: Any) -> TableFlow:
    of = of or table()
    name = f"public_{of.id.name}"
    bronze_ref = TableRef("bronze", name, None, catalog, "shop_bronze")
    silver_ref = TableRef("silver", name, None, catalog, "shop_silver")
    return TableFlow(of, bronze_ref, silver_ref, TableRule(match=".*", **rule))


def registered(flows: list[TableFlow], engine: Engine | None = None) -> None:
    Flows(None, engine=engine).register(Plan("shop", tuple(flows)))


class TestOnDatabricks:
    COMMON = {
        "target": "main.shop_silver.public_orders",
        "source": "__changes_of_public_orders",
        "keys": ["id"],
        "sequence_by": "__sequence",
    }

    def test_its_parameters_are_found(self, lakeflow: list[dict[str, Any]]) -> None:
        assert engine_here() == LAKEFLOW

    @pytest.mark.parametrize(
        ("rule", "given"),
        [
            (
                {},
                {
                    "apply_as_deletes": "__op = 'd'",
                    "apply_as_truncates": "__op = 't'",
                    "columns_to_update": "__carried",
                    "except_column_list": ["__op", "__carried"],
                    "stored_as_scd_type": "1",
                },
            ),
            (
                {"delete": "soft"},
                {
                    "columns_to_update": "__carried",
                    "except_column_list": ["__op", "__carried"],
                    "stored_as_scd_type": "1",
                },
            ),
            (
                {"scd": 2, "delete": "soft"},
                {
                    "apply_as_deletes": "__op = 'd'",
                    "except_column_list": ["__op", "__sequence"],
                    "stored_as_scd_type": "2",
                    "track_history_except_column_list": ["__committed_at"],
                },
            ),
        ],
        ids=["scd 1", "soft deletes", "scd 2"],
    )
    def test_a_rule_of_the_file_as_parameters(
        self, registry: Registry, lakeflow: list[dict[str, Any]], rule: dict[str, Any], given: dict[str, Any]
    ) -> None:
        registered([flow(**rule)])
        assert lakeflow == [{**self.COMMON, **given}]

    def test_partial_rows_are_not_announced_where_no_snapshot_has_the_rest(
        self, registry: Registry, lakeflow: list[dict[str, Any]]
    ) -> None:
        registered([replace(flow(), snapshotted=False)])
        assert "columns_to_update" not in lakeflow[0]

    def test_tables_carry_comments_and_whose_they_are(
        self, registry: Registry, lakeflow: list[dict[str, Any]]
    ) -> None:
        registered([flow()])
        made = next(output for output in registry.outputs if output.name.startswith("main."))
        assert made.comment == "what was ordered"
        assert made.table_properties == {"cdc.declarative": "true", "cdc.source_table": "public.orders"}

    def test_odd_names_are_quoted(self, registry: Registry, lakeflow: list[dict[str, Any]]) -> None:
        columns = (Column("a.b", pa.int64(), "bigint"), Column("c d", pa.string(), "text"))
        registered([flow(replace(table("großes-lager"), columns=columns, key=("a.b",)))])
        (call,) = lakeflow
        assert call["target"] == "main.shop_silver.`public_großes-lager`"
        assert call["keys"] == ["`a.b`"]
        made = next(output for output in registry.outputs if output.name == call["target"])
        assert made.table_properties["delta.columnMapping.mode"] == "name"


class TestOnOpenSourceSpark:
    def test_what_it_has_not_is_not_passed(self, registry: Registry) -> None:
        assert engine_here() == OPEN_SOURCE
        registered([flow(), flow(table("lines"))])
        assert [made.target for made in registry.cdc] == [
            "main.shop_silver.public_orders",
            "main.shop_silver.public_lines",
        ]
        assert {made.stored_as_scd_type for made in registry.cdc} == {"1"}
        assert [made.name for made in registry.flows] == [
            "__changes_of_public_orders",
            "__changes_of_public_lines",
        ]

    def test_one_error_names_all_tables_that_need_more(self, registry: Registry) -> None:
        soft, history = flow(table("soft"), delete="soft"), flow(table("history"), scd=2)
        with pytest.raises(FixConfiguration) as caught:
            registered([flow(), soft, history])
        assert "public.soft: delete: soft needs columns_to_update" in str(caught.value)
        assert "public.history: scd: 2 needs track_history_except_column_list" in str(caught.value)
        assert [*registry.outputs, *registry.flows, *registry.cdc] == []

    def test_soft_deletes_of_rows_that_the_log_carries_whole(self, registry: Registry) -> None:
        registered([flow(table(identity=Identity.FULL), delete="soft")])
        assert registry.cdc[0].apply_as_deletes is None


class Session:
    """A session that has settings, and nothing else."""

    def __init__(self, **settings: str) -> None:
        self.conf = {f"cdc.{name}": value for name, value in settings.items()}


class TestFromTheControlTables:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """A pipeline file whose source nobody here could read, and what was captured by it."""
        path = tmp_path / "shop.yml"
        path.write_text(
            "name: shop\nsource: {connector.class: postgresql, database.hostname: '${env:NOT_SET_HERE}'}\n"
            f"target: {{path: {tmp_path / 'lake'}}}\ntables: [{{match: public.orders, delete: soft}}]\n"
        )
        return path

    @pytest.fixture
    def captured(self, tmp_path: Path) -> None:
        lines = table("lines")
        extra = replace(lines, version=2, columns=(*lines.columns, Column("extra", pa.int32(), "int", id=3)))
        tables = [table(identity=Identity.FULL), table("log", key=()), extra, table("bare")]
        capture(Lake(Target(path=tmp_path / "lake")), tables)

    def test_tables_keys_and_rules(self, registry: Registry, file: Path, captured: None) -> None:
        plan = register(Session(pipeline=str(file)))
        assert [(each.table.id.name, each.table.key, each.soft) for each in plan.flows] == [
            ("lines", ("id",), False),
            ("orders", ("id",), True),
        ]
        assert plan.left_out == (
            LeftOut(TableId("public", "bare"), "no row of it was captured yet"),
            LeftOut(
                TableId("public", "log"),
                "it has no key, and AUTO CDC knows rows by their keys; its changes are in bronze",
            ),
        )
        assert [set(each.absent) for each in plan.flows] == [{"extra"}, set()]
        assert [each.snapshotted for each in plan.flows] == [True, False]
        assert [made.target for made in registry.cdc] == ["public_lines", "public_orders"]

    def test_nothing_captured_yet(self, registry: Registry, file: Path) -> None:
        with pytest.raises(FixConfiguration, match=r"(?s)nothing was captured yet.*run cdc capture first"):
            register(Session(pipeline=str(file)))

    def test_a_setting_that_is_missing(self, registry: Registry) -> None:
        with pytest.raises(FixConfiguration, match=r"cdc\.pipeline is missing"):
            register(Session())


def capture(lake: Lake, tables: list[Table]) -> None:
    """What a run leaves in bronze, and in the control tables."""
    control = Control(lake, "shop")
    control.create()
    noon = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    control.batches.seal(Seal(1, 1, "", "i1", "{}", "{}", [], "cfg", "/s", noon))
    control.schema_history.add([SchemaVersion(each.id.name, 1, each) for each in tables])
    named = [(each.id.name, f"public_{each.id.name}") for each in tables]
    control.tables.save([TableState(one, "public", one, ours, ours, State.STREAMING) for one, ours in named])
    for each in tables:
        if each.id.name != "bare":
            ref = lake.ref("bronze", f"public_{each.id.name}")
            marks = bronze.Marks("shop", "i1", each.id.name)
            bronze.ensure(lake, ref, replace(each, columns=each.columns[:2]), SOURCE, marks)
    lines = TableId("public", "lines")
    control.chunks.plan({"lines": [Chunk(lines, 0)]})
    control.chunks.done([("lines", 0)], batch=1)
    control.watermarks.commit(Watermark(1, "{}", "0", "batch", None, {}, "", noon))
