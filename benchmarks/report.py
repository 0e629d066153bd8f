"""The summary of the raw results, as ``docs/benchmarks.md``: ratios, noise, and which gates are met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

from benchmarks.rounds import COLD, WARM
from benchmarks.systems import BY_SPARK, FLOOR, OURS, PEER

Result = Mapping[str, Any]
Results = Mapping[str, Result]

TITLES: Mapping[str, str] = {
    "snapshot": "Snapshot to bronze",
    "backlog-full": "Backlog to bronze, replica identity FULL",
    "backlog-default": "Backlog to bronze, replica identity DEFAULT",
    "silver": "Bronze to silver",
    "memory": "One transaction of twice the size to bronze",
    "large": "A large table under load, its snapshot killed three times",
}
WORDS: Mapping[str, str] = {
    "snapshot": "The whole table, from the slot's creation to the last commit, a new pipeline each round.",
    "backlog-full": "The same log for all, each round from a copy of its slot. The prototype's rows are much "
    "narrower, and it seals, verifies and records nothing; its cold start is not measured.",
    "backlog-default": "As before, with only the key in before-images. Warm rounds only.",
    "silver": "`initial load`: bronze's snapshot into an empty silver table. `merge`: a tenth of the keys "
    "changed (71 % updates, 9 % deletes, 20 % inserts, scattered) into the full one, warm only; rows are "
    "changes.",
    "memory": "Each round in a new process, three rounds at most. `workers` are those of Spark's Python "
    "data source.",
    "large": "The command line's runs while one session changes the table at a steady rate: `cdc capture`, "
    "killed with SIGKILL at 15, 40 and 70 % of the pieces and started again, `cdc run`, `cdc reconcile`, "
    "which found silver equal. The longest transaction of that session shows that nobody was locked out. "
    "Once.",
}
FULL_SIZE = 1_000_000
"""Rows of the run that the gates are made for."""
MEGABYTE = 1_000_000
SNAPSHOT_RATIO = 1 / 3
BACKLOG_RATIO = 0.7
MEMORY_MEGABYTES = 500


@dataclass(frozen=True)
class Spread:
    """Median with the extremes."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(min(values), median(values), max(values))

    def show(self, form: str) -> str:
        return f"{self.middle:{form}} [{self.low:{form}} - {self.high:{form}}]"


# -- choosing


def rounds(result: Result, system: str, mode: str) -> list[Mapping[str, Any]]:
    found = result["measurements"]
    return [each for each in found if each["system"] == system and each["mode"] == mode]


def rates(result: Result, system: str, mode: str) -> dict[int, float]:
    """Rows a second of each round."""
    return {each["round"]: each["rows"] / each["seconds"] for each in rounds(result, system, mode)}


def ratio(result: Result, system: str, base: str, mode: str = WARM) -> Spread | None:
    """How many times as fast as ``base``, round by round, since both ran side by side in each."""
    ours, theirs = rates(result, system, mode), rates(result, base, mode)
    common = [ours[number] / theirs[number] for number in ours if number in theirs]
    return Spread.of(common) if common else None


# -- gates


@dataclass(frozen=True)
class Gate:
    """One promise and what was measured; ``met`` is None where it was not, or not at full size."""

    promise: str
    measured: str
    met: bool | None

    @property
    def verdict(self) -> str:
        return {True: "met", False: "**NOT met**", None: "not measured at full size"}[self.met]

    def __str__(self) -> str:
        return f"{self.promise}: {self.measured}, {self.verdict.replace('*', '')}"


def gates(results: Results) -> list[Gate]:
    """The gates, in the order of the benchmarks."""
    return [
        _ratio_gate(
            results, "snapshot", OURS, FLOOR, SNAPSHOT_RATIO, "1/3 of the rows/s of `COPY TO STDOUT`"
        ),
        *(
            _ratio_gate(results, f"backlog-{identity.lower()}", BY_SPARK, PEER, BACKLOG_RATIO, words)
            for identity in ("FULL", "DEFAULT")
            for words in (f"0.7 of the prototype's events/s, {identity}, both by Spark's writer",)
        ),
        _memory_gate(results),
    ]


def _ratio_gate(results: Results, name: str, ours: str, base: str, least: float, words: str) -> Gate:
    promise = f"{TITLES[name].split(',')[0]}, warm: at least {words}"
    found = ratio(results[name], ours, base) if name in results else None
    if found is None:
        return Gate(promise, "-", None)
    return Gate(promise, found.show(".2f"), found.middle >= least if _whole(results[name]) else None)


def _memory_gate(results: Results) -> Gate:
    promise = f"Python process, one transaction of 2,000,000 rows: peak at most {MEMORY_MEGABYTES} MB"
    peaks = [each["rss"]["python"] / MEGABYTE for each in results.get("memory", {}).get("measurements", [])]
    if not peaks:
        return Gate(promise, "-", None)
    met = max(peaks) <= MEMORY_MEGABYTES if _whole(results["memory"]) else None
    return Gate(promise, f"{Spread.of(peaks).show(',.0f')} MB", met)


def _whole(result: Result) -> bool:
    """Fixed costs decide small runs, which say nothing about a promise made for large ones."""
    return bool(result["settings"]["rows"] >= FULL_SIZE)


# -- the document


