"""The package as a library: one open pipeline, for notebooks and programs of one's own.

What ``cdc`` does on the command line, with values instead of text. Spark is the session that is active, a
Spark Connect server's or one on this machine, and starts when something first needs it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc_lib.checking import check_pipeline
from cdc_lib.config import Pipeline, layer_schemas, load
from cdc_lib.control import Control
from cdc_lib.control.signals import Answer, Signal
from cdc_lib.delta import Lake
from cdc_lib.maintenance import Maintained, plan_maintenance
from cdc_lib.plan import Plan
from cdc_lib.planning import make_plan
from cdc_lib.reconcile import Reconciled
from cdc_lib.runner import Runner, RunResult
from cdc_lib.secrets import ScopedEnvironment
from cdc_lib.source import Finding
from cdc_lib.status import CapturedTableInfo, Status, read_status, read_tables
from cdc_lib.views import name_tables, schema_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def open_pipeline(
    path: str | os.PathLike[str],
    *,
    catalog: str = "",
    prefix: str = "",
    target: Mapping[str, str] | None = None,
    secrets: str = "",
) -> OpenPipeline:
    """Read a pipeline file.

    :param catalog: put the tables into this catalog, in schemas named after the pipeline as the bundle names
        them, instead of where ``target:`` in the file says; empty: as the file says.
    :param prefix: of those schemas; a developer's deployment has ``dev_<name>_``.
    :param target: all lines of ``target:``, in place of ``catalog`` and ``prefix``.
    :param secrets: Databricks scope that has what ``${env:NAME}`` in the file asks for.
    :raises FixConfiguration: the file does not hold, with all complaints at once.
    """
    environ = ScopedEnvironment(os.environ, secrets) if secrets else os.environ
    if catalog and not target:
        target = _deployed(load(Path(path), environ).name, catalog, prefix)
    return OpenPipeline(load(Path(path), environ, target))


def _deployed(name: str, catalog: str, prefix: str) -> Mapping[str, str]:
    schemas = {layer: f"{prefix}{schema}" for layer, schema in layer_schemas(name).items()}
    return {"catalog": catalog, "staging": f"/Volumes/{catalog}/{schemas['control']}/staging", **schemas}


class OpenPipeline:
    """One pipeline. Whatever it cannot do it says by an error of ``cdc_lib.errors``: what, why, what to do.

    Tables of the source are named ``schema.table``.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._lake = Lake(pipeline.target)
        self._named = False

    @property
    def name(self) -> str:
        return self.pipeline.name

    # -- before and after a run

    def check(self) -> list[Finding]:
        """What is missing at the source, each finding with its remedy; writes nothing."""
        return check_pipeline(self.pipeline)

    def plan(self) -> Plan:
        """What the next run would do, and what would stop it; writes nothing."""
        return make_plan(self.pipeline)

    def status(self) -> Status:
        """State, lag and errors, of the pipeline and its tables."""
        return read_status(self.pipeline)

    def tables(self) -> list[CapturedTableInfo]:
        """The captured tables: keys, states, and where they are in bronze and silver."""
        return read_tables(self.pipeline)

    # -- runs, which own the pipeline meanwhile

    def run(self) -> RunResult:
        """Snapshot what has none yet, capture changes, apply them to silver, until caught up."""
        with self._runner() as runner:
            return runner.run()

    def capture(self) -> RunResult:
        """The first half of :meth:`run`: from the database into bronze."""
        with self._runner() as runner:
            return runner.capture()

    def apply(self) -> RunResult:
        """The second half of :meth:`run`: from bronze into silver."""
        with self._runner() as runner:
            return runner.apply()

    def snapshot(self, *tables: str) -> RunResult:
        """Take tables again, all if none is named."""
        with self._runner() as runner:
            return runner.snapshot(tables)

    def reconcile(self, *tables: str, repair: bool = False) -> Reconciled:
        """Catch up, then compare every cell of silver with the source; ``repair`` mends what differs."""
        with self._runner() as runner:
            return runner.reconcile(tables, repair=repair)

    def maintain(self, *, plan: bool = False) -> Maintained:
        """Put small files together and drop what nothing needs any more; ``plan``: only say what."""
        if plan:
            return plan_maintenance(self.pipeline)
        with self._runner() as runner:
            return runner.maintain()

    # -- signals

    def signal(self, kind: str, data: Mapping[str, Any] | None = None) -> str:
        """Ask the next run for something, as an ``INSERT`` into ``control.signals`` does; the signal's id.

        :param kind: ``execute-snapshot``, ``log``.
        """
        signal = Signal(uuid.uuid4().hex, kind, json.dumps(data or {}))
        control = self._control()
        control.signals.create()
        control.signals.add(signal)
        return signal.id

    def answer(self, signal: str) -> Answer | None:
        """What a run said to a signal; None if none has seen it yet."""
        return next((answer for answer in self._control().answers.load() if answer.id == signal), None)

    # -- tables

    @property
    def schemas(self) -> Mapping[str, str]:
        """Names of the schemas in SQL, quoted: ``bronze``, ``silver``, ``control``."""
        return schema_names(self.pipeline.target)

    def sql(self, statement: str) -> DataFrame:
        """The result of a statement, in which ``{bronze}``, ``{silver}`` and ``{control}`` are schemas."""
        self._name_tables()
        for layer, schema in self.schemas.items():
            statement = statement.replace(f"{{{layer}}}", schema)
        return self._lake.spark.sql(statement)

    def name_views(self, tables: Sequence[str] = ()) -> list[str]:
        """Make silver tables known to the session by short names, as temporary views, and return these:
        ``public_orders``, and ``public_orders_current`` for the current versions of a history.

        :param tables: source names; none means all that are there.
        """
        self._name_tables()
        states = self._control().tables.load().values()
        refs = {self._lake.ref("silver", s.silver) for s in states if not tables or str(s.id) in tables}
        names = sorted(ref.name for ref in refs if self._lake.exists(ref))
        catalog, silver = self._lake.spark.catalog, self.schemas["silver"]
        found = [*names, *(f"{name}_current" for name in names)]
        found = [name for name in sorted(found) if catalog.tableExists(f"{silver}.`{name}`")]
        for name in found:
            self._lake.spark.table(f"{silver}.`{name}`").createOrReplaceTempView(f"`{name}`")
        return found

    def _control(self) -> Control:
        return Control(self._lake, self.name)

    def _name_tables(self) -> None:
        """Once, and again after each run: it may bring tables and columns."""
        if not self._named:
            name_tables(self._lake, self.pipeline.target)
        self._named = True

    def _runner(self) -> Runner:
        self._named = False
        return Runner(self.pipeline, lake=self._lake)

    def __repr__(self) -> str:
        return f"OpenPipeline({self.name!r})"
