"""The comparison of one table: sums by bucket, then the rows of the buckets that differ, key by key.

First pass: both sides are read once, and each bucket's rows are summed up; memory holds the sums. If some
differ, silver's row hashes in them are loaded, a bounded count at a time, and the source's rows are read
again: those without an equal in silver are *lacking*, what is then left over in silver has no equal at the
source. Rows are compared as a multiset, so a table without a key needs nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_lib.reconcile.buckets import Selection, Sums, among
from cdc_lib.reconcile.hashing import FIRST, KEY, SECOND, UNKNOWN, Words
from cdc_lib.reconcile.silver_rows import SilverRows
from cdc_lib.reconcile.source_rows import SourceRows
from cdc_lib.source import Chunk

ROUND = 1_000_000
"""Rows of differing buckets whose hashes are in memory at once, 32 bytes each."""

Lacking = Callable[[Chunk, pa.RecordBatch, Words, Words], None]
"""Sees rows of the source that have no equal in silver, their hashes, and the keys (in order) that silver
holds more than once; called in several threads."""


@dataclass
class Found:
    """Row counts. ``wrong``: keys whose rows differ; ``unknown``: keys whose row in silver lists columns as
    not known; ``lost``: rows without a counterpart in silver; ``extra``: in the source. ``extras`` are
    the key hashes of the latter, but for wrong rows that silver has twice; ``doubled``, in order, those that
    silver has more than once."""

    source: int = 0
    silver: int = 0
    equal: int = 0
    wrong: int = 0
    unknown: int = 0
    lost: int = 0
    extra: int = 0
    extras: Words = field(default_factory=lambda: np.zeros(0, np.uint64))
    doubled: Words = field(default_factory=lambda: np.zeros(0, np.uint64))

    @property
    def differing(self) -> int:
        return self.wrong + self.unknown + self.lost + self.extra


def compare(source: SourceRows, silver: SilverRows, lacking: Lacking) -> Found:
    """Compare all rows; differing rows of the source go to ``lacking`` on the way."""
    summed = Sums()
    lock = threading.Lock()

    def add(chunk: Chunk, rows: pa.RecordBatch, hashed: Words) -> None:
        with lock:
            summed.add(hashed)

    with ThreadPoolExecutor(1, "cdc-silver-sums") as pool:
        other = pool.submit(silver.sums)
        source.scan(add)
        held = other.result()
    found = Found(int(summed.rows.sum()), int(held.rows.sum()))
    for selection in _rounds(summed, held):
        _compare_round(source, silver, selection, lacking, found)
    found.equal = found.source - found.wrong - found.unknown - found.lost
    return found


def _rounds(source: Sums, silver: Sums) -> Iterator[Selection]:
    """The differing buckets, in groups of about :data:`ROUND` rows."""
    differing = np.flatnonzero(source.differing(silver))
    rows = np.cumsum(np.maximum(source.rows, silver.rows)[differing])
    for number in np.unique(rows // ROUND):
        chosen = np.zeros(len(source.rows), np.bool_)
        chosen[differing[rows // ROUND == number]] = True
        yield Selection(buckets=chosen)


def _compare_round(
    source: SourceRows, silver: SilverRows, selection: Selection, lacking: Lacking, found: Found
) -> None:
    held = Held(silver.hashes(selection))
    doubled = held.doubled() if source.layout.key else np.zeros(0, np.uint64)
    alone: list[Words] = []

    def match(chunk: Chunk, rows: pa.RecordBatch, hashed: Words) -> None:
        places = np.flatnonzero(selection.of(hashed))
        places = places[~held.match(hashed[:, places])]
        if len(places):
            alone.append(hashed[:, places])
            lacking(chunk, rows.take(pa.array(places)), hashed[:, places], doubled)

    source.scan(match, again=True)
    missing = np.concatenate([held.left()[:, :0], *alone], axis=1)
    _count(found, missing, held.left(), keyed=bool(source.layout.key))
    found.doubled = np.union1d(found.doubled, doubled)


def _count(found: Found, missing: Words, left: Words, *, keyed: bool) -> None:
    """Sort rows that only one side has into kinds: where both have rows of a key, its row is wrong."""
    shared = np.intersect1d(missing[KEY], left[KEY]) if keyed else np.zeros(0, np.uint64)
    unknown = np.intersect1d(shared, left[KEY, left[UNKNOWN] > 0])
    found.wrong += len(shared) - len(unknown)
    found.unknown += len(unknown)
    found.lost += missing.shape[1] - len(shared)
    found.extra += left.shape[1] - len(shared)
    if keyed:
        alone = left[KEY, ~among(left[KEY], np.unique(missing[KEY]))]
        found.extras = np.concatenate([found.extras, alone])


class Held:
    """Silver's rows in some buckets, from which the source's rows are struck off as they are met."""

    def __init__(self, hashes: Words) -> None:
        self._hashes = hashes[:, np.lexsort((hashes[SECOND], hashes[FIRST]))]
        first, second = self._hashes[FIRST], self._hashes[SECOND]
        new = np.ones(len(first), np.bool_)
        new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        self._starts = np.flatnonzero(new)
        self._known = self._hashes[:, self._starts]
        self._copies = np.diff(np.append(self._starts, len(first)))
        self._seen = np.zeros(len(self._starts), np.int64)
        self._lock = threading.Lock()

    def match(self, hashed: Words) -> npt.NDArray[np.bool_]:
        """Strike off the equals of these rows; which of them had one that was not taken yet."""
        if not len(self._starts):
            return np.zeros(hashed.shape[1], np.bool_)
        known, wanted = self._known, hashed[FIRST : SECOND + 1]
        places = np.minimum(np.searchsorted(known[FIRST], wanted[0]), len(self._starts) - 1)
        equal: npt.NDArray[np.bool_] = (known[FIRST : SECOND + 1, places] == wanted).all(0)
        rows = np.flatnonzero(equal)
        with self._lock:
            turn = self._seen[places[rows]] + _rank(places[rows])
            np.add.at(self._seen, places[rows], 1)
        equal[rows] = turn < self._copies[places[rows]]
        return equal

    def left(self) -> Words:
        """The rows that were not struck off."""
        rest = np.maximum(self._copies - self._seen, 0)
        return self._hashes[:, np.repeat(self._starts, rest)]

    def doubled(self) -> Words:
        """Keys with more than one row, in order."""
        keys, counts = np.unique(self._hashes[KEY], return_counts=True)
        return keys[counts > 1]


def _rank(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many equal ones stand before each."""
    order = np.argsort(places, kind="stable")
    groups = places[order]
    starts = np.searchsorted(groups, groups)
    rank = np.empty(len(places), np.int64)
    rank[order] = np.arange(len(places)) - starts
    return rank


def unequal_keys(wanted: Words, silver: Words) -> Words:
    """Keys, in order, whose rows are not the wanted ones."""
    held = Held(silver)
    missing = wanted[:, ~held.match(wanted)]
    return np.union1d(missing[KEY], held.left()[KEY])
