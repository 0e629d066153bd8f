"""What a table rule says about tables beyond their rows: comments, tags, personal data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from cdc_lib import checking
from cdc_lib.config import Pipeline, parse
from cdc_lib.errors import FixConfiguration
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.source import Finding

SOURCE = {
    "connector.class": "postgresql",
    "database.hostname": "h",
    "database.user": "u",
    "database.dbname": "d",
}
RULE = {
    "match": "public[.]t",
    "comment": "Ours",
    "comments": {"id": "the number", "name": "not used"},
    "tags": {"domain": "sales"},
    "pii": ["name"],
}
TABLE = Table(
    TableId("public", "t"),
    (Column("id", pa.int32(), "integer"), Column("name", pa.string(), "text", comment="theirs")),
    ("id",),
)


def pipeline(*rules: dict[str, Any], **target: str) -> Pipeline:
    content = {"name": "p", "source": SOURCE, "target": target or {"path": "lake"}, "tables": list(rules)}
    return parse(content)


def test_comments_are_the_rules_where_the_source_has_none() -> None:
    described = pipeline(RULE).rule(TABLE.id).described(TABLE)
    assert described.comment == "Ours"
    assert [column.comment for column in described.columns] == ["the number", "theirs"]


def test_words_about_a_table_do_not_change_what_rows_look_like() -> None:
    plain = pipeline({"match": "public[.]t"})
    assert pipeline(RULE).fingerprint() == plain.fingerprint()
    assert pipeline({**RULE, "scd": 2}).fingerprint() != plain.fingerprint()


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"pii": "email"}, r"tables\[0\]\.pii: expected a list"),
        ({"pii": [1]}, r"tables\[0\]\.pii\[0\]: expected a text"),
        ({"tags": ["a"]}, r"tables\[0\]\.tags: expected keys with values"),
        ({"tags": {"a": 1}}, r"tables\[0\]\.tags\.a: expected a text"),
        ({"comments": {"id": 1}}, r"tables\[0\]\.comments\.id: expected a text"),
        ({"tag": {"a": "b"}}, "did you mean tags"),
    ],
)
def test_a_mistake_is_named_with_its_place(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FixConfiguration, match=complaint):
        pipeline({"match": ".*", **said})


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pipeline], list[Finding]]:
    """``cdc check`` of a pipeline whose database has one table."""

    class Source:
        def __enter__(self) -> Source:
            return self

        def __exit__(self, *error: object) -> None:
            return None

        def check(self) -> list[Finding]:
            return []

        def tables(self) -> list[TableId]:
            return [TABLE.id]

        def describe(self, table: TableId) -> Table:
            return TABLE

    monkeypatch.setattr(checking, "open_source", lambda config: Source())
    return checking.check_pipeline


def test_check_names_columns_that_are_not_there(found: Callable[[Pipeline], list[Finding]]) -> None:
    rule = {"match": ".*", "pii": ["nmae"], "comments": {"name": "x", "gone": "y"}}
    [finding] = found(pipeline(rule, catalog="main", staging="/Volumes/main/a/b"))
    assert (finding.severity, finding.subject) == ("warning", "public.t")
    assert finding.message.endswith("gone, nmae")


def test_check_says_that_tags_are_set_in_unity_catalog_alone(
    found: Callable[[Pipeline], list[Finding]],
) -> None:
    assert [finding.message for finding in found(pipeline(RULE))] == [
        "tags and pii are set in Unity Catalog alone, and this target is not in it"
    ]
    assert found(pipeline(RULE, catalog="main", staging="/Volumes/main/a/b")) == []
    assert found(pipeline({"match": ".*"})) == []
