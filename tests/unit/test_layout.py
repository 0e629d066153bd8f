"""The shape of the package, held by reading its source: who may import whom, and how long things may be.

Layers, lowest first (DESIGN section 10): values, config, source, engines; delta, then control, bronze and
silver; the runner above both; adapters and the command line above the runner.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "cdc_lib"

VALUES = {
    "clock",
    "change",
    "position",
    "schema",
    "types",
    "errors",
    "faults",
    "evolution",
    "facts",
    "fingerprint",
}
CONFIG = {"config", "pipeline", "source_section", "properties", "kafka_properties", "secrets", "yaml_source"}
CONFIG |= {"json_schema", "properties_page", "handover"}
SOURCE = {"source", "embedded"}
TABLES = {"delta", "delta_direct", "delta_log", "named_tables", "nested_types", "own_sessions", "table_ref"}
TABLES |= {"delta_upkeep", "spark_session", "java"}
LAYERS = {"control", "bronze", "bronze_reader", "bronze_direct", "silver", "views", "staging", "transforms"}
LAYERS |= {"staged_files", "unity"}
RUNNER = {"progress", "captured", "owner", "answering", "noting", "snapshot", "due"}
RUNNER |= {
    "metrics",
    "reading",
    "recovery",
    "recomputed",
    "sweeping",
    "settling",
    "snapshotting",
    "ladder",
    "capture",
    "applying",
    "runner",
    "reconcile",
    "surviving",
    "rebuilding",
    "maintenance",
}
TOP = {
    "api",
    "cli",
    "__main__",
    "checking",
    "granted",
    "grants",
    "monitoring",
    "status",
    "plan",
    "planning",
    "demo",
    "shop",
    "datasource",
    "declarative",
}

SPARK = {"pyspark", "delta", "deltalake"}
DRIVERS = {"psycopg2", "psycopg", "pymysql", "MySQLdb", "pymssql", "pyodbc", "oracledb", "ibm_db", "pymongo"}

PLAIN = VALUES | CONFIG | SOURCE | {"sources"}
"""Runs wherever Python runs: neither Spark nor Delta."""

ALLOWED: dict[str, set[str]] = {
    **dict.fromkeys(VALUES, VALUES),
    **dict.fromkeys(CONFIG, VALUES | CONFIG),
    # The registry of engines names its modules as text and imports them when asked to.
    **dict.fromkeys(SOURCE, VALUES | CONFIG | SOURCE),
    "sources": VALUES | CONFIG | SOURCE | {"sources"},
    **dict.fromkeys(TABLES, VALUES | CONFIG | TABLES),
    # The contract's values (a chunk, a finding) are written to tables; engines stay out of reach.
    **dict.fromkeys(LAYERS, VALUES | CONFIG | {"source"} | TABLES | LAYERS),
    "progress": VALUES,
    **{unit: PLAIN - {"sources"} | TABLES | LAYERS | RUNNER for unit in RUNNER - {"progress"}},
    **{unit: PLAIN - {"sources"} | TABLES | LAYERS | RUNNER | TOP for unit in TOP},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def unit_of(path: Path) -> str:
    """The part of the package a file belongs to: its module, or its topmost folder."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Every imported module's full name, with the node that imports it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}"
            assert node.module is not None
            yield node.module, node
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node


def units_imported(tree: ast.AST) -> set[str]:
    known = {unit_of(path) for path in modules()}
    found = set()
    for name, _ in imports(tree):
        package, _, rest = name.partition(".")
        if package == "cdc_lib" and rest.partition(".")[0] in known:
            found.add(rest.partition(".")[0])
    return found


def outside(tree: ast.AST) -> set[str]:
    return {name.partition(".")[0] for name, _ in imports(tree)}


