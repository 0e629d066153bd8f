"""The properties of the PostgreSQL connector, every one that Debezium's guide names.

Defaults differ from Debezium's where its own would break a guarantee or need more rights than a reader
should have: pgoutput, a publication of the captured tables only, a slot per pipeline, truncates captured,
Delta's own types. Limits: identifiers of at most 63 bytes (PostgreSQL's NAMEDATALEN - 1); slot names of
lower-case letters, digits and underscores (manual, "Querying and Manipulating Replication Slots").
"""

from __future__ import annotations

import hashlib
import re

from cdc_lib.properties import (
    EXPRESSIONS,
    FLAG,
    KEYS,
    OPERATIONS,
    TEXT,
    Kind,
    Property,
    choice,
    matching,
    not_yet,
    notice,
    refused,
    whole_number,
)

_MAX_NAME = 63


def slot_name(pipeline: str) -> str:
    """``cdc_<pipeline>``; a name that had to be changed to fit ends in a hash, so that no two pipelines
    end up with the same slot."""
    plain = "cdc_" + re.sub(r"[^a-z0-9_]", "_", pipeline.lower())
    if plain == f"cdc_{pipeline}" and len(plain) <= _MAX_NAME:
        return plain
    digest = hashlib.sha256(pipeline.encode()).hexdigest()[:6]
    return f"{plain[: _MAX_NAME - 7]}_{digest}"


def _identifier(text: str) -> str:
    if not text or "\0" in text or len(text.encode()) > _MAX_NAME:
        raise ValueError(f"expected a name of 1 to {_MAX_NAME} bytes")
    return text


def _host(text: str) -> str:
    if "://" in text or "@" in text or not text.strip() or text != text.strip():
        raise ValueError("expected a host name, an address or a socket folder, not a URL")
    return text


_IDENTIFIER = Kind(f"a name of 1 to {_MAX_NAME} bytes", _identifier)
_HOST = Kind("a host name, an address or a socket folder", _host)
_SLOT = matching(r"[a-z0-9_]{1,63}", "1 to 63 lower-case letters, digits and underscores")

