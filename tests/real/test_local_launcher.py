"""A local gang with real processes: small scripts play the trainer."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import shutil
import signal
import sys
import sysconfig
import tarfile
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import tracks_dagster
from tests.fakes import FakeObjectStore
from tracks_dagster.attempts.effects.closing import is_over
from tracks_dagster.attempts.effects.local import launcher as local_launcher
from tracks_dagster.attempts.effects.local.code_archive import pack_folder
from tracks_dagster.attempts.effects.local.launcher import LocalLauncher, is_gone
from tracks_dagster.attempts.ports import SCRIPT, GangPhase, GangReport, GangSpec, RankCommand
from tracks_dagster.processes import warm
from tracks_dagster.processes.logs import read_tail
from tracks_dagster.processes.process import (
    find_process,
    read_process,
    this_process,
    write_json,
    write_process,
)
from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX
from tracks_dagster.track import names
from tracks_dagster.track.bodies import ComputeRequest, RankPlace
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import parse_time
from tracks_dagster.training import gang_parent
from tracks_dagster.training.projects.code import CODE, lay_out

WAIT_S_MAX = 120.0  # for what takes a second on an idle machine

SAVES_ON_SIGTERM = """
import os, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["started", "forked"])
def launcher(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LocalLauncher]:
    """Gangs of new interpreters, and such as warm parents fork."""
    address = tmp_path_factory.mktemp("w") / "s" if request.param == "forked" else None
    monkeypatch.setattr(local_launcher, "IMPORTED", ())  # the scripts import nothing
    launcher = LocalLauncher(tmp_path, warm_address=address)
    yield launcher
    for folder in tmp_path.glob("*/a*"):
        launcher.kill(AttemptRef(folder.parent.name, int(folder.name.removeprefix("a"))))
    for child in launcher._children:  # whose exit code was not there yet
        if isinstance(child, warm.Child):
            child.close()
    for parent in warm._started:
        parent.kill()
        parent.wait()
    warm._started.clear()


def test_every_exit_code_and_signal_of_the_ranks_is_seen(launcher: LocalLauncher) -> None:
    script = """
import os, signal
rank = int(os.environ["RANK"])
print("rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSEGV)
raise SystemExit({0: 0, 2: 7}[rank])
"""
    assert launcher.start(spec(script, ranks=3))
    report = until(launcher, gone)
    assert [(r.exit_code, r.signal) for r in report.ranks] == [(0, None), (None, 11), (7, None)]
    assert all(r.started_at and r.ended_at and r.started_at <= r.ended_at for r in report.ranks)
    assert "rank 2 of 3" in report.ranks[2].log_tail
    assert report.ended_at == max(r.ended_at or "" for r in report.ranks)


@pytest.mark.parametrize(
    ("environment", "is_alike"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-1", "TRACKS_RUN_ID": "r"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, False),  # read at an import
    ],
    ids=["read late", "read early"],
)
def test_ranks_are_forked_unless_their_environment_was_needed_before(
    environment: dict[str, str],
    is_alike: bool,
    request: pytest.FixtureRequest,
    launcher: LocalLauncher,
) -> None:
    script = """
import os
from pathlib import Path
shown = [Path(f"/proc/{pid}/cmdline").read_text() for pid in (os.getpid(), os.getppid())]
print(*shown, Path("/proc/self/environ").read_text()[:9000], os.environ, flush=True)
"""
    assert launcher.start(replace(spec(script, ranks=2), environment=environment))
    report = until(launcher, gone)
    is_forked = is_alike and request.node.callspec.params["launcher"] == "forked"
    for rank in report.ranks:
        assert (f"tracks r/a01 rank {rank.rank}: trainer.py" in rank.log_tail) is is_forked
        assert "tracks r/a01 gang_parent" in rank.log_tail
        assert all(f"'{name}': '{value}'" in rank.log_tail for name, value in environment.items())


