"""A range of bronze rows as events: key, order, and for each column whether and where its value is carried.

Columns are called by their place (``k0``, ``v3``, ``h5``) from here up to the MERGE, so that no source
name needs quoting or can collide with ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lib.facts import Facts, Truncate
from cdc_lib.schema import Identity, Table

TEXTS = "map<string,string>"


@dataclass(frozen=True)
class Survey:
    """What kinds of rows a range holds; decides how much work the reduction is.

    ``partial``: columns that some row does not carry. ``moves``: a key was updated; ``chains``: and such a
    row lacks columns, so that they must be looked for under its old key. ``specials``: rows with server text;
    ``key_specials`` of them for a key column.
    """

    rows: int = 0
    ops: frozenset[str] = frozenset()
    truncates: tuple[Truncate, ...] = ()
    partial: frozenset[str] = frozenset()
    moves: bool = False
    chains: bool = False
    specials: int = 0
    key_specials: int = 0


@dataclass(frozen=True)
class Shape:
    """The table, whether deleted rows (``soft``) or all versions (``history``) are kept, and what the survey
    found: all that the reduction depends on."""

    table: Table
    soft: bool = False
    history: bool = False
    since: Mapping[str, int] = field(default_factory=dict)
    survey: Survey = field(default_factory=Survey)

    def surveyed(self, facts: Facts) -> Shape:
        """The shape for rows of which these facts are known."""
        lacking = {name for name, version in self.since.items() if facts.oldest and version > facts.oldest}
        partial = lacking | facts.unavailable
        if self.soft and facts.ops & {"d", "t"}:
            # A kept row shows its last values, which no delete's after image carries.
            partial = set(self.values.values())
        newest = max(self.since.values(), default=0)
        old_move = facts.oldest_move is not None and facts.oldest_move < newest
        found = Survey(
            rows=facts.rows,
            ops=facts.ops,
            truncates=facts.truncates,
            partial=frozenset(partial & set(self.values.values())),
            moves=facts.moves > 0,
            chains=facts.lacking_moves > 0 or old_move,
            specials=facts.specials,
            key_specials=facts.key_specials,
        )
        return replace(self, survey=found)

    @property
    def keys(self) -> dict[str, str]:
        """Internal name of each key column, in key order, and its name in the table."""
        return {f"k{i}": name for i, name in enumerate(self.table.key)}

    @property
    def values(self) -> dict[str, str]:
        """Internal name of each column outside the key, and its name in the table."""
        names = self.table.names
        return {f"v{i}": name for i, name in enumerate(names) if name not in self.table.key}

    @property
    def partial(self) -> dict[str, str]:
        """The part of ``values`` that some row of the range may not carry."""
        return {v: name for v, name in self.values.items() if name in self.survey.partial}

    @property
    def plain(self) -> dict[str, str]:
        """The part of ``values`` that every create, read and update of the range carries."""
        return {v: name for v, name in self.values.items() if name not in self.survey.partial}

    @property
    def rearranged(self) -> bool:
        """Whether moved keys need more than the last event of each key: their missing columns are elsewhere,
        or the key's constraint was deferred, so that a row may arrive before the one there has left.

        A log that carries only the key of old rows takes it from an immediate unique index (PostgreSQL
        refuses a deferrable one as replica identity), so there the order is right as it is.
        """
        return self.survey.moves and (self.survey.chains or self.table.identity is Identity.FULL)

    @property
    def held(self) -> dict[str, str]:
        """Internal name of each partial column's struct of sequence, value and special text."""
        return {"h" + v[1:]: name for v, name in self.partial.items()}


def facts_of_bronze(rows: DataFrame, table: Table) -> Facts:
    """What kinds of rows these rows of bronze are; one aggregation over small columns."""
    op = F.col("op")
    moved = F.col("previous_key").isNotNull()
    version = F.col("_schema_version")
    lacks = F.coalesce(F.size("after_unavailable") > 0, F.lit(False))
    truncate = F.struct(F.col("_sequence").alias("sequence"), F.col("source.ts_us").alias("us"))
    row = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        F.collect_set(op).alias("ops"),
        F.collect_list(F.when(op == "t", truncate)).alias("truncates"),
        F.min(F.when(op != "t", version)).alias("oldest"),
        F.collect_set("after_unavailable").alias("lists"),
        F.count_if(moved).alias("moves"),
        F.count_if(moved & lacks).alias("lacking_moves"),
        F.min(F.when(moved, version)).alias("oldest_move"),
        F.count_if(_has_text(table.names)).alias("specials"),
        F.count_if(_has_text(table.key)).alias("key_specials"),
    ).head()
    assert row is not None
    return Facts(
        rows=row.rows,
        ops=frozenset(row.ops),
        truncates=tuple(Truncate(t.sequence, t.us) for t in sorted(row.truncates)),
        unavailable=frozenset(name for names in row.lists for name in names),
        oldest=row.oldest,
        moves=row.moves,
        lacking_moves=row.lacking_moves,
        oldest_move=row.oldest_move,
        specials=row.specials,
        key_specials=row.key_specials,
    )


