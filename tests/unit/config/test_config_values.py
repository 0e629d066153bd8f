"""What a good file becomes: typed values, defaults, filters, rules and the fingerprint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdc_lib.config import Pipeline, load, parse
from cdc_lib.errors import FixConfiguration
from cdc_lib.schema import TableId

ROOT = Path(__file__).resolve().parents[3]
SOURCE: dict[str, Any] = {
    "connector.class": "postgresql",
    "database.hostname": "localhost",
    "database.user": "cdc",
    "database.dbname": "shop",
}


def pipeline(name: str = "shop", sections: dict[str, Any] | None = None, **source: Any) -> Pipeline:
    properties = {prop.replace("_", "."): value for prop, value in source.items()}
    content = {"name": name, "source": SOURCE | properties, "target": {"path": "lake"}} | (sections or {})
    return parse(content, environ={"HOST": "db.example", "LAKE": "/data/lake", "N": "7"})


def table(text: str) -> TableId:
    return TableId.parse(text)


def test_the_example_is_valid() -> None:
    example = load(ROOT / "pipelines" / "shop.yml", environ={"SHOP_PASSWORD": "x"})
    assert example.name == "shop"
    assert example.notices == ()
    assert example.source.secret("database.password") == "x"
    assert example.source.captures(table("public.orders"))
    assert not example.source.captures(table("public2.orders"))


def test_the_example_shows_the_defaults_of_run() -> None:
    assert load(ROOT / "pipelines" / "shop.yml").run == pipeline().run


def test_defaults() -> None:
    source = pipeline().source
    assert source["database.port"] == 5432
    assert source["database.sslmode"] == "prefer"
    assert source["plugin.name"] == "pgoutput"
    assert source["publication.autocreate.mode"] == "filtered"
    assert source["snapshot.mode"] == "initial"
    assert source["skipped.operations"] == frozenset()
    assert source["table.include.list"] == ()
    assert source["topic.prefix"] == "shop"
    assert source["binary.handling.mode"] == "bytes"
    assert source["time.precision.mode"] is None
    assert not source.is_set("database.port")
    assert source.is_set("database.user")


def test_a_property_that_does_not_exist_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        pipeline().source["database.prot"]
    with pytest.raises(KeyError):
        pipeline().source.is_set("database.prot")


@pytest.mark.parametrize(
    ("name", "slot"),
    [("shop", "cdc_shop"), ("shop_2", "cdc_shop_2"), ("n" * 59, "cdc_" + "n" * 59)],
)
def test_slot_and_publication_are_named_after_the_pipeline(name: str, slot: str) -> None:
    source = pipeline(name).source
    assert (source["slot.name"], source["publication.name"]) == (slot, slot)


def test_names_that_do_not_fit_get_slots_of_their_own() -> None:
    names = ["shop-eu", "shop.eu", "shop_eu", "Shop_eu", "s" * 60, "s" * 61]
    slots = [pipeline(name).source["slot.name"] for name in names]
    assert len(set(slots)) == len(names)
    assert all(
        len(slot) <= 63 and set(slot) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") for slot in slots
    )


@pytest.mark.parametrize(
    ("prop", "written", "value"),
    [
        ("database.port", "5433", 5433),
        ("database.port", 5433, 5433),
        ("database.tcpKeepAlive", "FALSE", False),
        ("database.tcpKeepAlive", False, False),
        ("snapshot.lock.timeout.ms", "0", 0),
        ("table.include.list", "a.b, c.d,", ("a.b", "c.d")),
        ("table.include.list", ["a.b", "c.d{1,2}"], ("a.b", "c.d{1,2}")),
        ("table.include.list", r"c.d{1\,2},e.f", ("c.d{1,2}", "e.f")),
        ("table.include.list", "", ()),
        ("skipped.operations", "t, d", frozenset("td")),
        ("skipped.operations", "none", frozenset()),
        ("message.key.columns", "a.b:x, y;c.*:z", (("a.b", ("x", "y")), ("c.*", ("z",)))),
        ("binary.handling.mode", "base64-url-safe", "base64-url-safe"),
        ("database.initial.statements", "SET a = 1; SET b = ';;';", ("SET a = 1", "SET b = ';'")),
        ("heartbeat.interval.ms", "0", 0),
        ("flush.lsn.source", "False", False),
        ("snapshot.mode", "never", "no_data"),
        ("snapshot.mode", "INITIAL_ONLY", "initial_only"),
        ("connector.class", "io.debezium.connector.postgresql.PostgresConnector", "postgresql"),
        ("database.hostname", "${env:HOST}", "db.example"),
        ("database.hostname", "/var/run/postgresql", "/var/run/postgresql"),
    ],
)
def test_typed_values(prop: str, written: Any, value: Any) -> None:
    assert pipeline(sections={"source": SOURCE | {prop: written}}).source[prop] == value


def test_yaml_does_not_convert_properties() -> None:
    """0123 is a number in YAML, and `on` a boolean; both are names here."""
    text = """
