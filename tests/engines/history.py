"""The true history of some tables against what bronze holds of it: loss, duplicates, order and values.

The truth is recorded by the server itself (triggers that write to a table nobody captures). Nothing here
knows how the package works: bronze is a list of rows in the order of ``_sequence``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

Key = tuple[str, ...]
Row = Mapping[str, str | None]
State = dict[str, dict[Key, Row]]
"""Rows by table and key."""
CLOCK_SLACK_US = 2_000_000


@dataclass(frozen=True)
class Change:
    """One true change, as a trigger saw it. ``old`` and ``new`` are whole rows; both None for a truncate.

    ``order`` rises over all changes: for one key, and within one transaction, it is the true order.
    ``session`` issued its transactions one after the other.
    """

    order: int
    transaction: str
    table: str
    old: Row | None
    new: Row | None
    session: str = ""
    committed_us: int | None = None


@dataclass(frozen=True)
class Event:
    """One bronze row; ``op`` is one of c u d r t, ``unavailable`` what ``after`` does not carry."""

    sequence: int
    op: str
    table: str
    transaction: str = ""
    before: Row | None = None
    after: Row | None = None
    unavailable: frozenset[str] = frozenset()
    before_unavailable: frozenset[str] = frozenset()
    previous_key: Row | None = None
    committed_us: int | None = None
    position: str = ""


@dataclass(frozen=True)
class Expected:
    """What one bronze row of the log must say. A key update is two: delete and create."""

    op: str
    change: Change

    def __str__(self) -> str:
        row = self.change.old if self.op == "d" else self.change.new
        return f"{self.op} {self.change.table} {_short(row)}"


@dataclass
class History:
    """The truth and the keys of its tables; :meth:`problems` compares bronze with it."""

    keys: Mapping[str, Sequence[str]]
    changes: Sequence[Change]
    found: list[str] = field(default_factory=list, init=False)

    def problems(self, events: Iterable[Event], required: Collection[str]) -> list[str]:
        """What is wrong with bronze; nothing if it is right.

        :param required: transactions that committed behind the position where the pipeline started, and so
            must be in the log rows. Others may be missing there: the snapshot has them.
        """
        self.found = []
        ordered = sorted(events, key=lambda event: event.sequence)
        self._unique_sequences(ordered)
        pairs = self._matched([event for event in ordered if event.op != "r"], required)
        seen = {event.transaction for event in ordered if event.op != "r"}
        state = self.state(change for change in self.changes if change.transaction not in seen)
        self._walk(ordered, pairs, state)
        if not self.found:
            self._folded(ordered)
        return self.found

    def state(self, changes: Iterable[Change] | None = None) -> State:
        """The tables after these changes (all of them, if none are given)."""
        state: State = {table: {} for table in self.keys}
        for change in sorted(self.changes if changes is None else changes, key=lambda one: one.order):
            self._apply(state, change)
        return state

    def _apply(self, state: State, change: Change) -> None:
        rows = state[change.table]
        if change.old is None and change.new is None:
            rows.clear()
        if change.old is not None:
            rows.pop(self._key(change.table, change.old), None)
        if change.new is not None:
            rows[self._key(change.table, change.new)] = change.new

    def _key(self, table: str, row: Row) -> Key:
        return tuple(str(row[name]) for name in self.keys[table])

    def _expected(self, change: Change) -> list[Expected]:
        if change.old is None and change.new is None:
            return [Expected("t", change)]
        if change.old is None:
            return [Expected("c", change)]
        if change.new is None:
            return [Expected("d", change)]
        if self._key(change.table, change.old) == self._key(change.table, change.new):
            return [Expected("u", change)]
        return [Expected("d", change), Expected("c", change)]

    # -- loss, duplicates and the order of transactions

    def _unique_sequences(self, ordered: Sequence[Event]) -> None:
        read: set[tuple[str, Key, str]] = set()
        for event in ordered:
            if event.op == "r" and event.after is not None:
                row = (event.table, self._key(event.table, event.after), event.position)
                if row in read:
                    self._say(f"duplicate: {_of(event)} was read twice in the view at {event.position}")
                read.add(row)
        for before, after in pairwise(ordered):
            if before.sequence == after.sequence:
                self._say(f"_sequence {after.sequence} twice: {_of(before)} and {_of(after)}")

    def _matched(self, log: Sequence[Event], required: Collection[str]) -> dict[int, Expected]:
        """Each log row's place in the truth, by the row's sequence."""
        truth: dict[str, list[Expected]] = defaultdict(list)
        for change in sorted(self.changes, key=lambda one: one.order):
            truth[change.transaction] += self._expected(change)
        pairs: dict[int, Expected] = {}
        seen: list[str] = []
        for transaction, group in groupby(log, key=lambda event: event.transaction):
            events = list(group)
            if transaction in seen:
                self._say(f"duplicate: transaction {transaction} again at {_of(events[0])}")
            elif transaction not in truth:
                self._say(f"invented: transaction {transaction} never committed, {_of(events[0])}")
            else:
                pairs |= self._pair(transaction, truth[transaction], events)
            seen.append(transaction)
        for transaction in sorted(set(required) - set(seen)):
            self._say(f"lost: transaction {transaction}, {len(truth[transaction])} rows")
        self._session_order(seen)
        self._clock_order(log)
        return pairs

    def _pair(
        self, transaction: str, wanted: Sequence[Expected], events: Sequence[Event]
    ) -> dict[int, Expected]:
        if len(wanted) != len(events):
            kind = "lost" if len(events) < len(wanted) else "duplicate"
            self._say(
                f"{kind}: transaction {transaction} has {len(wanted)} changes, {len(events)} rows in bronze; "
                f"wanted {[str(one) for one in wanted]}, found {[_of(event) for event in events]}"
            )
            return {}
        return {event.sequence: one for event, one in zip(events, wanted, strict=True)}

    def _session_order(self, seen: Sequence[str]) -> None:
        """A session's transactions follow each other; so they must in bronze."""
        first: dict[str, Change] = {}
        for change in sorted(self.changes, key=lambda one: -one.order):
            first[change.transaction] = change
        last: dict[str, Change] = {}
        for transaction in seen:
            begun = first.get(transaction)
            if begun is None or not begun.session:
                continue
            before = last.get(begun.session)
            if before is not None and before.order > begun.order:
                self._say(f"order: transaction {transaction} after {before.transaction} of the same session")
            last[begun.session] = begun

    def _clock_order(self, log: Sequence[Event]) -> None:
        """Commit times are taken a moment before the commit itself, so neighbours may be swapped in them."""
        latest = 0
        for event in log:
            if event.committed_us is not None:
                if event.committed_us < latest - CLOCK_SLACK_US:
                    self._say(f"order: {_of(event)} was committed long before the row in front of it")
                latest = max(latest, event.committed_us)

    # -- values and the order per key

    def _walk(self, ordered: Sequence[Event], pairs: Mapping[int, Expected], state: State) -> None:
        """Go through bronze in order; before each change the row must be what the change found."""
        for event in ordered:
            if event.op == "r":
                self._snapshot_row(event, state)
            elif event.sequence in pairs:
                self._log_row(event, pairs[event.sequence], state)

    def _snapshot_row(self, event: Event, state: State) -> None:
        assert event.after is not None
        true = state[event.table].get(self._key(event.table, event.after))
        if true is None:
            self._say(f"snapshot row that was not there: {_of(event)}")
            return
        # A piece's row says nothing of the columns that changes in its window carry.
        known = {name: value for name, value in true.items() if name not in event.unavailable}
        known |= dict.fromkeys(event.unavailable, None)
        if known != dict(event.after):
            self._say(f"snapshot row differs: {_of(event)}: {_difference(known, event.after)}")

    def _log_row(self, event: Event, wanted: Expected, state: State) -> None:
        change = wanted.change
        if (event.op, event.table) != (wanted.op, change.table):
            self._say(f"order: {_of(event)} where {wanted} should be")
            return
        self._same(event, "before", event.before, change.old, event.before_unavailable)
        self._same(event, "after", event.after, change.new, event.unavailable)
        if event.committed_us != change.committed_us:
            self._say(f"commit time of {_of(event)}: {event.committed_us}, true is {change.committed_us}")
        if change.old is not None and event.op in ("u", "d"):
            held = state[event.table].get(self._key(event.table, change.old))
            if held is None or dict(held) != dict(change.old):
                self._say(f"order: {_of(event)} comes where its row is {_short(held)}")
        if change.new is not None and event.op == "c":
            self._create(event, change, state)
        self._advance(event, change, state)

    def _create(self, event: Event, change: Change, state: State) -> None:
        assert change.new is not None
        if self._key(event.table, change.new) in state[event.table]:
            self._say(f"order: {_of(event)} comes while its key exists")
        moved = None
        if change.old is not None:
            moved = {name: change.old[name] for name in self.keys[event.table]}
        if event.previous_key != moved:
            self._say(f"previous key of {_of(event)} is {event.previous_key}, true is {moved}")

    def _advance(self, event: Event, change: Change, state: State) -> None:
        rows = state[event.table]
        if event.op == "t":
            rows.clear()
        elif event.op == "d" and change.old is not None:
            rows.pop(self._key(event.table, change.old), None)
        elif change.new is not None:
            rows[self._key(event.table, change.new)] = change.new

    def _same(
        self, event: Event, image: str, found: Row | None, true: Row | None, without: frozenset[str]
    ) -> None:
        if image == "before" and (event.op == "c" or (event.op == "u" and found is None)):
            # A create has none; an update's is carried by some replica identities only.
            return
        if image == "after" and event.op in ("d", "t"):
            if found is not None:
                self._say(f"{_of(event)} has an after image")
            return
        if (found is None) != (true is None):
            self._say(f"{image} of {_of(event)} is {_short(found)}, true is {_short(true)}")
        elif found is not None and true is not None and (difference := _difference(true, found, without)):
            self._say(f"{image} of {_of(event)} differs: {difference}")

    # -- bronze alone

    def _folded(self, ordered: Sequence[Event]) -> None:
        """Bronze without any help of the truth must give the tables as they are."""
        folded = self.fold(ordered)
        for table, rows in self.state().items():
            for key in sorted({*rows, *folded[table]}):
                have, true = folded[table].get(key), rows.get(key)
                if (have is None) != (true is None):
                    self._say(f"{table} {key}: bronze gives {_short(have)}, true is {_short(true)}")
                elif have is not None and true is not None and dict(have) != dict(true):
                    self._say(f"{table} {key}: bronze gives another row: {_difference(true, have)}")

    def fold(self, events: Iterable[Event]) -> State:
        """The tables that bronze's rows give; a column that was never carried is missing in its row."""
        state: State = {table: {} for table in self.keys}
        gone: State = {table: {} for table in self.keys}
        for event in sorted(events, key=lambda one: one.sequence):
            rows = state[event.table]
            image = event.before if event.op == "d" else event.after
            if image is None:
                rows.clear()
                continue
            key = self._key(event.table, image)
            if event.op == "d":
                # Kept aside: the create of a moved row takes what it lacks from the row it was.
                gone[event.table][key] = rows.pop(key, {})
                continue
            base = rows.get(key, {})
            if event.previous_key is not None:
                base = gone[event.table].get(self._key(event.table, event.previous_key), {})
            kept = {name: base[name] for name in event.unavailable if name in base}
            rows[key] = {name: value for name, value in image.items() if name not in event.unavailable} | kept
        return state

    def _say(self, problem: str) -> None:
        self.found.append(problem)


def _of(event: Event) -> str:
    row = event.before if event.op == "d" else event.after
    return f"{event.op} {event.table} {_short(row)} at {event.sequence >> 32}:{event.sequence & 0xFFFFFFFF}"


def _short(row: Row | None) -> str:
    if row is None:
        return "nothing"
    return str(
        {
            name: value if value is None or len(value) < 20 else f"{value[:16]}..."
            for name, value in row.items()
        }
    )


def _difference(true: Row, found: Row, without: Collection[str] = ()) -> str:
    names = [name for name in {**true, **found} if name not in without]
    return ", ".join(
        f"{name} is {_short({name: found.get(name)})}, true is {_short({name: true.get(name)})}"
        for name in names
        if name not in true or name not in found or true[name] != found[name]
    )
