"""Every reading command reads where nothing can be written: a read-only mount, another user's home."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import files_of
from tests.cli.reading_commands import READING, with_out
from tests.stories import Story
from tracks_dagster.ledger.effects.database.engine import to_read
from tracks_dagster.track.errors import LedgerError

ALL = """
import json, sys
from click.testing import CliRunner
from tracks_dagster.cli import main
results = []
for arguments in json.load(sys.stdin):
    result = CliRunner().invoke(main, arguments)
    error = result.exception
    is_exit = error is None or isinstance(error, SystemExit)
    results.append([arguments, result.exit_code, result.output, None if is_exit else repr(error)])
json.dump(results, sys.stdout)
"""
NOBODY = 65534


@pytest.fixture
def open_home(story: Story, home: Path) -> Iterator[Path]:
    """A home that other users may read, where they can reach it."""
    folder = Path(tempfile.mkdtemp(prefix="tracks-open-"))
    shutil.copytree(home, folder / "home")
    (folder / "out").mkdir()
    (folder / "out").chmod(0o777)
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    yield folder / "home"
    shutil.rmtree(folder)


def read_all(prefix: Sequence[str], home: Path) -> None:
    """Run every reading command in one process; each has to answer, and the home to stay as it is."""
    before = files_of(home)
    out = home.parent / "out"
    asked = [with_out(each, out) for each in READING]
    asked += [(*each, "--json") for each in asked if each[0] in ("status", "sql")]
    done = subprocess.run(
        [*prefix, sys.executable, "-c", ALL],
        input=json.dumps(asked),
        env={
            **os.environ,
            "TRACKS_HOME": str(home),
            "HOME": str(out),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for arguments, code, output, error in json.loads(done.stdout):
        assert error is None, (arguments, error)
        # 1: what was found is bad news; 2 would be a refusal
        assert code in (0, 1), (arguments, output)
        assert "Cannot read" not in output, (arguments, output)
    assert files_of(home) == before
    assert {path.name for path in home.glob("ledger.db*")} <= {"ledger.db", "ledger.db-wal"}


def test_every_reading_command_reads_on_a_read_only_mount(open_home: Path) -> None:
    mounted = ["unshare", "-m", "sh", "-c"]
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    tried = (
        subprocess.run(
            [*mounted, script, str(open_home), "true"], capture_output=True, text=True, check=False
        )
        if shutil.which("unshare")
        else None
    )
    if tried is None or tried.returncode:
        pytest.skip(
            f"no mounts of one's own here: {tried.stderr.strip() if tried else 'no unshare'}"
        )
    read_all([*mounted, script, str(open_home)], open_home)


FULL = """
mount -t tmpfs -o size=24m,nr_inodes=20k tmpfs /mnt && cp -a "$0" /mnt/home && chmod 700 /mnt/home
case $1 in
    full) dd if=/dev/zero of=/mnt/fill bs=4k 2>/dev/null ;;
    inodes) mkdir /mnt/files && cd /mnt/files && seq 30000 | xargs touch 2>/dev/null; cd - >/dev/null ;;
esac
mount --bind /mnt/home "$0" && shift && exec "$@"
"""


@pytest.mark.parametrize("what", ["full", "inodes"])
@pytest.mark.parametrize("has_wal", [True, False], ids=["records in the WAL", "no WAL"])
def test_every_reading_command_reads_on_a_disk_that_is_full(
    what: str, has_wal: bool, open_home: Path
) -> None:
    mounted = ["unshare", "-m", "sh", "-c", FULL, str(open_home), what]
    tried = (
        subprocess.run([*mounted, "true"], capture_output=True, text=True, check=False)
        if shutil.which("unshare")
        else None
    )
    if tried is None or tried.returncode:
        pytest.skip(
            f"no mounts of one's own here: {tried.stderr.strip() if tried else 'no unshare'}"
        )
    with sqlite3.connect(open_home / "ledger.db") as writer:
        if has_wal:
            writer.execute("update training_runs set owner = owner")
            writer.commit()
            copies = {
                p: p.read_bytes() for p in open_home.glob("ledger.db*") if "shm" not in p.name
            }
    writer.close()
    if has_wal:
        for path, data in copies.items():
            path.write_bytes(data)
            path.chmod(0o644)
    read_all(mounted, open_home)


def test_every_reading_command_reads_as_another_user(open_home: Path) -> None:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, and needs setpriv for it")
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    able = subprocess.run(  # apart from what is tested: a refusal there must fail, not skip
        [*become, sys.executable, "-c", "import tracks_dagster.cli"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if able.returncode:
        pytest.skip(f"that user cannot run this Python: {able.stderr.strip()[-200:]}")
    read_all(become, open_home)


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger file with one row in a table, which this process is said to have no right to write."""
    path = tmp_path / "ledger.db"
    with sqlite3.connect(path) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table notes (text)")
        connection.execute("insert into notes values ('first')")
    connection.close()
    real = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: mode != os.W_OK and real(p, mode))
    return path


def rows_of(uri: str) -> list[str]:
    connection = sqlite3.connect(uri, uri=True)
    try:
        return [text for (text,) in connection.execute("select text from notes")]
    finally:
        connection.close()


def test_a_ledger_that_is_written_while_it_is_read_without_locks_is_refused(
    unwritable: Path,
) -> None:
    reading = to_read(unwritable)
    assert rows_of(reading.uri) == ["first"]
    reading.check_unchanged()
    with sqlite3.connect(unwritable) as writer:
        writer.execute("insert into notes values ('second')")
    with pytest.raises(LedgerError, match="was written while it was read"):
        reading.check_unchanged()
    writer.close()


def test_records_that_are_only_in_the_wal_are_read(unwritable: Path, tmp_path: Path) -> None:
    writer = sqlite3.connect(unwritable)
    writer.execute("insert into notes values ('second')")
    writer.commit()
    assert rows_of(to_read(unwritable).uri) == ["first", "second"]  # beside a writer that lives
    copied = tmp_path / "copy"
    copied.mkdir()
    for name in ("ledger.db", "ledger.db-wal"):
        shutil.copy(tmp_path / name, copied)
    writer.close()
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    assert rows_of(to_read(copied / "ledger.db").uri) == ["first", "second"]
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before
