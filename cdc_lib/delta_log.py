"""A Delta table's log on a local path, read and flushed to disk without a JVM.

Format: the Delta protocol's "Delta log entries" (one JSON file a version, one action a line).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROWS_UNCHANGED = frozenset(
    {
        "ADD COLUMNS",
        "ADD CONSTRAINT",
        "CHANGE COLUMN",
        "CHANGE COLUMNS",
        "CLUSTER BY",
        "COMPUTE STATS",
        "CREATE TABLE",
        "DROP CONSTRAINT",
        "OPTIMIZE",
        "REORG",
        "ROW TRACKING BACKFILL",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "VACUUM END",
        "VACUUM START",
    }
)
"""Operations in DESCRIBE HISTORY, which does not tell, that leave all rows as they are."""

_ENTRY = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True)
class Commit:
    """One version of a table. ``metadata`` is the user metadata if it is a JSON object.

    ``changes_data`` is False for commits that leave every row as it was: OPTIMIZE, table properties, new
    columns. ``restored`` is the version that a RESTORE went back to, None for all others (and for a RESTORE
    by time, which does not say).
    """

    version: int
    operation: str
    metadata: dict[str, Any] | None
    changes_data: bool
    restored: int | None = None


def versions(table: str, since: int = 0) -> list[int]:
    """Versions from ``since`` on whose log entries still exist, oldest first."""
    try:
        names = os.listdir(Path(table) / "_delta_log")
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = (int(match[1]) for name in names if (match := _ENTRY.fullmatch(name)))
    return sorted(version for version in found if version >= since)


def commits(table: str, since: int, limit: int) -> list[Commit]:
    """The newest ``limit`` commits from version ``since`` on, newest first."""
    newest_first = reversed(versions(table, since)[-limit:])
    return [_commit(version, list(_actions(table, version))) for version in newest_first]


def parse_metadata(text: str | None) -> dict[str, Any] | None:
    """User metadata as a JSON object; None if it is anything else."""
    try:
        value = json.loads(text or "null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def restored_version(operation: str | None, parameters: Mapping[str, Any] | None) -> int | None:
    """The version that a RESTORE names; Delta for Spark writes it as a number, history as text."""
    version = str((parameters or {}).get("version"))
    return int(version) if operation == "RESTORE" and version.isdecimal() else None


def sync(table: str, since: int) -> None:
    """Flush the versions after ``since`` to disk: data files, their log entries, and the folders.

    Writers on a local path leave that to the operating system; a source must not forget a change that a
    power cut can still take.
    """
    root = Path(table)
    folders = {root / "_delta_log"}
    for version in versions(table, since + 1):
        for action in _actions(table, version):
            if "add" in action:
                file = root / unquote(action["add"]["path"])
                _flush(file)
                folders.add(file.parent)
        _flush(root / "_delta_log" / f"{version:020d}.json")
    for folder in (*folders, root, root.parent):
        _flush(folder)


def _actions(table: str, version: int) -> Iterator[dict[str, Any]]:
    with open(Path(table) / "_delta_log" / f"{version:020d}.json", encoding="utf-8") as entry:
        for line in entry:
            if line.strip():
                yield json.loads(line)


def _commit(version: int, actions: list[dict[str, Any]]) -> Commit:
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    files = (action.get("add") or action.get("remove") for action in actions)
    return Commit(
        version=version,
        operation=str(info.get("operation", "unknown")),
        metadata=parse_metadata(info.get("userMetadata")),
        changes_data=any(file.get("dataChange", True) for file in files if file),
        restored=restored_version(info.get("operation"), info.get("operationParameters")),
    )


def _flush(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        # A file that a later version removed and a vacuum took: nothing of ours is in it any more.
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