def document(results: Results) -> str:
    """The whole page."""
    parts = [_HEAD, _gate_table(results)]
    parts += [_section(name, results[name]) for name in TITLES if name in results]
    parts += [_TAIL, _provenance(results)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _gate_table(results: Results) -> str:
    rows = [(gate.promise, gate.measured, gate.verdict) for gate in gates(results)]
    return "## Gates\n\n" + _table(["promise", "measured, median [min - max]", ""], rows)


def _section(name: str, result: Result) -> str:
    facts = ", ".join(
        f"{key.replace('_', ' ')} {_number(value)}" for key, value in result["workload"].items()
    )
    rows = [_line(result, system, mode) for system, mode in _series(result)]
    lines = [f"## {TITLES[name]}", f"{WORDS[name]} Data: {facts}.", _table(_COLUMNS, rows)]
    lines += [*_ratios(result), *_noise(result)]
    return "\n\n".join(lines)


_COLUMNS = [
    "system",
    "start",
    "rounds",
    "seconds",
    "rows/s",
    "client CPU s/M",
    "server CPU s/M",
    "Python MB",
    "workers MB",
    "JVM MB",
]


def _series(result: Result) -> list[tuple[str, str]]:
    """Each system and mode that was measured, in a steady order."""
    seen = dict.fromkeys((each["system"], each["mode"]) for each in result["measurements"])
    order = [FLOOR, PEER, OURS, BY_SPARK]
    return sorted(
        seen, key=lambda pair: (pair[1] != WARM, order.index(pair[0]) if pair[0] in order else 9, pair[0])
    )


def _line(result: Result, system: str, mode: str) -> list[str]:
    found = rounds(result, system, mode)
    peak = {role: max(each["rss"][role] for each in found) / MEGABYTE for role in found[0]["rss"]}
    return [
        system,
        mode,
        str(len(found)),
        Spread.of([each["seconds"] for each in found]).show(".2f"),
        Spread.of([each["rows"] / each["seconds"] for each in found]).show(",.0f"),
        *(_per_million(found, side) for side in ("client_cpu", "server_cpu")),
        *(f"{peak[role]:,.0f}" if peak[role] else "" for role in ("python", "workers", "jvm")),
    ]


def _per_million(found: Iterable[Mapping[str, Any]], side: str) -> str:
    return f"{median(each[side] / each['rows'] * 1e6 for each in found):.2f}"


def _ratios(result: Result) -> Iterator[str]:
    # The floor reads the table; where ours reads a log it only measures the machine's noise.
    bases = (FLOOR, PEER) if result["benchmark"] == "snapshot" else (PEER,)
    for base, ours, mode in product(bases, (OURS, BY_SPARK), (WARM, COLD)):
        found = ratio(result, ours, base, mode)
        if found:
            yield f"{ours} to {base}, {mode}: **{found.show('.2f')}** times the rows a second."
    own = [each["rows"] / each["answer"]["own_seconds"] for each in rounds(result, PEER, WARM)]
    by_spark = list(rates(result, BY_SPARK, WARM).values())
    if own and by_spark:
        yield (
            "By the prototype's own clock, which leaves out its first look at the slot and the creation of "
            f"its table, {BY_SPARK} reaches {median(by_spark) / median(own):.2f} of its "
            f"{median(own):,.0f} events/s."
        )


def _noise(result: Result) -> Iterator[str]:
    seconds = [each["seconds"] for each in rounds(result, FLOOR, WARM)]
    loads = [each["load"] for each in result["measurements"]]
    busy = f"load average before rounds {min(loads):.1f} to {max(loads):.1f}"
    if seconds:
        spread = Spread.of(seconds)
        wide = (spread.high - spread.low) / spread.middle
        yield f"Noise: the floor took {spread.show('.2f')} s, a range of {wide:.0%} of its median; {busy}."
    else:
        yield f"Noise: {busy}."


def _provenance(results: Results) -> str:
    rows = []
    for name in TITLES:
        if name in results:
            found = results[name]
            commit = found["code"]["commit"][:12] + (" and changes" if found["code"]["changed"] else "")
            rows.append((name, found["started_at"], commit, _number(found["settings"]["rows"])))
    any_result = next(iter(results.values()))
    machine = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in any_result["machine"].items())
    versions = ", ".join(f"{key} {value}" for key, value in any_result["versions"].items())
    return f"## Where the figures come from\n\nMachine: {machine}.\n\nVersions: {versions}.\n\n" + _table(
        ["benchmark", "started", "commit", "rows"], rows
    )


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


_HEAD = """
# Benchmarks

<!-- Written by `python -m benchmarks --report` from benchmarks/results; change benchmarks/report.py. -->

`cdc-lib` writes bronze by itself, as it does under a path; `cdc-lib-spark` writes it through Spark.
All systems of a benchmark run on one machine, in turn, in an order that rotates from round to round, and
ratios are taken inside each round. *warm* is a process that has done the work once before; *cold* counts
from the start of a new process. After every round the written table is read back without the code under test,
and the sums of row hashes over all columns are compared with the server's; a difference ends the benchmark
without a result.

Times are from the request to its end and include all that a run does: creating control tables, sealing,
writing, verifying and committing, and for the cold ones Python, the JVM and Spark. CPU is of the whole
process tree per million rows, server CPU of all PostgreSQL processes. Memory is the highest resident size
seen in any round, of the Python process since its start. The server runs on the same cores, with fsync on,
and is reached over TCP on the loopback.
"""

_TAIL = """
## Reproduce

    make bench                                        # everything
    make bench ARGS="--only snapshot"                 # one of them; the others keep their last results
    make bench ARGS="--rows 20000 --rounds 1 --results /tmp/look --docs /tmp/look.md"
    make bench ARGS="--report"                        # only this page again

The prototype that `backlog` is compared with is not part of this project. `--peer-prototype PATH`, or
`CDC_BENCH_PEER=PATH`, names it; without it the comparison is left out. It runs in its mode `spark` with text
values (`BINARY=0`). Raw results, one file a run with versions and settings, are in `benchmarks/results`.
"""
