"""Connectors from Debezium's guide.

``fulfillment.json`` is the guide's example configuration, word for word. The others set what the guide's
chapters tell people to set, with the values of its examples: databases at cloud services, heartbeats for a
quiet database beside a busy one, the upgrade of PostgreSQL, read-only incremental snapshots, and every
default that can be written down.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONNECTORS = Path(__file__).parent


def connector(name: str) -> dict[str, Any]:
    """The properties of a connector, without what Kafka Connect has around them."""
    content: dict[str, Any] = json.loads((CONNECTORS / f"{name}.json").read_text(encoding="utf-8"))
    return content.get("config", content)
