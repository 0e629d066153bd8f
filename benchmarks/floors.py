"""The floor of a snapshot: what the server and the driver need when nothing is done with the rows."""

from __future__ import annotations

from typing import Any


class Discard:
    """A file that counts bytes and keeps none."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.bytes += len(data)
        return len(data)


def copy_discard(dsn: str, table: str) -> dict[str, Any]:
    """``COPY table TO STDOUT``, read through psycopg2 and thrown away."""
    import psycopg2
    from psycopg2 import sql

    sink = Discard()
    connection = psycopg2.connect(dsn)
    try:
        with connection.cursor() as cursor:
            name = sql.Identifier(*table.split("."))
            cursor.copy_expert(sql.SQL("COPY {} TO STDOUT").format(name), sink, size=1 << 20)
            return {"rows": cursor.rowcount, "bytes": sink.bytes}
    finally:
        connection.close()
