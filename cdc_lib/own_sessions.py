"""Spark sessions for one statement each, with settings and views that nobody else sees.

A transaction id or user metadata for DML is a setting of the whole session, and frames belong to the session
that made them; so such DML runs in a sibling session, and its frames reach it as global temporary views.
Serverless compute has neither these settings, nor global views, nor (before environment 5) siblings: there,
and for statements that need no setting, everything happens in the one session (:func:`named`).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc_lib.delta_direct import conflict
from cdc_lib.errors import FixConfiguration
from cdc_lib.nested_types import quoted
from cdc_lib.spark_session import sibling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_CONFLICTS = (
    "DELTA_CONCURRENT",
    "io.delta.exceptions.Concurrent",
    "DELTA_METADATA_CHANGED",
    "io.delta.exceptions.MetadataChanged",
)


class OwnSessions:
    """Siblings of the session that ``main`` returns; used ones are kept for the next statement."""

    def __init__(self, main: Callable[[], SparkSession]) -> None:
        self._main = main
        self._idle: list[SparkSession] = []
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        """A session that nobody else uses meanwhile, with these settings for as long."""
        main = self._main()
        with self._lock:
            own = self._idle.pop() if self._idle else sibling(main)
        for key, value in settings.items():
            own.conf.set(key, value)
        try:
            yield own
        finally:
            for key in settings:
                own.conf.unset(key)
        with self._lock:
            self._idle.append(own)

    @contextmanager
    def using(self, settings: Mapping[str, str], views: Mapping[str, DataFrame]) -> Iterator[SparkSession]:
        """A session with these settings that knows these frames: the main one if nothing has to be set."""
        if not settings:
            with named(views, self._main()):
                yield self._main()
            return
        with self.borrow(settings) as spark, shared(views, spark):
            yield spark

    def accepts(self, settings: Mapping[str, str]) -> bool:
        """Whether the platform has sibling sessions and takes these settings."""
        from pyspark.errors import PySparkException

        try:
            with self.borrow(settings) as spark:
                return all(spark.conf.get(key) == value for key, value in settings.items())
        except (PySparkException, FixConfiguration):
            return False


def view_name() -> str:
    """A name for a temporary view that nobody else has."""
    return f"cdc_{uuid.uuid4().hex}"


@contextmanager
def named(views: Mapping[str, DataFrame], spark: SparkSession) -> Iterator[None]:
    """Frames of ``spark`` under temporary names. The session is everybody's, so take :func:`view_name`."""
    try:
        for name, frame in views.items():
            frame.createOrReplaceTempView(name)
        yield
    finally:
        for name in views:
            spark.catalog.dropTempView(name)


@contextmanager
def shared(views: Mapping[str, DataFrame], spark: SparkSession) -> Iterator[None]:
    """Frames of another session under temporary names in ``spark``: global views are the way across."""
    shared: list[str] = []
    try:
        for name, frame in views.items():
            across = view_name()
            frame.createGlobalTempView(across)
            shared.append(across)
            spark.table(f"global_temp.{across}").createOrReplaceTempView(name)
        yield
    finally:
        for name, across in zip(views, shared, strict=False):
            spark.sql(f"DROP VIEW IF EXISTS {quoted(name)}").collect()
            spark.sql(f"DROP VIEW IF EXISTS global_temp.{across}").collect()


@contextmanager
def conflicts(table: str) -> Iterator[None]:
    """Delta's concurrency exceptions as :class:`Conflict`; by name, since Connect knows no Java classes."""
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, *_raw_errors()) as error:
        # A classic session hands Delta's own exceptions over as they are.
        condition = error.getCondition() if isinstance(error, PySparkException) else ""
        text = f"{condition or ''} {error}"
        if any(word in text for word in _CONFLICTS):
            raise conflict(table) from error
        raise


def _raw_errors() -> tuple[type[Exception], ...]:
    """What a classic session raises for exceptions that PySpark does not translate."""
    try:
        from py4j.protocol import Py4JJavaError
    except ModuleNotFoundError:
        return ()
    return (Py4JJavaError,)
