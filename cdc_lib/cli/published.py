"""What ``cdc status`` gives to others than the terminal: a page, Prometheus text, OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cdc_lib.cli.output import stderr
from cdc_lib.config import Pipeline
from cdc_lib.errors import FixConfiguration
from cdc_lib.monitoring import otlp, prometheus
from cdc_lib.monitoring.measures import Measure, measures
from cdc_lib.monitoring.overview import read_overview

STDOUT = Path("-")


class Published:
    """Where the state of pipelines goes.

    :raises FixConfiguration: something that is needed for it is missing; said before anything is read.
    """

    def __init__(self, html: Path | None, text: Path | None, send: bool) -> None:
        self._html = html
        self._text = text
        self._send = send
        if text is not None:
            prometheus.need_prometheus()
        if send:
            otlp.need_otlp()

    @property
    def wanted(self) -> bool:
        return bool(self._html or self._text or self._send)

    def publish(self, pipelines: Sequence[Pipeline]) -> None:
        """Read the pipelines' state once and give it to whoever was named."""
        overviews = [read_overview(pipeline) for pipeline in pipelines]
        if self._html is not None:
            from cdc_lib.monitoring.page import render

            _write(self._html, render(overviews))
            stderr().print(f"written: {self._html}", markup=False, soft_wrap=True)
        if self._text is not None or self._send:
            self._publish_measures(measures(overviews))

    def _publish_measures(self, found: Sequence[Measure]) -> None:
        if self._text == STDOUT:
            sys.stdout.write(prometheus.prometheus_text(found))
        elif self._text is not None:
            prometheus.write_prometheus(found, self._text)
        if self._send:
            otlp.send(found)


def _write(path: Path, text: str) -> None:
    """
    :raises FixConfiguration: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FixConfiguration(
            f"{path} cannot be written", why=error.strerror or "", remedy="name a file in a folder of yours"
        ) from None
