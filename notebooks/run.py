"""Runs a notebook of this folder without Databricks, on Spark of this machine:

    python notebooks/run.py notebooks/explore_silver.py pipeline=demo/demo.yml

Cells run in order, those in SQL and pip's included; words ``name=value`` are its widgets. ``display`` prints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FIRST_LINE = "# Databricks notebook source"
SEPARATOR = "# COMMAND ----------"
MAGIC = "# MAGIC"
ROWS = 20
"""Rows that ``display`` prints."""


@dataclass(frozen=True)
class Cell:
    """One cell. ``language``: ``python``, ``sql``, ``md`` or ``pip``; ``line``: where it begins in the file."""

    language: str
    text: str
    line: int


def cells(source: str) -> list[Cell]:
    """The cells of a notebook in Databricks' source format.

    :raises ValueError: it is not in that format.
    """
    lines = source.splitlines()
    if not lines or lines[0] != FIRST_LINE:
        raise ValueError(f"the first line must be: {FIRST_LINE}")
    found, start = [], 1
    for number in range(1, len(lines) + 1):
        if number == len(lines) or lines[number] == SEPARATOR:
            if any(line.strip() for line in lines[start:number]):
                found.append(_cell(lines[start:number], start + 1))
            start = number + 1
    return found


def _cell(lines: list[str], line: int) -> Cell:
    magic = [text for text in lines if text.strip()]
    if not all(text.startswith(MAGIC) for text in magic):
        return Cell("python", "\n".join(lines), line)
    text = "\n".join(part[len(MAGIC) :].removeprefix(" ") for part in magic)
    word, _, rest = text.partition("%")[2].partition("\n")
    language, _, first = word.partition(" ")
    return Cell(language, "\n".join(filter(None, (first, rest))), line)


class Widgets:
    """``dbutils.widgets``: values given from outside, else a widget's default."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._values: dict[str, str] = {}

    def text(self, name: str, default: str, label: str = "") -> None:
        self._values[name] = self._given.get(name, default)

    def dropdown(self, name: str, default: str, choices: list[str], label: str = "") -> None:
        self.text(name, default, label)
        if self._values[name] not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}")

    def get(self, name: str) -> str:
        return self._values[name]


@dataclass(frozen=True)
class Shown:
    """What ``display`` was given, or a cell in SQL gave: its columns, and rows as dictionaries."""

    columns: list[str]
    rows: list[dict[str, Any]]


class Notebook:
    """Runs cells in one namespace, as a notebook does; ``shown`` has what was displayed, in order.

    :param widgets: their values, by name.
    :param show: what ``display`` does with the rows.
    """

    def __init__(self, widgets: Mapping[str, str], show: Callable[[Shown], None]) -> None:
        from cdc_lib.spark_session import session

        self.shown: list[Shown] = []
        self._show = show
        self._spark = session()
        library = SimpleNamespace(restartPython=lambda: None)
        dbutils = SimpleNamespace(widgets=Widgets(widgets), library=library)
        self.names: dict[str, Any] = {
            "__name__": "__main__",
            "spark": self._spark,
            "dbutils": dbutils,
            "display": self.display,
        }

    def display(self, frame: Any) -> None:
        """Databricks' ``display``, of a Spark DataFrame."""
        rows = [row.asDict(recursive=True) for row in frame.limit(1000).collect()]
        self.shown.append(Shown(frame.columns, rows))
        self._show(self.shown[-1])

    def run(self, path: Path) -> None:
        """All cells; an exception ends it, as it would a job. What pip installs is here already."""
        for cell in cells(path.read_text(encoding="utf-8")):
            if cell.language == "python":
                # The line numbers of a traceback are those of the file.
                code = compile("\n" * (cell.line - 1) + cell.text, str(path), "exec")
                exec(code, self.names)
            elif cell.language == "sql":
                self.display(self._spark.sql(cell.text.rstrip().removesuffix(";")))
            elif cell.language not in ("md", "pip"):
                raise ValueError(f"line {cell.line}: no such kind of cell: %{cell.language}")


def _print(shown: Shown) -> None:
    from cdc_lib.cli.output import show_table

    show_table(shown.columns, [list(row.values()) for row in shown.rows[:ROWS]])


def main() -> None:
    notebook, *words = sys.argv[1:]
    widgets = dict(word.split("=", 1) for word in words)
    from cdc_lib.java import ensure_java

    ensure_java()
    Notebook(widgets, _print).run(Path(notebook))


if __name__ == "__main__":
    main()