_CONNECTION: tuple[Property, ...] = (
    Property("connector.class", "The engine: postgresql, or Debezium's class name.", TEXT, required=True),
    Property("topic.prefix", "The pipeline's name, as `name` at the top; fixed for life.", TEXT, derived=str),
    Property(
        "database.hostname", "Host name or address, or the folder of a Unix socket.", _HOST, required=True
    ),
    Property("database.port", "Port.", whole_number(1, 65535), 5432),
    Property(
        "database.user", "The role that reads; see `cdc check` for the rights it needs.", TEXT, required=True
    ),
    Property("database.password", "Its password; better a reference than the password.", TEXT, secret=True),
    Property("database.dbname", "The database; one pipeline captures one.", _IDENTIFIER, required=True),
    Property(
        "database.sslmode",
        "Whether the connection is encrypted and the server's certificate checked, as libpq's sslmode.",
        choice("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        "prefer",
    ),
    Property("database.sslcert", "Path of the client certificate.", TEXT),
    Property("database.sslkey", "Path of the client key.", TEXT),
    Property("database.sslpassword", "Password of the client key.", TEXT, secret=True),
    Property("database.sslrootcert", "Path of the certificates of the authorities to trust.", TEXT),
    Property("database.tcpKeepAlive", "Whether idle connections are kept alive and probed.", FLAG, True),
)

_LOG: tuple[Property, ...] = (
    Property(
        "plugin.name",
        "The output plug-in; Debezium's own default is decoderbufs.",
        choice("pgoutput"),
        "pgoutput",
        declined={
            "decoderbufs": "it must be installed on the server and carries less than pgoutput, which every "
            "server since PostgreSQL 10 has; leave the line out",
            "wal2json": "it was dropped by Debezium 2; pgoutput carries more; leave the line out",
        },
    ),
    Property(
        "slot.name",
        "The replication slot, one per pipeline; Debezium's default is `debezium`. Default: cdc_ and the "
        "pipeline's name, with a hash at the end where the name had to be changed to fit.",
        _SLOT,
        derived=slot_name,
    ),
    Property("publication.name", "The publication. Default: as the slot's.", _IDENTIFIER, derived=slot_name),
    Property(
        "publication.autocreate.mode",
        "filtered: of the captured tables, kept up to date; all_tables: of all tables, if there is "
        "none (needs a superuser); no_tables: an empty one, if there is none; disabled: it must exist.",
        choice("all_tables", "disabled", "filtered", "no_tables"),
        "filtered",
    ),
)

_FILTERS: tuple[Property, ...] = (
    *(
        Property(
            f"{what}.{which}.list",
            f"Expressions for {form}, matched against the whole name without regard to case; {effect}.",
            EXPRESSIONS,
            (),
            shapes=True,
        )
        for what, form in (
            ("schema", "schema"),
            ("table", "schema.table"),
            ("column", "schema.table.column (key columns are always kept)"),
        )
        for which, effect in (("include", "all others are left out"), ("exclude", "these are left out"))
    ),
    Property(
        "skipped.operations",
        "Operations to leave out: c, u, d, t. Debezium leaves out truncates by default; we do not.",
        OPERATIONS,
        frozenset(),
        shapes=True,
    ),
    Property(
        "message.key.columns",
        "Key columns of tables, instead of the primary key: schema.table:column,column;...",
        KEYS,
        (),
        shapes=True,
    ),
)

_TYPES: tuple[Property, ...] = (
    Property(
        "decimal.handling.mode",
        "precise, double or string, for numeric. Default: DECIMAL, or STRING where one cannot hold it.",
        choice("precise", "double", "string"),
        shapes=True,
    ),
    Property(
        "time.precision.mode",
        "Numbers since the epoch or midnight, as Debezium writes them. Default: DATE, TIMESTAMP_NTZ, STRING.",
        choice("adaptive", "adaptive_time_microseconds", "connect"),
        shapes=True,
    ),
    Property(
        "binary.handling.mode",
        "bytes, or text in base64, base64-url-safe or hex, for bytea. Default: BINARY.",
        choice("bytes", "base64", "base64-url-safe", "hex"),
        shapes=True,
    ),
    not_yet("hstore.handling.mode", "hstore arrives as the server's text, whatever is asked for"),
    not_yet("interval.handling.mode", "intervals arrive as the server's text, whatever is asked for"),
    not_yet("money.fraction.digits", "money arrives as the server's text"),
    not_yet("include.unknown.datatypes", "columns of other types arrive as the server's text"),
    not_yet("unavailable.value.placeholder", "columns that the log did not carry are listed beside the row"),
    not_yet("converters", "custom converters change values"),
    not_yet("field.name.adjustment.mode", "columns keep their source names", accepts=("none",)),
    notice("schema.name.adjustment.mode", "it renames Kafka Connect's schemas, which do not exist here"),
    notice("column.propagate.source.type", "source types are always in the schema_history table"),
    notice("datatype.propagate.source.type", "source types are always in the schema_history table"),
)

_MASKED = "ignoring it would write values that were to be hidden"
_MASKS: tuple[Property, ...] = (
    not_yet("column.truncate.to.<length>.chars", _MASKED),
    not_yet("column.mask.with.<length>.chars", _MASKED),
    not_yet("column.mask.hash.v2.<algorithm>.with.salt.<salt>", _MASKED),
    not_yet("column.mask.hash.<algorithm>.with.salt.<salt>", _MASKED),
)

_CUSTOM = "snapshots are taken in the built-in ways only"
_CONFIGURATION_BASED = "it belongs to snapshot.mode configuration_based"
_SNAPSHOT: tuple[Property, ...] = (
    Property(
        "snapshot.mode",
        "initial: all rows once, then the log; initial_only: all rows, then stop; no_data: the log only.",
        choice("initial", "initial_only", "no_data"),
        "initial",
        aliases={"never": ("no_data", "never is Debezium's old name of no_data")},
        declined={
            "always": "not yet supported: every start would have to take all rows again",
            "when_needed": "not yet supported: a lost position is an error until then",
            "configuration_based": "not yet supported",
            "custom": "not yet supported",
        },
    ),
    Property(
        "snapshot.lock.timeout.ms",
        "How long to wait for a table that somebody is altering, in milliseconds.",
        whole_number(0, 2**31 - 1),
        10_000,
    ),
    *(
        not_yet(f"snapshot.mode.configuration.based.{name}", _CONFIGURATION_BASED)
        for name in (
            "snapshot.data",
            "snapshot.schema",
            "start.stream",
            "snapshot.on.schema.error",
            "snapshot.on.data.error",
        )
    ),
    not_yet("snapshot.mode.custom.name", _CUSTOM),
    not_yet("snapshot.locking.mode", "the lock is that of any SELECT", accepts=("none",)),
    not_yet("snapshot.locking.mode.custom.name", _CUSTOM),
    not_yet("snapshot.isolation.mode", "the snapshot is one repeatable-read view at the slot's start"),
    not_yet("snapshot.query.mode", _CUSTOM, accepts=("select_all",)),
    not_yet("snapshot.query.mode.custom.name", _CUSTOM),
    not_yet("snapshot.include.collection.list", "all captured tables are read"),
    not_yet("snapshot.select.statement.overrides", "all rows of a table are read"),
    not_yet("snapshot.select.statement.overrides.*", "all rows of a table are read"),
    not_yet("snapshot.resume", "an interrupted snapshot starts over"),
    not_yet("snapshot.on", "snapshots are read by threads of the driver"),
    not_yet("snapshot.delay.ms", "the snapshot starts at once"),
    notice("snapshot.max.threads", "see run.threads"),
    notice("snapshot.fetch.size", "rows are read by COPY, which has no fetch size; see run.chunk_rows"),
    notice("snapshot.tables.order.by.row.count", "it only concerns the order in which tables are read"),
    notice("streaming.delay.ms", "the end of the snapshot is committed before streaming starts"),
    notice("incremental.snapshot.chunk.size", "see run.chunk_rows"),
    notice("incremental.snapshot.watermarking.strategy", "nothing is ever written to a table of the source"),
    notice("read.only", "nothing is ever written to a table of the source"),
)

_STREAMING: tuple[Property, ...] = (
    refused(
        "slot.drop.on.stop", "dropping the slot loses every change until the next start", accepts=("false",)
    ),
    not_yet("slot.stream.params", "the plug-in gets the options that the decoder relies on"),
    not_yet("slot.failover", "the slot would not be copied to standby servers"),
    not_yet("publish.via.partition.root", "partitions are captured through their root"),
    not_yet("flush.lsn.source", "the slot is moved behind every durable batch", accepts=("true",)),
    not_yet("lsn.flush.mode", "the slot is moved behind every durable batch"),
    not_yet("offset.mismatch.strategy", "a slot that does not fit our position is an error"),
    not_yet("replica.identity.autoset.values", "the replica identity of tables is not changed"),
    not_yet("skip.messages.without.change", "updates that change nothing are rows, too", accepts=("false",)),
    not_yet("message.prefix.include.list", "logical messages are not filtered"),
    not_yet("message.prefix.exclude.list", "logical messages are not filtered"),
    not_yet("provide.transaction.metadata", "the transactions table is not filled yet", accepts=("false",)),
    not_yet("event.processing.failure.handling.mode", "a row is never skipped", accepts=("fail",)),
    not_yet("xmin.fetch.interval.ms", "source.xmin is not filled", accepts=("0",)),
    not_yet("heartbeat.action.query", "nothing is executed on the source"),
    not_yet("database.initial.statements", "sessions are set up as the decoder needs them"),
    not_yet("database.query.timeout.ms", "statements would run without this limit"),
    refused("database.autosave", "an option of the JDBC driver; this is not JDBC"),
    refused("driver.*", "options of the JDBC driver; this is not JDBC"),
    not_yet("signal.data.collection", "signals through a table of the source are not read"),
    not_yet("signal.enabled.channels", "signals are not read from these channels"),
    not_yet("notification.enabled.channels", "notifications are not sent to these channels"),
    not_yet("guardrail.collections.*", "the number of captured tables is not limited"),
    not_yet("internal.*", "Debezium's internal properties have no counterpart that is known"),
    notice("heartbeat.interval.ms", "every run moves the position, also when no captured table changed"),
    notice("schema.refresh.mode", "structures follow the log's own relation messages"),
    notice("status.update.interval.ms", "the log is read by query, without a replication connection"),
    notice("slot.max.retries", "a slot in use ends the run with exit code 3: run again later"),
    notice("slot.retry.delay.ms", "a slot in use ends the run with exit code 3: run again later"),
    notice("errors.max.retries", "a passing fault ends the run with exit code 3; the job decides on retries"),
    notice("retriable.restart.connector.wait.ms", "the job that runs the pipeline decides on retries"),
    notice("max.batch.size", "see run.batch_rows"),
    notice("max.queue.size", "there is no queue between reader and writer; see run.batch_rows"),
    notice("max.queue.size.in.bytes", "there is no queue between reader and writer; see run.window_mb"),
    notice("poll.interval.ms", "see run.poll_seconds"),
    notice("custom.metric.tags", "metrics are rows of the runs table, with the pipeline's name"),
    notice("connection.validation.timeout.ms", "a connection is tried once per run"),
    notice("executor.shutdown.timeout.ms", "a run stops at the next durable step"),
    notice("extended.headers.enabled", "rows have no headers"),
)

_RENAMED: tuple[Property, ...] = (
    refused("database.server.name", "Debezium 2 renamed it topic.prefix; here it is name at the top"),
    *(
        refused(f"{what}.{old}", f"Debezium 2 renamed it {what}.{new}.list")
        for what in ("schema", "table", "column")
        for old, new in (("whitelist", "include"), ("blacklist", "exclude"))
    ),
)

PROPERTIES: tuple[Property, ...] = (
    *_CONNECTION,
    *_LOG,
    *_FILTERS,
    *_TYPES,
    *_MASKS,
    *_SNAPSHOT,
    *_STREAMING,
    *_RENAMED,
)
