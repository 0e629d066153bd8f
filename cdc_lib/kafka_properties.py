"""What connector files hold for Kafka and Kafka Connect, so that an existing one can be used as it is.

Most of it has no meaning without Kafka and is accepted with a notice. Transforms are not: they change rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdc_lib.properties import Differs, Property, not_yet, notice

_NO_KAFKA = "there is no Kafka here"
_CONNECT = "a setting of the Kafka Connect worker; there is none here"
_SIGNALS = "signals are rows in the control schema's signals table"
_TOPICS = "rows go to tables named after the source table, not to topics"

_KAFKA: tuple[Property, ...] = (
    notice("name", "the connector's name in Kafka Connect; the pipeline is named by `name` at the top"),
    notice("tasks.max", "a pipeline is one task; see run.threads for reading in parallel"),
    notice(
        "tombstones.on.delete",
        "Delta tables have no tombstones; a delete is one row of bronze",
        differs=Differs("true", "they serve the compaction of Kafka's topics", "false"),
    ),
    notice("key.converter", _CONNECT),
    notice("key.converter.*", _CONNECT),
    notice("value.converter", _CONNECT),
    notice("value.converter.*", _CONNECT),
    notice("header.converter", _CONNECT),
    notice("header.converter.*", _CONNECT),
    notice("config.action.reload", _CONNECT),
    notice("exactly.once.support", "every committed change is in bronze exactly once in any case"),
    notice("transaction.boundary", _CONNECT),
    notice("transaction.boundary.*", _CONNECT),
    notice("offsets.storage.topic", _CONNECT),
    notice("offset.storage", "positions are kept in the control schema's watermarks table"),
    notice("offset.storage.*", "positions are kept in the control schema's watermarks table"),
    notice("offset.flush.interval.ms", "the position is committed with every batch"),
    notice("offset.flush.timeout.ms", "the position is committed with every batch"),
    notice(
        "schema.history.internal", "table structures are kept in the control schema's schema_history table"
    ),
    notice(
        "schema.history.internal.*", "table structures are kept in the control schema's schema_history table"
    ),
    notice("errors.retry.timeout", _CONNECT),
    notice("errors.retry.delay.max.ms", _CONNECT),
    notice("errors.log.enable", "errors are always in the log, in runs and in incidents"),
    notice("errors.log.include.messages", "row values are never logged"),
    not_yet("errors.tolerance", "a row that cannot be read would have to be skipped", accepts=("none",)),
    not_yet("transforms", "transforms change rows and where they go"),
    not_yet("transforms.*", "transforms change rows and where they go"),
    not_yet("predicates", "predicates decide which rows a transform changes"),
    not_yet("predicates.*", "predicates decide which rows a transform changes"),
    notice("topic.naming.strategy", _TOPICS),
    notice("topic.delimiter", _TOPICS),
    notice("topic.cache.size", _TOPICS),
    notice("topic.heartbeat.prefix", "heartbeats are in the control schema's watermarks table"),
    notice("topic.transaction", "each row of bronze carries its `transaction`"),
    notice("topic.creation.*", _TOPICS),
    notice("signal.kafka.topic", _SIGNALS),
    notice("signal.kafka.groupId", _SIGNALS),
    notice("signal.kafka.bootstrap.servers", _SIGNALS),
    notice("signal.kafka.poll.timeout.ms", _SIGNALS),
    notice("kafka.consumer.offset.commit.enabled", "a signal stays in its table until it is answered"),
    notice("signals.consumer.*", _SIGNALS),
    notice("signal.consumer.*", _SIGNALS),
    notice("notification.sink.topic.name", "nothing is sent; see the control schema's runs and incidents"),
    notice("producer.*", _NO_KAFKA),
    notice("consumer.*", _NO_KAFKA),
    notice("admin.*", _NO_KAFKA),
    notice("openlineage.*", "Unity Catalog records lineage by itself; no events are sent"),
)

GROUPS: Mapping[str, tuple[Property, ...]] = {"Kafka and Kafka Connect": _KAFKA}
