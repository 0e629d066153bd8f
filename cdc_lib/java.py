"""Finds the Java that a local Spark runs on, so that nobody has to set ``JAVA_HOME`` by hand.

Spark 4.2 runs on Java 17 and 21. ``python -m cdc_lib.java`` prints the home of the one that will be used;
the Makefile asks it before it installs one.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from cdc_lib.errors import CdcError, FixConfiguration

SUPPORTED = (17, 21)


def ensure_java() -> Path:
    """Point ``JAVA_HOME`` at a Java that Spark can use, unless it does already.

    :raises FixConfiguration: none was found.
    """
    for home in _candidates():
        if version(home) in SUPPORTED:
            os.environ["JAVA_HOME"] = str(home)
            return home
    raise FixConfiguration(
        "no Java that Spark can use was found",
        why=f"looked for Java {' or '.join(map(str, SUPPORTED))}: JAVA_HOME, PATH, .jdk, /usr/lib/jvm",
        remedy="make setup installs one; or: apt-get install openjdk-17-jre-headless",
    )


def version(home: Path) -> int | None:
    """Major version of the Java in ``home``, from the ``release`` file every OpenJDK build carries."""
    release = home / "release"
    if not (home / "bin" / "java").exists() or not release.exists():
        return None
    found = re.search(
        r'^JAVA_VERSION="(\d+)', release.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
    )
    return int(found[1]) if found else None


def _candidates() -> Iterator[Path]:
    if "JAVA_HOME" in os.environ:
        yield Path(os.environ["JAVA_HOME"])
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent
    # make setup puts one beside the virtual environment where neither root nor a package manager is at hand.
    for folder in (Path(sys.prefix).parent / ".jdk", Path("/usr/lib/jvm")):
        yield from sorted(folder.glob("*"), reverse=True)


def main() -> int:
    try:
        print(ensure_java())
    except CdcError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
