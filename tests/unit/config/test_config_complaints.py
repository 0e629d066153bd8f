"""Files that must be refused, and what must be said about each: path, line and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lib.config import load, parse
from cdc_lib.errors import FixConfiguration

GOOD = """\
name: shop
source:
  connector.class: postgresql
  database.hostname: localhost
  database.port: 5432
  database.user: cdc
  database.password: ${env:SHOP_PASSWORD}
  database.dbname: shop
  table.include.list: public.*
  snapshot.mode: initial
target:
  path: ./lake
tables:
  - match: public.orders
    delete: soft
    columns: {amount: "decimal(38,9)"}
apply: {mode: merge}
run: {threads: 2}
"""


def rejected(text: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(FixConfiguration) as caught:
        parse(text, environ=environ or {})
    return str(caught.value)


def test_the_good_file_is_good() -> None:
    assert parse(GOOD, environ={}).notices == ()


# old text, new text, complaints that must all be there
EDITS = [
    ("name: shop\n", "", ["name: required, but not given"]),
    ("name: shop", "name: -shop", ["name (line 1): expected letters, digits"]),
    ("name: shop", "nam: shop", ["nam (line 1): unknown key; did you mean name?", "name: required"]),
    (
        "  database.port: 5432",
        "  database.port: x",
        ["source.database.port (line 5): expected a whole number"],
    ),
    ("5432", "65536", ["source.database.port (line 5): expected a number from 1 to 65535"]),
    ("5432", "0", ["source.database.port (line 5): expected a number from 1 to 65535"]),
    ("5432", "yes", ["source.database.port (line 5): expected a whole number"]),
    ("5432", "", ["source.database.port (line 5): expected a whole number from 1 to 65535"]),
    ("5432", "[1]", ["source.database.port (line 5): expected a whole number from 1 to 65535"]),
    (
        "database.hostname",
        "database.hostnam",
        [
            "source.database.hostnam (line 4): unknown property; did you mean database.hostname?",
            "source.database.hostname (line 2): required, but not given",
        ],
    ),
    ("localhost", "postgres://localhost", ["source.database.hostname (line 4): expected a host name"]),
    ("database.user: cdc", 'database.user: ""', ["source.database.user (line 6): expected a text"]),
    ("connector.class: postgresql", "connector.clas: postgresql", ["is connector.clas meant?"]),
    ("class: postgresql", "class: postgresq", ["(line 3): unknown engine; did you mean postgresql?"]),
    ("class: postgresql", "class: mysql", ["source.connector.class (line 3): MySQL is not yet supported"]),
    ("public.*", "public.(", ["source.table.include.list (line 9): 'public.(' is not a regular expression"]),
    (
        "  snapshot.mode: initial\n",
        "  table.exclude.list: public.x\n",
        ["source.table.exclude.list (line 10): cannot be set together with table.include.list"],
    ),
    ("initial", "inital", ["(line 10): expected initial, initial_only or no_data; did you mean initial?"]),
    ("initial", "when_needed", ["source.snapshot.mode (line 10): when_needed is refused: not yet supported"]),
    (
        "snapshot.mode: initial",
        "plugin.name: decoderbufs",
        ["source.plugin.name (line 10): decoderbufs is refused"],
    ),
    (
        "snapshot.mode: initial",
        "slot.name: Bad-Slot",
        ["source.slot.name (line 10): expected 1 to 63 lower-case"],
    ),
    ("snapshot.mode: initial", "slot.name: " + "a" * 64, ["source.slot.name (line 10): expected 1 to 63"]),
    (
        "  snapshot.mode: initial\n",
        "  message.prefix.include.list: a\n  message.prefix.exclude.list: b\n",
        ["source.message.prefix.exclude.list (line 11): cannot be set together with message.prefix.include"],
    ),
    (
        "snapshot.mode: initial",
        "skipped.operations: c,x",
        ["source.skipped.operations (line 10): x: operations"],
    ),
    ("snapshot.mode: initial", "skipped.operations: none,t", ["none cannot stand beside operations"]),
    (
        "snapshot.mode: initial",
        "message.key.columns: public.a",
        ["source.message.key.columns (line 10): 'public.a'"],
    ),
    (
        "snapshot.mode: initial",
        "topic.prefix: other",
        ["source.topic.prefix (line 10): not the same as name"],
    ),
    (
        "snapshot.mode: initial",
        "slot.drop.on.stop: true",
        ["source.slot.drop.on.stop (line 10): not supported"],
    ),
    (
        "snapshot.mode: initial",
        "transforms: unwrap",
        ["source.transforms (line 10): not yet supported: transforms"],
    ),
    ("snapshot.mode: initial", "table.whitelist: a", ["Debezium 2 renamed it table.include.list"]),
    (
        "  snapshot.mode: initial",
        "  database.user: x",
        ["source.database.user (line 6): given twice, again in line 10"],
    ),
    ("  snapshot.mode: initial", "  database: {port: 1}", ["source.database (line 10): properties are flat"]),
    ("  path: ./lake", "  pth: ./lake", ["target.pth (line 12): unknown key; did you mean path?"]),
    (
        "  path: ./lake",
        "  path: s3://bucket/lake",
        ["target.path (line 12): expected a path of this machine"],
    ),
    (
        "  path: ./lake",
        "  path: ./lake\n  catalog: main",
        ["target (line 11): expected either path or catalog"],
    ),
    (
        "  path: ./lake",
        "  path: ./lake\n  bronze: Silver",
        ["target (line 11): bronze, silver and control must be"],
    ),
    ("  path: ./lake", "  catalog: main", ["target (line 11): with a catalog, staging is required"]),
    (
        "  path: ./lake",
        "  path: ./lake\n  writer: fast",
        ["target.writer (line 13): expected 'direct' or 'spark'"],
    ),
    (
        "  path: ./lake",
        "  catalog: spark_catalog\n  writer: direct",
        ["target (line 11): with a catalog, writer must be spark"],
    ),
    (
        "  path: ./lake",
        "  path: ./lake\n  silver: a/b",
        ["target.silver (line 13): expected a name of letters"],
    ),
    ("target:\n  path: ./lake\n", "", ["target: required, but not given"]),
    ("delete: soft", "scd: 3", ["tables[0].scd (line 15): expected 1 or 2"]),
    ("delete: soft", "delete: sof", ["tables[0].delete (line 15): expected 'hard' or 'soft'"]),
    ("match: public.orders", "match: 'a('", ["tables[0].match (line 14): not a regular expression"]),
    ("match: public.orders\n    ", "", ["tables[0].match (line 14): required, but not given"]),
    ("decimal(38,9)", "decimal(39,9)", ["tables[0].columns.amount (line 16): not a column type"]),
    (
        '"decimal(38,9)"',
        "{mask: sha256}",
        ["tables[0].columns.amount (line 16): masks are not yet supported"],
    ),
    ("mode: merge", "mode: lazy", ["apply.mode (line 17): expected 'merge' or 'declarative'"]),
    ("threads: 2", "threads: 0", ["run.threads (line 18): expected a number greater than 0"]),
    ("threads: 2", "threads: true", ["run.threads (line 18): expected a whole number"]),
    ("threads: 2", "threads: two", ["run.threads (line 18): expected a whole number"]),
    ("threads: 2", "snapshot_on: executor", ["run.snapshot_on (line 18): expected 'driver' or 'executors'"]),
    ("threads: 2", "thread: 2", ["run.thread (line 18): unknown key; did you mean threads?"]),
    ("run: {threads: 2}", "run: 2", ["run (line 18): expected keys with values"]),
    ("run: {threads: 2}", "runs: {threads: 2}", ["runs (line 18): unknown key; did you mean run?"]),
    (
        "localhost",
        "${env:NOWHERE}",
        ["source.database.hostname (line 4): environment variable NOWHERE is not set"],
    ),
    ("localhost", "${vault:x}", ["source.database.hostname (line 4): a reference is written in a way"]),
    (
        "${env:SHOP_PASSWORD}",
        "${SHOP_PASSWORD}",
        ["source.database.password (line 7): a reference is written in"],
    ),
    ("5432", "!port 5432", ["source.database.port (line 5): unknown tag"]),
    ("  path: ./lake", "  path: !file x.json", ["target.path (line 12): !file is for source alone"]),
]


@pytest.mark.parametrize(("old", "new", "complaints"), EDITS, ids=[f"{new[:40]!r}" for _, new, _ in EDITS])
def test_one_mistake(old: str, new: str, complaints: list[str]) -> None:
    assert GOOD.count(old) >= 1
    message = rejected(GOOD.replace(old, new, 1))
    for complaint in complaints:
        assert complaint in message
    assert len([line for line in message.splitlines() if line.startswith("  ")]) == len(complaints)


def test_all_mistakes_at_once_in_order_of_lines() -> None:
    text = (
        GOOD.replace("5432", "x")
        .replace("initial", "sometimes")
        .replace("soft", "no")
        .replace("threads", "t")
    )
    lines = [line.strip().split(":")[0] for line in rejected(text).splitlines() if line.startswith("  ")]
    assert lines == [
        "source.database.port (line 5)",
        "source.snapshot.mode (line 10)",
        "tables[0].delete (line 15)",
        "run.t (line 18)",
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("# nothing but a comment\n", "is empty"),
        ("- a\n- b\n", "is not a mapping"),
        ("just words", "is not a mapping"),
        ("a: b: c", "is not valid YAML: line 1, column 5: mapping values are not allowed here"),
        ("a: [1", "is not valid YAML: line 1"),
        ("a: &x 1\nb: *x\n", "uses a YAML alias in line 2"),
        ("a: *nowhere", "uses a YAML alias in line 1"),
        ("a: \x01", "is not valid YAML"),
        ("[" * 1000, "is not valid YAML"),
    ],
)
def test_not_a_pipeline_file_at_all(text: str, what: str) -> None:
    assert what in rejected(text)


def test_deep_nesting_ends() -> None:
    assert "nested too deeply" in rejected("name: " + "[" * 40 + "]" * 40)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"name: \xff\xfe", "byte 6 is not UTF-8"), (None, "No such file or directory")],
)
def test_unreadable(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "shop.yml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FixConfiguration) as caught:
        load(path)
    assert caught.value.what == f"{path} cannot be read"
    assert caught.value.why == why


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FixConfiguration, match="cannot be read"):
        load(tmp_path)
