"""No password is ever shown: not by repr, logs, pickles, JSON, complaints or the chain of an exception."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_lib.config import Pipeline, load, parse
from cdc_lib.errors import CdcError, FixConfiguration
from cdc_lib.properties import property_table
from cdc_lib.secrets import SecretRef

SECRET = "hunter2"
SOURCE: dict[str, Any] = {
    "connector.class": "postgresql",
    "database.hostname": "localhost",
    "database.user": "cdc",
    "database.dbname": "shop",
}
IMPLEMENTED = [row.name for row in property_table("postgresql").rows if row.status == "implemented"]
PASSWORDS = [row.name for row in property_table("postgresql").rows if row.secret]


def pipeline(password: str, environ: dict[str, str] | None = None) -> Pipeline:
    source = SOURCE | {"database.password": password}
    return parse({"name": "shop", "source": source, "target": {"path": "lake"}}, environ=environ or {})


def everything_said(error: BaseException) -> str:
    """The message, all that a traceback prints, and what hangs on the exception for a logger to find."""
    seen, parts = set(), ["".join(traceback.format_exception(error))]
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            parts += [str(one), repr(one), repr(one.args), repr(vars(one))]
            pending += [one.__cause__, one.__context__]
    return "\n".join(parts)


def everything_shown(loaded: Pipeline) -> Iterator[str]:
    source = loaded.source
    yield from (repr(loaded), str(loaded), f"{loaded}", repr(source), repr(source["database.password"]))
    yield from (str(notice) for notice in loaded.notices)
    yield repr(source.values)
    yield logging.makeLogRecord({"msg": "%s %r", "args": (loaded, source)}).getMessage()
    yield json.dumps(source.values, default=repr)
    yield loaded.fingerprint()


@pytest.mark.parametrize("password", [SECRET, "x" + SECRET + "${env:A}", "${env:A}"])
def test_a_pipeline_never_shows_its_password(password: str) -> None:
    loaded = pipeline(password, {"A": SECRET})
    assert SECRET in (loaded.source.secret("database.password") or "")
    for text in everything_shown(loaded):
        assert SECRET not in text


def test_a_secret_cannot_be_turned_into_json() -> None:
    with pytest.raises(TypeError) as caught:
        json.dumps(SecretRef(SECRET))
    assert SECRET not in everything_said(caught.value)


def test_a_pickle_holds_references_and_no_environment() -> None:
    data = pickle.dumps(pipeline("${env:SHOP_PW}", {"SHOP_PW": SECRET}))
    assert SECRET.encode() not in data
    assert pickle.loads(data) == pipeline("${env:SHOP_PW}")


def test_a_literal_password_is_not_pickled() -> None:
    with pytest.raises(FixConfiguration, match="cannot be sent to another process") as caught:
        pickle.dumps(pipeline(SECRET))
    assert SECRET not in everything_said(caught.value)


def test_copies_stay_in_the_process() -> None:
    reference = SecretRef(SECRET)
    assert copy.copy(reference) is copy.deepcopy(reference) is reference


def test_an_unpickled_reference_is_resolved_where_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = pickle.loads(pickle.dumps(pipeline("${env:SHOP_PW}")))
    monkeypatch.setenv("SHOP_PW", "there")
    assert loaded.source.secret("database.password") == "there"


def test_a_literal_password_is_noticed() -> None:
    (notice,) = pipeline(SECRET).notices
    assert notice.path == "source.database.password"
    assert pipeline("${env:A}").notices == ()


def test_no_password_is_none() -> None:
    loaded = parse({"name": "shop", "source": SOURCE, "target": {"path": "lake"}})
    assert loaded.source.secret("database.password") is None


# -- resolving


def test_a_file_is_read_without_its_last_line_break(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text(" with space \n", encoding="utf-8")
    assert SecretRef(f"${{file:{tmp_path}/pw}}").resolve() == " with space "


def test_a_file_is_read_at_connect_time(tmp_path: Path) -> None:
    loaded = pipeline(f"${{file:{tmp_path}/pw}}")
    (tmp_path / "pw").write_text("later", encoding="utf-8")
    assert loaded.source.secret("database.password") == "later"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${env:NOT_THERE}", "environment variable NOT_THERE is not set"),
        ("${env:EMPTY}", "environment variable EMPTY is empty"),
        ("${file:/no/such/file}", "file /no/such/file does not exist"),
    ],
)
def test_what_is_missing_is_named(text: str, message: str) -> None:
    with pytest.raises(FixConfiguration, match=message):
        SecretRef(text).resolve({"EMPTY": ""})


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "pw").write_bytes(SECRET.encode() + b"\xff")
    with pytest.raises(FixConfiguration, match="not UTF-8") as caught:
        SecretRef(f"${{file:{tmp_path}/pw}}").resolve()
    assert SECRET not in everything_said(caught.value)


def test_a_key_that_a_properties_file_lacks(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(f"#pw={SECRET}\nother={SECRET}\n", encoding="utf-8")
    with pytest.raises(FixConfiguration, match="has no key pw") as caught:
        SecretRef(f"${{file:{tmp_path}/p:pw}}").resolve()
    assert SECRET not in everything_said(caught.value)


def test_databricks_without_its_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "databricks.sdk", None)
    loaded = pipeline("{{secrets/scope/key}}")
    with pytest.raises(FixConfiguration, match=re.escape("cdc-lib[databricks]")):
        loaded.source.secret("database.password")


def test_databricks_with_its_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    class DatabricksError(Exception):
        pass

    def get(scope: str, key: str) -> str:
        if scope != "scope":
            raise DatabricksError(f"no {scope}, but {SECRET}")
        return f"{scope}/{key}"

    client = SimpleNamespace(dbutils=SimpleNamespace(secrets=SimpleNamespace(get=get)))
    monkeypatch.setitem(sys.modules, "databricks", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "databricks.sdk", SimpleNamespace(WorkspaceClient=lambda: client))
    monkeypatch.setitem(
        sys.modules, "databricks.sdk.errors", SimpleNamespace(DatabricksError=DatabricksError)
    )
    assert SecretRef("{{ secrets/scope/key }}").resolve() == "scope/key"
    with pytest.raises(FixConfiguration, match="cannot be read") as caught:
        SecretRef("{{secrets/other/key}}").resolve()
    assert SECRET not in str(caught.value)


def test_databricks_reference_without_quotes() -> None:
    """YAML takes it for a mapping whose key is a mapping; everybody writes it so."""
    text = (
        "name: shop\nsource:\n  connector.class: postgresql\n  database.hostname: h\n  database.user: u\n"
        "  database.dbname: d\n  database.password: {{secrets/scope/key}}\ntarget: {path: lake}\n"
    )
    password = parse(text).source["database.password"]
    assert password == SecretRef("{{secrets/scope/key}}")
    assert password.reference == "{{secrets/scope/key}}"


# -- complaints

text_of_a_password = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\x85\u2028\u2029"), max_size=12
).map(lambda text: text + SECRET)
around_a_password = st.sampled_from(
    [
        "{}",
        "*{}",
        "!{}",
        "[{}",
        "{{{}",
        "{{{}: 1}}",
        "{}: {}",
        '"{}',
        "|{}",
        "&{} x",
        "!{}!x",
        "&{} {{a: &{} x}}",
    ]
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(PASSWORDS), password=text_of_a_password, form=around_a_password)
@example(name="database.password", password=SECRET, form="*{}")
@example(name="database.password", password=SECRET, form="!{}!x")
@example(name="database.password", password=SECRET, form="&{} [&{} x]")
@example(name="database.password", password=SECRET, form="{{{}, {}}}")
def test_no_complaint_repeats_a_password_in_the_file(name: str, password: str, form: str) -> None:
    """As people write passwords: raw, so that YAML may choke on it in any way it likes."""
    written = form.format(*[password] * form.count("{}"))
    text = f"name: shop\nsource:\n  database.port: x\n  connector.class: postgresql\n  {name}: {written}\n"
    with pytest.raises(CdcError) as caught:
        parse(text, environ={})
    assert SECRET not in everything_said(caught.value)


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(IMPLEMENTED), value=text_of_a_password)
def test_no_complaint_repeats_what_a_reference_stands_for(name: str, value: str) -> None:
    source = SOURCE | {name: "${env:A}", "database.port": "x" if name != "database.port" else "${env:A}"}
    with pytest.raises(FixConfiguration) as caught:
        parse({"name": "shop", "source": source, "target": {"path": "lake"}}, environ={"A": value})
    assert SECRET not in everything_said(caught.value)


SECTIONS: list[dict[str, Any]] = [
    {"name": "${env:A}"},
    {"target": {"path": "lake", "bronze": "${env:A}"}},
    {"target": {"path": "s3://${env:A}"}},
    {"target": {"path": "lake", "writer": "${env:A}"}},
    {"tables": [{"match": "${env:A}("}]},
    {"tables": [{"match": "a", "delete": "${env:A}"}]},
    {"tables": [{"match": "a", "scd": "${env:A}"}]},
    {"tables": [{"match": "a", "columns": {"n": "${env:A}"}}]},
    {"apply": {"mode": "${env:A}"}},
    {"apply": "${env:A}"},
    {"run": {"threads": "${env:A}"}},
]


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_no_section_repeats_what_a_reference_stands_for(section: dict[str, Any]) -> None:
    content = {"name": "shop", "source": SOURCE, "target": {"path": "lake"}} | section
    with pytest.raises(FixConfiguration) as caught:
        parse(content, environ={"A": f"-{SECRET} ("})
    assert SECRET not in everything_said(caught.value)


def test_a_salt_in_a_property_name_is_left_out() -> None:
    source = SOURCE | {
        f"column.mask.hash.SHA-256.with.salt.{SECRET}": "a",
        f"colum.mask.with.salt.{SECRET}": "b",
    }
    with pytest.raises(FixConfiguration) as caught:
        parse({"name": "shop", "source": source, "target": {"path": "lake"}})
    assert str(caught.value).count(".salt.***") == 2
    assert SECRET not in everything_said(caught.value)


@pytest.mark.parametrize(
    "text", ['{{"database.password": "{}"', '{{"database.password": "{}", "a": 1, "a": 1}}']
)
def test_a_broken_connector_file_is_not_repeated(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text.format(SECRET), encoding="utf-8")
    (tmp_path / "p.yml").write_text("source: !file c.json\ntarget: {path: lake}\n", encoding="utf-8")
    with pytest.raises(FixConfiguration) as caught:
        load(tmp_path / "p.yml")
    assert SECRET not in everything_said(caught.value)


def test_a_file_in_another_encoding_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "p.yml").write_bytes(f"password: {SECRET}".encode() + b"\xff")
    with pytest.raises(FixConfiguration) as caught:
        load(tmp_path / "p.yml")
    assert SECRET not in everything_said(caught.value)