name: 0123
source: {connector.class: postgresql, database.hostname: h, database.user: on, database.dbname: 2024-01-01,
         database.password: 0123}
target: {path: lake}
"""
    source = parse(text).source
    assert (source.name, source["database.user"], source["database.dbname"]) == ("0123", "on", "2024-01-01")
    assert source.secret("database.password") == "0123"


@pytest.mark.parametrize(
    ("filters", "captured"),
    [
        ({}, {"public.orders", "public.items", "public2.orders", "audit.log"}),
        ({"table.include.list": "public.*"}, {"public.orders", "public.items", "public2.orders"}),
        ({"table.include.list": r"public\..*"}, {"public.orders", "public.items"}),
        ({"table.include.list": "PUBLIC.ORDERS"}, {"public.orders"}),
        ({"table.include.list": "public.order"}, set()),
        ({"table.exclude.list": ".*orders"}, {"public.items", "audit.log"}),
        ({"schema.include.list": "public"}, {"public.orders", "public.items"}),
        ({"schema.exclude.list": "public2,aud.*"}, {"public.orders", "public.items"}),
        ({"schema.include.list": "public", "table.exclude.list": "public.items"}, {"public.orders"}),
    ],
)
def test_table_filters_match_whole_names_without_regard_to_case(
    filters: dict[str, str], captured: set[str]
) -> None:
    source = pipeline(sections={"source": SOURCE | filters}).source
    names = ["public.orders", "public.items", "public2.orders", "audit.log"]
    assert {name for name in names if source.captures(table(name))} == captured


def test_column_filters() -> None:
    source = pipeline(column_exclude_list=r"public\.orders\.(note|secret)").source
    assert [source.keeps(table("public.orders"), column) for column in ("id", "note", "notes")] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("filters", "captured"),
    [
        ({}, {"audit", "audit.login", "other"}),
        ({"message_prefix_include_list": "audit.*"}, {"audit", "audit.login"}),
        ({"message_prefix_include_list": "audit,other"}, {"audit", "other"}),
        ({"message_prefix_exclude_list": "audit"}, {"audit.login", "other"}),
        ({"message_prefix_exclude_list": ".*"}, set()),
    ],
)
def test_message_filters_match_whole_prefixes(filters: dict[str, str], captured: set[str]) -> None:
    source = pipeline(**filters).source
    assert {one for one in ("audit", "audit.login", "other") if source.captures_message(one)} == captured


def test_key_columns() -> None:
    source = pipeline(message_key_columns="public.a:x,y;public.*:id").source
    assert source.key_columns(table("public.a")) == ("x", "y")
    assert source.key_columns(table("public.b")) == ("id",)
    assert source.key_columns(table("audit.b")) is None


def test_the_first_rule_that_matches_holds() -> None:
    rules = [{"match": "public.orders", "delete": "soft"}, {"match": "public.*", "columns": {"n": "bigint"}}]
    loaded = pipeline(sections={"tables": rules})
    assert loaded.rule(table("public.orders")).delete == "soft"
    assert loaded.rule(table("public.orders")).columns == {}
    assert loaded.rule(table("public.items")).columns == {"n": "BIGINT"}
    assert (loaded.rule(table("audit.log")).delete, loaded.rule(table("audit.log")).scd) == ("hard", 1)


def test_target_of_a_path() -> None:
    target = pipeline(sections={"target": {"path": "${env:LAKE}"}}).target
    assert target.path == Path("/data/lake")
    assert (target.bronze, target.silver, target.control) == ("bronze", "silver", "control")


def test_target_of_a_catalog_is_named_after_the_pipeline() -> None:
    content = {"catalog": "main", "staging": "/Volumes/main/a/b", "silver": "mine"}
    loaded = pipeline("Shop-1", sections={"target": content})
    target = loaded.target
    assert (target.bronze, target.silver, target.control) == ("shop_1_bronze", "mine", "shop_1_cdc")
    assert loaded.staging == Path("/Volumes/main/a/b/Shop-1")


def test_staging_is_beside_the_tables() -> None:
    assert pipeline(sections={"target": {"path": "/data/lake"}}).staging == Path("/data/lake/_staging/shop")


def test_a_reference_may_give_a_number() -> None:
    assert pipeline(sections={"run": {"threads": "${env:N}"}}).run.threads == 7


def test_topic_prefix_names_the_pipeline() -> None:
    content = {"source": SOURCE | {"topic.prefix": "shop"}, "target": {"path": "lake"}}
    assert parse(content).name == "shop"
    assert parse({"name": "shop"} | content).name == "shop"


def test_notices_name_their_place() -> None:
    loaded = pipeline(sections={"source": SOURCE | {"tasks.max": "1", "snapshot.mode": "never"}})
    assert [notice.path for notice in loaded.notices] == ["source.tasks.max", "source.snapshot.mode"]
    assert "no_data" in str(loaded.notices[1])


# -- fingerprint

SAME = [
    {"database.hostname": "elsewhere"},
    {"database.port": 1},
    {"database.password": "x"},
    {"slot.name": "other"},
    {"table.include.list": ""},
    {"skipped.operations": "none"},
    {"decimal.handling.mode": "precise"},
    {"binary.handling.mode": "bytes"},
    {"heartbeat.action.query": "SELECT 1"},
]
OTHER = [
    {"table.include.list": "a.b"},
    {"schema.exclude.list": "a"},
    {"column.exclude.list": "a.b.c"},
    {"skipped.operations": "t"},
    {"skipped.operations": "t,d"},
    {"decimal.handling.mode": "string"},
    {"time.precision.mode": "connect"},
    {"binary.handling.mode": "hex"},
    {"message.key.columns": "a.b:c"},
    {"message.prefix.include.list": "a"},
    {"message.prefix.exclude.list": "a"},
]


@pytest.mark.parametrize("properties", SAME, ids=str)
def test_fingerprint_ignores_what_does_not_shape_rows(properties: dict[str, Any]) -> None:
    changed = pipeline(
        sections={"source": SOURCE | properties, "run": {"threads": 9}, "target": {"path": "x"}}
    )
    assert changed.fingerprint() == pipeline().fingerprint()


def test_fingerprint_tells_everything_that_shapes_rows_apart() -> None:
    prints = {pipeline(sections={"source": SOURCE | properties}).fingerprint() for properties in OTHER}
    for rule in ({"match": "a"}, {"match": "a", "delete": "soft"}, {"match": "a", "columns": {"n": "INT"}}):
        prints.add(pipeline(sections={"tables": [rule]}).fingerprint())
    assert len(prints | {pipeline().fingerprint()}) == len(OTHER) + 3 + 1


def test_fingerprint_does_not_depend_on_the_process() -> None:
    """Sets iterate in another order in every process; the hash must not follow."""
    import subprocess
    import sys

    program = f"""
