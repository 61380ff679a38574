"""`tracks logs`: the ranks' own words, from this machine or from the store, while they come."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, TRACEBACK, Story
from tracks_dagster.attempts.effects.local.launcher import LocalLauncher
from tracks_dagster.attempts.pod_files import PodEnd, end_key
from tracks_dagster.cli import logs as logs_command
from tracks_dagster.processes.logs import BLOCK_BYTES, GrowingLog, clean_logs
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import canonical_json
from tracks_dagster.track.text.redact import redact

TOKEN = "hf_ThisIsNoTokenOfAnybody"


@pytest.fixture
def write(home: Path) -> Callable[[int, int, bytes], None]:
    """Appends to the log of a rank of an attempt, in the work folder of its gang."""

    def written(attempt_id: int, rank: int, data: bytes) -> None:
        path = home / "work" / RUN_ID / f"a{attempt_id:02d}" / f"rank-{rank}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    return written


@pytest.mark.usefixtures("story")
def test_the_newest_attempts_log_is_printed_whole(call: Call, write: Callable[..., None]) -> None:
    lines = [f"step {number}" for number in range(20_000)]  # more than evidence keeps
    write(3, 0, "\n".join(lines).encode())
    write(2, 0, b"another attempt\n")
    assert call("logs", RUN_ID).stdout.splitlines() == lines
    assert call("logs", f"{RUN_ID}/a02").stdout == "another attempt\n"


@pytest.mark.usefixtures("story")
@pytest.mark.parametrize("end", [b"", b"\n"], ids=["a line that has no end yet", "whole lines"])
def test_only_the_last_lines_are_printed_where_so_many_are_asked_for(
    end: bytes, call: Call, write: Callable[..., None]
) -> None:
    lines = [f"step {number}" for number in range(30_000)]  # several blocks
    write(3, 0, "\n".join(lines).encode() + end)
    for count in (1, 3, 20_000):
        assert call("logs", RUN_ID, "--tail", str(count)).stdout.splitlines() == lines[-count:]
    assert call("logs", RUN_ID, "--tail", "40000").stdout.splitlines() == lines
    assert json.loads(call("logs", RUN_ID, "--tail", "2", "--json").stdout)["ranks"] == {
        "0": "\n".join(lines[-2:]) + end.decode()
    }
    stored = call("logs", f"{RUN_ID}/a02", "--tail", "1").stdout
    assert stored == "RuntimeError: gpu_oom as the story wants it\n"


@pytest.mark.usefixtures("story")
def test_of_several_ranks_each_line_names_its_own_and_one_can_be_chosen(
    call: Call, write: Callable[..., None]
) -> None:
    write(3, 0, b"a\nb\n")
    write(3, 10, b"c\n")
    assert call("logs", RUN_ID).stdout == "rank 0: a\nrank 0: b\nrank 10: c\n"
    assert call("logs", RUN_ID, "--rank", "10").stdout == "c\n"
    assert json.loads(call("logs", RUN_ID, "--json").stdout) == {
        "attempt": f"{RUN_ID}/a03",
        "ranks": {"0": "a\nb\n", "10": "c\n"},
    }
    refused = call("logs", RUN_ID, "--rank", "1")
    assert refused.exit_code != 0
    assert "no log of rank 1; it has: 0, 10" in refused.stderr


@pytest.mark.usefixtures("story")
def test_where_the_work_folder_is_gone_the_store_tells_the_end(call: Call, tmp_path: Path) -> None:
    expected = f"{TRACEBACK}RuntimeError: gpu_oom as the story wants it\n"
    assert call("logs", f"{RUN_ID}/a02").stdout == expected
    archive = str(tmp_path / "run.tar.gz")
    assert call("export", RUN_ID, archive).exit_code == 0
    assert call("logs", "--archive", archive, f"{RUN_ID}/a02").stdout == expected


def test_where_the_work_folder_is_gone_the_store_has_the_whole_log(
    story: Story, call: Call, tmp_path: Path
) -> None:
    ref = AttemptRef(RUN_ID, 2)
    folder = tmp_path / "elsewhere" / RUN_ID / "a02"
    folder.mkdir(parents=True)
    lines = [f"step {number}" for number in range(20_000)]  # more than evidence keeps
    (folder / "rank-0.log").write_text("\n".join(lines) + "\n")
    LocalLauncher(tmp_path / "elsewhere", clean=redact).ship(ref, story.store)
    assert call("logs", f"{RUN_ID}/a02").stdout.splitlines() == lines
    assert call("logs", f"{RUN_ID}/a02", "--tail", "2").stdout.splitlines() == lines[-2:]
    archive = str(tmp_path / "run.tar.gz")
    assert call("export", RUN_ID, archive).exit_code == 0
    assert call("logs", "--archive", archive, f"{RUN_ID}/a02").stdout.splitlines() == lines


@pytest.mark.usefixtures("story")
def test_an_attempt_whose_ranks_left_nothing_is_bad_news_in_words(call: Call) -> None:
    nothing = call("logs", f"{RUN_ID}/a03")
    assert nothing.exit_code == 1
    assert f"No log of {RUN_ID}/a03 is kept" in nothing.stderr


@pytest.mark.usefixtures("story")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((f"{RUN_ID}/a09",), "it has gpt-story/a01 to gpt-story/a03"),
        (("no-such-run",), "no training run"),
        ((RUN_ID, "-f", "--json"), "-f shows lines as they come"),
    ],
)
def test_logs_that_there_cannot_be_are_refused(
    arguments: tuple[str, ...], words: str, call: Call
) -> None:
    refused = call("logs", *arguments)
    assert refused.exit_code != 0
    assert words in refused.stderr


@pytest.mark.usefixtures("story")
def test_a_secret_of_the_environment_is_hidden(
    call: Call, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    write(3, 0, f"login with {TOKEN}\n".encode())
    for arguments in ((), ("--json",)):
        printed = call("logs", RUN_ID, *arguments).stdout
        assert "login with" in printed
        assert TOKEN not in printed


@pytest.fixture
def running(story: Story) -> Story:
    """Another run beside it, whose first attempt trains."""
    other = Story(story.store, "gpt-open")
    other.begin()
    return other.write_tracks()


def test_following_ends_with_the_attempt(
    running: Story, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = home / "work" / "gpt-open" / "a01" / "rank-0.log"

    def begin() -> None:
        log.parent.mkdir(parents=True)
        log.write_bytes(b"step 1\nste")

    def go_on() -> None:
        log.write_bytes(b"step 1\nstep 2\n")

    def end() -> None:
        log.write_bytes(b"step 1\nstep 2\nthe last")
        running.end("code_error", last_step=2)
        running.write_tracks()

    happenings = iter((begin, go_on, end))
    monkeypatch.setattr(logs_command.time, "sleep", lambda seconds: next(happenings)())
    assert call("logs", "gpt-open", "-f").stdout == "step 1\nstep 2\nthe last\n"


def test_a_pod_that_ended_is_read_before_its_attempt_ends(running: Story, call: Call) -> None:
    end = RankEnd(rank=1, exit_code=1, log_tail="out of memory\n")
    pod = PodEnd(pod="p", node="n", boot_id="b", index=0, ranks=(end,))
    running.store.put(end_key(AttemptRef("gpt-open", 1), "uid"), canonical_json(to_json(pod)))
    assert call("logs", "gpt-open").stdout == "out of memory\n"


def test_a_growing_log_gives_every_byte_once(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"one\ntw")
    log = GrowingLog(path)
    assert list(log.read(is_complete=False)) == ["one\n"]
    assert list(log.read(is_complete=False)) == []
    path.write_bytes(b"one\ntwo\n" + b"x" * (BLOCK_BYTES + 5))
    assert list(log.read(is_complete=False)) == ["two\n", "x" * BLOCK_BYTES]
    assert "".join(log.read(is_complete=True)) == "x" * 5


def test_a_long_line_without_an_end_comes_in_whole_words(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"w" * (BLOCK_BYTES - 5) + b" secret")
    assert list(GrowingLog(path).read(is_complete=True)) == [
        "w" * (BLOCK_BYTES - 5) + " ",
        "secret",
    ]


def test_who_reads_a_log_that_is_cleaned_meanwhile_misses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"hf_abcdefghijklmnop123\none\n")
    log = GrowingLog(path)
    assert list(log.read(is_complete=False)) == ["hf_abcdefghijklmnop123\none\n"]
    with path.open("ab") as file:
        file.write(b"two\n")
    clean_logs(tmp_path, redact)
    assert path.read_text() == "[hidden]\none\ntwo\n"
    assert list(log.read(is_complete=True)) == ["two\n"]
