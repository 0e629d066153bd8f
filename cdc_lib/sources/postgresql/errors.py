"""What the server's and the driver's errors mean to the operator: one table, one place.

Only the server's primary message is repeated. Its detail and context may hold rows, and the driver's own
text may hold the connection string.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc_lib.errors import CdcError, FixConfiguration, FixSource, ResnapshotNeeded, RetryLater

if TYPE_CHECKING:
    import psycopg2

Meaning = tuple[type[CdcError], str]
"""Class of the error and what the operator should do."""

_AGAIN = "run again; it goes on from the last committed watermark"
_RESOURCES = "free the resource on the server, or raise its limit, and run again"
_GRANT = "grant the right that the server names; `cdc check` prints the SQL"

# Codes: PostgreSQL documentation, appendix A. Five characters, or the first two for a class.
BY_SQLSTATE: dict[str, Meaning] = {
    "08": (RetryLater, _AGAIN),
    "25P03": (RetryLater, _AGAIN),
    "25P04": (RetryLater, _AGAIN),
    "28": (FixConfiguration, "correct database.user and database.password, or let them in in pg_hba.conf"),
    "3D000": (FixConfiguration, "correct database.dbname"),
    "40": (RetryLater, _AGAIN),
    "42501": (FixSource, _GRANT),
    "42P01": (FixConfiguration, "correct the table filters, or create the table"),
    "42703": (RetryLater, "the table changed while it was being read; run again"),
    "42704": (FixSource, "create what the server names; `cdc check` prints the SQL"),
    "53": (RetryLater, _RESOURCES),
    "53400": (FixSource, "raise max_replication_slots (and max_wal_senders), or drop a slot nobody uses"),
    "54": (FixSource, _RESOURCES),
    "55000": (FixSource, "run `cdc check`, which says which setting is missing"),
    "55006": (RetryLater, "another session uses the slot; stop it, or run again when it has ended"),
    "55P03": (RetryLater, "another session holds a lock on the table; run again when it has ended"),
    "57": (RetryLater, _AGAIN),
    "58P01": (ResnapshotNeeded, "take the tables again: cdc snapshot"),
}

# A refused connection has no SQLSTATE in this driver, only text. An unknown text is worth another try.
BY_TEXT: Sequence[tuple[str, Meaning]] = (
    ("too many connections", (RetryLater, _RESOURCES)),
    ("password authentication failed", BY_SQLSTATE["28"]),
    ("no password supplied", BY_SQLSTATE["28"]),
    ("authentication failed", BY_SQLSTATE["28"]),
    ("no pg_hba.conf entry", BY_SQLSTATE["28"]),
    ("must be superuser or replication role", (FixSource, "ALTER ROLE ... REPLICATION")),
    ("permission denied to start wal sender", (FixSource, "ALTER ROLE ... REPLICATION")),
    ('database "', BY_SQLSTATE["3D000"]),
    ('role "', BY_SQLSTATE["28"]),
    ("could not translate host name", (FixConfiguration, "correct database.hostname")),
    ("invalid port", (FixConfiguration, "correct database.port")),
    (
        "does not support SSL",
        (FixConfiguration, "set database.sslmode to prefer, or turn TLS on at the server"),
    ),
    ("certificate", (FixConfiguration, "correct database.sslrootcert, database.sslcert and database.sslkey")),
    ("sslmode", (FixConfiguration, "correct database.sslmode")),
)
_DOUBT = "check that the server runs and that database.hostname and database.port lead to it, then run again"


def classify(error: psycopg2.Error, doing: str, secrets: Sequence[str] = ()) -> CdcError:
    """The error to raise instead of a driver's. ``doing`` says what failed, as a clause."""
    meaning = _by_sqlstate(error.pgcode) if error.pgcode else _by_text(str(error))
    kind, remedy = meaning
    return kind(doing, why=_told(error, secrets), remedy=remedy)


@contextmanager
def translated(doing: str, secrets: Sequence[str] = ()) -> Iterator[None]:
    """Turn the driver's errors inside the block into ours; ``doing`` as for :func:`classify`."""
    import psycopg2

    try:
        yield
    except psycopg2.Error as error:
        raise classify(error, doing, secrets) from None


def _by_sqlstate(code: str) -> Meaning:
    return (
        BY_SQLSTATE.get(code) or BY_SQLSTATE.get(code[:2]) or (CdcError, "report this with the server's log")
    )


def _by_text(text: str) -> Meaning:
    return next((meaning for part, meaning in BY_TEXT if part in text), (RetryLater, _DOUBT))


def _told(error: psycopg2.Error, secrets: Sequence[str]) -> str:
    """The server's primary message and code, or the driver's text, on one line and without secrets."""
    primary = error.diag.message_primary
    text = f"{primary} (SQLSTATE {error.pgcode})" if primary else " ".join(str(error).split())
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text
