"""The process in which a system under test runs: reads requests as JSON lines, answers each with one line.

A process of its own, so that its CPU and memory are its own, a cold start is a real one, and a warm one is
long-lived. A failing task ends the process; its traceback is in the log that stands behind stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

TASKS: Mapping[str, str] = {
    "floor": "benchmarks.floors:copy_discard",
    "capture": "benchmarks.product:capture",
    "apply": "benchmarks.product:apply",
    "peer": "benchmarks.peer:capture",
    "checksum": "benchmarks.checksum:of_table",
}
"""Task to function; imported when first asked for, since a floor must not pay for Spark's import."""


def task(name: str) -> Callable[..., dict[str, Any]]:
    module, _, function = TASKS[name].partition(":")
    found: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), function)
    return found


def main() -> None:
    # Whatever a library prints goes to the log: the real stdout is for answers alone.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answer = task(request["task"])(**request["arguments"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
