"""``cdc check --databricks``: the least rights, as statements, and what a workspace says of them. Here that
is a server which answers the few requests of Databricks' SDK as its documentation says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from typer.testing import CliRunner, Result

from cdc_lib.cli.app import app
from cdc_lib.config import parse
from cdc_lib.errors import FixConfiguration
from cdc_lib.grants import needed

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = """
name: shop
source: {connector.class: postgresql, database.hostname: h, database.user: u, database.dbname: d}
target: {catalog: main, staging: /Volumes/main/shop_cdc/staging}
"""
RUNNER = "8a2f-robot"
STATEMENTS = [
    "GRANT USE CATALOG ON CATALOG `main` TO `8a2f-robot`;",
    "GRANT USE CATALOG ON CATALOG `main` TO `<operators>`;",
    "GRANT USE CATALOG ON CATALOG `main` TO `data-analysts`;",
    "GRANT USE SCHEMA, CREATE TABLE, SELECT, MODIFY ON SCHEMA `main`.`shop_bronze` TO `8a2f-robot`;",
    "GRANT USE SCHEMA, SELECT ON SCHEMA `main`.`shop_bronze` TO `<operators>`;",
    "GRANT USE SCHEMA, CREATE TABLE, SELECT, MODIFY ON SCHEMA `main`.`shop` TO `8a2f-robot`;",
    "GRANT USE SCHEMA, SELECT ON SCHEMA `main`.`shop` TO `<operators>`;",
    "GRANT USE SCHEMA, SELECT ON SCHEMA `main`.`shop` TO `data-analysts`;",
    "GRANT USE SCHEMA, CREATE TABLE, SELECT, MODIFY ON SCHEMA `main`.`shop_cdc` TO `8a2f-robot`;",
    "GRANT USE SCHEMA, SELECT, MODIFY ON SCHEMA `main`.`shop_cdc` TO `<operators>`;",
    "GRANT READ VOLUME, WRITE VOLUME ON VOLUME `main`.`shop_cdc`.`staging` TO `8a2f-robot`;",
]


class Workspace:
    """Owners and grants by object; an object that has neither does not exist."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.grants: dict[str, list[tuple[str, list[str]]]] = {}
        self.groups: list[str] = []
        self.asked: list[str] = []

    def everything(self, *without: tuple[str, str]) -> None:
        """What the statements above give the runner, but for some privileges."""
        for grant in needed(parse(PIPELINE)):
            if grant.role == "runner":
                name = ".".join(grant.name)
                self.owners[name] = "somebody"
                held = [each.replace(" ", "_") for each in grant.privileges if (name, each) not in without]
                self.grants[name] = [(RUNNER, held)]

    def answer(self, path: str) -> dict[str, Any] | None:
        self.asked.append(path)
        if path.endswith("/scim/v2/Me"):
            return {"userName": RUNNER, "groups": [{"display": name} for name in self.groups]}
        name = path.rpartition("/")[2]
        if name not in self.owners:
            return None
        if "/effective-permissions/" in path:
            return {
                "privilege_assignments": [
                    {"principal": who, "privileges": [{"privilege": each} for each in held]}
                    for who, held in self.grants.get(name, [])
                ]
            }
        return {"full_name": name, "owner": self.owners[name]}


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Workspace]:
    found = Workspace()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = found.answer(unquote(urlsplit(self.path).path))
            missing = {"error_code": "NOT_FOUND", "message": "does not exist"}
            body = json.dumps(missing if answer is None else answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return None

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    no_login(monkeypatch, tmp_path)
    monkeypatch.setenv("DATABRICKS_HOST", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("DATABRICKS_TOKEN", "dapi-secret")
    yield found
    server.shutdown()
    server.server_close()


def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DATABRICKS_HOST", "DATABRICKS_TOKEN", "DATABRICKS_CONFIG_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "none.cfg"))
    monkeypatch.setenv("DATABRICKS_AUTH_TYPE", "pat")


def check(tmp_path: Path, *words: str, target: tuple[str, ...] = ()) -> Result:
    file = tmp_path / "shop.yml"
    file.write_text(PIPELINE, encoding="utf-8")
    return CliRunner().invoke(app, [*target, "check", str(file), "--databricks", *words])


