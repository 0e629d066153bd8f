"""The package as a library, as far as it needs no server and no Spark; for the rest, see the notebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cdc_lib
from cdc_lib.control import Control
from cdc_lib.control.signals import Answer
from cdc_lib.delta import Lake

FILE = """\
name: My-Shop
source:
  connector.class: postgresql
  database.hostname: ${env:NOT_THERE}
  database.user: cdc
  database.password: x
  database.dbname: shop
target: {path: ./lake}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOT_THERE", "localhost")
    path = tmp_path / "shop.yml"
    path.write_text(FILE)
    return path


def test_tables_go_where_the_file_says(file: Path) -> None:
    found = cdc_lib.open_pipeline(file)
    assert found.schemas == {"bronze": "`bronze`", "silver": "`silver`", "control": "`control`"}
    assert repr(found) == "OpenPipeline('My-Shop')"


def test_or_into_a_catalog_as_the_bundle_names_schemas_and_volume(file: Path) -> None:
    found = cdc_lib.open_pipeline(file, catalog="main", prefix="dev_ann_")
    assert found.schemas == {
        "bronze": "`main`.`dev_ann_my_shop_bronze`",
        "silver": "`main`.`dev_ann_my_shop`",
        "control": "`main`.`dev_ann_my_shop_cdc`",
    }
    assert found.pipeline.target.staging == Path("/Volumes/main/dev_ann_my_shop_cdc/staging")


def test_or_where_the_target_given_says(file: Path) -> None:
    found = cdc_lib.open_pipeline(file, target={"path": "elsewhere", "silver": "clean"})
    assert found.schemas["silver"] == "`clean`"


def test_a_signal_waits_for_its_answer(file: Path) -> None:
    found = cdc_lib.open_pipeline(file)
    asked = found.signal("execute-snapshot", {"data-collections": ["public.orders"]})
    assert found.answer(asked) is None
    control = Control(Lake(found.pipeline.target), found.name)
    (signal,) = control.signals.load()
    assert (signal.id, signal.data) == (asked, '{"data-collections": ["public.orders"]}')
    control.answers.create()
    control.answers.add([Answer(asked, "accepted", "done")])
    answer = found.answer(asked)
    assert answer is not None
    assert answer.status == "accepted"


def test_nothing_captured_is_nothing_to_maintain(file: Path) -> None:
    assert cdc_lib.open_pipeline(file).maintain().tables == ()
    assert not (file.parent / "lake").exists()


def test_importing_the_package_loads_nothing_of_it() -> None:
    """Spark's workers import it, too."""
    script = "import sys, cdc_lib; print([name for name in sys.modules if name.startswith('cdc_lib.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_the_package_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_database'"):
        cdc_lib.open_database  # noqa: B018
