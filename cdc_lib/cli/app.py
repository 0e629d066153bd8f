"""The verbs. Each reads the pipeline file, calls one thing of the package and shows what came of it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Optional, TypeVar

import typer
from typer.main import get_command

from cdc_lib import __version__
from cdc_lib.cli import defects, logs, output, overrides, selection
from cdc_lib.cli.stopping import run_stoppable
from cdc_lib.config import Pipeline, load
from cdc_lib.errors import CdcError, FixConfiguration
from cdc_lib.java import ensure_java
from cdc_lib.progress import for_console

if TYPE_CHECKING:
    from cdc_lib.runner import Runner, RunResult

T = TypeVar("T")

app = typer.Typer(
    name="cdc",
    help="Change data capture from databases into Delta Lake.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _debug(value: bool) -> bool:
    logs.configure(terminal=output.stderr().is_terminal, debug=value)
    return value


def _version(value: bool) -> None:
    if value:
        typer.echo(f"cdc-lib {__version__}")
        raise typer.Exit


# Optional[str] and not str | None: typer reads these at run time, also on Python 3.10.
Name = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(
        metavar="[PIPELINE]",
        help="Pipeline file, or a name under pipelines/; may be left out if there is only one.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log everything, and tracebacks.", callback=_debug)]


@app.callback()
def cdc(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A line of target:, in place of the whole section of the file."
        ),
    ] = None,
    secrets: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="SCOPE", help="Databricks scope that has what ${env:NAME} asks for."),
    ] = None,
    apply: Annotated[
        Optional[Literal["merge", "declarative"]],  # noqa: UP045
        typer.Option(help="Who keeps silver, in place of apply: mode: of the file."),
    ] = None,
) -> None:
    """Change data capture from databases into Delta Lake, on PySpark, without Kafka."""
    overrides.use(target or [], secrets, apply)


@app.command()
def check(
    pipeline: Name = None,
    databricks: Annotated[
        bool,
        typer.Option("--databricks", help="Look at rights in Unity Catalog instead, and print the grants."),
    ] = False,
    principal: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="ROLE=NAME", help="With --databricks: who runner, operators, analysts are."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Connect and say what is missing, each finding with its remedy; writes nothing."""
    from cdc_lib.checking import check_pipeline, worst

    loaded = _load(selection.select(pipeline))
    if databricks:
        from cdc_lib.cli.rights import show_grants

        raise typer.Exit(show_grants(loaded, principal or [], json=json))
    findings = run_stoppable(lambda _: check_pipeline(loaded), patient=False)
    if json:
        output.show_json([vars(finding) for finding in findings])
    else:
        output.show_findings(findings)
    raise typer.Exit(1 if worst(findings) == "error" else 0)


@app.command()
def plan(pipeline: Name = None, json: Json = False, debug: Debug = False) -> None:
    """Say what the next run would do, and what would stop it; writes nothing, here or at the source."""
    from cdc_lib.cli.planned import show_plan
    from cdc_lib.planning import make_plan

    loaded = _load(selection.select(pipeline))
    if loaded.target.path is None:
        _need_java()
    found = run_stoppable(lambda _: make_plan(loaded), patient=False)
    if json:
        output.show_json(found.to_dict())
    else:
        show_plan(found)
    raise typer.Exit(0 if found.good else 1)


@app.command()
def run(
    pipeline: Name = None,
    continuous: Annotated[bool, typer.Option("--continuous", help="Go on until stopped.")] = False,
    debug: Debug = False,
) -> None:
    """Snapshot what has none yet, capture changes, apply them to silver, until caught up."""
    _run(selection.select(pipeline), lambda runner: runner.run(continuous=continuous))


@app.command()
def capture(pipeline: Name = None, debug: Debug = False) -> None:
    """The first half of run: from the database into bronze."""
    _run(selection.select(pipeline), lambda runner: runner.capture())


@app.command()
def apply(pipeline: Name = None, debug: Debug = False) -> None:
    """The second half of run: from bronze into silver."""
    _run(selection.select(pipeline), lambda runner: runner.apply())


@app.command()
def snapshot(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[PIPELINE] [TABLE...]", show_default=False)
    ] = None,
    debug: Debug = False,
) -> None:
    """Take tables again, all if none is named: cdc snapshot public.orders public.customers."""
    path, tables = selection.split(words or [])
    _run(path, lambda runner: runner.snapshot(tables))


@app.command()
def reconcile(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[PIPELINE] [TABLE...]", show_default=False)
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write the source's values where silver differs.")
    ] = False,
    rows: Annotated[int, typer.Option(help="Show at most so many differences of a table.", min=0)] = 20,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Catch up, then compare every cell of silver with the source, at one position of its log."""
    from cdc_lib.cli.reconciled import show_reconciled

    path, tables = selection.split(words or [])
    found = _work(path, lambda runner: runner.reconcile(tables, repair=repair, shown=rows))
    if json:
        output.show_json(found.to_dict())
    else:
        show_reconciled(found)
    raise typer.Exit(0 if found.same else 1)


@app.command()
def rebuild(pipeline: Name = None, json: Json = False, debug: Debug = False) -> None:
    """Write lost control tables anew, from what bronze and silver say of themselves."""
    from cdc_lib.cli.reports import show_rebuilt

    rebuilt = _work(selection.select(pipeline), lambda runner: runner.rebuild())
    if json:
        output.show_json(rebuilt.to_dict())
    else:
        show_rebuilt(rebuilt)
    raise typer.Exit(0 if rebuilt.gap is None else rebuilt.gap.exit_code)


@app.command()
def maintain(
    pipeline: Name = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done; write nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also if maintain.vacuum_hours is less than a week.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Put small files together, remove what no version and no run needs; safe beside running captures."""
    from cdc_lib.cli.maintained import show_maintained
    from cdc_lib.maintenance import plan_maintenance

    path = selection.select(pipeline)
    if plan:
        loaded = _load(path)
        if loaded.target.path is None:
            _need_java()
        found = run_stoppable(lambda _: plan_maintenance(loaded), patient=False)
    else:
        found = _work(path, lambda runner: runner.maintain(force=force))
    if json:
        output.show_json(found.to_dict())
    else:
        show_maintained(found)
    raise typer.Exit(0 if found.good else 1)


