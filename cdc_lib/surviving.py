"""What bronze and silver say of a pipeline whose control tables are lost; nothing is written here.

Batches are made one after the other: one is sealed only when the one before is committed. So every batch
below the newest that any table has was committed, and only the newest may be half there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cdc_lib import bronze
from cdc_lib.delta import Lake, TableRef
from cdc_lib.errors import FixConfiguration, ResnapshotNeeded
from cdc_lib.noting import REPEATED, Note, noted


@dataclass(frozen=True)
class Noted:
    """A commit of ours and what it says. ``stands``: no RESTORE has undone it.

    ``repeated``: it says it of a committed batch before it, which may be all that is left of that.
    """

    version: int
    note: Note
    stands: bool
    repeated: bool = False


@dataclass(frozen=True)
class Survivor:
    """One bronze table: its commits of ours newest first, and the newest batch that its silver table has.

    ``foreign``: the operation by which somebody else changed its rows since; empty if nobody did.
    """

    ref: TableRef
    table_id: str
    source: str
    commits: Sequence[Noted]
    foreign: str
    applied: int

    def standing(self, below: int) -> Note | None:
        """What the commits that stand say of the newest batch, of those below ``below``."""
        notes = (c.note for c in self.commits if c.stands and c.note.batch < below)
        return max(notes, key=_order, default=None)

    def commit_of(self, batch: int) -> Noted | None:
        """The commit of a batch, if it stands."""
        own = (c for c in self.commits if c.stands and not c.repeated)
        return next((c for c in own if c.note.batch == batch), None)


@dataclass(frozen=True)
class Survivors:
    """The bronze tables of one incarnation of a pipeline."""

    incarnation: str
    tables: Sequence[Survivor]

    @classmethod
    def find(cls, lake: Lake, pipeline: str) -> Survivors:
        """The tables whose properties name the pipeline.

        :raises FixConfiguration: there is none, or they are of several incarnations.
        :raises ResnapshotNeeded: their history names no batch.
        """
        marked = [(ref, lake.properties(ref)) for ref in lake.tables("bronze")]
        ours = [(ref, marks) for ref, marks in marked if marks.get("cdc.pipeline") == pipeline]
        incarnation = _one_incarnation(pipeline, ours)
        found = cls(incarnation, [_survivor(lake, ref, marks) for ref, marks in ours])
        if not any(table.commits for table in found.tables):
            raise ResnapshotNeeded(
                "bronze does not say up to where it is complete",
                why="no commit in the history of its tables names a batch of this pipeline",
                remedy="drop the pipeline's bronze and silver tables; the next cdc run reads everything anew",
            )
        return found

    @cached_property
    def newest(self) -> Note:
        """What its latest attempt says of the newest batch that was ever appended to a table."""
        return max((commit.note for table in self.tables for commit in table.commits), key=_order)

    @cached_property
    def committed(self) -> bool:
        """Whether the newest batch counts: every table that it has rows of has it; or silver has applied it,
        or maintenance repeated it, which both do with committed batches alone."""
        having = {table.table_id for table in self.tables if table.commit_of(self.newest.batch)}
        repeated = (c.note.batch for table in self.tables for c in table.commits if c.repeated)
        known = max(self._applied, *repeated, 0)
        return having.issuperset(self.newest.tables) or known >= self.newest.batch

    @property
    def position(self) -> str:
        """Up to where bronze is complete, JSON. A batch that does not count begins where the one before it
        was committed."""
        return self.newest.upto if self.committed else self.newest.after

    @property
    def limit(self) -> int:
        """Batches below this one count."""
        return self.newest.batch + 1 if self.committed else self.newest.batch

    @property
    def next_batch(self) -> int:
        """A number that neither bronze nor silver has seen: both skip those they have in silence."""
        return max(self.newest.batch, self._applied) + 1

    @property
    def _applied(self) -> int:
        return max(table.applied for table in self.tables)


def _order(note: Note) -> tuple[int, int]:
    return note.batch, note.attempt


def _one_incarnation(pipeline: str, ours: Sequence[tuple[TableRef, dict[str, str]]]) -> str:
    tables: dict[str, list[str]] = {}
    for ref, marks in ours:
        tables.setdefault(marks.get("cdc.incarnation", ""), []).append(ref.name)
    if not tables:
        raise FixConfiguration(
            f"no bronze table of the pipeline {pipeline} is there",
            why="control tables are rebuilt from bronze, and none in the target carries this name",
            remedy="correct name and target in the pipeline file; a new pipeline starts with cdc run",
        )
    if len(tables) > 1:
        shown = "; ".join(f"{incarnation}: {', '.join(names)}" for incarnation, names in tables.items())
        raise FixConfiguration(
            f"the bronze tables of the pipeline {pipeline} are of {len(tables)} incarnations",
            why=f"they have two histories, whose batches do not go together ({shown})",
            remedy="drop or move the tables of all incarnations but one, then run cdc rebuild again",
        )
    (incarnation,) = tables
    return incarnation


def _survivor(lake: Lake, ref: TableRef, marks: dict[str, str]) -> Survivor:
    incarnation, table_id = marks["cdc.incarnation"], marks["cdc.table_id"]
    history = lake.history(ref, limit=bronze.HISTORY)
    stands = {commit.version for commit in bronze.standing(history)}
    carried = ((commit, Note.of(noted(commit, incarnation), incarnation)) for commit in history)
    last = next((commit for commit in history if commit.changes_data), None)
    return Survivor(
        ref,
        table_id,
        marks.get("cdc.source_table", ""),
        [
            Noted(c.version, note, c.version in stands, REPEATED in (c.metadata or {}))
            for c, note in carried
            if note is not None
        ],
        last.operation if last is not None and not bronze.is_ours(last, incarnation) else "",
        _applied(lake, lake.ref("silver", ref.name), incarnation, table_id),
    )


def _applied(lake: Lake, silver: TableRef, incarnation: str, table_id: str) -> int:
    """The newest batch that a silver table has, as its transactions or its history say; 0 if they do not,
    and then it is applied from the first batch again, to the same result."""
    if not lake.exists(silver):
        return 0
    version = lake.transaction_version(silver, f"{incarnation}/silver/{table_id}")
    if version is not None:
        return version
    marks = (noted(commit, incarnation) for commit in lake.history(silver, limit=bronze.HISTORY))
    return max((int(each["batch"]) for each in marks if each), default=0)
