"""Options of ``format("cdc")``: what they mean, what is refused, and what stays out of plans."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from cdc_lib.change import change_schema
from cdc_lib.datasource.options import CdcOptions, read_options
from cdc_lib.datasource.rows import row_schema, rows_of
from cdc_lib.errors import FixConfiguration
from cdc_lib.schema import Column, Table, TableId

SOURCE = {
    "connector.class": "postgresql",
    "database.hostname": "db",
    "database.user": "cdc",
    "database.password": "${env:PASSWORD}",
    "database.dbname": "shop",
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "shop.yml"
    lines = "".join(f"  {name}: {value}\n" for name, value in SOURCE.items())
    path.write_text(f"name: shop\nsource:\n{lines}target: {{path: ./lake}}\nrun: {{chunk_rows: 500}}\n")
    return str(path)


def options(**given: str) -> CdcOptions:
    return read_options({**SOURCE, "table": "public.orders", **given})


def test_a_pipeline_file(file: str) -> None:
    found = read_options({"pipeline": file, "path": 'public."odd.name"'})
    assert (found.source["database.hostname"], found.chunk_rows) == ("db", 500)
    assert found.table == TableId("public", "odd.name")


def test_properties_on_top_of_a_file(file: str) -> None:
    found = read_options({"pipeline": file, "table": "a.b", "database.hostname": "standby"})
    assert (found.source["database.hostname"], found.source["database.dbname"]) == ("standby", "shop")


def test_names_of_options_have_no_case() -> None:
    # Spark hands them over in lower case.
    found = read_options({**SOURCE, "TABLE": "a.b", "chunkrows": "9", "maxbytespertrigger": "5"})
    assert (found.chunk_rows, found.max_bytes) == (9, 5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tabel": "public.orders"}, r"no option tabel; did you mean table\?"),
        ({"table": "orders"}, "not a table name of the form schema.table"),
        ({"chunkRows": "many"}, "option chunkRows is not a whole number above 0"),
        ({"maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger is not a whole number above 0"),
        ({"database.host": "db"}, "unknown property"),
        ({"table.exclude.list": r"public\.o.*"}, "public.orders is not captured"),
    ],
)
def test_what_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(FixConfiguration, match=said):
        options(**given)


def test_no_table() -> None:
    with pytest.raises(FixConfiguration, match="none is named"):
        read_options(SOURCE)


def test_nothing_to_read_from() -> None:
    with pytest.raises(FixConfiguration, match="does not know what to read from"):
        read_options({"table": "public.orders"})


def test_a_password_as_an_option_is_refused_and_not_repeated() -> None:
    with pytest.raises(FixConfiguration, match=r"database\.password is a password itself") as caught:
        options(**{"database.password": "hunter2"})
    assert "hunter2" not in str(caught.value)


class TestSlots:
    """The pipeline's own slot follows what ``cdc run`` has committed."""

    def test_a_stream_has_its_own(self, file: str) -> None:
        found = read_options({"pipeline": file, "table": "public.Orders"}).for_stream()
        assert found.source["slot.name"] == found.source["publication.name"] == "cdc_shop_public_orders"

    def test_long_names_stay_distinct(self, file: str) -> None:
        given = [{"pipeline": file, "table": f"public.{'a' * 60}{end}"} for end in "bc"]
        names = {read_options(each).for_stream().source["slot.name"] for each in given}
        assert {len(name) for name in names} == {63}
        assert len(names) == 2

    def test_an_option_names_it(self, file: str) -> None:
        given = {"pipeline": file, "table": "public.orders", "slot.name": "mine"}
        found = read_options(given).for_stream()
        assert found.source["slot.name"] == found.source["publication.name"] == "mine"


class TestRows:
    DECLARED = Table(
        TableId("public", "orders"),
        (Column("id", pa.int32(), "int"), Column("note", pa.string(), "text")),
        ("id",),
    )
    HELD = Table(TableId("public", "orders"), DECLARED.columns[:1], ("id",))

    def batch(self, of: Table) -> pa.RecordBatch:
        row = {"op": "c", "after": dict.fromkeys(of.names, 1), "position": "07", "ordinal": 3}
        return pa.RecordBatch.from_pylist([row], change_schema(of, pa.struct([("ts_us", pa.int64())])))

    def test_columns_that_a_row_had_not_are_listed(self) -> None:
        batch = rows_of(self.batch(self.HELD), self.DECLARED, self.HELD, first=10)
        assert batch.schema == row_schema(self.DECLARED, pa.struct([("ts_us", pa.int64())]))
        (row,) = batch.to_pylist()
        assert row["after"] == {"id": 1, "note": None}
        assert row["after_unavailable"] == ["note"]
        assert (row["_position"], row["_ordinal"]) == ("07", 13)

    def test_columns_that_were_not_declared_are_refused(self) -> None:
        with pytest.raises(FixConfiguration, match=r"public\.orders has columns .*: note"):
            rows_of(self.batch(self.HELD), self.HELD, self.DECLARED)
