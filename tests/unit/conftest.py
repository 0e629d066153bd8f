"""What a test of the command line changes in this process is put back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from cdc_lib.cli import logs


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    logger = logging.getLogger("cdc_lib")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate, logger.level = before
    logs.name_pipeline("")
