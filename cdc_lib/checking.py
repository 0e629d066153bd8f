"""``cdc check``: what the pipeline file, the database and this machine still lack; writes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cdc_lib.bronze import table_name
from cdc_lib.config import Pipeline
from cdc_lib.schema import TableId
from cdc_lib.source import Finding, Severity, open_source

ORDER: tuple[Severity, ...] = ("ok", "notice", "warning", "error")


def check_pipeline(pipeline: Pipeline) -> list[Finding]:
    """All findings: the file's notices, what the source says, and whether the tables' names can be used.

    :raises CdcError: the database cannot be reached, so that nothing can be said of it.
    """
    findings = [Finding("notice", remark.path, remark.message) for remark in pipeline.notices]
    with open_source(pipeline.source) as source:
        findings += source.check()
        findings += name_collisions(source.tables())
    return findings


def name_collisions(tables: Sequence[TableId]) -> list[Finding]:
    """Source tables that would share a table in bronze; Spark does not tell upper from lower case."""
    taken: defaultdict[str, list[TableId]] = defaultdict(list)
    for table in tables:
        taken[table_name(table).lower()].append(table)
    return [
        Finding(
            "error",
            name,
            f"{' and '.join(map(str, sharing))} would both be written to the table {name}",
            "capture them in different pipelines, or leave one out with table.exclude.list",
        )
        for name, sharing in sorted(taken.items())
        if len(sharing) > 1
    ]


def worst(findings: Sequence[Finding]) -> Severity:
    """The gravest severity among the findings."""
    return max((finding.severity for finding in findings), key=ORDER.index, default="ok")
