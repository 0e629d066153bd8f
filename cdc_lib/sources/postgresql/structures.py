"""Which structure each table's changes have: Relation messages, as the log brings them.

pgoutput describes a table before its first change and again after each invalidation of its cache, between
any two changes. A stretch of the log is therefore cut, per table, where the description really changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cdc_lib.change import SchemaChange
from cdc_lib.schema import Table, TableId
from cdc_lib.sources.postgresql.pgoutput import RELATION, TYPE, malformed, parse_relation, parse_type
from cdc_lib.sources.postgresql.relations import CapturedRelation, CaptureRules, capture
from cdc_lib.sources.postgresql.transactions import Changes, Stretch
from cdc_lib.sources.postgresql.tuples import Index

_Era = tuple[int, "CapturedRelation | None"]


class Structures:
    """The tables' structures, from those known at the start to those the log has brought.

    A structure is announced with the first wanted row under it, so that what unwanted transactions bring
    is never announced too early.
    """

    def __init__(self, rules: CaptureRules, known: Mapping[TableId, Table]) -> None:
        self._rules = rules
        self._announced = dict(known)
        self._latest = dict(known)
        self._described: dict[int, bytes] = {}
        self._bearer: dict[TableId, int] = {}
        self._type_names: dict[int, str] = {}
        # By OID: from which row of the stretch on which structure; None for a table that is not captured.
        self._eras: dict[int, list[_Era]] = {}

    def read(self, stretch: Stretch) -> None:
        """Take in the descriptions of a stretch."""
        self._eras = {oid: [(-1, eras[-1][1])] for oid, eras in self._eras.items()}
        for row in np.flatnonzero((stretch.tags == RELATION) | (stretch.tags == TYPE)):
            message = stretch.message(int(row))
            if message[0] == RELATION:
                self._describe(int(row), message)
            else:
                oid, name = parse_type(message)
                self._type_names[oid] = name

    def parts(self, changes: Changes) -> list[tuple[CapturedRelation, Index]]:
        """The changes of captured tables, as places in ``changes``, each part under one structure.

        In order of their first change, which for parts of one table is log order.
        """
        if not len(changes.row):
            return []
        order = np.argsort(changes.relation, kind="stable")
        oids, begins = np.unique(changes.relation[order], return_index=True)
        found = []
        for oid, places in zip(oids, np.split(order, begins[1:]), strict=True):
            found.extend(self._by_era(int(oid), places, changes.row[places]))
        return sorted(found, key=lambda part: int(part[1][0]))

    def announce(self, relation: CapturedRelation) -> tuple[CapturedRelation, SchemaChange | None]:
        """The relation under the table as it was announced, and the announcement if it is due now."""
        before = self._announced.get(relation.table.id)
        if before is not None and before.same_structure(relation.table):
            return replace(relation, table=before), None
        self._announced[relation.table.id] = relation.table
        return relation, SchemaChange(before, relation.table)

    def _describe(self, row: int, message: bytes) -> None:
        relation = parse_relation(message)
        oid, table = relation.oid, relation.table
        # A name that another table bore in between starts anew, so that rows of both stay in order.
        if self._described.get(oid) == message and self._bearer.get(table) == oid:
            return
        self._described[oid] = message
        self._bearer[table] = oid
        captured = None
        if self._rules.captured(table):
            captured = capture(relation, self._rules, self._latest.get(table), self._type_names)
            self._latest[table] = captured.table
        self._eras.setdefault(oid, []).append((row, captured))

    def _by_era(self, oid: int, places: Index, rows: Index) -> list[tuple[CapturedRelation, Index]]:
        eras = self._eras.get(oid, [])
        number = np.searchsorted(np.array([start for start, _ in eras], np.int64), rows, "right") - 1
        if number[0] < 0:
            raise malformed(f"the log has changes of table {oid} before its description")
        cuts = np.flatnonzero(np.diff(number)) + 1
        parts = zip(np.split(places, cuts), number[np.r_[0, cuts]], strict=True)
        described = [(eras[era][1], part) for part, era in parts]
        return [(relation, part) for relation, part in described if relation is not None]
