"""The figures as Prometheus text, by its own client library: names, escaping and order are its matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_lib.errors import FixConfiguration
from cdc_lib.monitoring.measures import Measure

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

UNITS = {"By": "_bytes", "s": "_seconds", "": ""}


def prometheus_text(measures: Sequence[Measure]) -> str:
    """The text exposition format, version 0.0.4.

    :raises FixConfiguration: the client library is not installed.
    """
    from prometheus_client import generate_latest

    return generate_latest(_registry(measures)).decode()


def write_prometheus(measures: Sequence[Measure], path: Path) -> None:
    """Replace a file in one step, as the textfile collector of node_exporter needs it.

    :raises FixConfiguration: the file cannot be written, or the client library is not installed.
    """
    from prometheus_client import write_to_textfile

    try:
        write_to_textfile(str(path), _registry(measures))
    except OSError as error:
        raise FixConfiguration(
            f"{path} cannot be written", why=error.strerror or "", remedy="name a file in a folder of yours"
        ) from None


def need_prometheus() -> None:
    """
    :raises FixConfiguration: the client library is not installed.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise FixConfiguration(
            "Prometheus text needs prometheus_client",
            why="it is not installed",
            remedy="pip install 'cdc-lib[prometheus]'",
        ) from None


def prometheus_name(measure: Measure) -> str:
    """The name by OpenTelemetry's mapping; counters get ``_total`` from the client library."""
    return measure.name.replace(".", "_") + UNITS[measure.unit]


def _registry(measures: Sequence[Measure]) -> CollectorRegistry:
    from prometheus_client.registry import Collector, CollectorRegistry

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            return map(_family, measures)

    registry = CollectorRegistry()
    registry.register(Figures())
    return registry


def _family(measure: Measure) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    names = list(measure.samples[0][0])
    kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    family = kind(prometheus_name(measure), measure.description, labels=names)
    for labels, value in measure.samples:
        family.add_metric([labels[name] for name in names], value)
    return family
