"""The parts of the command line that need no database and no Spark."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from rich.console import Console

from cdc_lib import __version__
from cdc_lib.cli import logs, output, selection
from cdc_lib.errors import FixConfiguration, FixSource, Interrupted, ResnapshotNeeded, RetryLater
from cdc_lib.java import ensure_java, version
from cdc_lib.source import Finding


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    for name in ("shop.yml", "stock.yaml"):
        (folder / name).write_text("name: x\n")
    (folder / "notes.txt").write_text("not a pipeline")
    (folder / "declarative").mkdir()
    return folder


def cdc(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdc_lib", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# -- which pipeline


def test_a_name_a_file_name_and_a_path_mean_the_same(pipelines: Path) -> None:
    wanted = pipelines / "shop.yml"
    assert selection.select("shop", pipelines) == wanted
    assert selection.select("shop.yml", pipelines) == wanted
    assert selection.select(str(wanted), pipelines) == wanted


def test_the_only_file_needs_no_name(pipelines: Path) -> None:
    (pipelines / "stock.yaml").unlink()
    assert selection.select(None, pipelines) == pipelines / "shop.yml"


def test_several_files_need_one(pipelines: Path) -> None:
    with pytest.raises(FixConfiguration, match="more than one") as caught:
        selection.select(None, pipelines)
    assert caught.value.remedy == "name one: shop, stock"


def test_a_slip_of_the_pen_is_recognised(pipelines: Path) -> None:
    with pytest.raises(FixConfiguration) as caught:
        selection.select("shpo", pipelines)
    assert caught.value.remedy == "did you mean shop?"


def test_without_files_the_remedy_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(FixConfiguration, match="no pipeline to work on"):
        selection.select(None, tmp_path / "pipelines")


def test_arguments_after_an_optional_pipeline(pipelines: Path) -> None:
    shop = pipelines / "shop.yml"
    assert selection.split(["shop", "public.orders"], pipelines) == (shop, ["public.orders"])
    (pipelines / "stock.yaml").unlink()
    assert selection.split(["public.orders", "public.items"], pipelines) == (
        shop,
        ["public.orders", "public.items"],
    )
    assert selection.split(["select 1"], pipelines) == (shop, ["select 1"])


def test_a_missing_file_is_not_taken_for_a_table(pipelines: Path) -> None:
    with pytest.raises(FixConfiguration, match=r"there is no pipeline other\.yml"):
        selection.split(["other.yml", "public.orders"], pipelines)


# -- what is shown


def test_json_keeps_what_a_number_would_lose(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_json(
        [
            {
                "amount": Decimal("12345678901234567890.123456789"),
                "at": datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc),
                "raw": b"\x00\xff",
                "name": "Zoë",
            }
        ]
    )
    assert json.loads(capsys.readouterr().out) == [
        {
            "amount": "12345678901234567890.123456789",
            "at": "2025-01-02T03:04:05.678901+00:00",
            "raw": "AP8=",
            "name": "Zoë",
        }
    ]


def test_null_is_not_empty_text() -> None:
    file = io.StringIO()
    output.show_table(["a", "b"], [(None, ""), (True, 1.5)], Console(file=file, width=80))
    assert [line.split() for line in file.getvalue().splitlines() if line.strip()][1:] == [
        ["NULL"],
        ["true", "1.5"],
    ]


def test_plain_output_is_not_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    output.show_table(["text"], [(long,)])
    assert capsys.readouterr().out.replace("\n", "").replace(" ", "").endswith(long)


def test_findings_show_their_remedy_as_text_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    remedy = "ALTER SYSTEM SET wal_level = 'logical';\n-- then restart, " + "and wait " * 40 + "for it"
    output.show_findings(
        [
            Finding("ok", "version", "16.9", "nothing to do"),
            Finding("error", "wal_level", "is replica", remedy),
        ]
    )
    shown = capsys.readouterr().out
    assert "nothing to do" not in shown
    assert "\x1b" not in shown
    assert [line.strip() for line in shown.splitlines()][-2:] == remedy.splitlines()


def test_errors_say_what_why_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_error(
        FixSource("slot is gone", why="somebody dropped it", remedy="cdc snapshot"), debug=False
    )
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "error: slot is gone",
        "why: somebody dropped it",
        "to do: cdc snapshot",
    ]
    assert captured.out == ""


def test_log_lines_end_with_the_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("cdc_lib")
    before = logger.handlers[:], logger.propagate, logger.level
    try:
        logs.configure(terminal=False, debug=False)
        logs.name_pipeline("shop")
        logging.getLogger("cdc_lib.runner").info("sealed batch=%d share=%s", 7, "100%")
        logging.getLogger("cdc_lib.runner").debug("not shown")
    finally:
        logs.name_pipeline("")
        logger.handlers[:], logger.propagate, logger.level = before
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" INFO cdc_lib.runner sealed batch=7 share=100% pipeline=shop")
    assert datetime.strptime(line.split()[0], "%Y-%m-%dT%H:%M:%SZ").year >= 2025


# -- the program


def test_version(tmp_path: Path) -> None:
    done = cdc("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"cdc-lib {__version__}\n")


def test_a_configuration_error_has_its_exit_code_and_no_traceback(tmp_path: Path) -> None:
    done = cdc("check", "nowhere.yml", cwd=tmp_path)
    assert done.returncode == FixConfiguration.exit_code
    assert done.stderr.startswith("error: there is no pipeline nowhere.yml\n")
    assert "Traceback" not in done.stderr


def test_debug_adds_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in cdc("check", "nowhere.yml", "--debug", cwd=tmp_path).stderr


def test_every_kind_of_error_has_an_exit_code_of_its_own() -> None:
    kinds = [FixConfiguration, FixSource, Interrupted, ResnapshotNeeded, RetryLater]
    assert sorted(kind.exit_code for kind in kinds) == [2, 3, 4, 5, 130]


WORKER = """
    import sys, time
    from cdc_lib.cli.stopping import before_exit_at_once, run_stoppable
    from cdc_lib.errors import Interrupted

    def work(stop):
        print("ready", flush=True)
        stop.wait()
        print("stopping", flush=True)
        if sys.argv[1] == "stubborn":
            time.sleep(60)
        return "clean"

    with before_exit_at_once(lambda: print("last wish", flush=True)):
        print(run_stoppable(work, patient=sys.argv[1] != "reader"))
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    return script


