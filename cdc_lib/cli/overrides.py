"""What a command line says in the place of the pipeline file: where tables go, who keeps silver, and where
secrets are.

The same file then serves a laptop and every deployment. A deployment has schemas of its own (a developer's
bear the developer's name) and a secret scope of its own; a job's task has no environment to say so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from cdc_lib.errors import FixConfiguration
from cdc_lib.pipeline import ApplyConfig, Pipeline
from cdc_lib.secrets import ScopedEnvironment


@dataclass(frozen=True)
class _Overrides:
    target: Mapping[str, str] = field(default_factory=dict)
    scope: str | None = None
    apply: str | None = None


_current: ContextVar[_Overrides | None] = ContextVar("overrides", default=None)


def use(target: Sequence[str], scope: str | None, apply: str | None = None) -> None:
    """Take what the options of this command say.

    :param target: ``KEY=VALUE``, lines of the ``target:`` section.
    :param apply: the mode of the ``apply:`` section.
    :raises FixConfiguration: one of them is not of that form, or given twice.
    """
    lines: dict[str, str] = {}
    for words in target:
        key, equals, value = words.partition("=")
        if not (key and equals and value) or key in lines:
            raise FixConfiguration(
                f"--target {words} is {'given twice' if key in lines else 'not of the form KEY=VALUE'}",
                remedy="one option a line of the section: --target catalog=main --target silver=shop ...",
            )
        lines[key] = value
    _current.set(_Overrides(lines, scope, apply))


def target() -> Mapping[str, str] | None:
    """The ``target:`` section, if the command line has one."""
    return _get().target or None


def applied(pipeline: Pipeline) -> Pipeline:
    """The pipeline with the ``apply:`` mode of the command line, if that has one."""
    mode = _get().apply
    return pipeline if mode is None else replace(pipeline, apply=ApplyConfig.model_validate({"mode": mode}))


def environment() -> Mapping[str, str]:
    """Where ``${env:NAME}`` is looked up."""
    scope = _get().scope
    return os.environ if scope is None else ScopedEnvironment(os.environ, scope)


def _get() -> _Overrides:
    return _current.get() or _Overrides()
