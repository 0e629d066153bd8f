"""``cdc check``: what the pipeline file and the database still lack; writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_lib.bronze import column_collisions, table_collisions
from cdc_lib.config import Pipeline
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
        for table in tables:
            findings += column_collisions(source.describe(table))
    return findings


def worst(findings: Sequence[Finding]) -> Severity:
    """The gravest severity among the findings."""
    return max((finding.severity for finding in findings), key=ORDER.index, default="ok")
