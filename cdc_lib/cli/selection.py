"""Which pipeline a command is about: a file, a name under ``pipelines/``, or the only one there is."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from cdc_lib.errors import FixConfiguration

FOLDER = Path("pipelines")
SUFFIXES = (".yml", ".yaml")


def available(folder: Path = FOLDER) -> list[Path]:
    """The pipeline files of a folder, by name."""
    return sorted(path for path in folder.glob("*") if path.suffix in SUFFIXES and path.is_file())


def find(word: str, folder: Path = FOLDER) -> Path | None:
    """The file that ``word`` means, if there is one: a path, or the name of a file in ``folder``."""
    if Path(word).suffix in SUFFIXES and Path(word).is_file():
        return Path(word)
    return next((path for path in available(folder) if word in (path.stem, path.name)), None)


def select(word: str | None, folder: Path = FOLDER) -> Path:
    """The pipeline file for a command's argument.

    :raises FixConfiguration: no such file, or no argument and not exactly one file.
    """
    files = available(folder)
    if word is not None:
        return find(word, folder) or _unknown(word, files)
    if len(files) == 1:
        return files[0]
    if not files:
        raise FixConfiguration(
            "there is no pipeline to work on",
            why=f"no file was named and the folder {folder} has none",
            remedy="name the pipeline file: cdc check path/to/pipeline.yml",
        )
    raise FixConfiguration(
        "more than one pipeline to choose from",
        why=f"no file was named and the folder {folder} has {len(files)}",
        remedy=f"name one: {', '.join(path.stem for path in files)}",
    )


def split(words: Sequence[str], folder: Path = FOLDER) -> tuple[Path, list[str]]:
    """The pipeline and the rest, for commands whose own arguments follow an optional pipeline."""
    if words and (path := find(words[0], folder)):
        return path, list(words[1:])
    if words and Path(words[0]).suffix in SUFFIXES:
        return _unknown(words[0], available(folder)), []
    return select(None, folder), list(words)


def _unknown(word: str, files: Sequence[Path]) -> Path:
    names = [path.stem for path in files]
    close = get_close_matches(Path(word).stem, names, n=1)
    raise FixConfiguration(
        f"there is no pipeline {word}",
        why=f"known here: {', '.join(names)}" if names else f"the folder {FOLDER} has no pipeline files",
        remedy=f"did you mean {close[0]}?" if close else "name an existing YAML file",
    )
