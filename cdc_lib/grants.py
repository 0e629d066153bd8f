"""The rights that a pipeline needs in Unity Catalog, and no more: for who runs it, operates it, reads silver.

``resources/per_pipeline`` grants the same on what the bundle deploys (a test compares them); here they are
for schemas that somebody else made, for review, and for ``cdc check --databricks``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from cdc_lib.errors import FixConfiguration
from cdc_lib.nested_types import quoted
from cdc_lib.pipeline import LOCAL_CATALOG, Pipeline

RUNNER, OPERATORS, ANALYSTS = "runner", "operators", "analysts"
ROLES: Mapping[str, str] = {
    RUNNER: "whoever the jobs run as; better a service principal than a person",
    OPERATORS: "read all, and write to control: signals",
    ANALYSTS: "read silver",
}
_WRITES = ("USE SCHEMA", "CREATE TABLE", "SELECT", "MODIFY")
_READS = ("USE SCHEMA", "SELECT")
_LAYERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "bronze": {RUNNER: _WRITES, OPERATORS: _READS},
    "silver": {RUNNER: _WRITES, OPERATORS: _READS, ANALYSTS: _READS},
    "control": {RUNNER: _WRITES, OPERATORS: (*_READS, "MODIFY")},
}


@dataclass(frozen=True)
class Grant:
    """Rights of one role on one object; ``name`` is the object's full name, in parts."""

    role: str
    kind: str
    name: tuple[str, ...]
    privileges: tuple[str, ...]

    def sql(self, principal: str, privileges: Sequence[str] = ()) -> str:
        """The statement that gives them, or only some of them."""
        rights = ", ".join(privileges or self.privileges)
        place = ".".join(map(quoted, self.name))
        return f"GRANT {rights} ON {self.kind} {place} TO {quoted(principal)};"


def needed(pipeline: Pipeline) -> list[Grant]:
    """All grants of a pipeline's target, by object. CREATE SCHEMA is not among them: a run creates a schema
    only if there is none.

    :raises FixConfiguration: the target is not in Unity Catalog.
    """
    target = pipeline.target
    if target.catalog in (None, LOCAL_CATALOG):
        raise FixConfiguration(
            f"{pipeline.name} does not write to Unity Catalog",
            why="its target is a path, or Spark's own catalog",
            remedy="say what the jobs say: cdc --target catalog=main --target staging=/Volumes/... check "
            "--databricks",
        )
    catalog = str(target.catalog)
    found = [Grant(role, "CATALOG", (catalog,), ("USE CATALOG",)) for role in ROLES]
    for layer, roles in _LAYERS.items():
        place = (catalog, getattr(target, layer))
        found += [Grant(role, "SCHEMA", place, rights) for role, rights in roles.items()]
    return [*found, *_volume(pipeline)]


def _volume(pipeline: Pipeline) -> Iterator[Grant]:
    parts = PurePosixPath(str(pipeline.target.staging)).parts
    if parts[:2] == ("/", "Volumes") and len(parts) >= 5:
        yield Grant(RUNNER, "VOLUME", parts[2:5], ("READ VOLUME", "WRITE VOLUME"))
