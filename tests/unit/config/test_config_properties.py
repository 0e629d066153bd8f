"""Every property of Debezium's PostgreSQL guide is known, and none is ignored in silence."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cdc_lib.config import parse
from cdc_lib.errors import FixConfiguration
from cdc_lib.json_schema import json_schema
from cdc_lib.properties import ENGINE_NAMES, property_table
from cdc_lib.source import ENGINES

# The guide's list, in its order, with its defaults, and with examples for names that have parts.
GUIDE: dict[str, str | None] = {
    "name": None,
    "connector.class": None,
    "tasks.max": "1",
    "plugin.name": "decoderbufs",
    "slot.name": "debezium",
    "slot.drop.on.stop": "false",
    "publication.name": "dbz_publication",
    "database.hostname": None,
    "database.port": "5432",
    "database.user": None,
    "database.password": None,
    "database.dbname": None,
    "topic.prefix": None,
    "schema.include.list": None,
    "schema.exclude.list": None,
    "table.include.list": None,
    "table.exclude.list": None,
    "column.include.list": None,
    "column.exclude.list": None,
    "skip.messages.without.change": "false",
    "time.precision.mode": "adaptive",
    "decimal.handling.mode": "precise",
    "hstore.handling.mode": "json",
    "interval.handling.mode": "numeric",
    "database.sslmode": "prefer",
    "database.sslcert": None,
    "database.sslkey": None,
    "database.sslpassword": None,
    "database.sslrootcert": None,
    "database.tcpKeepAlive": "true",
    "tombstones.on.delete": "true",
    "column.truncate.to.20.chars": None,
    "column.mask.with.0.chars": None,
    "column.mask.hash.SHA-256.with.salt.CzQMA0cB5K": None,
    "column.mask.hash.v2.SHA-256.with.salt.CzQMA0cB5K": None,
    "column.propagate.source.type": None,
    "datatype.propagate.source.type": None,
    "message.key.columns": None,
    "publication.autocreate.mode": "all_tables",
    "replica.identity.autoset.values": None,
    "binary.handling.mode": "bytes",
    "schema.name.adjustment.mode": "none",
    "field.name.adjustment.mode": "none",
    "money.fraction.digits": "2",
    "message.prefix.include.list": None,
    "message.prefix.exclude.list": None,
    "converters": None,
    "snapshot.mode": "initial",
    "snapshot.mode.configuration.based.snapshot.data": "false",
    "snapshot.mode.configuration.based.snapshot.schema": "false",
    "snapshot.mode.configuration.based.start.stream": "false",
    "snapshot.mode.configuration.based.snapshot.on.schema.error": "false",
    "snapshot.mode.configuration.based.snapshot.on.data.error": "false",
    "snapshot.mode.custom.name": None,
    "snapshot.locking.mode": "none",
    "snapshot.locking.mode.custom.name": None,
    "snapshot.query.mode": "select_all",
    "snapshot.query.mode.custom.name": None,
    "snapshot.include.collection.list": None,
    "snapshot.lock.timeout.ms": "10000",
    "snapshot.select.statement.overrides": None,
    "snapshot.select.statement.overrides.public.orders": None,
    "event.processing.failure.handling.mode": "fail",
    "max.batch.size": "2048",
    "max.queue.size": "8192",
    "max.queue.size.in.bytes": "0",
    "poll.interval.ms": "500",
    "include.unknown.datatypes": "false",
    "database.initial.statements": None,
    "status.update.interval.ms": "10000",
    "heartbeat.interval.ms": "0",
    "heartbeat.action.query": None,
    "schema.refresh.mode": "columns_diff",
    "snapshot.delay.ms": None,
    "streaming.delay.ms": "0",
    "snapshot.fetch.size": "10240",
    "slot.stream.params": None,
    "slot.max.retries": "6",
    "slot.retry.delay.ms": "10000",
    "unavailable.value.placeholder": "__debezium_unavailable_value",
    "provide.transaction.metadata": "false",
    "flush.lsn.source": "true",
    "retriable.restart.connector.wait.ms": "10000",
    "skipped.operations": "t",
    "signal.data.collection": None,
    "signal.enabled.channels": "source",
    "notification.enabled.channels": None,
    "incremental.snapshot.chunk.size": "1024",
    "incremental.snapshot.watermarking.strategy": "insert_insert",
    "read.only": "false",
    "xmin.fetch.interval.ms": "0",
    "topic.naming.strategy": "io.debezium.schema.SchemaTopicNamingStrategy",
    "topic.delimiter": ".",
    "topic.cache.size": "10000",
    "topic.heartbeat.prefix": "__debezium-heartbeat",
    "topic.transaction": "transaction",
    "snapshot.max.threads": "1",
    "custom.metric.tags": None,
    "errors.max.retries": "-1",
    "database.query.timeout.ms": "600000",
    "signal.kafka.topic": "<topic.prefix>-signal",
    "signal.kafka.groupId": "kafka-signal",
    "signal.kafka.bootstrap.servers": None,
    "signal.kafka.poll.timeout.ms": "100",
    "kafka.consumer.offset.commit.enabled": "false",
    "signals.consumer.security.protocol": None,
    "signal.consumer.security.protocol": None,
    "notification.sink.topic.name": None,
    "driver.foobar": None,
    "driver.socketTimeout": None,
    "producer.override.acks": None,
    "consumer.override.max.poll.records": None,
    "database.autosave": None,
}

# What must have an effect; everything else is a notice or refused.
IMPLEMENTED = [
    "connector.class",
    "topic.prefix",
    "database.hostname",
    "database.port",
    "database.user",
    "database.password",
    "database.dbname",
    "database.sslmode",
    "database.sslcert",
    "database.sslkey",
    "database.sslpassword",
    "database.sslrootcert",
    "database.tcpKeepAlive",
    "plugin.name",
    "slot.name",
    "publication.name",
    "publication.autocreate.mode",
    "schema.include.list",
    "schema.exclude.list",
    "table.include.list",
    "table.exclude.list",
    "column.include.list",
    "column.exclude.list",
    "snapshot.mode",
    "snapshot.lock.timeout.ms",
    "skipped.operations",
    "message.prefix.include.list",
    "message.prefix.exclude.list",
    "database.initial.statements",
    "heartbeat.interval.ms",
    "heartbeat.action.query",
    "flush.lsn.source",
    "lsn.flush.mode",
    "offset.mismatch.strategy",
    "snapshot.locking.mode",
    "snapshot.isolation.mode",
    "snapshot.query.mode",
    "decimal.handling.mode",
    "time.precision.mode",
    "binary.handling.mode",
    "message.key.columns",
]

SOURCE: dict[str, Any] = {
    "connector.class": "postgresql",
    "database.hostname": "localhost",
    "database.user": "cdc",
    "database.dbname": "shop",
}
TABLE = property_table("postgresql")


@pytest.mark.parametrize("name", GUIDE)
def test_the_guide_s_properties_are_known(name: str) -> None:
    assert TABLE.find(name) is not None


@pytest.mark.parametrize("name", sorted(set(GUIDE) - set(IMPLEMENTED)))
def test_what_is_not_implemented_says_so(name: str) -> None:
    source = SOURCE | {name: "some value"}
    content = {"name": "shop", "source": source, "target": {"path": "lake"}}
    if TABLE[name].status == "notice":
        (notice,) = parse(content).notices
        assert notice.path == f"source.{name}"
    else:
        with pytest.raises(FixConfiguration, match=r"source\.\S+: not (yet )?supported: \w+"):
            parse(content)


def test_what_is_implemented() -> None:
    assert sorted(row.name for row in TABLE.rows if row.status == "implemented") == sorted(IMPLEMENTED)


@pytest.mark.parametrize("name", [name for name, default in GUIDE.items() if default is not None])
def test_a_default_is_debezium_s_or_the_difference_is_listed(name: str) -> None:
    row, theirs = TABLE[name], GUIDE[name]
    if row.differs:
        assert row.differs.debezium == theirs
    elif row.kind:
        assert row.kind.parse(str(theirs)) == row.default
    elif row.status != "notice":
        assert theirs in row.accepts


@pytest.mark.parametrize("row", [row for row in TABLE.rows if row.differs], ids=lambda row: row.name)
def test_what_is_listed_as_different_is_different(row: Any) -> None:
    """A difference that no longer is one must leave the list."""
    assert row.differs.why.strip()
    assert row.differs.debezium not in row.accepts
    if row.derived:
        assert row.derived("shop") != row.differs.debezium
    elif row.kind:
        assert parsed_or_none(row, row.differs.debezium) != (row.default or "ours")


def parsed_or_none(row: Any, text: str) -> Any:
    """None: a value that is not taken as it is."""
    try:
        return row.kind.parse(text)
    except ValueError:
        return None


def test_a_debezium_connector_is_told_which_silent_defaults_do_not_hold() -> None:
    theirs = {"connector.class": "io.debezium.connector.postgresql.PostgresConnector"}
    content = {"name": "shop", "source": SOURCE | theirs, "target": {"path": "lake"}}
    told = {notice.path.removeprefix("source."): str(notice) for notice in parse(content).notices}
    assert sorted(told) == [
        "publication.autocreate.mode",
        "publication.name",
        "skipped.operations",
        "slot.name",
        "time.precision.mode",
    ]
    assert "Debezium's default, t, does not hold here" in told["skipped.operations"]
    content["source"] = SOURCE | theirs | {name: GUIDE[name] for name in told}
    assert parse(content).notices == ()
    content["source"] = SOURCE
    assert parse(content).notices == ()


ASKED = [
    ("snapshot.locking.mode", "none", "shared"),
    ("snapshot.isolation.mode", "serializable", "repeatable_read"),
    ("snapshot.mode", "never", "no_data"),
]


@pytest.mark.parametrize(("name", "written", "taken"), ASKED)
def test_values_that_stand_for_another_one(name: str, written: str, taken: str) -> None:
    loaded = parse({"name": "shop", "source": SOURCE | {name: written}, "target": {"path": "lake"}})
    assert loaded.source[name] == taken
    (notice,) = loaded.notices
    assert f"taken as {taken}: " in str(notice)


REFUSED = [
    ("snapshot.locking.mode", "custom"),
    ("snapshot.query.mode", "custom"),
    ("snapshot.isolation.mode", "read_committed"),
    ("offset.mismatch.strategy", "trust_slot"),
    ("lsn.flush.mode", "connector_and_driver"),
    ("time.precision.mode", "isostring"),
    *(("snapshot.mode", mode) for mode in ("always", "when_needed", "configuration_based", "custom")),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_values_that_are_known_and_refused(name: str, value: str) -> None:
    with pytest.raises(FixConfiguration, match=rf"source\.{name}: {value} is refused: \w+"):
        parse({"name": "shop", "source": SOURCE | {name: value}, "target": {"path": "lake"}})


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.name)
def test_every_row_is_complete(row: Any) -> None:
    assert row.doc.strip()
    assert (row.kind is not None) == (row.status == "implemented")
    assert re.fullmatch(row.expression, re.sub(r"<\w+>|\*", "x", row.name))
    if row.accepts:
        assert row.status in ("refused", "not yet")


@pytest.mark.parametrize("row", [row for row in TABLE.rows if row.accepts], ids=lambda row: row.name)
def test_asking_for_what_happens_anyway_is_accepted(row: Any) -> None:
    for value in row.accepts:
        loaded = parse({"name": "a", "source": SOURCE | {row.name: value}, "target": {"path": "lake"}})
        assert [notice.path for notice in loaded.notices] == [f"source.{row.name}"]


def test_properties_of_converters_belong_to_converters() -> None:
    """Their names are of the user's choosing, so they are only known beside the list of converters."""
    source = SOURCE | {"isbn.type": "io.debezium.test.IsbnConverter", "isbn.schema.name": "x"}
    content = {"name": "a", "source": source, "target": {"path": "lake"}}
    with pytest.raises(FixConfiguration, match=r"isbn\.type: unknown property"):
        parse(content)
    source["converters"] = "other, isbn"
    with pytest.raises(FixConfiguration, match=r"isbn\.type: not yet supported"):
        parse(content)


def test_engine_names_agree_with_the_registry() -> None:
    registry = {name: engine for engine, entry in ENGINES.items() for name in (engine, *entry.aliases)}
    assert registry == dict(ENGINE_NAMES)


def test_json_schema_covers_the_table_and_is_json() -> None:
    schema = json.loads(json.dumps(json_schema()))
    source = schema["$defs"]["source"]
    assert {"$ref": "#/$defs/source"} in schema["properties"]["source"]["anyOf"]
    assert set(source["required"]) == {
        "connector.class",
        "database.hostname",
        "database.user",
        "database.dbname",
    }
    patterns = [re.compile(pattern) for pattern in source["patternProperties"]]
    for name in GUIDE:
        assert name in source["properties"] or any(pattern.search(name) for pattern in patterns)
    assert source["properties"]["database.port"]["default"] == 5432
    assert source["properties"]["tasks.max"]["deprecated"] is True
    assert schema["properties"]["tables"]["items"]["required"] == ["match"]
    assert "never" in source["properties"]["snapshot.mode"]["anyOf"][0]["enum"]
