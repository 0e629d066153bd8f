"""The wheel that the bundle's tasks install: what is in it, what it asks for, and that it starts."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

from cdc_lib import __version__
from resources import extras
from tests.bundle.built import Wheel


def test_it_holds_the_package_and_nothing_else(wheel: Wheel) -> None:
    tops = {name.partition("/")[0] for name in wheel.files}
    assert tops == {"cdc_lib", f"cdc_lib-{wheel.version}.dist-info"}
    assert {"cdc_lib/py.typed", "cdc_lib/cli/task.py", "cdc_lib/sources/postgresql/source.py"} <= set(
        wheel.files
    )
    assert any(name.endswith("licenses/LICENSE") for name in wheel.files)
    assert {f"cdc_lib/monitoring/templates/{name}" for name in ("page.html.j2", "page.css")} <= {*wheel.files}


def test_what_it_says_of_itself(wheel: Wheel) -> None:
    assert (wheel.name, wheel.version) == ("cdc-lib", __version__)
    # Python of the serverless environments 3 to 5 and of the runtimes 16 to 18.
    assert sorted(wheel.requires_python.split(",")) == ["<3.13", ">=3.10"]
    assert wheel.extras.keys() == {"local", "databricks", "postgresql", "prometheus", "otel"}


def test_a_workspace_is_not_given_another_spark(wheel: Wheel) -> None:
    deployed = {name for extra in ("databricks", "postgresql") for name in wheel.extras[extra]}
    assert not any(word in name for name in deployed for word in ("pyspark", "delta", "pandas", "pgserver"))
    assert any(name.startswith("psycopg2-binary") for name in wheel.extras["postgresql"])
    assert any(name.startswith("databricks-sdk") for name in wheel.extras["databricks"])


def test_a_cluster_is_given_what_the_extras_stand_for(wheel: Wheel) -> None:
    assert set(extras("postgresql", "databricks")) == wheel.extras["postgresql"] | wheel.extras["databricks"]


def test_its_entry_points_are_there(wheel: Wheel) -> None:
    assert wheel.entry_points.keys() == {"cdc", "cdc-task"}
    for place in wheel.entry_points.values():
        module, _, function = place.partition(":")
        assert callable(getattr(import_module(module), function))


def test_it_starts(wheel: Wheel, tmp_path: Path) -> None:
    """From the archive, elsewhere than in the checkout, as a task calls it."""
    code = (
        f"import sys; sys.path.insert(0, {str(wheel.path)!r}); sys.argv = ['cdc', '--version']\n"
        "import cdc_lib; from cdc_lib.cli.task import main; main(); print(cdc_lib.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    version, place = done.stdout.split("\n")[:2]
    assert version == f"cdc-lib {__version__}"
    assert place.startswith(str(wheel.path))
