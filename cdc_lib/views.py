"""The names by which people ask for tables in SQL, the same on a laptop as in a catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cdc_lib import silver
from cdc_lib.delta import Lake
from cdc_lib.named_tables import register
from cdc_lib.nested_types import quoted
from cdc_lib.table_ref import LAYERS

if TYPE_CHECKING:
    from cdc_lib.pipeline import Target


def name_tables(lake: Lake, target: Target) -> None:
    """Make tables under a path known to the session, and the current versions of histories as views; in a
    catalog they are."""
    for named in register(lake, target):
        if named.layer == "silver":
            silver.show_current(lake, lake.ref(named.layer, named.name), named)


def schema_names(target: Target) -> Mapping[str, str]:
    """What stands before the table's name in SQL, by layer, quoted."""
    before = f"{quoted(target.catalog)}." if target.catalog else ""
    return {layer: f"{before}{quoted(getattr(target, layer))}" for layer in LAYERS}