def at_module_level(tree: ast.Module) -> Iterator[str]:
    """Names imported when the module itself is imported: not in functions, not for type checkers only."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name.partition(".")[0] for name, _ in imports(node))
        elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            pending += node.body + node.orelse
        elif isinstance(node, ast.Try):
            pending += node.body + node.orelse + node.finalbody
            pending += [statement for handler in node.handlers for statement in handler.body]
        elif isinstance(node, ast.ClassDef):
            pending += node.body


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, the docstring left out: explaining must not cost anything."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


@pytest.fixture(params=modules(), ids=lambda path: str(path.relative_to(ROOT)))
def module(request: pytest.FixtureRequest) -> tuple[Path, ast.Module]:
    path: Path = request.param
    return path, ast.parse(path.read_text(encoding="utf-8"))


def test_import_direction(module: tuple[Path, ast.Module]) -> None:
    path, tree = module
    unit = unit_of(path)
    if unit == "__init__":
        assert not units_imported(tree)
        return
    assert unit in ALLOWED, f"{unit} has no layer yet: give it one here and in the layout of the design"
    assert units_imported(tree) - {unit} <= ALLOWED[unit]


def test_engines_know_nothing_of_spark(module: tuple[Path, ast.Module]) -> None:
    path, tree = module
    if unit_of(path) in PLAIN:
        assert not outside(tree) & SPARK


def test_spark_modules_know_no_driver(module: tuple[Path, ast.Module]) -> None:
    path, tree = module
    if outside(tree) & SPARK and unit_of(path) not in TOP:
        assert not outside(tree) & DRIVERS


def test_drivers_are_imported_when_needed(module: tuple[Path, ast.Module]) -> None:
    _, tree = module
    assert not set(at_module_level(tree)) & DRIVERS


def test_engines_do_not_know_each_other(module: tuple[Path, ast.Module]) -> None:
    path, tree = module
    relative = path.relative_to(PACKAGE).parts
    if relative[0] != "sources" or len(relative) < 3:
        return
    others = {entry.name for entry in (PACKAGE / "sources").iterdir() if entry.is_dir()} - {
        relative[1],
        "binlog",
    }
    assert not {name for name, _ in imports(tree) if name.split(".")[:2] == ["cdc_lib", "sources"]} & {
        f"cdc_lib.sources.{other}" for other in others
    }


def test_every_module_says_why_it_exists(module: tuple[Path, ast.Module]) -> None:
    path, tree = module
    if path.stat().st_size:
        assert ast.get_docstring(tree)


def test_files_are_short(module: tuple[Path, ast.Module]) -> None:
    path, _ = module
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_functions_are_short(module: tuple[Path, ast.Module]) -> None:
    _, tree = module
    assert {
        function.name: body_lines(function) for function in functions(tree) if body_lines(function) > 60
    } == {}


def test_no_more_than_five_positional_parameters(module: tuple[Path, ast.Module]) -> None:
    _, tree = module
    long = {
        function.name
        for function in functions(tree)
        if len([a for a in function.args.posonlyargs + function.args.args if a.arg not in ("self", "cls")])
        > 5
        # A command's parameters are the words a user types; typer takes them by name.
        and not any("command" in ast.unparse(decorator) for decorator in function.decorator_list)
    }
    assert not long


def test_no_module_is_named_for_nothing_in_particular() -> None:
    assert not {path.stem for path in modules()} & {"utils", "util", "helpers", "common", "manager", "misc"}


@pytest.mark.parametrize(
    ("unit", "source", "allowed"),
    [
        ("change", "from cdc_lib.config import SourceConfig", False),
        ("source", "from cdc_lib.delta import Lake", False),
        ("sources", "import cdc_lib.bronze", False),
        ("bronze", "from cdc_lib import runner", False),
        ("runner", "from cdc_lib.sources.postgresql.source import PostgresSource", False),
        ("runner", "from cdc_lib.control import watermarks", True),
        ("cli", "from cdc_lib.runner import Runner", True),
    ],
)
def test_the_rules_bite(unit: str, source: str, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, a mistake in the reading of imports would make every test above pass."""
    every = [PACKAGE / f"{name}.py" for name in sorted(ALLOWED)]
    monkeypatch.setattr(f"{__name__}.modules", lambda: every)
    assert (units_imported(ast.parse(source)) - {unit} <= ALLOWED[unit]) is allowed


def test_module_level_means_outside_functions() -> None:
    inside = "def f():\n    import psycopg2\n"
    outside_too = "class A:\n    import pymysql\ntry:\n    import oracledb\nfinally:\n    pass\n"
    assert set(at_module_level(ast.parse(inside + outside_too))) == {"pymysql", "oracledb"}
