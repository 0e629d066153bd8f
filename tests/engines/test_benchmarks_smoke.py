"""The benchmarks run from start to end at a tiny size: servers, workers, verification, result, summary."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from tests.engines.connect_server import without_spark


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_backlog_is_measured_verified_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ.keys() - without_spark().keys():
        monkeypatch.delenv(name)
    results, document = tmp_path / "results", tmp_path / "benchmarks.md"
    small = ["--rows", "2000", "--rounds", "1", "--cold-rounds", "0", "--discard", "0"]
    places = ["--folder", str(tmp_path / "work"), "--results", str(results), "--docs", str(document)]

    assert main(["--only", "backlog-full", *small, *places]) == 0

    (path,) = results.glob("backlog-full-*.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    measured = {each["system"]: each for each in found["measurements"]}
    assert set(measured) == {"copy-discard", "cdc-lib", "cdc-lib-spark"}
    workload = found["workload"]
    assert measured["cdc-lib"]["rows"] == sum(workload[name] for name in ("inserts", "updates", "deletes"))
    memory = measured["cdc-lib-spark"]["rss"]
    assert memory["jvm"] > memory["python"] > 0
    assert measured["cdc-lib"]["rss"]["jvm"] == 0, "bronze is written without a JVM"
    assert "Backlog to bronze, replica identity FULL" in document.read_text(encoding="utf-8")
    assert not list((tmp_path / "work").iterdir())
