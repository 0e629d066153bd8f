"""``spark.read.format("cdc")`` and ``spark.readStream.format("cdc")``: tables and changes of a source.

For notebooks, and for people with pipelines of their own. ``spark.dataSource.register(CdcDataSource)`` makes
the format known to a session. ``cdc run`` does not use it: a batch of its own has guarantees that a Spark
checkpoint cannot give (``docs/declarative.md``).
"""

from __future__ import annotations

from cdc_lib.datasource.format import CdcDataSource

__all__ = ["CdcDataSource"]
