"""The ``cdc`` command: one verb per thing an operator wants, the same on a laptop and as a job's task."""

from cdc_lib.cli.app import main

__all__ = ["main"]