@app.command()
def status(
    pipeline: Name = None,
    json: Json = False,
    html: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Write a page with plots."),
    ] = None,
    prometheus: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Write metrics as Prometheus text; - is standard output."),
    ] = None,
    otlp: Annotated[
        bool, typer.Option("--otlp", help="Send metrics by OpenTelemetry, as OTEL_EXPORTER_OTLP_* say.")
    ] = False,
    debug: Debug = False,
) -> None:
    """State, lag, last batch and last error, by table; starts no Spark for tables at a path."""
    from cdc_lib.cli.published import Published
    from cdc_lib.cli.reports import show_status
    from cdc_lib.status import read_status

    published = Published(html, prometheus, otlp)
    loaded = [_load(path) for path in _one_or_all(pipeline)]
    if any(one.target.path is None for one in loaded):
        _need_java()
    if published.wanted:
        run_stoppable(lambda _: published.publish(loaded), patient=False)
        return
    found = run_stoppable(lambda _: [read_status(one) for one in loaded], patient=False)
    if json:
        output.show_json([one.to_dict() for one in found])
        return
    for one in found:
        show_status(one)


@app.command()
def tables(pipeline: Name = None, json: Json = False, debug: Debug = False) -> None:
    """The captured tables: keys, states, and where they are in bronze and silver."""
    from cdc_lib.cli.reports import show_tables
    from cdc_lib.status import read_tables

    loaded = _load(selection.select(pipeline))
    if loaded.target.path is None:
        _need_java()
    found = run_stoppable(lambda _: read_tables(loaded), patient=False)
    if json:
        output.show_json([one.to_dict() for one in found])
    else:
        show_tables(found)


@app.command()
def sql(
    words: Annotated[list[str], typer.Argument(metavar="[PIPELINE] QUERY", show_default=False)],
    rows: Annotated[int, typer.Option(help="Show at most so many rows.", min=1)] = 1000,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run one SQL statement over the schemas bronze, silver and control: cdc sql "select * from silver.x"."""
    from cdc_lib.cli.query import query

    path, rest = selection.split(words)
    if len(rest) != 1:
        raise FixConfiguration(
            f"expected one SQL statement, got {len(rest)} words",
            remedy='quote the statement: cdc sql "select count(*) from silver.public_orders"',
        )
    loaded = _load(path)
    _need_java()
    answer = run_stoppable(lambda _: query(loaded, rest[0], limit=rows), patient=False)
    if json:
        output.show_json(answer.to_dicts())
    elif answer.columns:
        output.show_table(answer.columns, answer.rows)
        if answer.more:
            output.stderr().print(f"the first {rows} rows; --rows shows more")


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the demo keeps its server and its tables.")] = Path(
        "demo"
    ),
    seconds: Annotated[
        int, typer.Option(help="How long to capture while the shop is written to.", min=1)
    ] = 30,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the database up afterwards, until Ctrl-C.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Capture a small shop database while it is written to, and compare silver with it row by row."""
    from cdc_lib.demo import run_demo

    _need_java()
    same = run_stoppable(lambda stop: run_demo(folder, seconds=seconds, keep=keep, stop=stop))
    raise typer.Exit(0 if same else 1)


def main() -> None:
    """Entry point of ``cdc``: the exit code says what to do next (0 nothing; see ``errors.py``)."""
    sys.excepthook = defects.unexpected
    try:
        get_command(app)()
    except CdcError as error:
        output.show_error(error, debug=defects.debugging())
        sys.exit(error.exit_code)


def _run(path: Path, verb: Callable[[Runner], RunResult]) -> None:
    from cdc_lib.cli.reports import show_result

    show_result(_work(path, verb))


def _work(path: Path, verb: Callable[[Runner], T]) -> T:
    """What a verb that owns the pipeline returns, its progress shown meanwhile."""
    from cdc_lib.runner import Runner

    loaded = _load(path)
    _need_java()
    console = output.stderr()

    def work(stop: threading.Event) -> T:
        with for_console(console) as progress, Runner(loaded, progress=progress, stop=stop) as runner:
            return verb(runner)

    return run_stoppable(work)


def _load(path: Path) -> Pipeline:
    pipeline = overrides.applied(load(path, overrides.environment(), overrides.target()))
    logs.name_pipeline(pipeline.name)
    return pipeline


def _one_or_all(pipeline: str | None) -> list[Path]:
    """Reading the state of all pipelines needs no choice between them."""
    if pipeline is None and len(found := selection.available()) > 1:
        return found
    return [selection.select(pipeline)]


def _need_java() -> None:
    """Where Spark is somebody else's, its Java is too."""
    if not {"DATABRICKS_RUNTIME_VERSION", "CDC_SPARK_REMOTE"} & os.environ.keys():
        ensure_java()