def start(script: Path, how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(script), how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_after_the_step(worker: Path, number: signal.Signals) -> None:
    process = start(worker, "polite")
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert out == "stopping\nclean\n"
    assert "stopping after the current step" in err
    assert process.returncode == 0


def test_the_second_signal_ends_at_once(worker: Path) -> None:
    process = start(worker, "stubborn")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert time.monotonic() - begun < 10
    assert out == "last wish\n"
    assert process.returncode == Interrupted.exit_code


def test_reading_commands_end_at_the_first_signal(worker: Path) -> None:
    process = start(worker, "reader")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == ("last wish\n", Interrupted.exit_code)


# -- Java


def fake_java(home: Path, release: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch()
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return home


def test_java_version_is_read_from_its_release_file(tmp_path: Path) -> None:
    assert version(fake_java(tmp_path / "17", "17.0.15")) == 17
    assert version(fake_java(tmp_path / "8", "1.8.0_402")) == 1
    assert version(tmp_path / "none") is None


def test_a_java_that_spark_cannot_use_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(tmp_path / "11", "11.0.2"), fake_java(tmp_path / "21", "21.0.4")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setattr("cdc_lib.java._candidates", lambda: iter([old, new]))
    assert ensure_java() == new
    assert os.environ["JAVA_HOME"] == str(new)


def test_no_java_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc_lib.java._candidates", lambda: iter(()))
    with pytest.raises(FixConfiguration) as caught:
        ensure_java()
    assert "openjdk-17" in caught.value.remedy
