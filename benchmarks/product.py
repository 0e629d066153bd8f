"""What is measured: the runner's verbs, exactly as the commands call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdc_lib import config
from cdc_lib.java import ensure_java
from cdc_lib.runner import Runner


def capture(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """``cdc capture``: snapshot and log into bronze, every step of the ladder included."""
    ensure_java()
    with Runner(config.parse(pipeline)) as runner:
        return dict(runner.capture().metrics)


def apply(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """``cdc apply``: bronze into silver."""
    ensure_java()
    with Runner(config.parse(pipeline)) as runner:
        return dict(runner.apply().metrics)
