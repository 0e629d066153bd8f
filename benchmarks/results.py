"""Raw results as JSON, one file a benchmark and run, with everything needed to judge them later.

Nothing in them names the machine: cores and memory, versions and settings, no host names or paths.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT
from benchmarks.rounds import Plan
from benchmarks.scenarios import Outcome
from benchmarks.workload import PER_TRANSACTION, SERVER_SETTINGS, SERVER_VERSION
from cdc_lib.embedded import SETTINGS, binaries
from cdc_lib.java import ensure_java
from cdc_lib.java import version as java_version
from cdc_lib.pipeline import Limits
from cdc_lib.spark_session import LOCAL_SETTINGS

FOLDER = ROOT / "benchmarks" / "results"
_PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "numpy", "psycopg2-binary", "pandas")


def record(name: str, outcome: Outcome, plan: Plan, rows: int, started: datetime) -> dict[str, Any]:
    """Everything about one run of one benchmark."""
    return {
        "benchmark": name,
        "started_at": started.isoformat(timespec="seconds"),
        "ended_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "code": code(),
        "machine": machine(),
        "versions": versions(),
        "settings": {
            "rows": rows,
            "rounds": plan.rounds,
            "cold_rounds": plan.cold_rounds,
            "discarded": plan.discarded,
            "transaction_rows": PER_TRANSACTION,
            "run": Limits().model_dump(),
            "spark": {
                **LOCAL_SETTINGS,
                "spark.driver.memory": os.environ.get("CDC_DRIVER_MEMORY", "3g"),
                **json.loads(os.environ.get("CDC_SPARK_CONF") or "{}"),
            },
            "server": {**SETTINGS, **SERVER_SETTINGS, "fsync": "on"},
        },
        "workload": dict(outcome.workload),
        "verified": "all columns of all rows of every round, by sums of row hashes",
        "measurements": [measurement.as_dict() for measurement in outcome.measurements],
    }


def write(found: Mapping[str, Any], folder: Path) -> Path:
    """A file of its own for each run."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = found["started_at"].replace("-", "").replace(":", "").replace("+0000", "Z")
    path = folder / f"{found['benchmark']}-{stamp}.json"
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path


def newest(folder: Path) -> dict[str, dict[str, Any]]:
    """The newest run of each benchmark."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        known = found.get(content["benchmark"])
        if known is None or known["started_at"] <= content["started_at"]:
            found[content["benchmark"]] = content
    return found


def code() -> dict[str, Any]:
    """The commit, and whether the measured files differ from it."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", "cdc_lib", "benchmarks/*.py")
    return {"commit": commit or "unknown", "changed": bool(changed)}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "load_at_end": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    found = {name: version(name) for name in _PACKAGES}
    postgres = binaries(SERVER_VERSION) / "postgres"
    shown = subprocess.run([str(postgres), "--version"], capture_output=True, text=True, check=False)
    return {
        "python": platform.python_version(),
        "java": str(java_version(ensure_java())),
        "postgresql": shown.stdout.strip().rpartition(" ")[2] or str(SERVER_VERSION),
        **found,
    }
