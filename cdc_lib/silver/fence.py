"""The MERGE where no commit of one can carry a transaction id: serverless compute has no such setting.

Elsewhere the id keeps older batches from being merged over newer ones, by a runner that was paused while
another took over, or by a statement that outlived its runner: a deleted row would come back. Here the lease
does it, which changes hands before its new owner merges anything:

1. Before its first MERGE into a table, an owner changes a property of it. An earlier owner's MERGE that had
   begun then fails, since Delta lets no transaction pass a change of metadata.
2. A MERGE that begins later reads the lease as one of its sources. Delta plans sources inside the
   transaction, so it sees that the lease is gone, and has no rows.
3. An append carries its transaction id as an option of the writer on every platform. So an empty one before
   the MERGE keeps the appends of an earlier owner out.
4. A lease that is held after the MERGE was held when it was read. Only then is the batch noted, by a second
   empty append, for who rebuilds control tables from the history of silver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdc_lib.delta import Lake, TableRef, Txn
from cdc_lib.errors import RetryLater
from cdc_lib.silver.statement import Merge, VersionMerge
from cdc_lib.table_ref import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OWNER = "cdc.owner"
"""The property that changes with each owner."""
_HISTORY = 50


@dataclass
class Fence:
    """What one owner holds up against earlier ones. ``lease`` has a row as long as the owner holds it."""

    lease: Callable[[], DataFrame]
    owner: str
    _raised: set[str] = field(default_factory=set)

    def merge(
        self,
        lake: Lake,
        silver: TableRef,
        merge: Merge | VersionMerge,
        changes: DataFrame,
        commit: tuple[Txn, Mapping[str, Any]],
    ) -> list[dict[str, Any]]:
        """Run the MERGE, if the pipeline is still this owner's.

        :raises RetryLater: it is not; nothing of this range was applied that its new owner will not apply.
        """
        txn, marks = commit
        self._raise(lake, silver)
        nothing = lake.table(silver).limit(0)
        lake.append(silver, nothing, txn=txn)
        said = lake.execute(merge.sql(), views={merge.changes: self._if_held(changes)})
        if self.lease().isEmpty():
            raise RetryLater(
                f"{self.owner} does not hold the lease any more",
                why="another runner took it while a MERGE was under way, which then changed nothing",
                remedy="wait for the other to end",
            )
        lake.append(silver, nothing, txn=Txn(f"{txn.app_id}/merged", txn.version), metadata=marks)
        return said

    def _if_held(self, changes: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        held = self.lease().agg(F.count("*").alias("held")).where("held > 0")
        return changes.join(held, how="cross").drop("held")

    def _raise(self, lake: Lake, silver: TableRef) -> None:
        if silver.sql not in self._raised:
            lake.execute(f"ALTER TABLE {silver.sql} SET TBLPROPERTIES ('{OWNER}' = {literal(self.owner)})")
            self._raised.add(silver.sql)


def has_batch(lake: Lake, silver: TableRef, marks: Mapping[str, Any]) -> bool:
    """Whether some commit says that it brought silver to this batch or a later one. An append whose id was
    only claimed (step 3) by a run that then died is skipped in silence, and leaves none."""
    return any(
        commit.metadata is not None
        and commit.metadata.get("incarnation") == marks["incarnation"]
        and commit.metadata.get("batch", -1) >= marks["batch"]
        for commit in lake.history(silver, limit=_HISTORY)
    )
