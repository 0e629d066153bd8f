"""Silver: tables that look like the source's, kept by one idempotent MERGE per table and range of batches.

``table`` says what a silver table is, ``events`` reads a range of bronze, ``reduce`` and ``moves`` bring it
down to one row per key, ``versions`` to one per version (SCD type 2), ``statement`` is the MERGE, ``merging``
runs it, ``fence`` guards it on serverless compute, ``keyless`` covers tables whose rows cannot be told apart.
Spark is imported when something is applied, not before.
"""

from __future__ import annotations

import pyarrow as pa

from cdc_lib.delta import Lake
from cdc_lib.facts import Facts
from cdc_lib.silver.fence import Fence
from cdc_lib.silver.table import Applied, KeylessUpdate, SilverTable, ensure, show_current

__all__ = [
    "Applied",
    "Fence",
    "KeylessUpdate",
    "SilverTable",
    "applied",
    "apply",
    "ensure",
    "incomplete",
    "older",
    "show_current",
    "vanished",
]


def apply(
    lake: Lake,
    target: SilverTable,
    *,
    after: int,
    upto: int,
    incarnation: str,
    facts: Facts | None = None,
    fence: Fence | None = None,
) -> Applied:
    """Apply bronze's rows with ``after < _batch <= upto`` in one commit of transaction version ``upto``.

    ``after`` may lag behind what silver holds, and the same range may come again: the result is the same as
    long as ``upto`` is never lower than what was applied, and a lower ``upto`` is skipped by Delta.

    :param facts: what kinds of rows these are; None: they are looked through.
    :param fence: what keeps earlier owners out where a platform takes no transaction ids for MERGE.
    :raises KeylessUpdate: the rows that the changes mean cannot be told.
    """
    from cdc_lib.silver import merging

    return merging.apply(
        lake, target, after=after, upto=upto, incarnation=incarnation, facts=facts, fence=fence
    )


def older(lake: Lake, target: SilverTable, batch: int) -> pa.Table:
    """Keys of the living rows that no batch from ``batch`` on touched; empty if there is no such table."""
    from cdc_lib.silver import merging

    return merging.older(lake, target, batch)


def vanished(lake: Lake, target: SilverTable, batch: int) -> pa.Table:
    """The same by what bronze says alone, for silver that somebody else keeps: keys of the rows that lived
    before ``batch``, and that no batch from there on touched."""
    from cdc_lib.silver import merging

    return merging.vanished(lake, target, batch)


def incomplete(lake: Lake, target: SilverTable) -> pa.Table:
    """Keys, in their order, of the living rows that list columns as not known; empty if there are none."""
    from cdc_lib.silver import merging

    return merging.incomplete(lake, target)


def applied(lake: Lake, target: SilverTable) -> int | None:
    """The newest batch that silver's rows prove to be applied; None if it has no rows.

    A lower bound where a later batch only deleted or truncated.
    """
    from cdc_lib.silver import merging

    return merging.applied(lake, target)
