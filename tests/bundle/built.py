"""The wheel, built as ``databricks bundle deploy`` builds it, and what its metadata says."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from configparser import ConfigParser
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from tests.bundle.merged import ROOT


@dataclass(frozen=True)
class Wheel:
    """``extras`` has the requirements of each extra."""

    path: Path
    name: str
    version: str
    requires_python: str
    extras: Mapping[str, set[str]]
    entry_points: Mapping[str, str]
    files: tuple[str, ...]


def build_wheel(folder: Path) -> Wheel:
    """Build it from this checkout; hatchling comes from the environment, so that nothing is downloaded."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), "."], cwd=ROOT, check=True, timeout=120)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        files = tuple(archive.namelist())
        (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        points = ConfigParser()
        points.read_string(archive.read(f"{info}/entry_points.txt").decode())
    extras: dict[str, set[str]] = {name: set() for name in metadata.get_all("Provides-Extra", [])}
    for line in metadata.get_all("Requires-Dist", []):
        package, _, marker = line.partition(";")
        for extra in extras:
            if f"'{extra}'" in marker or f'"{extra}"' in marker:
                extras[extra].add(package.strip())
    return Wheel(
        path,
        metadata["Name"],
        metadata["Version"],
        metadata["Requires-Python"],
        extras,
        dict(points["console_scripts"]),
        files,
    )
