"""What each commit to bronze says beside its rows: enough to rebuild the control tables from bronze alone.

It stands in the commit's user metadata, so it is there exactly if the rows are. Nothing reads it as long as
the control tables exist, but for incarnation and batch, by which a commit is known to be ours.

Delta forgets commits after a month, when a table gets new ones. So what ``cdc maintain`` commits repeats the
note of the newest batch, under a key of its own: it is no commit of that batch.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from typing_extensions import Self

from cdc_lib.captured import CapturedTable
from cdc_lib.delta import Commit
from cdc_lib.schema import Column, Table


@dataclass(frozen=True)
class Note:
    """One table's part of one batch.

    ``tables``: ids of all tables that the batch has rows of. ``after`` and ``upto``: the batch's positions,
    JSON. ``state``: what is left to do with the table once the batch is committed, a value of
    :class:`~cdc_lib.control.tables.State`. ``snapshot``: the batch that brought the first rows of a snapshot
    that silver may not have settled yet, else 0. ``structure``: :func:`packed`. The last three are empty in
    commits of versions that did not note them.
    """

    incarnation: str
    batch: int
    attempt: int
    after: str
    upto: str
    tables: list[str]
    chunks: list[int] = field(default_factory=list)
    state: str = ""
    snapshot: int = 0
    structure: str = ""

    def to_metadata(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, metadata: Mapping[str, Any] | None, incarnation: str) -> Self | None:
        """The note of a commit; None if the commit is not one of an incarnation's batches."""
        if metadata is None or metadata.get("incarnation") != incarnation or "batch" not in metadata:
            return None
        return cls(**{name: metadata[name] for name in cls.__dataclass_fields__ if name in metadata})


REPEATED = "repeats"


def upkeep(incarnation: str, does: str, note: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata of a commit that changes no rows; ``note`` is the metadata that it repeats."""
    return {"incarnation": incarnation, "upkeep": does, **({REPEATED: note} if note else {})}


def noted(commit: Commit, incarnation: str) -> Mapping[str, Any] | None:
    """The metadata of one of our batches that a commit carries, as its own or repeated; None if none."""
    metadata = commit.metadata or {}
    found = metadata.get(REPEATED) or metadata
    ours = metadata.get("incarnation") == incarnation and "batch" in found
    return found if ours else None


def packed(entry: CapturedTable) -> str:
    """A table's structure and the versions in which its columns appeared; compressed, since a table of many
    columns would fill the history with it."""
    assert entry.table is not None
    dropped = [column.to_dict() for name, column in entry.ever.items() if name not in entry.table.names]
    data = {"table": entry.table.to_json(), "since": entry.since, "dropped": dropped}
    return base64.b64encode(zlib.compress(json.dumps(data).encode())).decode("ascii")


def structures(text: str) -> list[Table]:
    """Versions that, adopted in their order, give back what was :func:`packed`.

    The newest is as it was. The earlier ones have the columns that had appeared by then, and keep those that
    were dropped up to the newest: when that was, nobody asks.
    """
    data = json.loads(zlib.decompress(base64.b64decode(text)))
    newest, since = Table.from_json(data["table"]), data["since"]
    ever = [*map(Column.from_dict, data["dropped"]), *newest.columns]
    earlier = sorted({since[column.name] for column in ever} - {newest.version})
    return [
        *(newest.numbered(v, tuple(each for each in ever if since[each.name] <= v)) for v in earlier),
        newest,
    ]
