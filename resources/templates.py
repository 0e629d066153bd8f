"""The YAML files beside this one, and what is done to them: parts are joined, names put in, gaps left out.

``${pipeline.x}`` is ours and is replaced here, once for each captured database. ``${var.x}``,
``${resources.x}`` and ``{{job.parameters.x}}`` are the bundle's and stay as they are. An entry that speaks of
nobody, because the variable that names a group or an address is empty, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
_OURS = re.compile(r"\$\{pipeline\.(\w+)\}")
_VARIABLE = re.compile(r"\$\{var\.(\w+)\}")


def read(name: str) -> Any:
    """The content of ``resources/<name>``."""
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def joined(base: Any, more: Any) -> Any:
    """Both: mappings key by key, lists one after the other; of two single values, the second."""
    if isinstance(base, Mapping) and isinstance(more, Mapping):
        both = {key: joined(base[key], more[key]) if key in base else more[key] for key in more}
        return {**base, **both}
    if isinstance(base, list) and isinstance(more, list):
        return [*base, *more]
    return more


def filled(template: Any, names: Mapping[str, str]) -> Any:
    """``template`` with ``${pipeline.x}`` replaced.

    :raises KeyError: it asks for a name that does not exist.
    """
    if isinstance(template, Mapping):
        return {key: filled(value, names) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(item, names) for item in template]
    if isinstance(template, str):
        return _OURS.sub(lambda found: names[found[1]], template)
    return template


def without_nobody(content: Any, variables: Mapping[str, Any]) -> Any:
    """``content`` without list items, or entries for a principal, that are an empty variable."""
    if isinstance(content, Mapping):
        return {key: without_nobody(value, variables) for key, value in content.items()}
    if isinstance(content, list):
        return [without_nobody(item, variables) for item in content if not _nobody(item, variables)]
    return content


def _nobody(item: Any, variables: Mapping[str, Any]) -> bool:
    said = item.get("principal", item.get("user_email")) if isinstance(item, Mapping) else item
    found = _VARIABLE.fullmatch(said) if isinstance(said, str) else None
    return found is not None and not variables.get(found[1])
