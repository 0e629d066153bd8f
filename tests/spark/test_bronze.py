"""Bronze on Spark and Delta: the envelope, structures that change inside a batch, and appends that repeat."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from staged import INCARNATION, MARKS, SOURCE, append, orders, stage

from cdc_lib import bronze
from cdc_lib.config import Target
from cdc_lib.delta import Lake, TableRef, Txn
from cdc_lib.errors import ResnapshotNeeded
from cdc_lib.schema import Column, Table, TableId


@pytest.fixture(params=["direct", "spark"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """Whoever writes, the same must come out."""
    return Target(path=tmp_path / "lake", writer=request.param)


@pytest.fixture
def ref(lake: Lake) -> TableRef:
    return lake.ref("bronze", "public_orders")


def created(number: int, **values: object) -> dict[str, object]:
    return {"op": "c", "after": {"id": number, **values}}


def images(lake: Lake, ref: TableRef, *columns: str) -> list[dict[str, object]]:
    return sorted(lake.rows(ref, [*columns, "_sequence"]), key=lambda row: row["_sequence"])


class TestEnvelope:
    def test_rows_carry_batch_and_total_order(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        append(lake, ref, stage(tmp_path / "s", (orders(), [created(1), created(2)])), 7)
        rows = images(lake, ref, "op", "after", "before", "_batch", "_position", "_schema_version")
        assert rows == [
            {
                "op": "c",
                "after": {"id": number},
                "before": None,
                "_batch": 7,
                "_position": "0001",
                "_schema_version": 1,
                "_sequence": 7 * 2**32 + number - 1,
            }
            for number in (1, 2)
        ]

    def test_table_says_whose_it_is(self, lake: Lake, ref: TableRef) -> None:
        bronze.ensure(lake, ref, orders(), SOURCE, MARKS)
        properties = lake.properties(ref)
        assert properties["cdc.incarnation"] == INCARNATION
        assert properties["cdc.source_table"] == "public.orders"
        assert properties["delta.dataSkippingStatsColumns"] == "_batch,_sequence"

    def test_every_own_column_has_a_comment(self, lake: Lake, ref: TableRef) -> None:
        bronze.ensure(lake, ref, orders(), SOURCE, MARKS)
        assert [field.name for field in lake.fields(ref) if not field.comment] == []

    def test_a_staged_file_becomes_a_data_file(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        staged = stage(tmp_path / "s", (orders(), [created(1)]), (orders(), [created(2)]))
        append(lake, ref, staged, 1)
        assert len(list(Path(str(ref.path)).glob("*.parquet"))) == 2

    def test_in_a_catalog(self, catalog_lake: Lake, tmp_path: Path) -> None:
        ref = catalog_lake.ref("bronze", "public_orders")
        append(catalog_lake, ref, stage(tmp_path / "s", (orders(), [created(1)])), 1)
        assert bronze.verify(catalog_lake, ref, INCARNATION, 1).version == catalog_lake.version(ref) == 1
        assert images(catalog_lake, ref, "after")[0]["after"] == {"id": 1}


class TestEvolution:
    def test_column_added_inside_a_batch_is_not_known_before(
        self, lake: Lake, ref: TableRef, tmp_path: Path
    ) -> None:
        new = orders(2, note=pa.string())
        old_rows = [
            created(1),
            {"op": "u", "before": {"id": 1}, "after": {"id": 1}, "before_unavailable": ["x"]},
            {"op": "t"},
        ]
        staged = stage(tmp_path / "s", (orders(), old_rows), (new, [created(2, note=None)]))
        append(lake, ref, staged, 1)
        names = ("op", "after", "before_unavailable", "after_unavailable", "_schema_version")
        rows = [tuple(row[name] for name in names) for row in images(lake, ref, *names)]
        assert rows == [
            ("c", {"id": 1, "note": None}, None, ["note"], 1),
            ("u", {"id": 1, "note": None}, ["x", "note"], ["note"], 1),
            ("t", None, None, None, 1),
            ("c", {"id": 2, "note": None}, None, None, 2),
        ]

    def test_later_batch_adds_and_widens(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        append(lake, ref, stage(tmp_path / "a", (orders(n=pa.int32()), [created(1, n=5)])), 1)
        wide = orders(2, n=pa.int64(), note=pa.string())
        append(lake, ref, stage(tmp_path / "b", (wide, [created(2, n=2**40, note="x")])), 2)
        assert [row["after"] for row in images(lake, ref, "after")] == [
            {"id": 1, "n": 5, "note": None},
            {"id": 2, "n": 2**40, "note": "x"},
        ]

    def test_widened_inside_a_batch(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        files = (orders(n=pa.int32()), [created(1, n=5)]), (orders(2, n=pa.int64()), [created(2, n=2**40)])
        append(lake, ref, stage(tmp_path / "s", *files), 1)
        assert [row["after"] for row in images(lake, ref, "after")] == [
            {"id": 1, "n": 5},
            {"id": 2, "n": 2**40},
        ]

    def test_dropped_column_stays_and_is_null(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        append(lake, ref, stage(tmp_path / "a", (orders(n=pa.int32()), [created(1, n=5)])), 1)
        append(lake, ref, stage(tmp_path / "b", (orders(2), [created(2)])), 2)
        assert [row["after"] for row in images(lake, ref, "after")] == [
            {"id": 1, "n": 5},
            {"id": 2, "n": None},
        ]

    def test_column_dropped_inside_a_batch_keeps_its_values(
        self, lake: Lake, ref: TableRef, tmp_path: Path
    ) -> None:
        old = (orders(note=pa.string()), [{"op": "c", "after": {"id": 1, "note": "kept"}}])
        new = (orders(2), [{"op": "c", "after": {"id": 2}}])
        append(lake, ref, stage(tmp_path / "s", old, new), 1)
        rows = lake.rows(ref, ["after", "after_unavailable"])
        found = {row["after"]["id"]: (row["after"]["note"], row["after_unavailable"]) for row in rows}
        assert found == {1: ("kept", None), 2: (None, ["note"])}

    def test_an_append_of_the_same_structure_changes_no_schema(
        self, lake: Lake, ref: TableRef, tmp_path: Path
    ) -> None:
        append(lake, ref, stage(tmp_path / "a", (orders(), [created(1)])), 1)
        append(lake, ref, stage(tmp_path / "b", (orders(), [created(2)])), 2)
        entry = Path(str(ref.path)) / "_delta_log" / f"{2:020d}.json"
        assert '"metaData"' not in entry.read_text()

    def test_names_that_parquet_does_not_take(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        odd = orders(2, **{"unit price (€)": pa.float64(), "back`tick": pa.string()})
        append(lake, ref, stage(tmp_path / "a", (orders(), [created(1)])), 1)
        values = {"unit price (€)": 1.5, "back`tick": "x"}
        append(lake, ref, stage(tmp_path / "b", (odd, [created(2, **values)])), 2)
        assert images(lake, ref, "after")[-1]["after"] == {"id": 2, **values}


class TestRepeats:
    def test_the_same_batch_lands_once(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        for _ in range(2):
            append(lake, ref, stage(tmp_path / "s", (orders(), [created(1)])), 1)
        assert len(lake.rows(ref)) == 1
        assert bronze.verify(lake, ref, INCARNATION, 1).version == 1

    def test_a_lower_batch_is_skipped_and_caught(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        """Delta skips a lower transaction version in silence: without ``verify`` the row would be lost."""
        append(lake, ref, stage(tmp_path / "a", (orders(), [created(1)])), 5)
        append(lake, ref, stage(tmp_path / "b", (orders(), [created(2)])), 3)
        assert lake.version(ref) == 1, "Delta no longer skips: the guard can go"
        with pytest.raises(ResnapshotNeeded, match="batch 3 did not arrive"):
            bronze.verify(lake, ref, INCARNATION, 3)

    def test_an_equal_version_of_somebody_else_is_caught(
        self, lake: Lake, ref: TableRef, tmp_path: Path
    ) -> None:
        """A commit that took our transaction version but carries no metadata of ours does not pass for it."""
        append(lake, ref, stage(tmp_path / "a", (orders(), [created(1)])), 1)
        lake.append(ref, lake.table(ref), txn=Txn(f"{INCARNATION}/id-orders", 2))
        append(lake, ref, stage(tmp_path / "b", (orders(), [created(2)])), 2)
        assert lake.version(ref) == 2, "Delta no longer skips: the guard can go"
        with pytest.raises(ResnapshotNeeded, match="batch 2 did not arrive"):
            bronze.verify(lake, ref, INCARNATION, 2)

    def test_commit_of_another_incarnation_does_not_count(
        self, lake: Lake, ref: TableRef, tmp_path: Path
    ) -> None:
        append(lake, ref, stage(tmp_path / "a", (orders(), [created(1)])), 1)
        with pytest.raises(ResnapshotNeeded):
            bronze.verify(lake, ref, "incarnation-2", 1)


class TestForeignCommits:
    def test_ours_and_maintenance_are_not(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        for batch in (1, 2):
            append(lake, ref, stage(tmp_path / str(batch), (orders(), [created(batch)])), batch)
        lake.execute(f"OPTIMIZE {ref.sql}")
        lake.execute(f"ALTER TABLE {ref.sql} SET TBLPROPERTIES ('x' = 'y')")
        lake.execute(f"ALTER TABLE {ref.sql} ADD COLUMNS (note STRING)")
        assert bronze.foreign_commits(lake, ref, 0, INCARNATION) == []

    @pytest.mark.parametrize(
        ("place", "statement"),
        [
            ("path", "RESTORE TABLE {} TO VERSION AS OF 0"),
            ("path", "DELETE FROM {} WHERE op = 'c'"),
            ("catalog", "UPDATE {} SET op = 'u'"),
        ],
    )
    def test_changed_rows_are(
        self, request: pytest.FixtureRequest, lake: Lake, tmp_path: Path, place: str, statement: str
    ) -> None:
        if place == "catalog":
            lake = request.getfixturevalue("catalog_lake")
        ref = lake.ref("bronze", "public_orders")
        append(lake, ref, stage(tmp_path / "a", (orders(), [created(1)])), 1)
        remembered = lake.version(ref)
        assert bronze.foreign_commits(lake, ref, remembered, INCARNATION) == []
        lake.execute(statement.format(ref.sql))
        found = bronze.foreign_commits(lake, ref, remembered, INCARNATION)
        assert [commit.operation for commit in found] == [statement.split()[0]]

    def test_a_table_put_back_from_a_copy(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        append(lake, ref, stage(tmp_path / "a", (orders(), [created(1)])), 1)
        assert len(bronze.foreign_commits(lake, ref, 9, INCARNATION)) == 1


class TestNames:
    @pytest.mark.parametrize(
        ("table", "name"),
        [
            (TableId("public", "orders"), "public_orders"),
            (TableId("Sales", "Order Lines"), "Sales_Order_Lines"),
            (TableId("public", "a/b`c.d"), "public_a_b_c_d"),
            (TableId("öffentlich", "straße"), "öffentlich_straße"),
        ],
    )
    def test_table(self, table: TableId, name: str) -> None:
        assert bronze.table_name(table) == name

    def test_columns_that_differ_in_case(self) -> None:
        table = Table(TableId("public", "t"), tuple(Column(n, pa.int32(), "x") for n in ("Id", "b", "ID")))
        (finding,) = bronze.column_collisions(table)
        assert "Id and ID" in finding.message
        assert bronze.column_collisions(orders()) == []

    def test_tables_that_would_share_one(self) -> None:
        tables = [TableId("Sales", "Orders"), TableId("sales", "orders"), TableId("sales", "items")]
        (finding,) = bronze.table_collisions(tables)
        assert "Sales.Orders and sales.orders" in finding.message
