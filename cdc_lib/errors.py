"""The errors, sorted by what the operator must do.

    CdcError
    ├── RetryLater          exit 3   nothing is wrong for good: run again
    ├── FixConfiguration    exit 2   change the pipeline file, the environment or the installation
    ├── FixSource           exit 4   change a setting, a right or an object on the database
    ├── ResnapshotNeeded    exit 5   the log and the tables no longer join up
    └── Interrupted         exit 130 somebody asked us to stop

Every message says what happened, why, and what to do. Drivers' own errors are classified in one place
per engine (``sources/<engine>/errors.py``) and never reach the user as they are, since their text may
repeat a connection string.
"""

from __future__ import annotations

from typing import ClassVar


class CdcError(Exception):
    """Base of all errors this package raises on purpose.

    :param what: what happened, one clause, no full stop.
    :param why: the reason, as far as it is known.
    :param remedy: what the operator should do; a command or SQL where there is one.
    """

    exit_code: ClassVar[int] = 1
    action: ClassVar[str] = "report"

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        self.what = what
        self.why = why
        self.remedy = remedy
        super().__init__(what, why, remedy)

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"Why: {self.why}")
        if self.remedy:
            parts.append(f"To do: {self.remedy}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.why, self.remedy))


def _rebuild(cls: type[CdcError], what: str, why: str, remedy: str) -> CdcError:
    return cls(what, why=why, remedy=remedy)


class RetryLater(CdcError):
    """A passing fault: connection lost, another runner active, slot in use."""

    exit_code = 3
    action = "retry"


class FixConfiguration(CdcError):
    """The pipeline file, a secret, the environment or the installation is wrong."""

    exit_code = 2
    action = "fix configuration"


class FixSource(CdcError):
    """The database lacks a setting, a right or an object."""

    exit_code = 4
    action = "fix source"


class ResnapshotNeeded(CdcError):
    """Log range lost, history diverged, or a table changed under us: only a new snapshot joins it up."""

    exit_code = 5
    action = "resnapshot"


class Interrupted(CdcError):
    """SIGINT or SIGTERM; what was committed stays, the next run goes on from there."""

    exit_code = 130
    action = "none"
