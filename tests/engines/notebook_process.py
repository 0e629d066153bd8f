"""Runs a notebook in a process of its own and writes down what it displayed.

python -m tests.engines.notebook_process notebooks/operate.py shown.json pipeline=...
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from notebooks.run import Notebook


def main() -> None:
    notebook, answer, *words = sys.argv[1:]
    running = Notebook(dict(word.split("=", 1) for word in words), lambda _: None)
    running.run(Path(notebook))
    Path(answer).write_text(json.dumps([asdict(shown) for shown in running.shown], default=str), "utf-8")


if __name__ == "__main__":
    main()
