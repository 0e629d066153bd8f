"""``cdc maintain``: tables in good order, without ever standing in the way of a run or of a rebuild.

``files`` puts small files together and removes those that no version needs, table by table; which rows of
control tables go is said in ``cdc_lib.control.expiring``. No lease is taken, so runs go on meanwhile: what is
committed here changes no row of bronze and silver, and says so. What cannot be done beside a run is left for
the next time.
"""

from __future__ import annotations

from cdc_lib.maintenance.result import Expired, Maintained, TableUpkeep
from cdc_lib.maintenance.verb import Maintenance, plan_maintenance, refuse_short_retention

__all__ = [
    "Expired",
    "Maintained",
    "Maintenance",
    "TableUpkeep",
    "plan_maintenance",
    "refuse_short_retention",
]
