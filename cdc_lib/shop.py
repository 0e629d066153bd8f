"""The demo's database: a small shop, its first rows, and writers that keep it changing.

It holds what capture finds hard: foreign keys, large texts that PostgreSQL stores out of line (TOAST), keys
that change, rows that are deleted, a table that is truncated and one that has no key.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc_lib.errors import CdcError

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection
    from psycopg2.extensions import cursor as Cursor

TABLES = ("customers", "events", "imports", "order_items", "orders", "products")

STRUCTURE = """
CREATE TYPE order_status AS ENUM ('new', 'paid', 'packed', 'shipped', 'returned');

CREATE TABLE customers (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email      text NOT NULL UNIQUE,
    name       varchar(80) NOT NULL,
    tags       text[] NOT NULL DEFAULT '{}',
    profile    jsonb,
    active     boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE products (
    sku         text PRIMARY KEY,
    id          uuid NOT NULL DEFAULT gen_random_uuid(),
    name        text NOT NULL,
    price       numeric(12,2) NOT NULL,
    weight      double precision,
    released    date,
    description text
);
-- Stored out of line and uncompressed: an update that leaves it alone does not carry it in the log.
ALTER TABLE products ALTER COLUMN description SET STORAGE EXTERNAL;
CREATE TABLE orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status      order_status NOT NULL DEFAULT 'new',
    total       numeric(12,2) NOT NULL,
    reference   uuid NOT NULL DEFAULT gen_random_uuid(),
    note        text,
    placed_at   timestamptz NOT NULL DEFAULT now(),
    changed_at  timestamp
);
CREATE TABLE order_items (
    order_id bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
    line     smallint NOT NULL,
    sku      text NOT NULL REFERENCES products ON UPDATE CASCADE,
    quantity integer NOT NULL,
    price    numeric(12,2) NOT NULL,
    PRIMARY KEY (order_id, line)
);
CREATE INDEX ON order_items (sku);
CREATE TABLE events (
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind    text NOT NULL,
    payload jsonb
);
CREATE TABLE imports (id integer PRIMARY KEY, line text NOT NULL);
"""

ROWS = """
INSERT INTO customers (email, name, tags, profile, active, created_at)
SELECT 'customer' || n || '@example.org', 'Customer ' || n,
       CASE n % 3 WHEN 0 THEN ARRAY['vip', 'since ' || 2000 + n % 24] WHEN 1 THEN ARRAY['new'] ELSE '{}' END,
       jsonb_build_object('city', 'City ' || n % 97, 'points', n % 1000), n % 11 <> 0,
       timestamptz '2024-01-01 00:00:00Z' + n * interval '37 minutes'
FROM generate_series(1, 10000) n;

INSERT INTO products (sku, name, price, weight, released, description)
SELECT 'SKU-' || n, 'Product ' || n, (n * 37 % 9000) / 100.0 + 1, n * 0.173, date '2020-01-01' + n,
       (SELECT string_agg(md5(n || '/' || part), ' ') FROM generate_series(1, 120) part)
FROM generate_series(1, 2000) n;

INSERT INTO orders (customer_id, status, total, note, placed_at, changed_at)
SELECT n % 10000 + 1, (enum_range(NULL::order_status))[n % 5 + 1], (n * 131 % 90000) / 100.0,
       CASE WHEN n % 4 = 0 THEN 'leave at the door, it''s "open"' END,
       timestamptz '2025-01-01 00:00:00.123456Z' + n * interval '7 minutes',
       timestamp '2025-01-02 00:00:00' + n * interval '7 minutes'
FROM generate_series(1, 50000) n;

INSERT INTO order_items (order_id, line, sku, quantity, price)
SELECT o.id, line, 'SKU-' || (o.id * 7 + line) % 2000 + 1, (o.id + line) % 5 + 1, (o.id * 31 % 9000) / 100.0
FROM orders o, generate_series(1, 2) line;