@pytest.mark.parametrize("listens", [True, False])
def test_a_rank_is_asked_to_save_only_if_it_is_that_process_and_listens(
    listens: bool, launcher: LocalLauncher, tmp_path: Path
) -> None:
    handler = 'signal.signal(signal.SIGUSR1, lambda *_: print("asked", flush=True))'
    script = f"""
import signal, time
{handler if listens else ""}
print("ready", flush=True)
time.sleep(600)
"""
    launcher.start(spec(script))
    until_ready(tmp_path)
    (rank,) = json.loads((tmp_path / "r" / "a01" / "gang.pid").read_text())["ranks"]
    place = RankPlace(
        rank=0,
        node="here",
        pid=rank["pid"],
        pid_started=rank["started"],
        boot_id=rank["boot_id"],
        device="cpu",
        accelerator="cpu",
    )
    assert not launcher.ask_to_save(
        AttemptRef("r", 1), replace(place, pid_started=place.pid_started - 1)
    )
    assert not launcher.ask_to_save(AttemptRef("r", 1), replace(place, boot_id="another"))
    assert launcher.ask_to_save(AttemptRef("r", 1), place) is listens
    if listens:
        wait_for(lambda: "asked" in (tmp_path / "r" / "a01" / "rank-0.log").read_text())
    assert launcher.observe(AttemptRef("r", 1)).phase is GangPhase.ALIVE
    assert not launcher.observe(AttemptRef("r", 1)).ranks[0].has_ended


