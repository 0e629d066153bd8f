"""A pipeline under test: its file, runs of it, and what its tables hold."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import DeltaTable

from tests.engines.connect_server import ConnectServer, Outcome, RunFailed, without_spark

ROOT = Path(__file__).resolve().parents[2]


def _plain(path: Path) -> pa.Table | None:
    """The rows of a Delta table that uses no feature beyond plain files; None if it does."""
    table = DeltaTable(path)
    features = {*(table.protocol().writer_features or ()), *(table.protocol().reader_features or ())}
    return table.to_pyarrow_table() if features <= {"timestampNtz", "appendOnly", "invariants"} else None


@dataclass
class PipelineUnderTest:
    """``source`` and ``run`` are sections of the pipeline file, which :meth:`write` puts into ``folder``."""

    spark: ConnectServer
    folder: Path
    name: str
    source: dict[str, Any]
    run_limits: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    target: dict[str, Any] | None = None
    writer: str = "direct"
    apply: str = "merge"
    maintain: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "pipeline.yml"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def write(self) -> Path:
        """The file, as the pipeline is configured now."""
        content = {
            "name": self.name,
            "source": self.source,
            "target": self.target or {"path": str(self.lake), "writer": self.writer},
            "tables": self.tables,
            "apply": {"mode": self.apply},
            "run": {"poll_seconds": 1, **self.run_limits},
            "maintain": self.maintain,
        }
        self.file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return self.file

    def run(self, verb: str = "run", tables: Sequence[str] = ()) -> Outcome:
        """A run that must succeed."""
        outcome = self.attempt(verb, tables)
        if outcome.error:
            raise RunFailed(outcome.trace or outcome.text)
        return outcome

    def reconcile(self, *tables: str, **options: Any) -> dict[str, Any]:
        """What ``cdc reconcile --json`` prints."""
        outcome = self.spark.run(self.write(), "reconcile", tables, **options)
        if outcome.error:
            raise RunFailed(outcome.trace or outcome.text)
        return outcome.result

    def attempt(self, verb: str = "run", tables: Sequence[str] = ()) -> Outcome:
        """A run that may end in an error."""
        return self.spark.run(self.write(), verb, tables)

    def start(self, *arguments: str, own_spark: bool = False, **environment: str) -> subprocess.Popen[str]:
        """``cdc`` in a process group of its own, as a client of the same Spark or with a JVM of its own."""
        spark = {} if own_spark else {"CDC_SPARK_REMOTE": self.spark.remote}
        return subprocess.Popen(
            [sys.executable, "-m", "cdc_lib", *(arguments or ("run",)), str(self.write())],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**without_spark(), **spark, "PYTHONFAULTHANDLER": "1", **environment},
            start_new_session=True,
        )

    def table(self, layer: str, table: str) -> str:
        """A table's name in SQL."""
        if self.target is None:
            return f"delta.`{self.lake / layer / table}`"
        return f"{self.target['catalog']}.{self.target[layer]}.{table}"

    def rows(self, layer: str, table: str, columns: str = "*", rest: str = "") -> pa.Table:
        """Rows of a bronze, silver or control table. Plain tables on a path are read without Spark, which
        takes a hundred times as long for a few rows."""
        order = "ORDER BY _sequence"
        if self.target is None and rest in ("", order) and re.fullmatch(r"[\w*]+", columns):
            found = _plain(self.lake / layer / table)
            if found is not None:
                found = found.sort_by("_sequence") if rest == order else found
                return found if columns == "*" else found.select([columns])
        return self.spark.sql(f"SELECT {columns} FROM {self.table(layer, table)} {rest}", self.folder)

    def control(self, table: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self.rows("control", table).to_pylist()
        return found
