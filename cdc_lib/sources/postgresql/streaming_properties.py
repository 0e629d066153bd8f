"""The properties that say how the log is read, what happens on errors, and who is told.

Those that only concern operations without a counterpart here are accepted, each with the place to look at
instead.
"""

from __future__ import annotations

from cdc_lib.properties import TEXT, Differs, Property, not_yet, notice, refused, whole_number

_JOB = "a passing fault ends the run with exit code 3; the job decides on retries"

STREAMING: tuple[Property, ...] = (
    Property(
        "heartbeat.interval.ms",
        "How often `heartbeat.action.query` is executed at most, in milliseconds; 0: never. The position "
        "itself moves with every run and round, also when no captured table changed.",
        whole_number(0, 2**31 - 1),
        10_000,
        differs=Differs("0", "the server could not let go of log in which no captured table changed"),
    ),
    Property(
        "heartbeat.action.query",
        "SQL that a run executes on the source when it releases the log, such as an INSERT into a table of "
        "your own, in a session with the role's own settings. The slot moves on without it.",
        TEXT,
    ),
    not_yet(
        "provide.transaction.metadata",
        "rows carry their `transaction` in any case, but the transactions table is not filled yet",
        accepts=("false",),
    ),
    not_yet(
        "event.processing.failure.handling.mode",
        "a row that cannot be read stops the run; none is ever skipped",
        accepts=("fail",),
    ),
    not_yet("xmin.fetch.interval.ms", "source.xmin is not filled", accepts=("0",)),
    refused("internal.*", "Debezium's internal properties have no counterpart that is known"),
    notice("schema.refresh.mode", "structures follow the log's own relation messages"),
    notice("status.update.interval.ms", "the log is read by query, without a replication connection"),
    notice(
        "errors.max.retries", _JOB, differs=Differs("-1", "every run ends, and its job starts it again", "0")
    ),
    notice("retriable.restart.connector.wait.ms", _JOB),
    notice("max.batch.size", "see run.batch_rows"),
    notice("max.queue.size", "there is no queue between reader and writer; see run.batch_rows"),
    notice("max.queue.size.in.bytes", "there is no queue between reader and writer; see run.window_mb"),
    notice("poll.interval.ms", "see run.poll_seconds"),
    notice("custom.metric.tags", "metrics are rows of the runs table, with the pipeline's name"),
    notice("executor.shutdown.timeout.ms", "a run stops at the next durable step"),
    notice("extended.headers.enabled", "rows have no headers"),
)

_SOURCE_SIGNALS = "signals are rows of the control schema's signals table; no other place is read"
SIGNALS: tuple[Property, ...] = (
    not_yet("signal.data.collection", _SOURCE_SIGNALS),
    not_yet(
        "signal.enabled.channels",
        _SOURCE_SIGNALS,
        differs=Differs("source", "a signal needs no right to write to the source", "the signals table"),
    ),
    notice(
        "notification.enabled.channels",
        "nothing is sent; what a run did is in the log and in the control schema's runs and incidents tables",
    ),
)
