"""The properties of the PostgreSQL connector, every one that Debezium's guide names.

Defaults differ from Debezium's where its own would break a guarantee or need more rights than a reader
should have: pgoutput, a publication of the captured tables only, a slot per pipeline, truncates captured,
Delta's own types. Limits: identifiers of at most 63 bytes (PostgreSQL's NAMEDATALEN - 1); slot names of
lower-case letters, digits and underscores (manual, "Querying and Manipulating Replication Slots").
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from cdc_lib.properties import (
    EXPRESSIONS,
    FLAG,
    KEYS,
    OPERATIONS,
    STATEMENTS,
    TEXT,
    Differs,
    Kind,
    Property,
    choice,
    matching,
    not_yet,
    notice,
    refused,
    whole_number,
)
from cdc_lib.sources.postgresql.snapshot_properties import SNAPSHOTS
from cdc_lib.sources.postgresql.streaming_properties import SIGNALS, STREAMING
from cdc_lib.sources.postgresql.type_properties import MASKS, TYPES

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

_NOT_JDBC = "an option of the JDBC driver; this is not JDBC"
_WAITING = (
    "it only says how long to wait; a connection is tried for 15 seconds, a lost one found by keep-alives"
)
_SAVEPOINTS = "it lets the JDBC driver prepare a statement again after DDL; nothing is prepared here"

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
    refused("database.sslfactory", "a Java class; libpq makes the encrypted connection here"),
    Property("database.tcpKeepAlive", "Whether idle connections are kept alive and probed.", FLAG, True),
    Property(
        "database.initial.statements",
        "SQL that every session runs first, except those that read the log; `;;` stands for one semicolon. "
        "For session parameters: those that values depend on (TimeZone, DateStyle, search_path and others) "
        "cannot be changed, and trying to is an error.",
        STATEMENTS,
        (),
    ),
    notice(
        "database.query.timeout.ms",
        "a statement may take as long as it takes; a lost server is found by keep-alives",
        differs=Differs(
            "600000", "one statement reads a chunk of any size, however long it takes", "no limit"
        ),
    ),
    notice("connection.validation.timeout.ms", "a connection is tried once per run"),
    notice("database.autosave", _SAVEPOINTS),
    notice("driver.autosave", _SAVEPOINTS),
    notice("driver.connectTimeout", _WAITING),
    notice("driver.loginTimeout", _WAITING),
    notice("driver.socketTimeout", _WAITING),
    notice("driver.ApplicationName", "sessions are called cdc_lib and the pipeline's name"),
    refused("driver.*", _NOT_JDBC),
)

_OWN = "a slot gives every change to one reader only, so no two pipelines may share one by default"
_NAMED = "cdc_ and the pipeline's name"
_LOG: tuple[Property, ...] = (
    Property(
        "plugin.name",
        "The output plug-in.",
        choice("pgoutput"),
        "pgoutput",
        declined={
            "decoderbufs": "it must be installed on the server and carries less than pgoutput, which every "
            "server since PostgreSQL 10 has; leave the line out",
            "wal2json": "it was dropped by Debezium 2; pgoutput carries more; leave the line out",
        },
        differs=Differs("decoderbufs", "pgoutput is part of every server and carries more"),
    ),
    Property(
        "slot.name",
        f"The replication slot, one per pipeline. Default: {_NAMED}, with a hash at the end where the name "
        "had to be changed to fit.",
        _SLOT,
        derived=slot_name,
        differs=Differs("debezium", _OWN, _NAMED, tell=True),
    ),
    refused(
        "slot.drop.on.stop", "dropping the slot loses every change until the next start", accepts=("false",)
    ),
    not_yet("slot.failover", "the slot would not be copied to standby servers", accepts=("false",)),
    refused(
        "slot.stream.params", "pgoutput gets the options that decoding relies on; other plug-ins are not read"
    ),
    notice("slot.max.retries", "a slot in use ends the run with exit code 3: run again later"),
    notice("slot.retry.delay.ms", "a slot in use ends the run with exit code 3: run again later"),
    Property(
        "flush.lsn.source",
        "Whether the slot is moved behind what is durable. false: somebody else moves it, never past "
        "`control.watermarks`; until then the server keeps its log, and every run reads all of it again.",
        FLAG,
        True,
    ),
    Property(
        "lsn.flush.mode",
        "Debezium 3's name for flush.lsn.source: connector (true) or manual (false).",
        choice("connector", "manual"),
        "connector",
        declined={"connector_and_driver": "it would move the slot past what is durable"},
    ),
    Property(
        "offset.mismatch.strategy",
        "What to do where the slot is not where we stand. trust_offset: a slot that lags is moved up, one "
        "that is ahead of us is an error, since changes were lost.",
        choice("trust_offset"),
        "trust_offset",
        declined=dict.fromkeys(
            ("no_validation", "trust_slot", "trust_greater_lsn"), "changes would be lost without a word"
        ),
        differs=Differs("no_validation", "a slot that is ahead of us has lost changes; that must be said"),
    ),
    Property(
        "publication.name",
        "The publication. Default: as the slot's.",
        _IDENTIFIER,
        derived=slot_name,
        differs=Differs(
            "dbz_publication", "two pipelines would overwrite each other's list of tables", _NAMED, tell=True
        ),
    ),
    Property(
        "publication.autocreate.mode",
        "filtered: of the captured tables, kept up to date; all_tables: of all tables, if there is "
        "none (needs a superuser); no_tables: an empty one, if there is none; disabled: it must exist.",
        choice("all_tables", "disabled", "filtered", "no_tables"),
        "filtered",
        differs=Differs(
            "all_tables",
            "FOR ALL TABLES needs a superuser, and stops UPDATE and DELETE on tables without a key",
            tell=True,
        ),
    ),
    not_yet(
        "publish.via.partition.root",
        "partitions are captured through their root",
        accepts=("true",),
        differs=Differs("false", "a new partition must not need a new table of ours", "true"),
    ),
    not_yet(
        "replica.identity.autoset.values",
        "the source's tables are not altered; `cdc check` says which one needs another identity, and the SQL",
    ),
)

_LISTS = (
    ("schema", "schema"),
    ("table", "schema.table"),
    ("column", "schema.table.column (key columns are always kept)"),
    ("message.prefix", "the prefix of a logical message (pg_logical_emit_message)"),
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
        for what, form in _LISTS
        for which, effect in (("include", "all others are left out"), ("exclude", "these are left out"))
    ),
    Property(
        "skipped.operations",
        "Operations to leave out: c, u, d, t.",
        OPERATIONS,
        frozenset(),
        shapes=True,
        differs=Differs("t", "silver would keep the rows that a TRUNCATE removed", tell=True),
    ),
    Property(
        "message.key.columns",
        "Key columns of tables, instead of the primary key: schema.table:column,column;...",
        KEYS,
        (),
        shapes=True,
    ),
    not_yet("skip.messages.without.change", "updates that change nothing are rows, too", accepts=("false",)),
    not_yet("guardrail.collections.*", "the number of captured tables is not limited"),
)

_RENAMED: tuple[Property, ...] = (
    refused("database.server.name", "Debezium 2 renamed it topic.prefix; here it is name at the top"),
    *(
        refused(f"{what}.{old}", f"Debezium 2 renamed it {what}.{new}.list")
        for what in ("schema", "table", "column")
        for old, new in (("whitelist", "include"), ("blacklist", "exclude"))
    ),
)

GROUPS: Mapping[str, tuple[Property, ...]] = {
    "Connection": _CONNECTION,
    "Slot and publication": _LOG,
    "What is captured": _FILTERS,
    "Types": TYPES,
    "Masks": MASKS,
    "Snapshots": SNAPSHOTS,
    "Streaming": STREAMING,
    "Signals and notifications": SIGNALS,
    "Names that Debezium gave up": _RENAMED,
}
