"""Old and new rows of one table's changes, and the changes of keys among them.

Everything here is about places in the receive buffer; nothing is converted yet, because ordinals of all
tables depend on how many key changes each of them has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdc_lib.change import Op
from cdc_lib.sources.postgresql.convert import Mask
from cdc_lib.sources.postgresql.pgoutput import DELETE, INSERT, TRUNCATE, UPDATE
from cdc_lib.sources.postgresql.relations import CapturedRelation
from cdc_lib.sources.postgresql.tuples import Field, Index, Received, differ, walk_log

_KEY_TUPLE, _NEW_TUPLE = b"KN"

OPS = (Op.CREATE, Op.UPDATE, Op.DELETE, Op.TRUNCATE)
_CREATE, _UPDATE, _DELETE, _TRUNCATE = range(4)
_OP_OF_TAG = np.zeros(256, np.int8)
_OP_OF_TAG[[INSERT, UPDATE, DELETE, TRUNCATE]] = _CREATE, _UPDATE, _DELETE, _TRUNCATE


@dataclass(frozen=True)
class Images:
    """Rows of one table in log order, as places in the buffer.

    ``event``: which of the table's changes each row stems from; a changed key gives two rows. ``op``: place
    in :data:`OPS`. ``old``, ``new`` and ``previous_key``: fields of the table's columns (of its key), None
    when no row has any. ``key_only``: rows whose old image is the replica identity alone.
    """

    event: Index
    op: npt.NDArray[np.int8]
    has_old: Mask
    has_new: Mask
    key_only: Mask
    old: list[Field] | None
    new: list[Field] | None
    previous_key: list[Field] | None = None

    @property
    def has_previous_key(self) -> Mask:
        return np.asarray((self.op == _CREATE) & (np.diff(self.event, prepend=-1) == 0))


def read_images(
    received: Received, relation: CapturedRelation, messages: Index, tags: npt.NDArray[np.uint8]
) -> Images:
    """The images of a table's changes whose messages start at ``messages``."""
    marker = received.octets[messages + 5]
    has_new = (tags == INSERT) | (tags == UPDATE)
    has_old = (tags == DELETE) | ((tags == UPDATE) & (marker != _NEW_TUPLE))
    first = messages + 6
    old, behind = _walk(received, relation, first, has_old)
    new, _ = _walk(received, relation, np.where(has_old, behind + 1, first), has_new)
    key_only = has_old & (marker == _KEY_TUPLE)
    if old is not None and new is not None:
        new = _filled(relation, new, old, (has_old, key_only))
    event = np.arange(len(messages))
    images = Images(event, _OP_OF_TAG[tags], has_old, has_new, key_only, old, new)
    return _split(images, relation, _changed_keys(received, relation, images))


def _walk(
    received: Received, relation: CapturedRelation, at: Index, present: Mask
) -> tuple[list[Field] | None, Index]:
    """The table's fields of the tuples ``at``, and the places behind them."""
    count, found = len(at), int(present.sum())
    if found == 0:
        return None, at
    if found * 2 >= count:
        # The absent ones read a tuple of NULLs: cheaper than picking out and putting back the others.
        tuples = at if found == count else np.where(present, at, received.no_tuple)
        fields, behind = walk_log(received, tuples, relation.width)
        return [fields[place] for place in relation.places], behind
    rows = np.flatnonzero(present)
    fields, ends = walk_log(received, at[rows], relation.width)
    behind = at.copy()
    behind[rows] = ends
    return [fields[place].scattered(rows, count) for place in relation.places], behind


def _filled(
    relation: CapturedRelation, new: list[Field], old: list[Field], flags: tuple[Mask, Mask]
) -> list[Field]:
    """New values that the log left out as unchanged are the old ones, where it has those."""
    has_old, key_only = flags
    whole = has_old & ~key_only
    return [
        after.filled_from(before, has_old if name in relation.carried else whole)
        for name, after, before in zip(relation.table.names, new, old, strict=True)
    ]


def _changed_keys(received: Received, relation: CapturedRelation, images: Images) -> Mask:
    changed = np.zeros(len(images.event), np.bool_)
    updates = images.has_old & images.has_new
    if images.old is None or images.new is None or not updates.any():
        return changed
    names = relation.table.names
    for name in relation.table.key:
        place = names.index(name)
        differs = differ(received, images.old[place], images.new[place])
        changed |= differs if name in relation.carried else differs & ~images.key_only
    return changed & updates


def _split(images: Images, relation: CapturedRelation, changed: Mask) -> Images:
    """An update of a key as a delete of the old key and a create of the new one."""
    if images.old is None or images.new is None or not changed.any():
        return images
    counts = 1 + changed.astype(np.int64)
    event = np.repeat(images.event, counts)
    second = np.diff(event, prepend=-1) == 0
    first = changed[event] & ~second
    op = images.op[event]
    op[first], op[second] = _DELETE, _CREATE
    names = relation.table.names
    keys = [images.old[names.index(name)] for name in relation.table.key]
    return Images(
        event,
        op,
        images.has_old[event] & ~second,
        images.has_new[event] & ~first,
        images.key_only[event] & ~second,
        [field.repeated(counts, second) for field in images.old],
        [field.repeated(counts, first) for field in images.new],
        [field.repeated(counts, ~second) for field in keys],
    )