INSERT INTO events (at, kind, payload)
SELECT timestamptz '2025-06-01 00:00:00Z' + n * interval '13 seconds',
       (ARRAY['view', 'search', 'cart'])[n % 3 + 1], jsonb_build_object('customer', n % 10000 + 1)
FROM generate_series(1, 20000) n;
"""


@dataclass(frozen=True)
class Server:
    """Where the shop is."""

    host: str
    port: int
    user: str
    password: str
    dbname: str = "shop"

    def __repr__(self) -> str:
        return f"Server({self.user}@{self.host}:{self.port}/{self.dbname})"

    @contextmanager
    def connect(self, dbname: str | None = None) -> Iterator[Connection]:
        """A connection in autocommit, in UTC; closed at the end."""
        import psycopg2

        connection = psycopg2.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            dbname=dbname or self.dbname,
            options="-c timezone=UTC",
        )
        connection.autocommit = True
        try:
            yield connection
        finally:
            connection.close()


def create(server: Server) -> None:
    """Make the database and fill it."""
    from psycopg2 import sql

    with server.connect("postgres") as connection, connection.cursor() as cursor:
        cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(server.dbname)))
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(STRUCTURE)
        cursor.execute(ROWS)
        cursor.execute("ANALYZE")


Transaction = Callable[["Cursor", random.Random], None]


def place_order(cursor: Cursor, dice: random.Random) -> None:
    cursor.execute(
        "INSERT INTO orders (customer_id, total, note) VALUES (%s, %s, %s) RETURNING id",
        (
            dice.randint(1, 10_000),
            dice.randint(100, 99_999) / 100,
            dice.choice([None, "gift", "tab\there\n"]),
        ),
    )
    row = cursor.fetchone()
    order = row and row[0]
    cursor.execute(
        "INSERT INTO order_items SELECT %s, row_number() OVER (), sku, %s, price FROM products"
        " WHERE sku >= %s ORDER BY sku LIMIT %s",
        (order, dice.randint(1, 9), f"SKU-{dice.randint(1, 1999)}", dice.randint(1, 4)),
    )
    cursor.execute(
        "INSERT INTO events (kind, payload) VALUES ('order', jsonb_build_object('order', %s))", (order,)
    )


def move_order(cursor: Cursor, dice: random.Random) -> None:
    cursor.execute(
        "UPDATE orders SET status = (enum_range(status, NULL::order_status))[2], changed_at = localtimestamp"
        " WHERE id = %s AND status < 'returned'",
        (dice.randint(1, 50_000),),
    )


def delete_order(cursor: Cursor, dice: random.Random) -> None:
    """Its items go with it."""
    cursor.execute("DELETE FROM orders WHERE id = %s", (dice.randint(1, 50_000),))


def change_price(cursor: Cursor, dice: random.Random) -> None:
    """The description stays as it is, so the log does not carry it."""
    cursor.execute(
        "UPDATE products SET price = round(price * %s, 2) WHERE sku = %s",
        (dice.choice([0.9, 1.1]), f"SKU-{dice.randint(1, 2000)}"),
    )


def describe_product(cursor: Cursor, dice: random.Random) -> None:
    """Nothing but the large text changes."""
    cursor.execute(
        "UPDATE products SET description = %s WHERE sku = %s",
        (" ".join(str(dice.random()) for _ in range(200)), f"SKU-{dice.randint(1, 2000)}"),
    )


def rename_product(cursor: Cursor, dice: random.Random) -> None:
    """The key changes, in the items too; the description is not carried by the log."""
    old, new = f"SKU-{dice.randint(1, 2000)}", f"SKU-{dice.randint(2001, 9999)}"
    cursor.execute("UPDATE products SET sku = %s WHERE sku = %s", (new, old))


def change_customer(cursor: Cursor, dice: random.Random) -> None:
    cursor.execute(
        "UPDATE customers SET profile = profile || jsonb_build_object('points', %s),"
        " tags = array_append(tags, %s) WHERE id = %s AND cardinality(tags) < 5",
        (dice.randint(0, 1000), dice.choice(["sale", 'with "quotes"', "Zoë", None]), dice.randint(1, 10_000)),
    )


def changes_its_mind(cursor: Cursor, dice: random.Random) -> None:
    """Rolled back: must never be seen."""
    change_customer(cursor, dice)
    place_order(cursor, dice)
    cursor.connection.rollback()


def import_lines(cursor: Cursor, dice: random.Random) -> None:
    """A staging table: emptied and filled again, unless somebody reads it for long."""
    # A TRUNCATE that waits holds up all who come after it; a careful application gives up and tries again.
    cursor.execute("SET LOCAL lock_timeout = '1s'")
    cursor.execute("TRUNCATE imports")
    cursor.execute(
        "INSERT INTO imports SELECT n, md5(n::text || %s) FROM generate_series(1, %s) n",
        (str(dice.random()), dice.randint(1, 200)),
    )


SHOP: dict[Transaction, int] = {
    place_order: 40,
    move_order: 25,
    change_customer: 12,
    change_price: 10,
    delete_order: 5,
    describe_product: 4,
    rename_product: 2,
    changes_its_mind: 2,
}
IMPORTS: dict[Transaction, int] = {import_lines: 1}


class Writers:
    """Threads that keep writing until :meth:`stop`; a context manager.

    :param pause: seconds each thread rests between two transactions.
    """

    def __init__(self, server: Server, *, pause: float = 0.01, seed: int = 1) -> None:
        self.server = server
        self._stop = threading.Event()
        self._errors: list[Exception] = []
        # Imports write alone: TRUNCATE waits for the snapshot's lock, and nobody else should.
        plans = [(SHOP, pause), (SHOP, pause), (IMPORTS, max(pause, 3))]
        self._threads = [
            threading.Thread(
                target=self._write, args=(plan, rest, random.Random(seed + number)), name=f"writer-{number}"
            )
            for number, (plan, rest) in enumerate(plans)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """End all writing.

        :raises CdcError: a writer had given up before.
        """
        self.__exit__()
        if self._errors:
            raise CdcError("the demo's writers failed", why=str(self._errors[0]))

    def _write(self, plan: dict[Transaction, int], rest: float, dice: random.Random) -> None:
        import psycopg2

        try:
            with self.server.connect() as connection:
                connection.autocommit = False
                while not self._stop.wait(rest):
                    (transaction,) = dice.choices(list(plan), weights=list(plan.values()))
                    self._commit(connection, transaction, dice)
        except psycopg2.Error as error:
            self._errors.append(error)

    def _commit(self, connection: Connection, transaction: Transaction, dice: random.Random) -> None:
        """Commit one transaction; one that lost against another writer is rolled back, as a shop would."""
        import psycopg2.errors
        import psycopg2.extensions

        try:
            with connection.cursor() as cursor:
                transaction(cursor, dice)
            connection.commit()
        except (
            psycopg2.IntegrityError,
            psycopg2.errors.LockNotAvailable,
            psycopg2.extensions.TransactionRollbackError,
        ):
            connection.rollback()


def rows(server: Server, table: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    """All rows of a table; documents as the server's text, since their spelling must survive too."""
    from psycopg2 import sql

    texts = {("customers", "profile"), ("events", "payload")}
    picked = [
        sql.SQL("{}::text").format(sql.Identifier(name)) if (table, name) in texts else sql.Identifier(name)
        for name in columns
    ]
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(picked), sql.Identifier("public", table))
        )
        yield from cursor


def columns(server: Server, table: str) -> list[str]:
    """The names of a table's columns, as the server has them."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name::text FROM information_schema.columns"
            " WHERE table_schema = 'public' AND table_name = %s ORDER BY ordinal_position",
            (table,),
        )
        return [name for (name,) in cursor.fetchall()]
