"""``python -m benchmarks``: run the benchmarks one after the other and write the summary.

Each benchmark stands alone and keeps its result as soon as it is done, so that one that fails costs no other.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import psycopg2

from benchmarks import report, results
from benchmarks.process import ROOT, BenchmarkFailed
from benchmarks.rounds import Plan
from benchmarks.scenarios import BENCHMARKS, Setup
from cdc_lib.errors import CdcError

PEER_VARIABLE = "CDC_BENCH_PEER"
DOCUMENT = ROOT / "docs" / "benchmarks.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all ran and every row was right; gates that are not met stand in the summary alone."""
    options = _options(arguments)
    failed = [] if options.report else [name for name in options.only if not _run(name, options)]
    found = results.newest(options.results)
    if found:
        options.docs.write_text(report.document(found), encoding="utf-8")
        for gate in report.gates(found):
            print(gate)
    for name in failed:
        print(f"{name}: FAILED", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, options: argparse.Namespace) -> bool:
    """Run one benchmark; False if it failed."""
    plan = Plan(options.rounds, options.cold_rounds, options.discard)
    _say(f"{name}: {options.rows:,} rows, {plan.rounds} warm and {plan.cold_rounds} cold rounds")
    if options.peer is None and name.startswith("backlog"):
        _say(f"  without the prototype to compare with: --peer-prototype or {PEER_VARIABLE} names it")
    started, clock = datetime.now(timezone.utc), time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    # A benchmark that fails leaves its logs, one that succeeds leaves nothing.
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=options.folder))
    try:
        outcome = BENCHMARKS[name](Setup(folder, options.rows, plan, options.peer, _say))
    except (BenchmarkFailed, CdcError, psycopg2.Error, OSError) as error:
        print(f"{name}: {type(error).__name__}: {error}\nLogs: {folder}", file=sys.stderr)
        return False
    results.write(results.record(name, outcome, plan, options.rows, started), options.results)
    shutil.rmtree(folder, ignore_errors=True)
    _say(f"  {time.monotonic() - clock:.0f} s in all")
    return True


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--only", type=_names, default=list(BENCHMARKS), metavar="NAME,NAME", help=", ".join(BENCHMARKS))
    add("--rows", type=int, default=1_000_000, help="size of the table and of the backlog")
    add("--rounds", type=int, default=5, help="warm rounds, and rounds of memory")
    add("--cold-rounds", type=int, help="rounds in new processes; as many as --rounds")
    add("--discard", type=int, default=1, help="warm rounds that do not count, before the others")
    add("--peer-prototype", dest="peer", type=Path, default=os.environ.get(PEER_VARIABLE) or None)
    add("--folder", type=Path, default=results.FOLDER / "tmp", help="for servers and tables while it runs")
    add("--results", type=Path, default=results.FOLDER, help="where the raw results go")
    add("--docs", type=Path, default=DOCUMENT, help="the summary")
    add("--report", action="store_true", help="only write the summary again")
    options = parser.parse_args(arguments)
    if options.cold_rounds is None:
        options.cold_rounds = options.rounds
    return options


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in BENCHMARKS:
            raise argparse.ArgumentTypeError(f"{name}: one of {', '.join(BENCHMARKS)}")
    return names


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
