"""References to values outside the pipeline file, and passwords that never show themselves.

Three kinds, the first two written as Kafka Connect writes them, so that a connector file can be pasted:

    ${env:NAME}             an environment variable
    ${file:/path}           the whole text of a file;  ${file:/path:key} one key of a properties file
    {{secrets/scope/key}}   a Databricks secret

A password-like property becomes a :class:`SecretRef`, which is resolved when a connection is made and not
before: commands that do not connect need no password, and nothing that is stored or shipped holds one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cdc_lib.errors import FixConfiguration

_REFERENCE = re.compile(
    r"\$\{(?P<kind>\w+):(?P<where>[^{}]*)\}|\{\{\s*secrets/(?P<scope>[^/{}]+)/(?P<key>[^/{}]+?)\s*\}\}"
)
# Two mistakes that would otherwise be taken for a literal password: no kind, and Databricks' form cut short.
_BROKEN = re.compile(r"\$\{\w*\}|\{\{\s*secrets[^{}]*\}\}")
_FILE_KEY = re.compile(r"(?P<path>.+):(?P<key>[\w.-]+)")

KINDS = "${env:NAME}, ${file:/path}, ${file:/path:key} and {{secrets/scope/key}}"


def has_reference(text: str) -> bool:
    """Whether ``text`` refers to, or looks as if it were meant to refer to, a value outside the file."""
    return bool(_REFERENCE.search(text) or _BROKEN.search(text))


def check_references(text: str) -> None:
    """Find badly written references without resolving any.

    :raises ValueError: a reference of an unknown form. The message never repeats ``text``.
    """
    rest = _REFERENCE.sub("", text)
    kinds = {found["kind"] for found in _REFERENCE.finditer(text) if found["kind"]}
    if _BROKEN.search(rest) or not kinds <= _RESOLVERS.keys():
        raise ValueError(f"a reference is written in a way that is not known; known are {KINDS}")


def resolve(text: str, environ: Mapping[str, str]) -> str:
    """``text`` with every reference replaced by what it refers to.

    :raises ValueError: a reference of an unknown form.
    :raises FixConfiguration: what it refers to is missing or cannot be read.
    """
    check_references(text)

    def replace(found: re.Match[str]) -> str:
        if found["kind"] is None:
            return _databricks(found["scope"], found["key"])
        return _RESOLVERS[found["kind"]](found["where"], environ)

    return _REFERENCE.sub(replace, text)


class SecretRef:
    """A password: a reference that is resolved on demand, or a literal one that is kept from view.

    ``repr`` and ``str`` show a reference, never a literal. Pickling ships references only, since a pickle
    ends in Spark plans and task binaries.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def reference(self) -> str | None:
        """The reference, if the whole value is one; None for a literal or a mixture."""
        found = _REFERENCE.fullmatch(self._text)
        return self._text if found and (found["kind"] is None or found["kind"] in _RESOLVERS) else None

    def resolve(self, environ: Mapping[str, str] = os.environ) -> str:
        """The password itself. Hand it to the driver; do not keep it.

        :raises FixConfiguration: what the reference names is missing, empty or cannot be read.
        """
        value, complaint = "", ""
        try:
            value = resolve(self._text, environ)
        except ValueError as error:
            complaint = str(error)
        if complaint:
            raise FixConfiguration(complaint, remedy="write one of these forms")
        return value

    def __repr__(self) -> str:
        return f"SecretRef({self.reference or '***'})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretRef) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __copy__(self) -> SecretRef:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SecretRef:
        return self

    def __reduce__(self) -> tuple[type[SecretRef], tuple[str]]:
        if self.reference is None:
            raise FixConfiguration(
                "a password that is written in the pipeline file cannot be sent to another process",
                why="it would end in a Spark plan or a task's code, where others can read it",
                remedy=f"refer to it instead: {KINDS}",
            )
        return SecretRef, (self.reference,)


class ScopedEnvironment(Mapping[str, str]):
    """Environment variables, and for those that are not set, the keys of a Databricks secret scope.

    A task on serverless compute has no environment of its own. With this, ``${env:SHOP_PASSWORD}`` means the
    shell's variable on a laptop and, in a job, the secret of that name in the scope of its deployment: one
    pipeline file serves all. Secrets are looked up when asked for and not kept.
    """

    def __init__(self, base: Mapping[str, str], scope: str) -> None:
        self._base = base
        self._scope = scope

    def __getitem__(self, name: str) -> str:
        return self._base.get(name) or _databricks(self._scope, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)

    def __repr__(self) -> str:
        return f"ScopedEnvironment({self._scope!r})"


def _environment(name: str, environ: Mapping[str, str]) -> str:
    if value := environ.get(name):
        return value
    state = "empty" if name in environ else "not set"
    raise FixConfiguration(
        f"environment variable {name} is {state}",
        why="the pipeline file refers to it",
        remedy=f"export {name}=...",
    )


def _file(where: str, environ: Mapping[str, str]) -> str:
    path = Path(where).expanduser()
    if path.exists():
        return _text(path).rstrip("\r\n")
    if (found := _FILE_KEY.fullmatch(where)) and Path(found["path"]).expanduser().exists():
        return _properties_key(Path(found["path"]).expanduser(), found["key"])
    raise FixConfiguration(
        f"file {where} does not exist",
        why="the pipeline file refers to it",
        remedy="create it or correct the path",
    )


def _text(path: Path) -> str:
    problem = ""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        problem = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        # Not chained: the decoder's error carries the file's bytes.
        problem = "it is not UTF-8 text"
    raise FixConfiguration(
        f"file {path} cannot be read", why=problem, remedy="correct its rights, its encoding or the path"
    )


def _properties_key(path: Path, key: str) -> str:
    for line in _text(path).splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == key and not line.lstrip().startswith(("#", "!")):
            return value.strip()
    raise FixConfiguration(f"file {path} has no key {key}", remedy=f"add a line {key}=...")


def _databricks(scope: str, key: str) -> str:
    try:
        from databricks.sdk import WorkspaceClient
        from databricks.sdk.errors import DatabricksError
    except ModuleNotFoundError:
        raise FixConfiguration(
            f"secret {{{{secrets/{scope}/{key}}}}} needs the Databricks SDK",
            why="module databricks.sdk is not installed",
            remedy="pip install 'cdc-lib[databricks]', or refer to an environment variable: ${env:NAME}",
        ) from None
    problem = ""
    try:
        return str(WorkspaceClient().dbutils.secrets.get(scope, key))
    except (DatabricksError, ValueError) as error:
        # ValueError is how the SDK says that it found no workspace to log in to.
        problem = type(error).__name__
    raise FixConfiguration(
        f"secret {{{{secrets/{scope}/{key}}}}} cannot be read",
        why=f"the workspace answered with {problem}",
        remedy=f"databricks secrets list-secrets {scope}; whoever runs this needs READ on the scope, and a "
        f"missing key is added by: databricks secrets put-secret {scope} {key}",
    )


_RESOLVERS: Mapping[str, Callable[[str, Mapping[str, str]], str]] = {"env": _environment, "file": _file}