def shown(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_statements(workspace: Workspace, tmp_path: Path) -> None:
    workspace.everything()
    result = check(tmp_path, "--principal", "analysts=data-analysts", "--json")
    assert shown(result)["grants"] == STATEMENTS


def test_all_is_granted(workspace: Workspace, tmp_path: Path) -> None:
    workspace.everything()
    result = check(tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("ok ") == 5
    assert "8a2f-robot has READ VOLUME, WRITE VOLUME" in result.stdout


def test_what_is_missing_comes_with_its_statement(workspace: Workspace, tmp_path: Path) -> None:
    workspace.everything(("main.shop", "MODIFY"), ("main.shop", "CREATE TABLE"))
    result = check(tmp_path, "--json")
    assert result.exit_code == 1
    [finding] = [each for each in shown(result)["findings"] if each["severity"] == "error"]
    assert finding["subject"] == "main.shop"
    assert finding["message"] == "8a2f-robot lacks CREATE TABLE, MODIFY"
    assert finding["remedy"] == "GRANT CREATE TABLE, MODIFY ON SCHEMA `main`.`shop` TO `8a2f-robot`;"


@pytest.mark.parametrize(
    ("principal", "privilege"), [("team", "MODIFY"), ("account users", "MODIFY"), (RUNNER, "ALL_PRIVILEGES")]
)
def test_groups_everybody_and_all_privileges_count(
    workspace: Workspace, tmp_path: Path, principal: str, privilege: str
) -> None:
    workspace.everything(("main.shop", "MODIFY"))
    workspace.groups = ["team"]
    workspace.grants["main.shop"].append((principal, [privilege]))
    assert check(tmp_path).exit_code == 0


def test_grants_of_others_do_not(workspace: Workspace, tmp_path: Path) -> None:
    workspace.everything(("main.shop", "MODIFY"))
    workspace.grants["main.shop"].append(("another", ["MODIFY"]))
    assert check(tmp_path).exit_code == 1


def test_an_owner_needs_none(workspace: Workspace, tmp_path: Path) -> None:
    workspace.everything()
    workspace.owners["main.shop"], workspace.grants["main.shop"] = RUNNER, []
    assert check(tmp_path).exit_code == 0


def test_a_schema_that_is_not_there(workspace: Workspace, tmp_path: Path) -> None:
    workspace.everything()
    del workspace.owners["main.shop_bronze"]
    result = check(tmp_path)
    assert result.exit_code == 1
    assert "there is no such schema" in result.stdout


def test_of_named_roles_their_own_grants_are_looked_up(workspace: Workspace, tmp_path: Path) -> None:
    workspace.everything()
    result = check(tmp_path, "--principal", "analysts=data-analysts", "--json")
    assert result.exit_code == 1
    lacking = [each["remedy"] for each in shown(result)["findings"] if each["severity"] == "error"]
    assert lacking == [line for line in STATEMENTS if "data-analysts" in line]


def test_without_a_login_the_statements_are_printed_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_login(monkeypatch, tmp_path)
    result = check(tmp_path)
    assert result.exit_code == 0
    assert "TO `<runner>`;" in result.stdout
    assert "the grants cannot be looked up: no login to a workspace was found" in result.stdout


def test_it_changes_nothing_there_and_shows_no_token(workspace: Workspace, tmp_path: Path) -> None:
    """The stand-in answers GET alone."""
    workspace.everything()
    assert "dapi" not in check(tmp_path).output
    assert sum(path.startswith("/api/") for path in workspace.asked) == 1 + 2 * 5


def test_a_laptop_has_no_grants(tmp_path: Path) -> None:
    result = check(tmp_path, target=("--target", "path=lake"))
    assert isinstance(result.exception, FixConfiguration)
    assert "does not write to Unity Catalog" in str(result.exception)


@pytest.mark.parametrize("word", ["analysts", "analyst=x", "analysts="])
def test_a_role_that_is_not_one(tmp_path: Path, word: str) -> None:
    result = check(tmp_path, "--principal", word)
    assert isinstance(result.exception, FixConfiguration)
    assert "ROLE=NAME" in str(result.exception)


def test_the_bundle_grants_the_same() -> None:
    bundle: set[tuple[str, str, frozenset[str]]] = set()
    for layer in ("bronze", "silver", "control"):
        content = yaml.safe_load((ROOT / f"resources/per_pipeline/{layer}.schema.yml").read_text())
        for grant in content["grants"]:
            role = grant["principal"].removeprefix("${var.").removesuffix("}")
            rights = frozenset(each.replace("_", " ") for each in grant["privileges"])
            bundle.add((layer, role, rights))
    names = {"shop_bronze": "bronze", "shop": "silver", "shop_cdc": "control"}
    ours = {
        (names[grant.name[-1]], grant.role, frozenset(grant.privileges))
        for grant in needed(parse(PIPELINE))
        if grant.kind == "SCHEMA"
    }
    assert ours == bundle
