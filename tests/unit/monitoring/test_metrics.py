"""The figures for monitoring systems: read back by the parsers of those who take them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from cdc_lib.errors import FixConfiguration, RetryLater
from cdc_lib.monitoring import otlp
from cdc_lib.monitoring.measures import measures
from cdc_lib.monitoring.prometheus import prometheus_text, write_prometheus
from tests.unit.monitoring.overviews import HOSTILE, ago, empty, quiet, troubled


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def value(found: dict[Any, float], metric: str, **labels: str) -> float:
    return found[metric, frozenset(labels.items())]


def test_prometheus_reads_back_what_was_measured() -> None:
    found = parsed(prometheus_text(measures([quiet()])))
    shop = {"pipeline": "shop"}
    assert value(found, "cdc_lag_size_bytes", **shop) == 0
    assert value(found, "cdc_delay_seconds", **shop) == 4
    assert value(found, "cdc_retained_bytes", **shop) == 3 << 20
    assert value(found, "cdc_last_success_timestamp_seconds", **shop) == pytest.approx(
        ago(minutes=2.6).timestamp()
    )
    assert value(found, "cdc_tables", **shop, state="streaming") == 1
    assert value(found, "cdc_tables", **shop, state="snapshot") == 0
    assert value(found, "cdc_table_rows_total", **shop, table="public.orders") == 130


def test_debezium_names_keep_their_meaning() -> None:
    found = parsed(prometheus_text(measures([quiet()])))
    streaming = {"plugin": "postgres", "name": "shop", "context": "streaming"}
    snapshot = {**streaming, "context": "snapshot"}
    names = {"Create": 20, "Update": 7, "Delete": 3}
    for word, count in names.items():
        assert value(found, f"debezium_metrics_TotalNumberOf{word}EventsSeen", **streaming) == count
    assert value(found, "debezium_metrics_TotalNumberOfEventsSeen", **streaming) == 30
    assert value(found, "debezium_metrics_MilliSecondsBehindSource", **streaming) == 4000
    assert value(found, "debezium_metrics_MilliSecondsSinceLastEvent", **streaming) == 180_000
    assert value(found, "debezium_metrics_Connected", **streaming) == 1
    assert value(found, "debezium_metrics_RowsScanned", **snapshot, table="public.orders") == 100
    assert value(found, "debezium_metrics_SnapshotCompleted", **snapshot) == 1
    assert value(found, "debezium_metrics_RemainingTableCount", **snapshot) == 0


def test_a_snapshot_under_way_or_given_up() -> None:
    def snapshot(running: bool) -> dict[str, float]:
        found = parsed(prometheus_text(measures([quiet(running=running, tables=troubled().status.tables)])))
        labels = {"plugin": "postgres", "name": "shop", "context": "snapshot"}
        words = ("Running", "Aborted", "Completed")
        return {word: value(found, f"debezium_metrics_Snapshot{word}", **labels) for word in words}

    assert snapshot(True) == {"Running": 1, "Aborted": 0, "Completed": 0}
    assert snapshot(False) == {"Running": 0, "Aborted": 1, "Completed": 0}


def test_names_are_escaped() -> None:
    found = parsed(prometheus_text(measures([troubled()])))
    assert value(found, "cdc_table_rows_total", pipeline="sales_europe_production", table=HOSTILE) > 0


def test_what_is_not_known_is_left_out() -> None:
    names = {name for name, _ in parsed(prometheus_text(measures([empty()])))}
    assert "cdc_up" in names
    assert not names & {
        "cdc_lag_size_bytes",
        "cdc_delay_seconds",
        "cdc_retained_bytes",
        "cdc_last_success_timestamp_seconds",
    }


def test_several_pipelines_share_a_metric() -> None:
    text = prometheus_text(measures([quiet(), empty()]))
    assert text.count("# TYPE cdc_up gauge") == 1
    found = parsed(text)
    assert (value(found, "cdc_up", pipeline="shop"), value(found, "cdc_up", pipeline="orders_emea")) == (1, 0)


def test_a_file_for_the_textfile_collector(tmp_path: Path) -> None:
    write_prometheus(measures([quiet()]), tmp_path / "cdc.prom")
    assert [file.name for file in tmp_path.iterdir()] == ["cdc.prom"]
    assert parsed((tmp_path / "cdc.prom").read_text(encoding="utf-8"))
    with pytest.raises(FixConfiguration, match="cannot be written"):
        write_prometheus(measures([quiet()]), tmp_path / "missing" / "cdc.prom")


# -- OpenTelemetry


class Collector:
    """Takes what is posted to it, and answers with ``status``."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[tuple[str, dict[str, str], ExportMetricsServiceRequest]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportMetricsServiceRequest.FromString(body)
                collector.requests.append((self.path, dict(self.headers), request))
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    started = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
    yield started
    started.close()


def test_a_collector_gets_the_same_figures(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=opens")
    otlp.need_otlp()
    otlp.send(measures([quiet()]))
    ((path, headers, request),) = collector.requests
    assert path == "/v1/metrics"
    assert headers["x-key"] == "opens"
    (resource,) = request.resource_metrics
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "cdc"
    found = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    delay = found["cdc.delay"]
    assert (delay.unit, delay.gauge.data_points[0].as_double) == ("s", 4.0)
    assert [each.value.string_value for each in delay.gauge.data_points[0].attributes] == ["shop"]
    rows = found["cdc.table.rows"].sum
    assert (rows.is_monotonic, rows.data_points[0].as_double) == (True, 130.0)
    # Names are the same whatever their case there; the SDK writes them small.
    assert found.keys() == {measure.name.lower() for measure in measures([quiet()])}


def test_a_collector_that_refuses_is_an_error(collector: Collector) -> None:
    collector.status = 400
    with pytest.raises(RetryLater, match="did not take the metrics"):
        otlp.send(measures([quiet()]))


def test_without_an_endpoint_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in otlp.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(FixConfiguration, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        otlp.need_otlp()
