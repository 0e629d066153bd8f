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

# The guide's list, in its order (requirements/postgresql.md 1.10), with examples for names that have parts.
GUIDE = [
    "name",
    "connector.class",
    "tasks.max",
    "plugin.name",
    "slot.name",
    "slot.drop.on.stop",
    "publication.name",
    "database.hostname",
    "database.port",
    "database.user",
    "database.password",
    "database.dbname",
    "topic.prefix",
    "schema.include.list",
    "schema.exclude.list",
    "table.include.list",
    "table.exclude.list",
    "column.include.list",
    "column.exclude.list",
    "skip.messages.without.change",
    "time.precision.mode",
    "decimal.handling.mode",
    "hstore.handling.mode",
    "interval.handling.mode",
    "database.sslmode",
    "database.sslcert",
    "database.sslkey",
    "database.sslpassword",
    "database.sslrootcert",
    "database.tcpKeepAlive",
    "tombstones.on.delete",
    "column.truncate.to.20.chars",
    "column.mask.with.0.chars",
    "column.mask.hash.SHA-256.with.salt.CzQMA0cB5K",
    "column.mask.hash.v2.SHA-256.with.salt.CzQMA0cB5K",
    "column.propagate.source.type",
    "datatype.propagate.source.type",
    "message.key.columns",
    "publication.autocreate.mode",
    "replica.identity.autoset.values",
    "binary.handling.mode",
    "schema.name.adjustment.mode",
    "field.name.adjustment.mode",
    "money.fraction.digits",
    "message.prefix.include.list",
    "message.prefix.exclude.list",
    "converters",
    "snapshot.mode",
    "snapshot.mode.configuration.based.snapshot.data",
    "snapshot.mode.configuration.based.snapshot.schema",
    "snapshot.mode.configuration.based.start.stream",
    "snapshot.mode.configuration.based.snapshot.on.schema.error",
    "snapshot.mode.configuration.based.snapshot.on.data.error",
    "snapshot.mode.custom.name",
    "snapshot.locking.mode",
    "snapshot.locking.mode.custom.name",
    "snapshot.query.mode",
    "snapshot.query.mode.custom.name",
    "snapshot.include.collection.list",
    "snapshot.lock.timeout.ms",
    "snapshot.select.statement.overrides",
    "snapshot.select.statement.overrides.public.orders",
    "event.processing.failure.handling.mode",
    "max.batch.size",
    "max.queue.size",
    "max.queue.size.in.bytes",
    "poll.interval.ms",
    "include.unknown.datatypes",
    "database.initial.statements",
    "status.update.interval.ms",
    "heartbeat.interval.ms",
    "heartbeat.action.query",
    "schema.refresh.mode",
    "snapshot.delay.ms",
    "streaming.delay.ms",
    "snapshot.fetch.size",
    "slot.stream.params",
    "slot.max.retries",
    "slot.retry.delay.ms",
    "unavailable.value.placeholder",
    "provide.transaction.metadata",
    "flush.lsn.source",
    "retriable.restart.connector.wait.ms",
    "skipped.operations",
    "signal.data.collection",
    "signal.enabled.channels",
    "notification.enabled.channels",
    "incremental.snapshot.chunk.size",
    "incremental.snapshot.watermarking.strategy",
    "read.only",
    "xmin.fetch.interval.ms",
    "topic.naming.strategy",
    "topic.delimiter",
    "topic.cache.size",
    "topic.heartbeat.prefix",
    "topic.transaction",
    "snapshot.max.threads",
    "custom.metric.tags",
    "errors.max.retries",
    "database.query.timeout.ms",
    "signal.kafka.topic",
    "signal.kafka.groupId",
    "signal.kafka.bootstrap.servers",
    "signal.kafka.poll.timeout.ms",
    "kafka.consumer.offset.commit.enabled",
    "signals.consumer.security.protocol",
    "signal.consumer.security.protocol",
    "notification.sink.topic.name",
    "driver.socketTimeout",
    "producer.override.acks",
    "consumer.override.max.poll.records",
    "database.autosave",
]

# What the foundation must be able to do, by issue; everything else is a notice or refused.
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


def test_names_stand_in_the_table_once() -> None:
    names = [row.name for row in TABLE.rows]
    assert sorted(names) == sorted(set(names))


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
    source = schema["properties"]["source"]["anyOf"][0]
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
