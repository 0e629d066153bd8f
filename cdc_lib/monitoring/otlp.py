"""The figures by OpenTelemetry's protocol, once, to where its standard environment variables say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from cdc_lib import __version__
from cdc_lib.errors import FixConfiguration, RetryLater
from cdc_lib.monitoring.measures import Measure

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SERVICE = "cdc"


def need_otlp() -> None:
    """
    :raises FixConfiguration: the SDK is not installed, or nobody said where to send to.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http.metric_exporter
        import opentelemetry.sdk.metrics  # noqa: F401
    except ImportError:
        raise FixConfiguration(
            "OpenTelemetry needs its SDK", why="it is not installed", remedy="pip install 'cdc-lib[otel]'"
        ) from None
    if not any(map(os.environ.get, ENDPOINTS)):
        raise FixConfiguration(
            "nobody said where the collector is",
            why="the environment has no OTEL_EXPORTER_OTLP_ENDPOINT",
            remedy="set it, as in OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318",
        )


def send(measures: Sequence[Measure]) -> None:
    """Send all figures in one request; name, headers, time limit and certificates by ``OTEL_*``.

    :raises RetryLater: the collector did not take them.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    # The SDK's own periodic reader only logs what it could not send.
    reader = InMemoryMetricReader()
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: _SERVICE}
    provider = MeterProvider([reader], Resource.create(named))
    exporter = OTLPMetricExporter()
    try:
        meter = provider.get_meter("cdc_lib", __version__)
        for measure in measures:
            _observe(meter, measure)
        data = reader.get_metrics_data()
        if data is not None and exporter.export(data) is not MetricExportResult.SUCCESS:
            raise RetryLater(
                "the collector did not take the metrics",
                why="it did not answer, or refused them; its answer is in the log above",
                remedy="see OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS, then run again",
            )
    finally:
        exporter.shutdown()
        provider.shutdown()


def _observe(meter: Meter, measure: Measure) -> None:
    create = meter.create_observable_gauge
    if measure.kind == "counter":
        create = meter.create_observable_counter  # type: ignore[assignment]
    create(measure.name, [_observations(measure)], measure.unit or "1", measure.description)


def _observations(measure: Measure) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    return lambda _: [Observation(value, dict(labels)) for labels, value in measure.samples]
