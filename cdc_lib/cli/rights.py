"""``cdc check --databricks``: the grants that a pipeline needs, as statements, and which are missing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from cdc_lib.checking import worst
from cdc_lib.cli import output
from cdc_lib.config import Pipeline
from cdc_lib.errors import FixConfiguration
from cdc_lib.granted import check_grants
from cdc_lib.grants import ROLES


def show_grants(pipeline: Pipeline, words: Sequence[str], *, json: bool) -> int:
    """Print statements and findings; the exit code.

    :param words: ``ROLE=NAME``, who the roles are.
    :raises FixConfiguration: one of them is not of that form, or the target is not in Unity Catalog.
    """
    checked = check_grants(pipeline, _principals(words))
    if json:
        findings = [vars(finding) for finding in checked.findings]
        output.show_json({"grants": checked.statements, "findings": findings})
    else:
        console = output.stdout()
        for statement in checked.statements:
            console.print(Text(statement), soft_wrap=True)
        console.print()
        output.show_findings(checked.findings)
    return 1 if worst(checked.findings) == "error" else 0


def _principals(words: Sequence[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for word in words:
        role, equals, name = word.partition("=")
        if role not in ROLES or not equals or not name:
            raise FixConfiguration(
                f"--principal {word} is not of the form ROLE=NAME",
                why="; ".join(f"{role}: {meaning}" for role, meaning in ROLES.items()),
                remedy="--principal analysts=data-analysts",
            )
        named[role] = name
    return named
