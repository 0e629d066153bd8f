"""Reconciliation: silver proved equal to the source, cell by cell, while writers go on.

``verb`` takes the source's view and brings silver to its position, ``table`` compares one table. ``hashing``
turns rows into hashes, ``source_rows`` and ``silver_rows`` do so where the rows are, ``buckets`` adds them
up, ``comparing`` narrows sums that differ down to rows, ``differences`` rows to cells, ``repairing`` mends
them.
"""

from cdc_lib.reconcile.result import Reconciled

__all__ = ["Reconciled"]
