"""``heartbeat.action.query``: SQL of the user's own, executed on the source from time to time.

Debezium needs it to move a slot in a quiet database beside a busy one (guide, "WAL disk space
consumption"). Ours moves in any case; the query is for those who watch the table that it writes to.
"""

from __future__ import annotations

import time
from contextlib import closing

from cdc_lib.pipeline import SourceConfig
from cdc_lib.sources.postgresql.connection import connect_as_role, run_given

QUERY = "heartbeat.action.query"


class Heartbeat:
    """Executes the query, but not more often than every ``heartbeat.interval.ms``; 0 means never.

    In a session of its own: ours has an empty search path, under which ``INSERT INTO my_heartbeat``
    would find no table.
    """

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._due = 0.0

    def beat(self) -> None:
        """Execute the query if it is time to.

        :raises FixConfiguration: the server refuses it.
        :raises RetryLater: the server does not answer.
        """
        if not is_wanted(self._config) or time.monotonic() < self._due:
            return
        with closing(connect_as_role(self._config)) as connection:
            run_given(connection, QUERY, [self._config[QUERY]])
        self._due = time.monotonic() + self._config["heartbeat.interval.ms"] / 1000


def is_wanted(config: SourceConfig) -> bool:
    """Whether the pipeline file asks for a query to be executed at all."""
    return config[QUERY] is not None and config["heartbeat.interval.ms"] != 0
