"""What ranks printed keeps no secret once their gang is gone, and stays for its user alone."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tracks_dagster.attempts.effects.evidence import read_logs, stored_logs
from tracks_dagster.attempts.effects.local.launcher import LocalLauncher
from tracks_dagster.processes import logs
from tracks_dagster.processes.logs import clean_logs
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.text.redact import redact, secrets_of
from tracks_dagster.track.track import log_object

SECRET = "wJalrXUtnFEMI7MDENGbPxRfiCYEXAMPLEKEY"
CLEAN = partial(redact, secrets=secrets_of({"AWS_SECRET_ACCESS_KEY": SECRET}))


def test_the_logs_of_a_gang_that_is_gone_are_shipped_without_its_secrets(tmp_path: Path) -> None:
    folder = tmp_path / "r" / "a01"
    folder.mkdir(parents=True)
    texts = ["ghp_abcdefghijklmnop0123 first\n", f"last {SECRET}", f"{SECRET} of the parent\n"]
    for name, text in zip(("rank-0.log", "rank-1.log", "gang.log"), texts, strict=True):
        (folder / name).write_text(text)
    for _ in range(2):  # an attempt that could not be closed is closed again
        LocalLauncher(tmp_path, clean=CLEAN).ship(AttemptRef("r", 1), FakeObjectStore())
        assert [path.name for path in sorted(folder.iterdir())] == [
            "gang.log",
            "rank-0.log",
            "rank-1.log",
        ]
        assert (folder / "rank-0.log").read_text() == "[hidden] first\n"
        assert (folder / "rank-1.log").read_text() == "last [hidden]"
        assert (folder / "gang.log").read_text() == "[hidden] of the parent\n"
    assert (folder / "rank-0.log").stat().st_mode & 0o777 == 0o600


def test_the_whole_log_of_each_rank_is_in_the_store_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "STORED_BYTES_MAX", 1000)
    monkeypatch.setattr(logs, "RANKS_STORED_MAX", 2)
    folder, store, ref = tmp_path / "r" / "a01", FakeObjectStore(), AttemptRef("r", 1)
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text(f"a {SECRET}\n")
    (folder / "rank-1.log").write_text("a line\n" * 1000 + "the last\n")
    (folder / "rank-2.log").write_text("one rank too many\n")
    for _ in range(2):  # an attempt that could not be closed is closed again
        LocalLauncher(tmp_path, clean=CLEAN).ship(ref, store)
        assert list(stored_logs(store, ref)) == [0, 1]
        texts = read_logs(store, ref, stored_logs(store, ref))
        assert texts[0] == "a [hidden]\n"
        first, _, rest = texts[1].partition("\n")
        assert first == "[the first 6009 bytes of this log are not stored]"
        assert rest.splitlines()[0] == "a line"
        assert rest.splitlines()[-1] == "the last"
        assert len(rest) <= 1000
    key = log_object(ref.folder, 0, stored_logs(store, ref)[0])
    store.put(key, b"changed")
    assert list(read_logs(store, ref, stored_logs(store, ref))) == [1]


def test_a_log_without_a_secret_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"caf\xe9\r\n")
    before = path.stat()
    clean_logs(tmp_path, CLEAN)
    assert path.read_bytes() == b"caf\xe9\r\n"
    assert path.stat().st_ino == before.st_ino


def test_of_a_log_that_is_too_long_the_end_stays_and_its_first_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "CLEANED_BYTES_MAX", 200_000)
    path = tmp_path / "rank-0.log"
    path.write_text("a line\n" * 50_000 + f"the last line {SECRET}\n")
    clean_logs(tmp_path, CLEAN)
    cleaned = path.read_text()
    first, _, rest = cleaned.partition("\n")
    assert "were left out" in first
    assert len(cleaned) < 200_000
    assert rest.endswith("a line\nthe last line [hidden]\n")
    clean_logs(tmp_path, CLEAN)
    assert path.read_text() == cleaned


def test_a_log_that_cannot_be_rewritten_keeps_no_attempt_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    (tmp_path / "rank-0.log").write_text(SECRET)
    monkeypatch.setattr(Path, "replace", full)
    clean_logs(tmp_path, CLEAN)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.log"]
