"""The door to Delta: the same answers with and without a JVM, on a path and in a catalog, on either Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_lib import spark_session
from cdc_lib.config import Target
from cdc_lib.delta import Conflict, Field, Lake, TableRef, Txn
from cdc_lib.errors import FixConfiguration
from cdc_lib.named_tables import register

FIELDS = [
    Field("id", "BIGINT", "it's the \\key"),
    Field("at", "TIMESTAMP"),
    Field("counts", "MAP<STRING, BIGINT>"),
    Field("parts", "ARRAY<STRUCT<`name`: STRING, `rows`: ARRAY<INT>>>"),
]
ROWS = [
    {
        "id": 1,
        "at": datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=timezone.utc),
        "counts": {"a": 1, "b": 2**40},
        "parts": [{"name": "x", "rows": [1, 2]}],
    },
    {"id": 2, "at": None, "counts": None, "parts": []},
]


@pytest.fixture(params=["path", "catalog"])
def ref_and_lake(request: pytest.FixtureRequest) -> tuple[TableRef, Lake]:
    lake: Lake = request.getfixturevalue("lake" if request.param == "path" else "catalog_lake")
    return lake.ref("control", "things"), lake


class TestSmallTables:
    def test_round_trip(self, ref_and_lake: tuple[TableRef, Lake]) -> None:
        ref, lake = ref_and_lake
        assert lake.rows(ref) == []
        assert not lake.exists(ref)
        assert lake.version(ref) == -1
        lake.create(ref, FIELDS, comment="things")
        lake.create(ref, FIELDS, comment="things")
        assert lake.fields(ref) == FIELDS
        lake.append_rows(ref, ROWS, metadata={"n": 1})
        assert sorted(lake.rows(ref), key=lambda row: row["id"]) == ROWS
        assert lake.rows(ref, ["id"], {"at": None}) == [{"id": 2}]
        assert lake.rows(ref, ["id"], {"id": (">", 1)}) == [{"id": 2}]
        commits = lake.history(ref)
        assert [(commit.version, commit.metadata) for commit in commits] == [(1, {"n": 1}), (0, None)]
        assert [commit.changes_data for commit in commits] == [True, False]
        assert lake.history(ref, since=1) == commits[:1]

    def test_a_transaction_lands_once_and_never_goes_back(self, ref_and_lake: tuple[TableRef, Lake]) -> None:
        ref, lake = ref_and_lake
        lake.create(ref, FIELDS)
        for version, number in ((5, 1), (5, 2), (4, 3), (6, 4)):
            lake.append_rows(ref, [{"id": number}], txn=Txn("app", version))
        assert sorted(row["id"] for row in lake.rows(ref, ["id"])) == [1, 4]
        assert lake.transaction_version(ref, "app") == (6 if ref.path else None)

    def test_upsert(self, ref_and_lake: tuple[TableRef, Lake]) -> None:
        ref, lake = ref_and_lake
        lake.create(ref, FIELDS)
        lake.append_rows(ref, ROWS)
        lake.upsert_rows(ref, [{"id": 2, "counts": {"c": 3}}, {"id": 3}], ["id"], txn=Txn("swap", 1))
        lake.upsert_rows(ref, [{"id": 9}], ["id"], txn=Txn("swap", 1))
        found = {row["id"]: row["counts"] for row in lake.rows(ref)}
        assert found == {1: {"a": 1, "b": 2**40}, 2: {"c": 3}, 3: None}


class TestWithoutSpark:
    def test_control_tables_on_a_path(self, target: Target, no_jvm: Callable[[], SparkSession]) -> None:
        lake = Lake(target, no_jvm)
        ref = lake.ref("control", "things")
        lake.create(ref, FIELDS)
        lake.append_rows(ref, ROWS, txn=Txn("app", 1))
        lake.upsert_rows(ref, [{"id": 3}], ["id"])
        assert {row["id"] for row in lake.rows(ref)} == {1, 2, 3}
        assert (lake.version(ref), lake.transaction_version(ref, "app")) == (2, 1)
        lake.sync(ref, 0)

    def test_what_delta_rs_cannot_read_is_read_by_spark(
        self, lake: Lake, target: Target, no_jvm: Callable[[], SparkSession]
    ) -> None:
        ref = lake.ref("silver", "things")
        lake.create(ref, FIELDS[:1], properties={"delta.enableDeletionVectors": "true", "cdc.table_id": "x"})
        lake.append(ref, lake.spark.range(10))
        lake.execute(f"DELETE FROM {ref.sql} WHERE id = 3")
        assert {row["id"] for row in lake.rows(ref)} == set(range(10)) - {3}
        blind = Lake(target, no_jvm)
        assert [commit.operation for commit in blind.history(ref)] == ["DELETE", "WRITE", "CREATE TABLE"]
        assert blind.properties(ref)["cdc.table_id"] == "x"
        assert blind.fields(ref) == FIELDS[:1]

    def test_small_files_are_put_together(self, target: Target, no_jvm: Callable[[], SparkSession]) -> None:
        lake = Lake(target, no_jvm)
        ref = lake.ref("control", "things")
        lake.create(ref, FIELDS[:1])
        for number in range(105):
            lake.append_rows(ref, [{"id": number}], txn=Txn("app", number))
        assert sorted(row["id"] for row in lake.rows(ref)) == list(range(105))
        assert len(DeltaTable(str(ref.path)).file_uris()) < 10
        (compaction,) = [commit for commit in lake.history(ref, limit=200) if commit.operation == "OPTIMIZE"]
        assert not compaction.changes_data
        assert lake.transaction_version(ref, "app") == 104

    def test_unknown_columns_are_refused(self, target: Target, no_jvm: Callable[[], SparkSession]) -> None:
        lake = Lake(target, no_jvm)
        ref = lake.ref("control", "things")
        lake.create(ref, FIELDS)
        with pytest.raises(KeyError, match="idd"):
            lake.append_rows(ref, [{"idd": 1}])


class TestStatements:
    def test_dml_takes_a_transaction_and_frames(self, lake: Lake) -> None:
        ref = lake.ref("silver", "things")
        lake.create(ref, FIELDS[:1])
        insert = f"INSERT INTO {ref.sql} SELECT id FROM wanted"
        assert lake.supports_dml_txn
        for version, rows in ((1, 3), (1, 5), (2, 1)):
            views = {"wanted": lake.spark.range(rows)}
            lake.execute(insert, txn=Txn("app", version), metadata={"v": version}, views=views)
        assert sorted(row["id"] for row in lake.rows(ref)) == [0, 0, 1, 2]
        assert [commit.metadata for commit in lake.history(ref)] == [{"v": 2}, {"v": 1}, None]

    def test_settings_do_not_leak(self, lake: Lake) -> None:
        ref = lake.ref("silver", "things")
        lake.create(ref, FIELDS[:1])
        lake.execute(f"INSERT INTO {ref.sql} VALUES (1)", txn=Txn("app", 1), metadata={"a": 1})
        lake.execute(f"INSERT INTO {ref.sql} VALUES (2)")
        lake.append(ref, lake.spark.range(1))
        assert [commit.metadata for commit in lake.history(ref, since=1)] == [None, None, {"a": 1}]
        assert len(lake.rows(ref)) == 3

    def test_a_platform_without_dml_transactions_is_told(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cdc_lib.delta._TXN_ID", "spark.sql.extensions")
        assert not lake.supports_dml_txn
        with pytest.raises(FixConfiguration, match="transaction ids"):
            lake.execute("SELECT 1", txn=Txn("app", 1))

    def test_conflicting_updates(self, lake: Lake, at_once: Callable[..., list[object]]) -> None:
        ref = lake.ref("silver", "things")
        lake.create(ref, FIELDS[:1])
        lake.append(ref, lake.spark.range(1))
        # Both read the one row; the slow one commits second.
        slow = f"UPDATE {ref.sql} SET id = id + 10 WHERE id >= 0 AND length(repeat('x', 100)) = 100"
        results = at_once(*[lambda: lake.execute(slow)] * 3)
        updated = sum(not isinstance(result, Exception) for result in results)
        assert all(isinstance(result, (list, Conflict)) for result in results), results
        assert lake.rows(ref) == [{"id": 10 * updated}]

    def test_registered_names_reach_the_tables(self, spark: SparkSession, tmp_path: Path) -> None:
        name = tmp_path.name.replace("-", "_")
        target = Target(path=tmp_path / "lake", bronze=f"{name}b", silver=f"{name}s", control=f"{name}c")
        lake = Lake(target, lambda: spark)
        lake.create(lake.ref("control", "signals"), FIELDS)
        for _ in range(2):
            register(lake, target)
        spark.sql(f"INSERT INTO {name}c.signals (id) VALUES (7)").collect()
        assert lake.rows(lake.ref("control", "signals"), ["id"]) == [{"id": 7}]
        for schema in (f"{name}b", f"{name}s", f"{name}c"):
            spark.sql(f"DROP SCHEMA {schema} CASCADE").collect()


class TestNames:
    def test_references_are_quoted(self, tmp_path: Path) -> None:
        path = Lake(Target(path=tmp_path / "a`b")).ref("bronze", "t")
        assert path.sql == f"delta.`{tmp_path}/a``b/bronze/t`"
        catalog = Lake(Target(catalog="main", staging=tmp_path)).ref("silver", "my`t")
        assert catalog.sql == "`main`.`silver`.`my``t`"


class TestSession:
    def test_java_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cdc_lib.java._candidates", lambda: iter(()))
        with pytest.raises(FixConfiguration, match="no Java") as caught:
            spark_session.start_local()
        assert "install" in caught.value.remedy

    def test_settings_from_the_environment_win(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CDC_SPARK_CONF", '{"spark.sql.shuffle.partitions": 7}')
        assert spark_session.local_settings()["spark.sql.shuffle.partitions"] == "7"
        monkeypatch.setenv("CDC_SPARK_CONF", "spark.x=1")
        with pytest.raises(FixConfiguration, match="CDC_SPARK_CONF"):
            spark_session.local_settings()

    @pytest.mark.slow
    def test_classic_session_starts_in_silence(self, tmp_path: Path) -> None:
        """The other kind of session, in a process of its own: same calls, nothing on its stderr."""
        program = tmp_path / "classic.py"
        program.write_text(CLASSIC, encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path / "lake"), str(Path(__file__).parent)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
            check=False,
        )
        assert (done.stderr, done.stdout.split()) == ("", ["classic", "True", "1", "[10,", "11]"])


CLASSIC = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[2])
from cdc_lib import bronze
from cdc_lib.config import Target
from cdc_lib.delta import Lake, Txn
from cdc_lib.spark_session import is_connect, session
from staged import INCARNATION, append, orders, stage

lake = Lake(Target(path=Path(sys.argv[1])), session)
ref = lake.ref("bronze", "orders")
for batch in (1, 1):
    rows = [{"op": "c", "after": {"id": 10}}, {"op": "c", "after": {"id": 11}}]
    append(lake, ref, stage(Path(sys.argv[1]) / "staging", (orders(), rows)), batch)
found = bronze.verify(lake, ref, INCARNATION, 1)
merge = f"MERGE INTO {ref.sql} t USING s ON t._batch = s.id WHEN MATCHED THEN UPDATE SET op = 'r'"
lake.execute(merge, txn=Txn("app", 1), views={"s": lake.spark.range(2)})
ids = sorted(row["after"]["id"] for row in lake.rows(ref, ["after"], {"op": "r"}))
print("connect" if is_connect(lake.spark) else "classic", lake.supports_dml_txn, found.version, ids)
"""
