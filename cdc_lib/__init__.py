"""Change data capture from operational databases into Delta Lake, on PySpark, without Kafka.

    import cdc_lib

    shop = cdc_lib.open_pipeline("pipelines/shop.yml")
    shop.run()
    shop.sql("SELECT * FROM {silver}.public_orders").show()

:class:`cdc_lib.api.OpenPipeline` has all that can be called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["OpenPipeline", "__version__", "open_pipeline"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Not at import: Spark's workers import this package too, and need none of it.
    if name in ("OpenPipeline", "open_pipeline"):
        return getattr(import_module("cdc_lib.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