def _has_text(names: tuple[str, ...]) -> Column:
    if not names:
        return F.lit(False)
    wanted = F.array(*[F.lit(name) for name in names])
    return F.coalesce(F.arrays_overlap(F.map_keys("special"), wanted), F.lit(False))


def events(rows: DataFrame, shape: Shape) -> DataFrame:
    """One event for each row that concerns a key.

    ``k`` struct of the key, ``sq`` sequence, ``op``, ``at`` commit time, ``pos`` position, ``prev`` old key
    of a moved row, ``special``, ``v<i>`` values that are always carried, ``h<i>`` struct of sequence, value
    and text of the others, NULL where this row does not carry the column.
    """
    kept = rows.where(F.col("op") != "t")
    if shape.survey.truncates and not (shape.soft or shape.history):
        kept = kept.where(F.col("_sequence") > shape.survey.truncates[-1].sequence)
    return kept.select(
        _key(shape).alias("k"),
        F.col("_sequence").alias("sq"),
        "op",
        F.timestamp_micros("source.ts_us").alias("at"),
        F.col("_position").alias("pos"),
        _previous(shape).alias("prev"),
        F.col("special"),
        *[F.col("after")[name].alias(v) for v, name in shape.plain.items()],
        *[_carried(shape, name).alias(h) for h, name in shape.held.items()],
    )


def _key(shape: Shape) -> Column:
    after, before = F.col("after"), F.col("before")
    parts = []
    for k, name in shape.keys.items():
        elsewhere = (F.col("op") == "d") | _listed("after_unavailable", name)
        parts.append(F.when(elsewhere, before[name]).otherwise(after[name]).alias(k))
    return F.struct(*parts)


def _previous(shape: Shape) -> Column:
    previous = F.col("previous_key")
    parts = [previous[name].alias(k) for k, name in shape.keys.items()]
    return F.when((F.col("op") == "c") & previous.isNotNull(), F.struct(*parts))


def _carried(shape: Shape, name: str) -> Column:
    """Struct of sequence, value and text of a column: from ``after`` if it is there, else from ``before``.

    A row that was created before the column has NULL in it. Where the column came with a default, the table
    is read again.
    """
    op = F.col("op")
    known = F.lit(True)
    if name in shape.since:
        known = F.coalesce(F.col("_schema_version") >= shape.since[name], F.lit(False))
    unborn = ~known & op.isin("c", "r")
    in_after = known & op.isin("c", "r", "u") & ~_listed("after_unavailable", name)
    in_before = known & op.isin("u", "d") & F.col("before").isNotNull() & ~_listed("before_unavailable", name)
    plain, prefixed = F.col("special")[name], F.col("special")[f"before.{name}"]
    before_text = F.when(op == "d", plain).otherwise(prefixed)
    # The struct has the column, and NULL in it.
    return F.when(in_after | unborn, carried(F.col("_sequence"), F.col("after")[name], plain)).when(
        in_before, carried(F.col("_sequence"), F.col("before")[name], before_text)
    )


def carried(sequence: Column, value: Column, special: Column) -> Column:
    """A value on its way, with the order of the row it comes from and its server text."""
    return F.struct(sequence.alias("sq"), value.alias("v"), special.alias("x"))


def _listed(names: str, name: str) -> Column:
    return F.coalesce(F.array_contains(names, name), F.lit(False))


def truncate_before(shape: Shape, sequence: Column) -> Column:
    """Sequence of the newest truncate before ``sequence``; NULL if there was none."""
    # Over an array: a CASE for each of many truncates took Spark's optimiser minutes.
    times = [F.lit(each.sequence).cast("bigint") for each in shape.survey.truncates]
    if not times:
        return F.lit(None).cast("bigint")
    return F.array_max(F.filter(F.array(*times), lambda at: at < sequence))


def truncate_after(shape: Shape, sequence: Column) -> Column:
    """The first truncate after ``sequence`` as a struct of ``sq`` and ``at``; NULL if there was none."""
    steps = [_struct(each) for each in shape.survey.truncates]
    if not steps:
        return F.lit(None).cast(_TRUNCATED)
    return F.array_min(F.filter(F.array(*steps), lambda each: each["sq"] > sequence))


_TRUNCATED = "struct<sq:bigint,at:timestamp>"


def _struct(truncate: Truncate) -> Column:
    micros = F.lit(truncate.committed_us).cast("bigint")
    return F.struct(
        F.lit(truncate.sequence).cast("bigint").alias("sq"), F.timestamp_micros(micros).alias("at")
    )
