"""Options of the format, as a configuration. No Spark.

Options stand in plans, where others can read them, so a password is only taken as a reference. It is looked
up where a connection is made, on the driver and on the workers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cdc_lib.config import load, parse
from cdc_lib.errors import FixConfiguration
from cdc_lib.pipeline import Pipeline, SourceConfig
from cdc_lib.properties import did_you_mean
from cdc_lib.schema import TableId
from cdc_lib.secrets import KINDS, SecretRef

OWN = ("pipeline", "table", "path", "name", "onePosition", "chunkRows", "maxBytesPerTrigger")
"""Options of the format; everything with a dot is a property of the source."""
MAX_BYTES = 64 << 20
"""Log that a micro-batch opens at once, unless an option says otherwise."""
_NAMES = {name.lower(): name for name in OWN}
_SLOT = re.compile(r"[^a-z0-9_]")


@dataclass(frozen=True)
class CdcOptions:
    """What a read asks for. ``one_position``: in one view of the source, not piece by piece."""

    source: SourceConfig
    table: TableId
    one_position: bool = False
    chunk_rows: int = 250_000
    max_bytes: int = MAX_BYTES
    given: frozenset[str] = frozenset()
    """Properties of the source that came as options."""

    def for_stream(self) -> CdcOptions:
        """With a slot and a publication of the stream's own, unless options name them: the pipeline's own
        follow what ``cdc run`` has committed, which is not what a stream has."""
        stream: str = self.source["slot.name"]
        if "slot.name" not in self.given:
            stream = _slot_name(f"{stream}_{self.table.schema}_{self.table.name}")
        own = {name: stream for name in ("slot.name", "publication.name") if name not in self.given}
        return replace(self, source=replace(self.source, values={**self.source.values, **own}))


def read_options(options: Mapping[str, str]) -> CdcOptions:
    """The options of a read.

    :raises FixConfiguration: an option is unknown, missing or wrong, or the pipeline file is.
    """
    own = {_NAMES[key.lower()]: text for key, text in options.items() if key.lower() in _NAMES}
    properties = {key.lower(): text for key, text in options.items() if "." in key}
    for key in options:
        if key.lower() not in _NAMES and "." not in key:
            raise _wrong(
                f"format cdc has no option {key}{did_you_mean(key, OWN)}", f"it has {', '.join(OWN)}"
            )
    pipeline, table = _pipeline(own, properties), _table(own)
    _refuse_literal_passwords(pipeline.source, properties)
    if not pipeline.source.captures(table):
        raise _wrong(f"{table} is not captured", "correct table.include.list, or the name of the table")
    return CdcOptions(
        pipeline.source,
        table,
        one_position=own.get("onePosition", "false").lower() == "true",
        chunk_rows=_count(own, "chunkRows", pipeline.run.chunk_rows),
        max_bytes=_count(own, "maxBytesPerTrigger", MAX_BYTES),
        given=frozenset(properties),
    )


def _slot_name(text: str) -> str:
    """``text`` as a slot may be called: lower case letters, digits and _, at most 63; long ones differ."""
    name = _SLOT.sub("_", text.lower())
    return name if len(name) <= 63 else f"{name[:54]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _pipeline(own: Mapping[str, str], properties: Mapping[str, str]) -> Pipeline:
    if "pipeline" in own:
        return load(Path(own["pipeline"]), source=properties)
    if not properties:
        raise _wrong(
            "format cdc does not know what to read from",
            'option("pipeline", "shop.yml"), or source properties',
        )
    return parse({"name": own.get("name", "cdc"), "source": dict(properties), "target": {"path": "."}})


def _table(own: Mapping[str, str]) -> TableId:
    name = own.get("table") or own.get("path")
    if name is None:
        raise _wrong("format cdc reads one table, and none is named", 'option("table", "public.orders")')
    try:
        return TableId.parse(name)
    except ValueError as error:
        raise _wrong(str(error), "name it as schema.table") from None


def _count(own: Mapping[str, str], name: str, default: int) -> int:
    text = own.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not int(text):
        raise _wrong(f"option {name} is not a whole number above 0", "correct it")
    return int(text)


def _refuse_literal_passwords(source: SourceConfig, properties: Mapping[str, str]) -> None:
    for name in properties:
        value = source.values.get(name)
        if isinstance(value, SecretRef) and value.reference is None:
            raise _wrong(f"option {name} is a password itself", f"refer to it instead: {KINDS}")


def _wrong(what: str, remedy: str) -> FixConfiguration:
    return FixConfiguration(what, remedy=remedy)
