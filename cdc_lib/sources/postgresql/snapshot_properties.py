"""The properties that say whether, when and how tables are read as a whole.

All tables are read in one repeatable-read view at the slot's position, under the lock of any SELECT; what
asks for that is accepted, what asks for less would lose rows.
"""

from __future__ import annotations

from cdc_lib.properties import Differs, Property, choice, not_yet, notice, whole_number

_CUSTOM = "it names a Java class; snapshots are taken in the built-in ways only"
_CONFIGURATION_BASED = "it belongs to snapshot.mode configuration_based"
_TORN = "its rows would not be of one position, so some would be lost and others doubled"

SNAPSHOTS: tuple[Property, ...] = (
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
    *(
        not_yet(f"snapshot.mode.configuration.based.{name}", _CONFIGURATION_BASED, accepts=("false",))
        for name in (
            "snapshot.data",
            "snapshot.schema",
            "start.stream",
            "snapshot.on.schema.error",
            "snapshot.on.data.error",
        )
    ),
    not_yet("snapshot.mode.custom.name", _CUSTOM),
    Property(
        "snapshot.locking.mode",
        "shared: ACCESS SHARE, the lock of any SELECT, until the tables are read. ALTER TABLE and TRUNCATE "
        "wait for it, reads and writes do not.",
        choice("shared"),
        "shared",
        aliases={
            "none": ("shared", "a SELECT takes this lock in any case, and DDL beside it would lose rows")
        },
        declined={"custom": f"not yet supported: {_CUSTOM}"},
        differs=Differs("none", "a table that is rewritten before its first SELECT would be read as empty"),
    ),
    not_yet("snapshot.locking.mode.custom.name", _CUSTOM),
    Property(
        "snapshot.lock.timeout.ms",
        "How long to wait for a table that somebody is altering, in milliseconds.",
        whole_number(0, 2**31 - 1),
        10_000,
    ),
    Property(
        "snapshot.isolation.mode",
        "repeatable_read: one view of all tables, exactly at the slot's position.",
        choice("repeatable_read"),
        "repeatable_read",
        aliases={"serializable": ("repeatable_read", "the view of a slot can only be opened that way")},
        declined={"read_committed": _TORN, "read_uncommitted": _TORN},
        differs=Differs("serializable", "PostgreSQL opens a slot's view in repeatable read only"),
    ),
    Property(
        "snapshot.query.mode",
        "select_all: all rows of the captured columns.",
        choice("select_all"),
        "select_all",
        declined={"custom": f"not yet supported: {_CUSTOM}"},
    ),
    not_yet("snapshot.query.mode.custom.name", _CUSTOM),
    not_yet("snapshot.include.collection.list", "all captured tables are read"),
    not_yet("snapshot.select.statement.overrides", "all rows of a table are read"),
    not_yet("snapshot.select.statement.overrides.*", "all rows of a table are read"),
    not_yet("snapshot.resume", "an interrupted snapshot starts over"),
    not_yet("snapshot.on", "snapshots are read by threads of the driver"),
    notice("snapshot.delay.ms", "a run starts when its job does; let the job's schedule wait"),
    notice("streaming.delay.ms", "the end of the snapshot is committed before streaming starts"),
    notice("snapshot.fetch.size", "rows are read by COPY, which has no fetch size; see run.chunk_rows"),
    notice("snapshot.max.threads", "see run.threads"),
    notice("snapshot.tables.order.by.row.count", "it only concerns the order in which tables are read"),
    notice("incremental.snapshot.chunk.size", "see run.chunk_rows"),
    notice("incremental.snapshot.watermarking.strategy", "nothing is ever written to a table of the source"),
    notice("read.only", "no watermark is ever written to a table of the source"),
)
