"""The generated pages are what the code says now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cdc_lib.config import load
from cdc_lib.properties import Property, property_table
from cdc_lib.properties_page import pages

ROOT = Path(__file__).resolve().parents[3]
ROWS = property_table("postgresql").rows


@pytest.mark.parametrize("name", ["properties.md", "pipeline.schema.json"])
def test_the_committed_pages_are_those_of_the_code(name: str) -> None:
    committed = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert committed == pages()[name], f"docs/{name} is out of date: run make docs"


def test_there_is_no_other_page() -> None:
    assert sorted(pages()) == ["pipeline.schema.json", "properties.md"]


def test_the_command_writes_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "cdc_lib.properties_page", str(tmp_path)], check=True, cwd=ROOT)
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert written == pages()


def table(title: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    lines = pages()["properties.md"].split(f"# {title}\n")[1].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = lines[start + 2 :]
    end = next((number for number, line in enumerate(rows) if not line.startswith("|")), len(rows))
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[:end]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_property_has_one_line_and_no_cell_breaks_the_table(row: Property) -> None:
    lines = pages()["properties.md"].splitlines()
    found = [line for line in lines if line.startswith(f"| `{row.name}` | ") and line.count(" | ") == 4]
    words = {"implemented": "works", "notice": "no effect"}
    assert [line.split(" | ")[1] for line in found] == [words.get(row.status, row.status)]


def test_what_a_line_says() -> None:
    cells = {name: rest for title in ("Connection", "Snapshots") for name, *rest in table(title)}
    assert cells["`database.port`"] == ["works", "a whole number from 1 to 65535", "`5432`", "Port."]
    assert cells["`database.user`"][2] == "required"
    assert cells["`database.password`"][1] == "a text, secret"
    assert cells["`snapshot.mode`"][1] == "initial, initial_only or no_data; `never` (taken as `no_data`)"
    assert cells["`snapshot.mode`"][3].endswith("`configuration_based`, `custom`: not yet supported.")
    assert cells["`snapshot.delay.ms`"][0] == "no effect"


def test_the_list_of_other_defaults_is_complete() -> None:
    cells = {name: rest for name, *rest in table("Defaults that differ from Debezium's")}
    assert list(cells) == [f"`{row.name}`" for row in ROWS if row.differs]
    assert cells["`skipped.operations`"][:2] == ["`t`", "`none`"]
    assert cells["`slot.name`"][:2] == ["`debezium`", "cdc_ and the pipeline's name"]
    assert all(here for _, here, _ in cells.values())


def test_the_other_sections_are_described() -> None:
    assert [
        "`threads`",
        "a whole number above 0",
        "`2`",
        "Connections that read a snapshot at once.",
    ] in table("run")
    assert ["`match`", "a text", "required", "Expression, as in table.include.list."] in table(
        "tables (a list of rules; the first that matches holds)"
    )
    assert [row[1] for row in table("target") if row[0] == "`writer`"] == ["`direct`, `spark`"]


def test_the_example_points_editors_to_the_schema() -> None:
    example = ROOT / "pipelines" / "shop.yml"
    first = example.read_text(encoding="utf-8").splitlines()[0]
    prefix = "# yaml-language-server: $schema="
    assert first.startswith(prefix)
    assert (example.parent / first.removeprefix(prefix)).resolve() == ROOT / "docs" / "pipeline.schema.json"
    assert load(example, environ={"SHOP_PASSWORD": "x"}).name == "shop"