@pytest.mark.parametrize(
    ("ranks", "of_torchrun"), [(1, (None, None, None)), (2, ("0", "0", "127.0.0.1"))]
)
def test_a_rank_gets_our_variables_and_beside_others_torchruns_and_no_database(
    ranks: int,
    of_torchrun: tuple[str | None, ...],
    launcher: LocalLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")  # of the one who started the launcher
    monkeypatch.setenv("TRACKS_POSTGRES_URL", "postgresql://u:p@h/d")
    monkeypatch.setenv("DAGSTER_HOME", "/nowhere")
    script = f"""
import os
for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "TRACKS_RUN_ID", "TRACKS_ATTEMPT_ID",
             "TRACKS_OPENED_SEQ", "TRACKS_STORE", "TRACKS_POSTGRES_URL", "DAGSTER_HOME"):
    print(name, os.environ.get(name), flush=True)
assert int(os.environ.get("WORLD_SIZE", "1")) == {ranks}
assert os.path.isdir(os.environ["TRACKS_WORK"])
"""
    launcher.start(spec(script, ranks=ranks))
    report = until(launcher, gone)
    assert report.ranks[0].exit_code == 0
    assert report.ranks[0].log_tail.splitlines() == [
        f"RANK {of_torchrun[0]}",
        f"LOCAL_RANK {of_torchrun[1]}",
        f"MASTER_ADDR {of_torchrun[2]}",
        "TRACKS_RUN_ID r",
        "TRACKS_ATTEMPT_ID 1",
        "TRACKS_OPENED_SEQ 1",
        "TRACKS_STORE /a/store",
        "TRACKS_POSTGRES_URL None",
        "DAGSTER_HOME None",
    ]


def test_a_second_start_of_an_attempt_finds_the_first_also_after_its_end(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    assert launcher.start(spec("print('ran')"))
    assert not launcher.start(spec("print('ran')"))
    assert not LocalLauncher(tmp_path).start(spec("print('ran')"))
    report = until(launcher, gone)
    assert not launcher.start(spec("print('ran')"))
    assert report.ranks[0].log_tail == "ran\n"


def test_of_two_parents_at_once_only_one_starts_ranks(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    launcher.start(spec(SAVES_ON_SIGTERM))
    (tmp_path / "r" / "a01" / "gang.pid").rename(tmp_path / "hidden")  # as if it were about to
    assert not launcher.start(spec(SAVES_ON_SIGTERM))
    (tmp_path / "hidden").rename(tmp_path / "r" / "a01" / "gang.pid")


def test_a_drain_lets_every_rank_save(launcher: LocalLauncher, tmp_path: Path) -> None:
    launcher.start(spec(SAVES_ON_SIGTERM, ranks=2))
    until_ready(tmp_path, ranks=2)
    launcher.drain(AttemptRef("r", 1), grace_s=30)
    launcher.drain(AttemptRef("r", 1), grace_s=30)
    report = until(launcher, gone)
    assert [r.exit_code for r in report.ranks] == [75, 75]
    assert "saved" in report.ranks[1].log_tail


def test_what_does_not_drain_within_its_grace_is_killed(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    launcher.start(spec(IGNORES_SIGTERM))
    until_ready(tmp_path)
    launcher.drain(AttemptRef("r", 1), grace_s=0.2)
    assert until(launcher, gone).ranks[0].signal == signal.SIGKILL


def test_a_drill_leaves_the_control_planes_word_and_kills_at_once_without_grace(
    launcher: LocalLauncher,
) -> None:
    launcher.start(spec(drilling(grace_s=0), ranks=2))
    report = until(launcher, gone)
    assert [r.signal for r in report.ranks] == [signal.SIGKILL, signal.SIGKILL]
    (condition,) = report.conditions
    assert (condition.type, condition.reason) == ("DisruptionTarget", "PreemptionByScheduler")
    assert condition.source == "drill"


def test_a_drill_with_grace_lets_the_ranks_save(launcher: LocalLauncher) -> None:
    launcher.start(spec(drilling(grace_s=30)))
    report = until(launcher, gone)
    assert report.ranks[0].exit_code == 75
    assert len(report.conditions) == 1


def test_after_one_ranks_crash_the_others_are_killed_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = """
import os, time
if os.environ["RANK"] == "1":
    raise SystemExit(1)
time.sleep(600)
"""
    monkeypatch.setattr(gang_parent, "SURVIVORS_S_MAX", 0.1)
    laid_out(tmp_path, script)
    gang = gang_parent.Gang(tmp_path, spec(script, ranks=2))
    gang.start()
    gang.watch()
    written = (tmp_path / "gang_exit.json").read_text()
    assert '"exit_code": 1' in written
    assert '"signal": 9' in written


def test_a_killed_parent_leaves_its_ranks_alive_to_be_observed_drained_and_killed(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    launcher.start(spec(SAVES_ON_SIGTERM, ranks=2))
    until_ready(tmp_path, ranks=2)
    parent = read_process(tmp_path / "r" / "a01" / "gang.pid")
    assert parent is not None
    os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: not parent.lives)
    assert launcher.observe(AttemptRef("r", 1)).phase is GangPhase.ALIVE
    launcher.drain(AttemptRef("r", 1), grace_s=30)
    report = until(launcher, gone)
    assert [r.has_ended for r in report.ranks] == [False, False]  # nobody could see the codes
    assert "saved" in report.ranks[0].log_tail


def test_a_rank_that_went_with_the_parent_ends_the_gang_though_another_lives(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    # The one that lives waits for it: in a rendezvous, for half an hour.
    launcher.start(spec(SAVES_ON_SIGTERM, ranks=2))
    until_ready(tmp_path, ranks=2)
    folder = tmp_path / "r" / "a01"
    parent = read_process(folder / "gang.pid")
    assert parent is not None
    first, _ = json.loads((folder / "gang.pid").read_text())["ranks"]
    os.kill(parent.pid, signal.SIGKILL)
    assert not any(end.ended_at for end in launcher.observe(AttemptRef("r", 1)).ranks)
    os.kill(first["pid"], signal.SIGKILL)
    report = until(launcher, lambda seen: seen.ranks[0].ended_at is not None)
    assert report.phase is GangPhase.ALIVE
    assert (report.ranks[0].exit_code, report.ranks[0].signal) == (None, None)
    assert report.ranks[1].ended_at is None
    again = launcher.observe(AttemptRef("r", 1))
    assert again.ranks[0].ended_at == report.ranks[0].ended_at
    assert not is_over(again, parse_time(str(report.ranks[0].ended_at)))
    assert is_over(again, parse_time(str(report.ranks[0].ended_at)) + timedelta(seconds=61))


def test_kill_ends_all_that_a_rank_started_and_still_writes_down_the_signals(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    script = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
print("ready", flush=True)
time.sleep(600)
"""
    launcher.start(spec(script))
    until_ready(tmp_path)
    log = tmp_path / "r" / "a01" / "rank-0.log"
    worker = find_process(int(log.read_text().splitlines()[0]))
    assert worker is not None
    launcher.kill(AttemptRef("r", 1))
    assert launcher.observe(AttemptRef("r", 1)).phase is GangPhase.GONE
    assert launcher.observe(AttemptRef("r", 1)).ranks[0].signal == signal.SIGKILL
    assert not worker.lives
    launcher.kill(AttemptRef("r", 1))  # and once more, with nothing left


def test_ranks_that_end_while_they_are_asked_to_drain_are_not_an_error(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.start(spec(SAVES_ON_SIGTERM))
    until_ready(tmp_path)
    parent = read_process(tmp_path / "r" / "a01" / "gang.pid")
    assert parent is not None
    os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: not parent.lives)
    asked = []

    def already_gone(pid: int, number: int) -> None:
        asked.append(number)
        raise ProcessLookupError

    with monkeypatch.context() as patched:
        patched.setattr(local_launcher.os, "kill", already_gone)
        launcher.drain(AttemptRef("r", 1), grace_s=1)
    assert asked == [signal.SIGTERM]


def test_a_parent_asked_to_end_before_its_ranks_began_lets_none_train_on(tmp_path: Path) -> None:
    laid_out(tmp_path, SAVES_ON_SIGTERM)
    gang = gang_parent.Gang(tmp_path, spec(SAVES_ON_SIGTERM, ranks=2))
    gang.drain(grace_s=WAIT_S_MAX)
    gang.start()
    gang.watch()
    written = json.loads((tmp_path / "gang_exit.json").read_text())
    assert [rank["signal"] for rank in written["ranks"]] != [signal.SIGKILL, signal.SIGKILL]


def test_a_start_that_takes_longer_than_the_grace_leaves_the_ranks_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked to end before they began, they hear of it only then."""
    laid_out(tmp_path, SAVES_ON_SIGTERM)
    gang = gang_parent.Gang(tmp_path, spec(SAVES_ON_SIGTERM, ranks=1))
    gang.drain(grace_s=WAIT_S_MAX)
    gang._kill_at = 0.0  # as after a start that took longer
    gang.start()
    gang.watch()
    written = json.loads((tmp_path / "gang_exit.json").read_text())
    assert [rank["signal"] for rank in written["ranks"]] != [signal.SIGKILL]


@pytest.mark.parametrize("code", [names.EXIT_DRAINED, names.EXIT_FENCED])
def test_a_rank_that_ends_as_all_agreed_leaves_the_others_time_for_their_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    script = f"""
import os, time
time.sleep(0 if os.environ["RANK"] == "1" else 1.0)
raise SystemExit({code})
"""
    monkeypatch.setattr(gang_parent, "SURVIVORS_S_MAX", 0.1)
    laid_out(tmp_path, script)
    gang = gang_parent.Gang(tmp_path, spec(script, ranks=2))
    gang.start()
    gang.watch()
    written = json.loads((tmp_path / "gang_exit.json").read_text())
    assert [rank["exit_code"] for rank in written["ranks"]] == [code, code]


def test_the_end_of_a_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    """Half a line would hide what a secret in it is called, and nobody would redact it."""
    log = tmp_path / "rank-0.log"
    secret = b"PASSWORD=" + b"x" * LOG_TAIL_BYTES_MAX
    log.write_bytes(b"first\n" + secret + b"\nlast \xff line\n")
    assert read_tail(log) == "last \ufffd line\n"
    log.write_bytes(secret + b" the end of a line of ten megabytes")
    assert read_tail(log) == "the end of a line of ten megabytes"
    log.write_bytes(b"short")
    assert read_tail(log) == "short"


def test_a_condition_that_is_being_written_is_left_for_the_next_look(tmp_path: Path) -> None:
    (tmp_path / "conditions.jsonl").write_text('{"type": "Disrup')
    assert local_launcher._conditions(tmp_path) == ()


def test_ends_that_a_full_disk_did_not_take_are_written_down_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.ENOSPC, "No space left on device")] * 3

    def write(path: Path, value: object) -> None:
        if path.name == "gang_exit.json" and failures:
            raise failures.pop()
        write_json(path, value)

    monkeypatch.setattr(gang_parent, "write_json", write)
    laid_out(tmp_path, "raise SystemExit(7)")
    gang = gang_parent.Gang(tmp_path, spec("", ranks=2))
    gang.start()
    gang.watch()
    assert not failures
    written = json.loads((tmp_path / "gang_exit.json").read_text())
    assert [rank["exit_code"] for rank in written["ranks"]] == [7, 7]


def test_a_second_supervisor_does_not_cut_the_code_that_a_gang_is_reading(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    stored = tmp_path / "r" / "a01" / "stored-code"
    stored.parent.mkdir(parents=True)
    stored.write_text("print('ran')")
    with stored.open() as reading:  # holds the inode, so that its number is not given again
        launcher.start(spec("print('ran')"))
        until(launcher, gone)
        assert stored.stat().st_ino != os.fstat(reading.fileno()).st_ino


def test_ranks_of_a_projects_own_interpreter_are_forked_from_its_own_warm_parent(
    request: pytest.FixtureRequest, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """With this package, as `pip install tracks-dagster` in a venv of one's own has it."""
    package = str(Path(tracks_dagster.__file__).parents[1])
    python = interpreter_of_its_own(tmp_path / "own", package, sysconfig.get_path("purelib"))
    shows = """
import os, sys, torch
from pathlib import Path
print(sys.executable, sys.prefix, Path(f"/proc/{os.getpid()}/cmdline").read_text(), flush=True)
"""
    command = RankCommand(words=(SCRIPT,), python=str(python))
    for attempt_id in (1, 2):
        ref = AttemptRef("r", attempt_id)
        assert launcher.start(replace(spec(shows, ranks=2), attempt_id=attempt_id, command=command))
        wait_for(lambda ref=ref: gone(launcher.observe(ref)))  # type: ignore[misc]
        ranks = launcher.observe(ref).ranks
        is_forked = request.node.callspec.params["launcher"] == "forked"
        for rank in ranks:
            assert rank.log_tail.startswith(f"{python} {tmp_path / 'own'} "), rank.log_tail
            assert (f"tracks r/a{attempt_id:02} rank {rank.rank}" in rank.log_tail) is is_forked
    assert len(warm._started) == is_forked  # the second attempt had the first one's


def test_an_interpreter_with_another_version_of_the_package_forks_nothing_and_says_so(
    launcher: LocalLauncher, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(tracks_dagster.__file__).parent, other / "tracks_dagster", ignore=ignored)
    with (other / "tracks_dagster" / "processes" / "warm.py").open("a") as file:
        file.write("# of a later version\n")
    python = interpreter_of_its_own(tmp_path / "own", str(other), sysconfig.get_path("purelib"))
    command = RankCommand(words=(SCRIPT,), python=str(python))
    assert launcher.start(replace(spec("print('ran', __file__)"), command=command))
    assert until(launcher, gone).ranks[0].log_tail.startswith("ran ")
    if launcher._warm_address is not None:
        assert f"No process is forked for {python}" in capfd.readouterr().err


def interpreter_of_its_own(folder: Path, *imported: str) -> Path:
    """Make a venv that imports from these folders, and return its Python."""
    venv.create(folder, symlinks=True)
    place = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(place, "own.pth").write_text("".join(f"{each}\n" for each in imported))
    return folder / "bin" / "python"


def test_two_projects_with_modules_of_one_name_run_at_once_each_by_its_interpreter(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """A script, and a module of `src`, each beside a `model.py` of its own."""
    folders = tmp_path / "projects"
    mine, theirs = folders / "mine", folders / "theirs"
    say = "import os, model; print(model.NAME, os.environ.get('BY'), open('note.txt').read())\n"
    for folder, name in ((mine, "train.py"), (theirs, "src/pkg/train.py")):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(say)
        (folder / "model.py").write_text(f"NAME = {folder.name!r}\n")
        (folder / "note.txt").write_text("noted")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nBY=another exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    commands = {
        "mine": RankCommand(words=("train.py",)),
        "theirs": RankCommand(words=("-m", "pkg.train"), python=str(python)),
    }
    for name, command in commands.items():
        archive = pack_folder(folders / name).data
        started = replace(spec(""), run_id=name, command=command, code=archive, code_key="0a.tar")
        assert launcher.start(started)
    said = {"mine": "mine None noted", "theirs": "theirs another noted"}
    for name in commands:
        wait_for(lambda name=name: gone(launcher.observe(AttemptRef(name, 1))))  # type: ignore[misc]
        log = (tmp_path / name / "a01" / "rank-0.log").read_text()
        assert log.strip() == said[name]


def test_nothing_is_known_of_a_gang_that_was_never_started(launcher: LocalLauncher) -> None:
    assert launcher.observe(AttemptRef("r", 1)).phase is GangPhase.NEVER_STARTED
    launcher.drain(AttemptRef("r", 1), grace_s=1)
    launcher.kill(AttemptRef("r", 1))


def test_after_a_close_without_a_gang_none_is_started_any_more(launcher: LocalLauncher) -> None:
    """A supervisor that was held up for long: its devices may be another one's by now."""
    launcher.kill(AttemptRef("r", 1))
    assert launcher.start(spec("print('late')")) is False
    assert launcher.glance(AttemptRef("r", 1)).phase is GangPhase.GONE
    assert launcher.observe(AttemptRef("r", 1)).phase is GangPhase.GONE


def test_a_kill_waits_for_a_parent_that_has_not_said_yet_who_it_is(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r" / "a01"
    folder.mkdir(parents=True)
    with (folder / "gang.lock").open("w") as lock, monkeypatch.context() as patch:
        patch.setattr(local_launcher, "KILL_S_MAX", 0.2)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(GangError, match="holds its lock and has not said who it is"):
            launcher.kill(AttemptRef("r", 1))
    assert launcher.start(spec("print('on time')"))


def test_whether_a_gang_is_gone_is_known_to_all_who_have_its_homes_folder(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    assert not is_gone(tmp_path, "r/a01")  # it may be started yet
    assert launcher.start(spec(SAVES_ON_SIGTERM))
    until_ready(tmp_path)
    assert not is_gone(tmp_path, "r/a01")
    launcher.kill(AttemptRef("r", 1))
    assert is_gone(tmp_path, "r/a01")
    launcher.kill(AttemptRef("r", 2))
    assert is_gone(tmp_path, "r/a02")  # closed without one
    assert not is_gone(tmp_path / "nowhere", "r/a01")


def test_stored_code_that_leads_out_of_its_folder_is_refused_in_a_sentence(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    forged = io.BytesIO()
    with tarfile.open(fileobj=forged, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../evil"))
    with pytest.raises(GangError, match="outside of its folder") as refused:
        launcher.start(replace(spec(""), code=forged.getvalue(), code_key="0a.tar"))
    assert "Traceback" not in str(refused.value)
    assert not list(tmp_path.rglob("evil"))


def test_a_parent_that_cannot_start_says_why(launcher: LocalLauncher, tmp_path: Path) -> None:
    folder = tmp_path / "r" / "a01"
    folder.mkdir(parents=True)
    (folder / "gang.lock").mkdir()  # a file is expected
    with pytest.raises(GangError, match="before it started a rank"):
        launcher.start(spec("pass"))
    (folder / "gang.lock").rmdir()


def test_a_pid_given_to_another_process_is_not_the_gang(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    folder = tmp_path / "r" / "a01"
    launcher.start(spec("pass"))
    until(launcher, gone)
    mine = this_process()
    write_process(folder / "gang.pid", replace(mine, started=mine.started - 1), started_at="")
    assert launcher.observe(AttemptRef("r", 1)).phase is GangPhase.GONE
    write_process(folder / "gang.pid", replace(mine, boot_id="another boot"), started_at="")
    assert launcher.observe(AttemptRef("r", 1)).phase is GangPhase.GONE
    launcher.kill(AttemptRef("r", 1))  # signals nobody: we still live


def test_shipping_uploads_the_whole_lines_beyond_what_the_rank_shipped_itself(
    launcher: LocalLauncher, store: FakeObjectStore, tmp_path: Path
) -> None:
    journal = tmp_path / "r" / "a01" / "journal" / "launch-1" / "rank-0.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_bytes(b'{"step":1}\n{"step":2}\n{"step":3}\n{"st')
    prefix = "runs/r/attempts/1/launch-1/journal/rank-0/"
    store.put(f"{prefix}{0:012d}.jsonl", b'{"step":1}\n')
    for _ in range(2):
        launcher.ship(AttemptRef("r", 1), store)
        assert store.objects == {
            f"{prefix}{0:012d}.jsonl": b'{"step":1}\n',
            f"{prefix}{11:012d}.jsonl": b'{"step":2}\n{"step":3}\n',
        }


def drilling(*, grace_s: float) -> str:
    request = f"""
import os, pathlib
if os.environ.get("RANK", "0") == "0":
    folder = pathlib.Path(os.environ["TRACKS_WORK"], "drill")
    folder.mkdir()
    (folder / "new").write_text('{{"grace_s": {grace_s}}}')
    (folder / "new").rename(folder / "preempt.json")
"""
    return SAVES_ON_SIGTERM.replace("time.sleep(600)", "") + request + "\ntime.sleep(600)\n"


def laid_out(work: Path, script: str) -> None:
    """Lay a script out where the ranks of a gang in `work` find it."""
    lay_out(work / CODE, code=script.encode(), key="0a.py", files={})


def spec(script: str, *, ranks: int = 1) -> GangSpec:
    return GangSpec(
        run_id="r",
        attempt_id=1,
        opened_seq=1,
        compute=ComputeRequest(ranks=ranks),
        store_url="/a/store",
        command=RankCommand(words=(SCRIPT,)),
        code_key="runs/r/trainer/0a.py",
        code=script.encode(),
    )


def gone(report: GangReport) -> bool:
    return report.phase is GangPhase.GONE


def until(launcher: LocalLauncher, holds: Callable[[GangReport], bool]) -> GangReport:
    wait_for(lambda: holds(launcher.observe(AttemptRef("r", 1))))
    return launcher.observe(AttemptRef("r", 1))


def until_ready(work: Path, *, ranks: int = 1) -> None:
    """Wait until the ranks say so, and their parent has written down which processes they are."""
    folder = work / "r" / "a01"
    logs = [folder / f"rank-{rank}.log" for rank in range(ranks)]
    wait_for(lambda: all(log.exists() and "ready" in log.read_text() for log in logs))
    wait_for(lambda: len(json.loads((folder / "gang.pid").read_text())["ranks"]) == ranks)


def wait_for(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.02)
