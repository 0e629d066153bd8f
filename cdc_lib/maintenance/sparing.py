"""Bronze tables that are left as they are, because a recovery or a rebuild may need them so."""

from __future__ import annotations

from datetime import datetime, timedelta

from cdc_lib import bronze
from cdc_lib.clock import now
from cdc_lib.control import Control
from cdc_lib.control.leases import Lease
from cdc_lib.control.tables import TableState
from cdc_lib.control.watermarks import Watermark
from cdc_lib.delta import Lake, TableRef
from cdc_lib.maintenance.files import Work

IDLE_DAYS = 21
"""Days without rows after which a table is left alone, where commits take no notes. Delta forgets a commit
after 30, once a later one makes a checkpoint, and ``cdc rebuild`` goes by the newest that brought rows."""


class Sparing:
    """Decides for each bronze table; ``hours`` is how long removed files stay."""

    def __init__(
        self, lake: Lake, control: Control, watermark: Watermark, lease: Lease, *, hours: int
    ) -> None:
        self._lake = lake
        self._watermark = watermark
        self._incarnation = lease.incarnation
        self._half_done = _half_done(control, watermark, hours)
        self._newest: dict[str, datetime] = {}
        for seal in sorted(control.batches.load(), key=lambda seal: seal.batch):
            self._newest.update({table.table_id: seal.sealed_at for table in seal.tables})

    def work(self, ref: TableRef, state: TableState) -> Work:
        """What may be done to a bronze table."""
        foreign = self._foreign(ref, state)
        left = foreign or self._half_done or self._idle(ref, state)
        return Work(ref, compact=not left, vacuum=not left, left=left, finding=bool(foreign))

    def _foreign(self, ref: TableRef, state: TableState) -> str:
        remembered = self._watermark.tables.get(state.table_id)
        if remembered is None:
            return ""
        found = bronze.foreign_commits(self._lake, ref, remembered, self._incarnation)
        if not found:
            return ""
        what = f"{found[0].operation}, version {found[0].version}"
        return f"left as it is: changed by somebody else ({what}); cdc run says what to do"

    def _idle(self, ref: TableRef, state: TableState) -> str:
        since = self._newest.get(state.table_id)
        if ref.path is not None or since is None or self._lake.supports_dml_txn:
            return ""
        if since > now() - timedelta(days=IDLE_DAYS):
            return ""
        return (
            f"left as it is: no rows since {since:%Y-%m-%d}, and commits take no notes on this platform; "
            "cdc rebuild would no longer find what its last commit says"
        )


def _half_done(control: Control, watermark: Watermark, hours: int) -> str:
    """A batch that waits longer than removed files stay may have to be taken back. What a run is just about
    to commit is younger."""
    seal = control.batches.unfinished(watermark.batch)
    if seal is None or seal.sealed_at > now() - timedelta(hours=hours):
        return ""
    since = f"{seal.sealed_at:%Y-%m-%d %H:%M}"
    return f"left as it is: batch {seal.batch}, sealed {since} UTC, is not committed; to do: cdc run"
