"""Many pipelines in one job, by ``for_each_task``: what a job of its own gets as parameters is an input here.

The pipelines stay what they are. Nothing is divided that one owner has to commit, so this is sound however
many run at once; it saves jobs, schedules and starts to look after, not work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resources.templates import filled, joined, read

GROUP = 12
"""Pipelines of one for_each_task: its inputs stay below 5,000 characters, also with prefixed names."""
SHARED = ("secrets",)
"""Job parameters that are the same for all pipelines."""
_PARAMETER = re.compile(r"\{\{job\.parameters\.(\w+)\}\}")

Content = Mapping[str, Any]


@dataclass
class FanOut:
    """The pipelines of one engine that share a job. ``parts``: what jobs of that engine have in common."""

    engine: str
    parts: Content
    inputs: list[Mapping[str, str]] = field(default_factory=list)

    def add(self, file: str, command: str, parts: Content) -> None:
        """Another pipeline; ``parts`` are those of a job of its own."""
        given = {item["name"]: item["default"] for item in parts["job"]["parameters"]}
        target = {name: value for name, value in given.items() if name not in (*SHARED, "pipeline")}
        self.inputs.append({"file": file, "command": command, **target})

    def job(self) -> Content:
        """The job, its templates filled."""
        template = dict(read("fan_out/capture.job.yml"))
        (task,) = template.pop("tasks")
        every = {"name": "many", "engine": self.engine, "count": str(len(self.inputs))}
        shared = [item for item in self.parts["job"]["parameters"] if item["name"] in SHARED]
        content = joined({**self.parts["job"], "parameters": shared}, template)
        return {**filled(content, every), "tasks": list(self._tasks(task))}

    def _tasks(self, template: Content) -> Iterator[Content]:
        common = _of_input(self.parts["task"])
        for number, start in enumerate(range(0, len(self.inputs), GROUP), start=1):
            inputs = json.dumps(self.inputs[start : start + GROUP], separators=(",", ":"))
            task = filled(template, {"group": str(number), "inputs": inputs})
            loop = task["for_each_task"]
            yield {**task, "for_each_task": {**loop, "task": joined(common, loop["task"])}}


def _of_input(content: Any) -> Any:
    """The same, with the parameters of a job of one pipeline as fields of an input."""
    if isinstance(content, Mapping):
        return {key: _of_input(value) for key, value in content.items()}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [_of_input(item) for item in content]
    if not isinstance(content, str):
        return content
    return _PARAMETER.sub(
        lambda found: found[0] if found[1] in SHARED else f"{{{{input.{found[1]}}}}}", content
    )
