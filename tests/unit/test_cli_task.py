"""``cdc`` as a job's task, and what its options put in the place of the pipeline file."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc_lib import secrets
from cdc_lib.cli import app, overrides, task
from cdc_lib.cli.stopping import run_stoppable
from cdc_lib.config import load
from cdc_lib.errors import CdcError, FixConfiguration, FixSource, ResnapshotNeeded, RetryLater
from cdc_lib.secrets import ScopedEnvironment

FILE = """\
name: shop
source:
  connector.class: postgresql
  database.hostname: ${env:SHOP_HOST}
  database.user: cdc
  database.password: ${env:SHOP_PASSWORD}
  database.dbname: shop
target: {path: ./lake, bronze: old, nonsense: 1}
"""
CATALOG = [
    "catalog=main",
    "bronze=dev_ann_shop_bronze",
    "silver=shop",
    "control=shop_cdc",
    "staging=/Volumes/s",
]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    overrides.use([], None)


@pytest.fixture
def scope(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The secrets of scope cdc_dev; asking for another one is an error of the workspace."""
    kept: dict[str, str] = {}

    def get(scope: str, key: str) -> str:
        if scope != "cdc_dev" or key not in kept:
            raise FixConfiguration(f"secret {{{{secrets/{scope}/{key}}}}} cannot be read")
        return kept[key]

    monkeypatch.setattr(secrets, "_databricks", get)
    return kept


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yml"
    path.write_text(FILE)
    return path


# -- instead of the file


def test_the_command_line_gives_the_target_and_the_secrets(file: Path, scope: dict[str, str]) -> None:
    scope.update(SHOP_HOST="db.internal", SHOP_PASSWORD="hunter2")
    overrides.use(CATALOG, "cdc_dev")
    pipeline = load(file, overrides.environment(), overrides.target())
    assert (pipeline.target.catalog, pipeline.target.bronze) == ("main", "dev_ann_shop_bronze")
    assert pipeline.target.path is None
    assert pipeline.staging == Path("/Volumes/s/shop")
    assert pipeline.source["database.hostname"] == "db.internal"
    assert pipeline.source.secret("database.password") == "hunter2"
    assert "hunter2" not in repr(pipeline)


def test_without_options_the_file_counts(file: Path) -> None:
    overrides.use([], None)
    assert overrides.target() is None
    with pytest.raises(FixConfiguration, match="nonsense"):
        load(file, {"SHOP_HOST": "h"}, overrides.target())


def test_mistakes_in_the_target_of_the_command_line_are_found(file: Path) -> None:
    overrides.use([*CATALOG, "bronz=x"], None)
    with pytest.raises(FixConfiguration, match="bronz: unknown key; did you mean bronze"):
        load(file, {"SHOP_HOST": "h"}, overrides.target())


@pytest.mark.parametrize("words", [["catalog"], ["=main"], ["catalog="], ["catalog=a", "catalog=b"]])
def test_a_target_that_is_not_key_and_value(words: list[str]) -> None:
    with pytest.raises(FixConfiguration, match="--target"):
        overrides.use(words, None)


def test_the_environment_comes_before_the_scope(scope: dict[str, str]) -> None:
    scope.update(A="from the scope", B="from the scope", C="from the scope")
    environ = ScopedEnvironment({"A": "set", "B": ""}, "cdc_dev")
    assert [environ["A"], environ["B"], environ.get("C")] == ["set", "from the scope", "from the scope"]
    assert (list(environ), len(environ)) == (["A", "B"], 2)
    assert "set" not in repr(environ)


def test_a_secret_that_is_nowhere_is_named(file: Path, scope: dict[str, str]) -> None:
    with pytest.raises(FixConfiguration, match="secrets/cdc_dev/SHOP_HOST"):
        load(file, ScopedEnvironment({}, "cdc_dev"), {"path": "x"})


# -- as a task


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, not slept."""
    taken: list[float] = []
    monkeypatch.setattr(task.time, "sleep", taken.append)
    return taken


def outcomes(monkeypatch: pytest.MonkeyPatch, *each: Exception | None) -> None:
    """What ``cdc status`` comes to, attempt by attempt."""
    left = iter(each)

    def status(_: object) -> list[Path]:
        if (outcome := next(left)) is not None:
            raise outcome
        return []

    monkeypatch.setattr(app, "_one_or_all", status)
    monkeypatch.setattr(sys, "argv", ["cdc-task", "status"])


def test_success_is_a_return(monkeypatch: pytest.MonkeyPatch, naps: list[float]) -> None:
    outcomes(monkeypatch, None)
    task.main()
    assert naps == []


def test_what_can_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, naps: list[float]) -> None:
    outcomes(monkeypatch, RetryLater("slot in use"), RetryLater("slot in use"), None)
    task.main()
    assert naps == list(task.PAUSES[:2])


def test_what_does_not_pass_is_given_up(monkeypatch: pytest.MonkeyPatch, naps: list[float]) -> None:
    outcomes(monkeypatch, *[RetryLater("slot in use")] * 4)
    with pytest.raises(RetryLater, match="slot in use"):
        task.main()
    assert naps == list(task.PAUSES)


@pytest.mark.parametrize("error", [FixConfiguration("c"), FixSource("s"), ResnapshotNeeded("r")], ids=repr)
def test_what_needs_a_person_fails_at_once(
    error: CdcError, monkeypatch: pytest.MonkeyPatch, naps: list[float]
) -> None:
    outcomes(monkeypatch, error)
    with pytest.raises(type(error)):
        task.main()
    assert naps == []


def test_what_nobody_foresaw_does_not_show_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes(monkeypatch, ValueError("password=hunter2"))
    with pytest.raises(CdcError, match="unexpected ValueError") as caught:
        task.main()
    assert caught.value.__suppress_context__
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("words", "code"), [(["ingest"], 2), (["run", "--fast"], 2)])
def test_bad_words_fail(words: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cdc-task", *words])
    with pytest.raises(CdcError, match=f"exit code {code}"):
        task.main()


def test_a_finding_fails(monkeypatch: pytest.MonkeyPatch, file: Path, scope: dict[str, str]) -> None:
    from cdc_lib import checking
    from cdc_lib.source import Finding

    found = [Finding("error", "wal_level", "is replica", "ALTER SYSTEM SET wal_level = logical")]
    monkeypatch.setattr(checking, "check_pipeline", lambda pipeline: found)
    scope.update(SHOP_HOST="h")
    options = [f"--target={line}" for line in CATALOG]
    monkeypatch.setattr(sys, "argv", ["cdc-task", "--secrets=cdc_dev", *options, "check", str(file)])
    with pytest.raises(CdcError, match="exit code 1"):
        task.main()


def in_a_thread(work: Callable[[], object]) -> object:
    """What ``work`` returns when it is not called by the main thread."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(10)
    return found[0]


def test_a_command_runs_outside_the_main_thread() -> None:
    """Where a platform calls us from a thread of its own, signal handlers are refused."""
    assert in_a_thread(lambda: run_stoppable(lambda stop: stop.is_set())) is False
