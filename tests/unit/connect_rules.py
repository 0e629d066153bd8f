"""What code for Spark Connect and serverless compute must not say, found in its syntax tree.

Sources of the rules: docs.databricks.com/aws/en/compute/serverless/limitations (only Spark Connect's API; no
RDDs, caches, global temporary views, DBFS, Hive; Trigger.AvailableNow alone), the six settings of
``tests/serverless.py``, and what was seen to fail through a Connect server.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.serverless import ALLOWED_SETTINGS

ATTRIBUTES: Mapping[str, str] = {
    **dict.fromkeys(("_jvm", "_jsc", "_jdf", "_jsparkSession", "_sc", "_gateway"), "jvm"),
    **dict.fromkeys(("sparkContext", "parallelize", "defaultParallelism", "addJar"), "context"),
    **dict.fromkeys(("rdd", "toJSON", "saveAsTextFile"), "rdd"),
    **dict.fromkeys(("cloneSession", "newSession"), "session"),
    **dict.fromkeys(("cacheTable", "uncacheTable", "clearCache"), "cache"),
    **dict.fromkeys(("persist", "unpersist", "checkpoint", "localCheckpoint"), "cache"),
    **dict.fromkeys(("createGlobalTempView", "createOrReplaceGlobalTempView"), "global view"),
    "input_file_name": "input file",
}
"""Attributes that no object in our code may be asked for, and the rule that says so."""

NAMES: Mapping[str, str] = {
    **dict.fromkeys(("SparkContext", "SQLContext", "HiveContext", "StreamingContext"), "context"),
    "input_file_name": "input file",
}
MODULES: Mapping[str, str] = {
    "py4j": "jvm",
    "pyspark.java_gateway": "jvm",
    "pyspark.context": "context",
    "pyspark.rdd": "rdd",
    "pyspark.mllib": "rdd",
    "delta.tables": "jvm",
}
TEXTS: Mapping[str, re.Pattern[str]] = {
    "cache": re.compile(r"^\s*((UN)?CACHE\s+(LAZY\s+)?TABLE|CLEAR\s+CACHE|REFRESH\s+TABLE)\b", re.IGNORECASE),
    "global view": re.compile(r"\bglobal_temp\.|\bGLOBAL\s+TEMP", re.IGNORECASE),
    "dbfs": re.compile(r"\bdbfs:/|^/dbfs/|^/mnt/", re.IGNORECASE),
    "hive": re.compile(r"\bhive_metastore\b|\bSTORED\s+AS\s+\w+", re.IGNORECASE),
    "input file": re.compile(r"\binput_file_name\s*\("),
}
_SET = re.compile(r"^\s*(?:RE)?SET\s+(spark\.[\w.]+)", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Violation:
    line: int
    rule: str
    said: str


def violations(source: str) -> list[Violation]:
    """All of them in a Python file but for its docstrings, also in the SQL cells of a notebook's source."""
    tree = ast.parse(source)
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    prose = {id(value) for value in alone if isinstance(value, ast.Constant)}
    found = {hit for node in ast.walk(tree) if id(node) not in prose for hit in _of_node(node)}
    for number, line in enumerate(source.splitlines(), start=1):
        if line.startswith("# MAGIC "):
            found.update(_of_text(number, re.sub(r"^# MAGIC (%sql\s*)?", "", line)))
    return sorted(found)


def _of_node(node: ast.AST) -> Iterator[Violation]:
    if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
        yield Violation(node.lineno, ATTRIBUTES[node.attr], node.attr)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield Violation(node.lineno, NAMES[node.id], node.id)
    elif isinstance(node, ast.Import):
        yield from _of_modules(node.lineno, [name.name for name in node.names])
    elif isinstance(node, ast.ImportFrom):
        imported = [f"{node.module}.{name.name}" for name in node.names]
        yield from _of_modules(node.lineno, [node.module or "", *imported])
        yield from (Violation(node.lineno, NAMES[n.name], n.name) for n in node.names if n.name in NAMES)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _of_text(node.lineno, node.value)


def _of_modules(line: int, names: list[str]) -> Iterator[Violation]:
    for name in names:
        for module, rule in MODULES.items():
            if name == module or name.startswith(f"{module}."):
                yield Violation(line, rule, module)


def _of_call(node: ast.Call) -> Iterator[Violation]:
    if not isinstance(node.func, ast.Attribute):
        return
    called, owner = node.func.attr, node.func.value
    if called == "cache" and not (isinstance(owner, ast.Name) and owner.id == "functools"):
        yield Violation(node.lineno, "cache", "cache")
    if called in ("set", "unset") and isinstance(owner, ast.Attribute) and owner.attr == "conf":
        key = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else "a variable"
        if key not in ALLOWED_SETTINGS:
            yield Violation(node.lineno, "setting", str(key))
    if called == "trigger" and [keyword.arg for keyword in node.keywords] != ["availableNow"]:
        yield Violation(node.lineno, "trigger", "trigger")


def _of_text(line: int, text: str) -> Iterator[Violation]:
    for rule, pattern in TEXTS.items():
        if hit := pattern.search(text):
            yield Violation(line, rule, hit[0].strip())
    if (setting := _SET.match(text)) and setting[1] not in ALLOWED_SETTINGS:
        yield Violation(line, "setting", setting[1])
