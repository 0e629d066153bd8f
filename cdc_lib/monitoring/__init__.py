"""What pipelines tell those who watch them: a page for people, Prometheus text and OpenTelemetry for systems.

All of it comes from :class:`~cdc_lib.monitoring.overview.Overview`, which is read once from the control
tables. The dashboard and the alerts of the bundle ask the same tables by SQL (``resources/``).
"""

from __future__ import annotations
