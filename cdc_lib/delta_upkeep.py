"""A Delta table's files kept in order: few of them, and none that no version needs any more.

On a path, rows are deleted and files removed without a JVM. Files are put together by Spark everywhere:
delta-rs does not notice that another process has just done the same, and then the table has every row twice
(``docs/decisions/0013``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from cdc_lib import delta_direct as direct
from cdc_lib.delta import Lake
from cdc_lib.table_ref import TableRef, literal

SMALL = 16 << 20
"""Bytes below which a file costs more to open than to read."""
MANY = 8
"""Small files from which on it is worth rewriting them."""
SAFE_HOURS = 168
"""Hours for which Delta keeps removed files unless told otherwise: a week."""

_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"

Sign = Literal["=", "<", "in", "not in"]
Condition = tuple[str, Sign, Any]
"""A column, and what its value must be; with ``in`` and ``not in`` a list of values."""


@dataclass(frozen=True)
class Files:
    """The files of a table's newest version; ``small`` of them could be put together.

    ``clustered``: somebody gave the table liquid clustering, and only rewriting brings new rows in order.
    Delta knows by itself whether there are any.
    """

    count: int
    bytes: int
    small: int
    clustered: bool = False

    @property
    def worth_compacting(self) -> bool:
        return self.clustered or self.small >= MANY


def files(lake: Lake, ref: TableRef) -> Files:
    """What a table consists of. Without looking at single files, ``small`` is what an even split lacks."""
    if _is_plain(ref):
        sizes = direct.sizes(str(ref.path))
        return Files(len(sizes), sum(sizes), sum(size < SMALL for size in sizes))
    (detail,) = lake.execute(f"DESCRIBE DETAIL {ref.sql}")
    count, size = int(detail["numFiles"]), int(detail["sizeInBytes"])
    return Files(count, size, max(0, count - size // SMALL), bool(detail.get("clusteringColumns")))


def compact(lake: Lake, ref: TableRef, metadata: Mapping[str, Any]) -> None:
    """Put small files together; no row changes, and no commit is made if there is nothing to do.

    :raises Conflict: somebody changed the same files meanwhile; nothing was done.
    """
    lake.execute(f"OPTIMIZE {ref.sql}", metadata=metadata)


def unneeded(lake: Lake, ref: TableRef, hours: int) -> int:
    """Files that :func:`vacuum` would remove; in a catalog at most as many as Delta lists."""
    if _is_plain(ref):
        found = direct.existing(str(ref.path)).vacuum(
            hours, dry_run=True, enforce_retention_duration=False, full=True
        )
        # It also lists what an earlier one removed, as long as the log names that.
        return sum((Path(str(ref.path)) / unquote(name)).exists() for name in found)
    return len(lake.execute(_vacuum(ref, hours) + " DRY RUN", settings=_unchecked(hours)))


def vacuum(lake: Lake, ref: TableRef, hours: int, metadata: Mapping[str, Any]) -> None:
    """Remove files that no version of the last ``hours`` names, those of appends that died among them.

    :param hours: fewer than :data:`SAFE_HOURS` only where nobody writes or reads.
    """
    if _is_plain(ref):
        from deltalake import CommitProperties

        noted = CommitProperties(custom_metadata={"userMetadata": json.dumps(metadata, sort_keys=True)})
        direct.existing(str(ref.path)).vacuum(
            hours, dry_run=False, enforce_retention_duration=False, full=True, commit_properties=noted
        )
        return
    lake.execute(_vacuum(ref, hours), metadata=metadata, settings=_unchecked(hours))


def delete(lake: Lake, ref: TableRef, conditions: Sequence[Condition]) -> None:
    """Delete the rows of a control table that meet all conditions.

    :raises Conflict: others kept committing what does not go together with it.
    """
    if ref.path is not None:
        direct.delete(ref.path, _predicate(conditions, '"', _direct_literal))
    else:
        predicate = _predicate(conditions, "`", _spark_literal)
        lake.execute(f"DELETE FROM {ref.sql} WHERE {predicate}")  # noqa: S608  names and values are quoted


def _is_plain(ref: TableRef) -> bool:
    # Of deletion vectors' files delta-rs knows nothing: it would take them for left over.
    return ref.path is not None and direct.takes_files(ref.path)


def _vacuum(ref: TableRef, hours: int) -> str:
    return f"VACUUM {ref.sql} RETAIN {int(hours)} HOURS"


def _unchecked(hours: int) -> Mapping[str, str]:
    return {_CHECK: "false"} if hours < SAFE_HOURS else {}


# -- conditions


def holds(row: Any, conditions: Sequence[Condition]) -> bool:
    """Whether a row of Python values meets all conditions, as :func:`delete` would have it."""
    return all(_holds(getattr(row, name), sign, wanted) for name, sign, wanted in conditions)


def _holds(value: Any, sign: Sign, wanted: Any) -> bool:
    if sign == "=":
        return bool(value == wanted)
    return bool(value < wanted) if sign == "<" else (value in wanted) == (sign == "in")


def _predicate(conditions: Sequence[Condition], quote: str, shown: Callable[[Any], str]) -> str:
    return " AND ".join(
        _term(f"{quote}{name}{quote}", sign, wanted, shown) for name, sign, wanted in conditions
    )


def _term(column: str, sign: Sign, wanted: Any, shown: Callable[[Any], str]) -> str:
    if sign in ("=", "<"):
        return f"{column} {sign} {shown(wanted)}"
    if not wanted:
        return "false" if sign == "in" else "true"
    return f"{column} {sign.upper()} ({', '.join(map(shown, wanted))})"


def _spark_literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"TIMESTAMP '{_utc(value)}'"
    return literal(value) if isinstance(value, str) else str(int(value))


def _direct_literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"'{_utc(value)}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(int(value))


def _utc(value: datetime) -> str:
    return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
