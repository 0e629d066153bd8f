"""How Spark's workers come by what a source's configuration holds, passwords among it.

A worker cannot look passwords up: it has neither the run's environment nor a login of its own to a secret
scope. And they must not travel with a task, whose code may be spilled to disks and is kept by servers. So
they are cut in two halves (a one-time pad): one travels with the task, the other lies in the staging folder
for as long as the tasks run. Either alone is noise; who has both could read the staged rows anyway.

All other properties go the same way: any of them may hold what a reference named.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cdc_lib.errors import FixConfiguration
from cdc_lib.pipeline import SourceConfig
from cdc_lib.secrets import SecretRef

BLOCK = 1024
"""Both halves are a multiple of this long, so that they do not tell how long the passwords are."""


@dataclass(frozen=True)
class Handover:
    """A source without its properties, one half of these, and where the other half is.

    ``digest`` is of that other half: who can change files there must not decide what a worker unpickles.
    """

    config: SourceConfig
    half: bytes = field(repr=False)
    path: str
    digest: bytes = field(repr=False)

    def received(self) -> SourceConfig:
        """The source with all its properties, in the process that they were handed to.

        :raises FixConfiguration: the other half cannot be read.
        """
        try:
            other = Path(self.path).read_bytes()
        except OSError as error:
            raise self._unreadable(os.strerror(error.errno or 0)) from None
        if hashlib.sha256(other).digest() != self.digest:
            raise self._unreadable("it is not what the run wrote")
        values, passwords = pickle.loads(_mixed(self.half, other))
        return replace(self.config, values=values, environ=passwords)

    def _unreadable(self, why: str) -> FixConfiguration:
        return FixConfiguration(
            f"a Spark worker cannot read {self.path}",
            why=why,
            remedy="name a folder in target.staging that workers and driver share, such as a volume",
        )


@contextmanager
def handed_over(config: SourceConfig, folder: Path) -> Iterator[Handover]:
    """``config`` for processes that can read ``folder``, as long as this context is open.

    :raises FixConfiguration: what a reference names is missing or cannot be read.
    """
    values = {name: value for name, value in config.values.items() if not isinstance(value, SecretRef)}
    resolved = {name: config.secret(name) for name in config.values.keys() - values.keys()}
    passwords = {name: secret for name, secret in resolved.items() if secret}
    # By the name of the property, so that a password that looks like a reference is not taken for one.
    references = {name: SecretRef(f"${{env:{name}}}") for name in passwords}
    text = pickle.dumps(({**values, **references}, passwords))
    # What stands behind the end of a pickle is not read.
    text = text.ljust(-(-len(text) // BLOCK) * BLOCK)
    pad, path = secrets.token_bytes(len(text)), folder / f"{uuid.uuid4().hex}.half"
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pad)
        bare = replace(config, values={}, environ={})
        yield Handover(bare, _mixed(text, pad), str(path), hashlib.sha256(pad).digest())
    finally:
        path.unlink(missing_ok=True)


def _mixed(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
