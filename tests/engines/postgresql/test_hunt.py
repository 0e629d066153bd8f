"""The short form of ``make hunt``: a few steps from seeds that are always the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines.connect_server import ConnectServer
from tests.hunt.__main__ import play


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("seed", "steps"), [(4, 1), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_random_schema_and_history_under_kills(
    seed: int, steps: int, recording_postgres: EmbeddedPostgres, connect_server: ConnectServer, tmp_path: Path
) -> None:
    play(seed, recording_postgres, connect_server, tmp_path, steps=steps)