from cdc_lib.config import parse
source = {SOURCE | {"skipped.operations": "c,u,d,t"}!r}
print(parse({{"name": "shop", "source": source, "target": {{"path": "x"}}}}).fingerprint())
"""
    prints = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(prints) == 1


# -- connector files

CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": 1,
    "database.hostname": "db",
    "database.port": 5433,
    "database.user": "cdc",
    "database.password": "${file:secret.properties:pw}",
    "database.dbname": "shop",
    "topic.prefix": "shop",
    "slot.drop.on.stop": False,
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
}


def connector(tmp_path: Path, text: str) -> Pipeline:
    (tmp_path / "connector.json").write_text(text, encoding="utf-8")
    spec = tmp_path / "shop.yml"
    spec.write_text("source: !file connector.json\ntarget: {path: lake}\n", encoding="utf-8")
    return load(spec)


@pytest.mark.parametrize("posted", [False, True])
def test_a_connector_file(tmp_path: Path, posted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.properties").write_text("user=u\npw = hush=1\n", encoding="utf-8")
    content = {"name": "shop-connector", "config": CONNECTOR} if posted else CONNECTOR
    loaded = connector(tmp_path, json.dumps(content, indent=2))
    assert (loaded.name, loaded.source["database.port"]) == ("shop", 5433)
    assert loaded.source.secret("database.password") == "hush=1"
    noticed = {notice.path.removeprefix("source.") for notice in loaded.notices}
    expected = {"tasks.max", "slot.drop.on.stop", "key.converter", "key.converter.schemas.enable"}
    expected |= {"slot.name", "publication.name", "publication.autocreate.mode"}
    expected |= {"skipped.operations", "time.precision.mode"}
    assert noticed == expected | ({"name"} if posted else set())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            json.dumps(CONNECTOR | {"database.port": "x"}, indent=1),
            "source.database.port (line 5): in connector.json",
        ),
        ('{"topic.prefix": "a", "topic.prefix": "b"}', "topic.prefix is given twice"),
        ("[]", "not a JSON object"),
        ('{"a": }', "not valid JSON at line 1, column 7"),
        ("[" * 100_000, "nested too deeply"),
        ('{"config": {}, "confg": 1}', "confg stands beside config"),
        (json.dumps(CONNECTOR | {"database.dbname": None}), "source.database.dbname"),
        (json.dumps(CONNECTOR | {"database.dbname": {"a": 1}}), "source.database.dbname"),
    ],
)
def test_a_bad_connector_file(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(FixConfiguration) as caught:
        connector(tmp_path, text)
    assert complaint in str(caught.value)


def test_a_missing_connector_file_is_one_complaint_of_several(tmp_path: Path) -> None:
    spec = tmp_path / "shop.yml"
    spec.write_text("name: shop\nsource: !file nowhere.json\ntarget: {pth: x}\n", encoding="utf-8")
    with pytest.raises(FixConfiguration) as caught:
        load(spec)
    assert "source (line 2)" in str(caught.value)
    assert "target.pth (line 3)" in str(caught.value)
