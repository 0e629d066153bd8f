"""Passwords on their way to Spark's workers: in two halves, neither of which says anything."""

from __future__ import annotations

import pickle
import stat
from pathlib import Path

import pytest

from cdc_lib.errors import FixConfiguration
from cdc_lib.handover import Handover, handed_over
from cdc_lib.pipeline import SourceConfig
from cdc_lib.secrets import SecretRef

PASSWORD = "pä$$word ${env:NOT_THIS} {{secrets/a/b}}"
ADDRESS = "db.of.nobody.example"


@pytest.fixture
def config() -> SourceConfig:
    values = {
        "database.hostname": ADDRESS,
        "database.password": SecretRef("${env:SHOP}"),
        "database.sslpassword": SecretRef("written in the file"),
    }
    return SourceConfig("postgresql", "shop", values, environ={"SHOP": PASSWORD})


def test_a_worker_receives_what_the_run_has(config: SourceConfig, tmp_path: Path) -> None:
    with handed_over(config, tmp_path) as handover:
        received = pickle.loads(pickle.dumps(handover)).received()
    assert received.secret("database.password") == PASSWORD
    assert received.secret("database.sslpassword") == "written in the file"
    assert received["database.hostname"] == ADDRESS
    assert received["slot.name"] == config["slot.name"]


def test_neither_half_says_anything(config: SourceConfig, tmp_path: Path) -> None:
    with handed_over(config, tmp_path) as handover:
        (file,) = tmp_path.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for half in (pickle.dumps(handover), file.read_bytes()):
            for secret in (PASSWORD, "written in the file", ADDRESS):
                assert secret.encode() not in half
        assert PASSWORD not in repr(handover)
        assert len(file.read_bytes()) % 1024 == 0


def test_each_time_with_another_pad(config: SourceConfig, tmp_path: Path) -> None:
    with handed_over(config, tmp_path) as one, handed_over(config, tmp_path) as other:
        assert one.half != other.half


def test_afterwards_nothing_is_left(config: SourceConfig, tmp_path: Path) -> None:
    with handed_over(config, tmp_path) as handover:
        pass
    assert not list(tmp_path.iterdir())
    with pytest.raises(FixConfiguration, match="cannot read"):
        handover.received()


def test_a_half_that_somebody_changed_is_refused(config: SourceConfig, tmp_path: Path) -> None:
    """It would decide what a worker unpickles."""
    with handed_over(config, tmp_path) as handover:
        path = Path(handover.path)
        pad = bytearray(path.read_bytes())
        pad[20] ^= 1
        path.write_bytes(pad)
        with pytest.raises(FixConfiguration, match="not what the run wrote"):
            handover.received()


def test_a_password_that_is_not_there_is_said_before_any_task_runs(tmp_path: Path) -> None:
    config = SourceConfig("postgresql", "shop", {"database.password": SecretRef("${env:NO}")}, environ={})
    with pytest.raises(FixConfiguration, match="NO is not set"), handed_over(config, tmp_path):
        pytest.fail("it must not come that far")
    assert not list(tmp_path.iterdir())


def test_a_source_without_passwords(tmp_path: Path) -> None:
    config = SourceConfig("postgresql", "shop", {"database.hostname": ADDRESS}, environ={})
    with handed_over(config, tmp_path) as handover:
        assert isinstance(handover, Handover)
        assert handover.received().secret("database.password") is None
