"""Connectors from Debezium's guide must be usable as they stand; and what of the guide is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_lib.config import Pipeline, load
from cdc_lib.errors import FixConfiguration
from cdc_lib.properties import property_table
from tests.connectors import CONNECTORS, connector

TABLE = property_table("postgresql")

# What each must come to: values that differ from ours, and the properties that get a notice.
VALUES: dict[str, dict[str, Any]] = {
    "fulfillment": {
        "database.hostname": "192.168.99.100",
        "database.port": 5432,
        "database.user": "postgres",
        "database.dbname": "postgres",
        "table.include.list": ("public.inventory",),
        "plugin.name": "pgoutput",
    },
    "managed_service": {
        "database.sslmode": "verify-full",
        "database.sslrootcert": "/etc/ssl/rds.pem",
        "slot.name": "debezium",
        "publication.name": "dbz_publication",
        "publication.autocreate.mode": "filtered",
        "schema.include.list": ("inventory",),
        "message.key.columns": (
            ("inventory.customers", ("pk1", "pk2")),
            ("(.*).purchaseorders", ("pk3", "pk4")),
        ),
        "skipped.operations": frozenset("t"),
        "time.precision.mode": "adaptive",
        "decimal.handling.mode": "string",
    },
    "quiet_database": {
        "table.include.list": ("public.inventory", "public.test_heartbeat_table"),
        "publication.autocreate.mode": "disabled",
        "heartbeat.interval.ms": 60_000,
        "heartbeat.action.query": "INSERT INTO test_heartbeat_table (text) VALUES ('test_heartbeat')",
        "database.initial.statements": ("SET work_mem = '64MB'", "SET application_name = 'a;b'"),
    },
    "after_upgrade": {
        "slot.name": "debezium_17",
        "publication.name": "dbz_publication_17",
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
    },
    "read_only": {"snapshot.mode": "initial"},
    "all_defaults": {
        "slot.name": "debezium",
        "publication.name": "dbz_publication",
        "publication.autocreate.mode": "all_tables",
        "time.precision.mode": "adaptive",
        "skipped.operations": frozenset("t"),
        "heartbeat.interval.ms": 0,
    },
}
NOT_GIVEN = {
    "slot.name",
    "publication.name",
    "publication.autocreate.mode",
    "skipped.operations",
    "time.precision.mode",
}
NOTICES: dict[str, set[str]] = {
    "fulfillment": {"database.password"} | NOT_GIVEN,
    "managed_service": {
        "tasks.max",
        "tombstones.on.delete",
        "key.converter",
        "key.converter.schemas.enable",
        "value.converter",
        "value.converter.schemas.enable",
        "topic.creation.default.replication.factor",
        "topic.creation.default.partitions",
        "errors.tolerance",
    },
    "quiet_database": {"database.password", "topic.heartbeat.prefix", "custom.metric.tags"}
    | NOT_GIVEN - {"publication.autocreate.mode"},
    "after_upgrade": {
        "database.password",
        "slot.drop.on.stop",
        "snapshot.mode",
        "skipped.operations",
        "time.precision.mode",
    },
    "read_only": {
        "database.password",
        "database.autosave",
        "read.only",
        "incremental.snapshot.chunk.size",
        "incremental.snapshot.watermarking.strategy",
        "signal.kafka.topic",
        "signal.kafka.groupId",
        "signal.kafka.bootstrap.servers",
        "signal.consumer.security.protocol",
        "notification.enabled.channels",
        "notification.sink.topic.name",
    }
    | NOT_GIVEN,
}


def as_a_file(name: str) -> str:
    return f"source: !file {CONNECTORS / name}.json"


def as_it_is_posted(name: str) -> str:
    lines = (CONNECTORS / f"{name}.json").read_text(encoding="utf-8").splitlines()
    return "source:\n" + "\n".join(f"  {line}" for line in lines)


def as_json(name: str) -> str:
    return f"source: {json.dumps(connector(name))}"


def as_yaml(name: str) -> str:
    lines = [f"  {key}: {json.dumps(value)}" for key, value in connector(name).items()]
    return "source:\n" + "\n".join(lines)


Way = Callable[[str], str]
WAYS: list[Way] = [as_a_file, as_it_is_posted, as_json, as_yaml]


def loaded(source: str, folder: Path) -> Pipeline:
    path = folder / "pipeline.yml"
    path.write_text(f"{source}\ntarget: {{path: lake}}\n", encoding="utf-8")
    return load(path, environ={})


def test_every_connector_is_tried() -> None:
    assert {path.stem for path in CONNECTORS.glob("*.json")} == VALUES.keys()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", VALUES)
def test_a_connector_of_the_guide_is_usable_as_it_stands(name: str, way: Way, tmp_path: Path) -> None:
    pipeline = loaded(way(name), tmp_path)
    assert pipeline.name == connector(name)["topic.prefix"]
    assert {prop: pipeline.source[prop] for prop in VALUES[name]} == VALUES[name]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", NOTICES)
def test_what_has_no_meaning_here_is_said(name: str, way: Way, tmp_path: Path) -> None:
    found = [notice.path.removeprefix("source.") for notice in loaded(way(name), tmp_path).notices]
    named = "name" in connector(name) or (way in (as_a_file, as_it_is_posted) and name != "quiet_database")
    assert sorted(found) == sorted(NOTICES[name] | ({"name"} if named else set()))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_default_that_is_written_down_goes_unheard(way: Way, tmp_path: Path) -> None:
    """Each is used, or a notice names it."""
    pipeline = loaded(way("all_defaults"), tmp_path)
    noticed = {notice.path.removeprefix("source.") for notice in pipeline.notices}
    unheard = [
        name
        for name in connector("all_defaults")
        if TABLE[name].status != "implemented" and name not in noticed
    ]
    assert unheard == []
    assert {"snapshot.locking.mode", "unavailable.value.placeholder"} <= noticed


# The guide's examples of what cannot be done yet, or at all.
REFUSED = [
    ("plugin.name", "decoderbufs", "refused"),
    ("slot.stream.params", "add-tables=public.table,public.table2;include-lsn=true", "not supported"),
    (
        "replica.identity.autoset.values",
        "schema1.*:FULL,schema2.table2:NOTHING,schema2.table3:INDEX idx_name",
        "not yet supported",
    ),
    (
        "column.mask.hash.SHA-256.with.salt.CzQMA0cB5K",
        "inventory.orders.customerName, inventory.shipment.customerName",
        "not yet supported",
    ),
    ("column.truncate.to.20.chars", "inventory.orders.customerName", "not yet supported"),
    ("column.mask.with.0.chars", "inventory.orders.customerName", "not yet supported"),
    ("snapshot.select.statement.overrides", "inventory.products,customers.orders", "not yet supported"),
    ("snapshot.select.statement.overrides.customer.orders", "SELECT * FROM customers", "not yet supported"),
    ("converters", "isbn", "not yet supported"),
    ("include.unknown.datatypes", "true", "not yet supported"),
    ("transforms", "unwrap", "not yet supported"),
    ("transforms.unwrap.type", "io.debezium.transforms.ExtractNewRecordState", "not yet supported"),
    ("transforms.Reroute.topic.regex", "(.*)customers_shard(.*)", "not yet supported"),
    ("driver.foobar", "false", "not supported"),
]


@pytest.mark.parametrize(("name", "value", "how"), REFUSED)
def test_what_would_change_the_data_is_refused_with_the_reason(
    name: str, value: str, how: str, tmp_path: Path
) -> None:
    source = connector("fulfillment") | {name: value}
    with pytest.raises(FixConfiguration) as caught:
        loaded(f"source: {json.dumps(source)}", tmp_path)
    (complaint,) = [line.strip() for line in str(caught.value).splitlines() if line.startswith("  ")]
    # A salt is as secret as a password.
    assert complaint.startswith(f"source.{name}".replace("CzQMA0cB5K", "***"))
    told = complaint.partition(how)[2]
    assert len(told) > 20


def test_what_stands_beside_a_pasted_config_is_not_overlooked(tmp_path: Path) -> None:
    source = {"name": "a", "config": connector("fulfillment"), "database.port": "5433"}
    with pytest.raises(FixConfiguration, match=r"database\.port stands beside config, where only name is"):
        loaded(f"source: {json.dumps(source)}", tmp_path)


def test_a_pasted_config_keeps_its_lines(tmp_path: Path) -> None:
    source = as_it_is_posted("fulfillment").replace('"5432"', '"x"')
    with pytest.raises(FixConfiguration, match=r"source\.database\.port \(line 7\): expected a whole number"):
        loaded(source, tmp_path)
