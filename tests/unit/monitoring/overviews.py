"""Pipelines in all the states that monitoring has to show, made up."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from cdc_lib.control.chunks import Progress
from cdc_lib.control.incidents import Incident
from cdc_lib.control.runs import Run
from cdc_lib.control.schema_changes import SchemaChangeRow
from cdc_lib.monitoring.overview import Batch, Overview
from cdc_lib.status import Status, TableStatus

NOW = datetime(2026, 3, 14, 15, 9, 26, tzinfo=timezone.utc)
LONG = "warehouse_operations_europe.inventory_movements_with_serial_numbers_and_lots_2019_archive_partition"
HOSTILE = 'public.<script>alert("x")</script>&\\n"'


def ago(**time: float) -> datetime:
    return NOW - timedelta(**time)


def run(minutes: float, outcome: str = "done", **more: Any) -> Run:
    metrics = {"seconds": 20.0, **more.pop("metrics", {})}
    return Run(
        f"r{minutes}",
        "run",
        ago(minutes=minutes),
        ago(minutes=minutes - 0.4),
        outcome,
        metrics=metrics,
        **more,
    )


def quiet(**more: Any) -> Overview:
    """Caught up; nothing is wrong."""
    status: dict[str, Any] = {
        "pipeline": "shop",
        "batch": 2,
        "position": "0/5000",
        "committed_at": ago(minutes=3),
        "lag_bytes": 0,
        "lag_seconds": 0.0,
        "delay_seconds": 4.0,
        "retained_bytes": 3 << 20,
        "last_run": run(3),
        "tables": [TableStatus("public.orders", "streaming", 2, 2, 130)],
    }
    given: Mapping[str, Any] = {
        "runs": [run(18), run(3)],
        "batches": [Batch(1, ago(minutes=18), 100, 0, None), Batch(2, ago(minutes=3), 0, 30, 4.0)],
        "events": {"public.orders": {"r": 100, "c": 20, "u": 7, "d": 3}},
        **{name: value for name, value in more.items() if name in Overview.__dataclass_fields__},
    }
    changed = {name: value for name, value in more.items() if name in Status.__dataclass_fields__}
    changed["incidents"] = len(given.get("incidents", ()))
    return Overview(NOW, "postgresql", Status(**{**status, **changed}), **given)


def empty() -> Overview:
    """Before the first run, with a source that does not answer."""
    return Overview(
        NOW, "postgresql", Status("orders_emea", source_error="the source did not answer within 2 s")
    )


def troubled(tables: int = 300) -> Overview:
    """All at once: many tables, one errored, snapshots under way, a failed run, a slot near its limit."""
    chance = random.Random(1)
    name = [f"sales.orders_{number:03d}" for number in range(tables - 2)] + [LONG, HOSTILE]
    found = [
        TableStatus(one, "streaming", 900, 900 - chance.choice([0, 0, 0, 3]), chance.randrange(10**7))
        for one in name
    ]
    found[5] = TableStatus(name[5], "snapshot", 880, 0, 12_000_000)
    found[6] = TableStatus(name[6], "snapshot", 0, 0, 0)
    reason = "an update or delete came without a key, so that silver cannot tell its rows apart"
    remedy = f"give {LONG} a primary key, or name one in message.key.columns"
    found[-2] = TableStatus(LONG, "bronze_only", 871, 240, 3_412_998, reason, remedy)
    runs = [
        run(
            15.0 * number,
            "done" if number % 9 else "interrupted",
            metrics={
                "seconds": chance.uniform(15, 80),
                "source.retained_bytes": float((80 - number) * 60_000_000 + chance.randrange(9 << 20)),
            },
        )
        for number in range(70, 3, -1)
    ]
    what = "replication slot cdc_sales is in use by another process (PID 4711)"
    runs.append(
        run(
            12, "failed", error=what, remedy="stop that process, or give this pipeline a slot.name of its own"
        )
    )
    batches = [
        Batch(
            900 - number,
            ago(minutes=15.0 * number),
            chance.randrange(900_000) if number > 50 else 0,
            chance.randrange(4_000, 160_000),
            chance.uniform(2, 40),
        )
        for number in range(70, 3, -1)
    ]
    return quiet(
        pipeline="sales_europe_production",
        batch=900,
        position="5A/91F0C328",
        committed_at=ago(minutes=62),
        lag_bytes=734_003_200,
        lag_seconds=3725.0,
        retained_bytes=4_900_000_000,
        headroom_bytes=1_400_000_000,
        last_run=runs[-1],
        tables=found,
        incidents=[
            Incident("table without a key", "t", LONG, 871, reason, remedy, ago(hours=8)),
            Incident(
                "rows recomputed",
                "o",
                name[3],
                850,
                "column vat was added with a default",
                "nothing: it is read again",
                ago(hours=9),
            ),
        ],
        runs=runs,
        batches=batches,
        events={one.table: {"c": one.rows // 3, "u": one.rows // 5, "d": one.rows // 50} for one in found},
        snapshots={name[5]: Progress(48, 29, 20_000_000, 12_000_000, ago(hours=2), ago(minutes=70))},
        schema_changes=[
            SchemaChangeRow("o", name[3], 2, "added", "vat", "numeric(5,2), default 0", 850, ago(hours=9)),
            SchemaChangeRow("o", name[9], 3, "widened", "quantity", "integer to bigint", 861, ago(hours=5)),
        ],
    )
