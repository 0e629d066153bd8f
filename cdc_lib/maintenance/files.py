"""One table's files: put together where they are many and small, and removed where no version needs them.

Nothing is committed where there is nothing to do. Each commit of a table makes Delta forget its oldest ones
sooner, and those of bronze and silver say what ``cdc rebuild`` goes by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdc_lib import bronze, delta_upkeep
from cdc_lib.delta import Conflict, Lake, TableRef
from cdc_lib.maintenance.result import TableUpkeep
from cdc_lib.noting import noted, upkeep


@dataclass(frozen=True)
class Work:
    """What may be done to a table. ``left`` says why not all of it."""

    ref: TableRef
    compact: bool = True
    vacuum: bool = True
    left: str = ""
    finding: bool = False


class Files:
    """Looks after tables of one incarnation; ``committed`` is its newest committed batch.

    :param hours: age from which on files go that no version names.
    :param writes: False: only look what would be done.
    """

    def __init__(self, lake: Lake, incarnation: str, committed: int, *, hours: int, writes: bool) -> None:
        self._lake = lake
        self._incarnation = incarnation
        self._committed = committed
        self._hours = hours
        self._writes = writes

    def look_after(self, work: Work) -> TableUpkeep:
        """Do what is worth doing, and may be done."""
        found = delta_upkeep.files(self._lake, work.ref)
        done = TableUpkeep(
            str(work.ref), found.count, found.bytes, found.count, left=work.left, finding=work.finding
        )
        if work.compact and found.worth_compacting:
            done = self._compacted(work.ref, done)
        if work.vacuum:
            done = self._vacuumed(work.ref, done)
        return done

    def _compacted(self, ref: TableRef, done: TableUpkeep) -> TableUpkeep:
        if not self._writes:
            return replace(done, files_after=None)
        try:
            delta_upkeep.compact(self._lake, ref, self._metadata(ref, "compact"))
        except Conflict:
            return replace(done, left="files not put together: a run was changing them; the next time")
        return replace(done, files_after=delta_upkeep.files(self._lake, ref).count)

    def _vacuumed(self, ref: TableRef, done: TableUpkeep) -> TableUpkeep:
        count = delta_upkeep.unneeded(self._lake, ref, self._hours)
        if count and self._writes:
            delta_upkeep.vacuum(self._lake, ref, self._hours, self._metadata(ref, "vacuum"))
        return replace(done, removed=count)

    def _metadata(self, ref: TableRef, does: str) -> dict[str, Any]:
        return upkeep(self._incarnation, does, None if ref.layer == "control" else self._newest_note(ref))

    def _newest_note(self, ref: TableRef) -> Mapping[str, Any] | None:
        """What the table's commits say of its newest batch that is committed."""
        history = bronze.standing(self._lake.history(ref, limit=bronze.HISTORY))
        notes = (noted(commit, self._incarnation) for commit in history)
        committed = (note for note in notes if note is not None and note["batch"] <= self._committed)
        return max(committed, key=lambda note: (note["batch"], note.get("attempt", 0)), default=None)
