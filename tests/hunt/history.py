"""A random schema, and a writer that changes it and its rows at random, all from one seed."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from tests.engines.postgresql.test_conformance import TYPES, PostgresDatabase

KEYS: Mapping[str, tuple[str, str]] = {
    # The key's columns, and its values for a number.
    "number": ("id integer", "{n}"),
    "pair": ("grp varchar(20), id bigint", "'g ''' || {n} % 3, {n}"),
    "text": ('id text COLLATE "C"', "'k' || md5('{n}')"),
    "token": ("id uuid", "md5('{n}')::uuid"),
    "moment": ("id timestamptz", "timestamptz '2020-01-01' + {n} * interval '1 hour 1 microsecond'"),
}
ROWS = 120
LARGE = "repeat(md5('{n}'), 150)"


@dataclass
class RandomTable:
    """A table with a key of some kind, or none; ``columns`` are name to literals worth a look."""

    name: str
    key: str | None
    full: bool
    columns: dict[str, Sequence[str]] = field(default_factory=dict)

    @property
    def key_names(self) -> list[str]:
        return [] if self.key is None else [part.split()[0] for part in KEYS[self.key][0].split(", ")]

    def key_of(self, number: int) -> str:
        return "" if self.key is None else KEYS[self.key][1].format(n=number)

    def create(self, chance: random.Random) -> list[str]:
        names = chance.sample(sorted(TYPES), chance.randint(2, 7)) if self.key else ["c_integer", "c_text"]
        self.columns = {name: TYPES[name][1] for name in names}
        parts = [f"{name} {TYPES[name][0]}" for name in names] + ["large text"]
        if self.key is not None:
            parts = [KEYS[self.key][0], *parts, f"PRIMARY KEY ({', '.join(self.key_names)})"]
        statements = [
            f"CREATE TABLE {self.name} ({', '.join(parts)})",
            f"ALTER TABLE {self.name} ALTER COLUMN large SET STORAGE EXTERNAL",
        ]
        return [*statements, f"ALTER TABLE {self.name} REPLICA IDENTITY FULL"] if self.full else statements


class Writer:
    """Random transactions in a thread, from one seed; :meth:`stop` waits for the last."""

    def __init__(self, database: PostgresDatabase, chance: random.Random) -> None:
        self.database = database
        self.tables = [
            RandomTable("numbered", "number", full=False),
            RandomTable("other", chance.choice(sorted(KEYS)), full=chance.random() < 0.5),
            RandomTable("third", chance.choice(sorted(KEYS)), full=chance.random() < 0.5),
            RandomTable("keyless", None, full=True),
        ]
        self.transactions = 0
        self.added = 0
        self._last = 0
        self._chance = chance
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._error: BaseException | None = None

    def create(self) -> None:
        self.database.typed()
        for table in self.tables:
            self.database.execute(*table.create(self._chance))
        with closing(self.database.database.connect()) as connection, connection.cursor() as cursor:
            for table in self.tables:
                for number in range(ROWS // 2):
                    cursor.execute(self._insert(table, number))

    def start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """A last row for each table tells of its structure; the log says nothing of a column by itself."""
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._last += 1
        self.database.execute(*(self._insert(table, ROWS + self._last) for table in self.tables))

    def _write(self) -> None:
        try:
            with closing(self.database.database.connect()) as connection:
                while not self._stopping.is_set():
                    self._transaction(connection)
                    self._stopping.wait(self._chance.choice([0.002, 0.01, 0.03]))
        except BaseException as error:  # noqa: BLE001 - raised by stop(), in the test's thread
            self._error = error

    def _transaction(self, connection: Any) -> None:
        statements = [self._statement() for _ in range(self._chance.choice([1, 1, 1, 2, 5]))]
        with connection.cursor() as cursor:
            try:
                cursor.execute("BEGIN")
                cursor.execute("SET LOCAL lock_timeout = '2s'")
                for statement in statements:
                    cursor.execute(statement)
                cursor.execute("ROLLBACK" if self._chance.random() < 0.1 else "COMMIT")
            except (psycopg2.IntegrityError, psycopg2.errors.LockNotAvailable):
                cursor.execute("ROLLBACK")
        self.transactions += 1

    def _statement(self) -> str:
        table = self._chance.choice(self.tables)
        number = self._chance.randrange(ROWS)
        kinds = {"insert": 5, "update": 9, "large": 2, "delete": 3, "move": 3, "truncate": 0.05, "ddl": 0.05}
        kind = self._chance.choices(list(kinds), list(kinds.values()))[0]
        if kind == "insert":
            return self._insert(table, number)
        if kind == "truncate":
            return f"TRUNCATE {table.name}"
        if kind == "ddl":
            return self._add_column(table)
        where = self._where(table, number)
        if kind == "delete":
            return f"DELETE FROM {table.name} WHERE {where}"
        if kind == "move" and table.key is not None:
            to = self._chance.randrange(ROWS)
            names = ", ".join(table.key_names)
            return f"UPDATE {table.name} SET ({names}) = ROW ({table.key_of(to)}) WHERE {where}"
        if kind == "large":
            value = LARGE.format(n=self._chance.random())
            return f"UPDATE {table.name} SET large = {value} WHERE {where}"
        name = self._chance.choice(sorted(table.columns))
        return f"UPDATE {table.name} SET {name} = {self._value(table, name)} WHERE {where}"

    def _where(self, table: RandomTable, number: int) -> str:
        if table.key is None:
            return (
                f"ctid = (SELECT ctid FROM {table.name} ORDER BY c_text, ctid LIMIT 1 OFFSET {number % 40})"
            )
        return f"ROW ({', '.join(table.key_names)}) = ROW ({table.key_of(number)})"

    def _insert(self, table: RandomTable, number: int) -> str:
        values = [self._value(table, name) for name in table.columns]
        large = "NULL" if self._chance.random() < 0.3 else LARGE.format(n=number)
        row = ", ".join(filter(None, [table.key_of(number), *values, large]))
        names = ", ".join([*table.key_names, *table.columns, "large"])
        return f"INSERT INTO {table.name} ({names}) VALUES ({row}) ON CONFLICT DO NOTHING"

    def _value(self, table: RandomTable, name: str) -> str:
        return "NULL" if self._chance.random() < 0.2 else self._chance.choice(list(table.columns[name]))

    def _add_column(self, table: RandomTable) -> str:
        self.added += 1
        name = f"added_{self.added}"
        default = self._chance.choice(["", " DEFAULT 7", " DEFAULT 7 NOT NULL"])
        # Used from the next transaction on; this one may be rolled back.
        return f"ALTER TABLE {table.name} ADD COLUMN {name} integer{default}"
