"""``cdc check``: what the pipeline file and the database still lack; writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_lib.bronze import column_collisions, table_collisions
from cdc_lib.config import LOCAL_CATALOG, Pipeline
from cdc_lib.schema import Table
from cdc_lib.source import Finding, Severity, open_source

ORDER: tuple[Severity, ...] = ("ok", "notice", "warning", "error")


def check_pipeline(pipeline: Pipeline) -> list[Finding]:
    """All findings: the file's notices, what the source says, and whether the names can be used.

    :raises CdcError: the database cannot be reached, so that nothing can be said of it.
    """
    findings = [Finding("notice", remark.path, remark.message) for remark in pipeline.notices]
    with open_source(pipeline.source) as source:
        findings += source.check()
        tables = source.tables()
        findings += table_collisions(tables)
        for table in map(source.describe, tables):
            findings += [*column_collisions(table), *_unknown_columns(pipeline, table)]
    return [*findings, *_only_in_unity(pipeline)]


def _unknown_columns(pipeline: Pipeline, table: Table) -> list[Finding]:
    unknown = pipeline.rule(table.id).unknown_columns(table)
    return [
        Finding(
            "warning",
            str(table.id),
            f"its rule describes columns that it does not have: {', '.join(unknown)}",
        )
    ] * bool(unknown)


def _only_in_unity(pipeline: Pipeline) -> list[Finding]:
    tagged = [rule.match for rule in pipeline.tables if rule.tags or rule.pii]
    if not tagged or pipeline.target.catalog not in (None, LOCAL_CATALOG):
        return []
    said = "tags and pii are set in Unity Catalog alone, and this target is not in it"
    return [Finding("notice", f"tables: {', '.join(tagged)}", said)]


def worst(findings: Sequence[Finding]) -> Severity:
    """The gravest severity among the findings."""
    return max((finding.severity for finding in findings), key=ORDER.index, default="ok")
