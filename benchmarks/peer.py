"""The peer of the backlog benchmark: a prototype kept outside this project, given by its path.

It does the same job (slot, decode, Spark's Delta writer) with narrower rows and without the ladder: no seal,
no control tables, no verification of the append. It runs with its own settings; only Delta's JARs come from
where ours are, so that it needs no network.
"""

from __future__ import annotations

import importlib
import io
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from cdc_lib.java import ensure_java
from cdc_lib.spark_session import local_settings

ENVIRONMENT: Mapping[str, str] = {"BINARY": "0"}
"""Text values, as the product reads them. The prototype reads this when it is imported."""

_REPORT = re.compile(r"spark: (\d+) events, (\d+) commits, ([0-9.]+) s")


def capture(prototype: str, dsn: str, log: Mapping[str, str], table: str, staging: str) -> dict[str, Any]:
    """One run of mode ``spark`` over ``log``: slot, publication and end position."""
    ensure_java()
    module = _load(Path(prototype))
    Path(staging).mkdir(parents=True)
    printed = io.StringIO()
    with redirect_stdout(printed):
        module.run("spark", dsn, log["slot"], log["publication"], log["upto"], table, staging)
    report = _REPORT.search(printed.getvalue())
    if report is None:
        raise RuntimeError(f"the prototype reported something else: {printed.getvalue()!r}")
    events, commits, seconds = report.groups()
    return {"rows": int(events), "commits": int(commits), "own_seconds": float(seconds)}


def _load(path: Path) -> ModuleType:
    if path.stem in sys.modules:
        return sys.modules[path.stem]
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    jars = {key: value for key, value in local_settings().items() if key.startswith("spark.jars")}
    module.configure_spark_with_delta_pip = lambda builder: builder.config(map=jars)  # type: ignore[attr-defined]
    return module
