"""How ``cdc plan`` shows a plan to people: what would stop the run first, then its steps, then the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.text import Text

from cdc_lib.cli.output import STYLES, show_table, stdout
from cdc_lib.plan import Effect, PendingMerge, Plan, PlannedTable, SealedWork, StructureChange
from cdc_lib.progress import size
from cdc_lib.source import Preparation

EFFECTS: Mapping[Effect, str] = {
    "evolves": "bronze and silver follow",
    "snapshot": "rows that are there get values that the log does not carry: the table is read again",
    "refuses": "bronze cannot follow: the run ends when it meets a row of it",
}
_WAYS = {"staging": "from its staged files", "log": "by reading the log again", "": "not at all"}
_DONE = {"create": "is created", "alter": "is altered", "release": "lets go of log", "execute": "is executed"}


def show_plan(plan: Plan, console: Console | None = None) -> None:
    """A few lines about the run, a table of the tables, and each change of a structure."""
    console = console or stdout()
    console.print(Text(plan.pipeline, style="bold"), soft_wrap=True)
    for label, text in _lines(plan):
        console.print(Text(f"  {label:<14}{text}"), soft_wrap=True)
    if plan.tables:
        columns = ["table", "", "state", "the run would", "rows, about", "not in silver yet"]
        show_table(columns, [_row(table) for table in plan.tables], console)
    for table in plan.tables:
        for change in table.changes:
            style = STYLES["error"] if change.effect == "refuses" else ""
            console.print(Text(f"{table.table}: {_change(change)}", style=style), soft_wrap=True)
    for stop in plan.stops:
        console.print(Text(f"the run would end: {stop.what}", style=STYLES["error"]), soft_wrap=True)
        for label, text in (("why", stop.why), ("to do", stop.remedy)):
            if text:
                console.print(Text(f"  {label}: {text}"), soft_wrap=True)


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    if not plan.position:
        yield "position", "nothing captured yet"
    else:
        yield "position", f"{plan.position}, batch {plan.batch}"
    if plan.sealed is not None:
        yield "to finish", _sealed(plan.sealed)
    if plan.configuration == "changed":
        yield "configuration", "changed since the last batch was sealed; it holds from the next one on"
    for preparation in plan.source:
        yield "at the source", _preparation(preparation)
    for signal in plan.signals:
        yield "signal", f"{signal.id} ({signal.type}): {signal.status}, {signal.text}"
    if plan.log is not None:
        count = "" if plan.log.bytes is None else f", {size(max(0, plan.log.bytes))}"
        yield "log", f"{plan.log.after} to {plan.log.upto}{count}"


def _sealed(sealed: SealedWork) -> str:
    tables = ", ".join(sealed.tables)
    return f"batch {sealed.batch}, {sealed.rows:,} rows of {tables}, {_WAYS[sealed.way]}"


def _preparation(preparation: Preparation) -> str:
    text = f"{preparation.subject} {preparation.name} {_DONE[preparation.action]}"
    for sign, names in (("+", preparation.added), ("-", preparation.removed)):
        text += "".join(f" {sign}{name}" for name in names)
    return f"{text}: {preparation.statement}" if preparation.statement else text


def _row(table: PlannedTable) -> tuple[str, str, str, str, str, str]:
    rows = f"{table.rows:,}" if table.rows is not None else ""
    reason = f" ({table.reason})" if table.reason else ""
    return table.table, table.standing, table.state, _action(table) + reason, rows, _merge(table.silver)


def _action(table: PlannedTable) -> str:
    pieces = f"{table.chunks} {'piece' if table.chunks == 1 else 'pieces'}"
    return {
        "snapshot": f"read it whole, {pieces}, {_way(table)}",
        "resume": f"go on reading it, {pieces} left, {_way(table)}",
        "settle": "delete what vanished, read what is not known by its keys, follow its changes",
        "log": "follow its changes",
        "bronze only": "follow its changes into bronze only",
        "none": "leave it",
    }[table.action]


def _way(table: PlannedTable) -> str:
    return "in windows while changes flow" if table.way == "windows" else "in one view"


def _change(change: StructureChange) -> str:
    detail = f"({change.detail})" if change.detail else ""
    what = " ".join(filter(None, (change.kind, change.column, detail)))
    return f"{what}: {EFFECTS[change.effect]}"


def _merge(merge: PendingMerge | None) -> str:
    if merge is None:
        return ""
    first = merge.after + 1
    batches = f"batch {first}" if first == merge.upto else f"batches {first} to {merge.upto}"
    return batches if merge.rows is None else f"{batches}, {merge.rows:,} rows"
