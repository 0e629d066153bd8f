"""One wheel for all tests of this folder."""

from __future__ import annotations

import pytest

from tests.bundle.built import Wheel, build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    return build_wheel(tmp_path_factory.mktemp("dist"))
