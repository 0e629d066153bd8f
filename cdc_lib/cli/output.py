"""How commands show things: tables and findings for people, JSON for programs, errors once."""

from __future__ import annotations

import json
import sys
import traceback
from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cdc_lib.errors import CdcError
from cdc_lib.source import Finding, Severity

STYLES: dict[Severity, str] = {"ok": "green", "notice": "cyan", "warning": "yellow", "error": "bold red"}
PLAIN_WIDTH = 200
"""Columns of a table that does not go to a terminal."""


def stdout() -> Console:
    """Results. Colours on a terminal only; elsewhere wide enough not to wrap."""
    return _console(stderr=False)


def stderr() -> Console:
    """Progress, notes and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def show_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, default=_json_value, ensure_ascii=False, indent=2) + "\n")


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        # A JSON number would lose digits in most readers.
        return str(value)
    if isinstance(value, bytes | bytearray):
        return b64encode(bytes(value)).decode("ascii")
    return str(value)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], console: Console | None = None) -> None:
    """Rows under their headings; numbers to the right, NULL told apart from empty text."""
    console = console or stdout()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    rows = list(rows)
    for number, name in enumerate(columns):
        numeric = any(isinstance(row[number], int | float | Decimal) for row in rows)
        # Elsewhere than on a terminal, a shortened value would be a wrong value.
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console.print(table)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    if isinstance(value, bool):
        return Text("true" if value else "false")
    if isinstance(value, float):
        return Text(f"{value:g}")
    return Text(str(value))


def show_findings(findings: Sequence[Finding]) -> None:
    """Each finding on a line, its remedy below as text that can be pasted."""
    console = stdout()
    width = max((len(finding.subject) for finding in findings), default=0)
    for finding in findings:
        line = Text(f"{finding.severity:8}", style=STYLES[finding.severity])
        line.append(f"{finding.subject:{width}}  ", style="bold")
        line.append(finding.message, style="default not bold")
        console.print(line, soft_wrap=True)
        if finding.remedy and finding.severity != "ok":
            for part in finding.remedy.splitlines():
                console.print(Text(f"{'':8}{part}"), soft_wrap=True)


def show_error(error: CdcError, *, debug: bool) -> None:
    """What happened, why, what to do; once."""
    console = stderr()
    console.print(
        Text("error: ", style="bold red") + Text(error.what, style="default not bold"), soft_wrap=True
    )
    for label, text in (("why", error.why), ("to do", error.remedy)):
        if text:
            console.print(Text(f"{label}: ", style="bold") + Text(text, style="not bold"), soft_wrap=True)
    if debug:
        console.print(Text("".join(traceback.format_exception(error))), soft_wrap=True)
