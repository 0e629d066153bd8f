"""``python -m cdc_lib``: the same as ``cdc``, for places where scripts are not on the path."""

from cdc_lib.cli import main

main()
