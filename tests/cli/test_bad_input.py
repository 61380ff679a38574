"""Bad input: one or two sentences, exit code 2, and nothing written."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.examples import EXAMPLES
from tests.stories import RUN_ID, Story

RUN = ("run", "--run-id", "r-1", "--intent", "Try it.")

BAD_INPUT = {
    "a folder without a project": ((*RUN, "--project", "docs"), "no tracks.yaml"),
    "a project's name that is too long": (("projects", "add", "x" * 4000), "holds no project"),
    "a folder's name that is too long": (("init", "--yes", "x" * 4000), "too long"),
    "an unknown config key": ((*RUN, "--set", "learning_rate=1"), "lr"),
    "a value of another type": ((*RUN, "--set", "layers=two"), "is not a whole number"),
    "a value out of range": ((*RUN, "--set", "lr=2"), "0 to 1"),
    "a value that is not finite": ((*RUN, "--set", "lr=NaN"), "cannot be in a config"),
    "a setting without a value": ((*RUN, "--set", "lr"), "key=value"),
    "a setting that is given twice": ((*RUN, "--steps", "3", "--set", "steps=4"), "choose one"),
    "a global batch that the ranks cannot divide": ((*RUN, "--ranks", "5"), "multiple of 5"),
    "a micro-batch that does not divide": ((*RUN, "--set", "micro_batch=5"), "divisor of 24"),
    "no ranks": ((*RUN, "--ranks", "0"), "1 to"),
    "no steps": ((*RUN, "--steps", "0"), "out of range"),
    "no cadence": ((*RUN, "--checkpoint-every", "0"), "1 or more"),
    "no seconds between saves": ((*RUN, "--checkpoint-every-s", "0"), "more than 0"),
    "a number of steps that is not one": (
        (*RUN, "--checkpoint-every", "often"),
        "a number, or off",
    ),
    "no checkpoints at all": ((*RUN, "--checkpoint-every", "off"), "checkpoints_may_be_off: true"),
    "a rule that keeps no checkpoint": ((*RUN, "--keep-last", "0"), "keep_last is 0"),
    "a direction that is not one": ((*RUN, "--best-direction", "up"), "min"),
    "an unknown drill": ((*RUN, "--drill", "meteor@3"), "preempt@23"),
    "a crash of the only rank": ((*RUN, "--drill", "rank_crash@3"), "--ranks 2"),
    "a hang of a kind that is not one": (
        (*RUN, "--drill", "hang@3,how=soon"),
        "code|loader|stopped",
    ),
    "too few steps to interrupt": (("conform", "--steps", "2"), "6 or more"),
    "a tolerance of everything": (("conform", "--tolerance", "1"), "to the bit"),
    "no time for trials": (("conform", "--time-limit", "0"), "more than 0"),
    "a project that nobody has": (("conform", "mien"), "'mien' is not a project"),
    "no drill to play": (("drill",), "--all"),
    "all drills and one of them": (("drill", "--all", "--only", "nan"), "--only KIND"),
    "a drill that nobody plays": (("drill", "--only", "meteor"), "kill_daemon"),
    "a drill after the last step": ((*RUN, "--steps", "9", "--drill", "preempt@10"), "9 steps"),
    "a run id that is not one": (("run", "--run-id", "Run 1", "--intent", "Try it."), "a-z, 0-9"),
    "a snapshot id that does not exist": ((*RUN, "--snapshot", "f" * 64), "no snapshot"),
    "an empty intent": ((*RUN, "--intent", " "), "intent"),
    "an intent that fits no record": ((*RUN, "--intent", "x" * 501), "500"),
    "a stage that is not one": ((*RUN, "--stage", "huge"), "smoke"),
    "a trainer that is not there": ((*RUN, "--trainer", "/no/such.py"), "cannot be read"),
    "no time to wait": ((*RUN, "--wait-s", "0"), "more than 0"),
    "a source that is not there": ((*RUN, "--data", "/no/such.txt"), "/no/such.txt"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_leaves_an_empty_home_untouched(name: str, call: Call, home: Path) -> None:
    arguments, hint = BAD_INPUT[name]
    refused = call(*arguments)
    assert refused.exit_code == 2
    assert hint in refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stdout == ""
    assert not home.exists()


def test_more_ranks_than_this_machine_has_devices_leave_an_empty_home_untouched(
    call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_DEVICES", "2")
    refused = call(*RUN, "--ranks", "3")
    assert refused.exit_code == 2
    assert "3 ranks take 3 devices at once, and this machine has 2" in refused.stderr
    assert not home.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "no-such-run"),
        ("explain", f"{RUN_ID}/a09"),
        ("explain", f"{RUN_ID}/x"),
        ("status", "no-such-run"),
        ("checkpoints", "list", "no-such-run"),
        ("report", "no-such-run"),
        ("note", RUN_ID, " "),
        ("note", "no-such-run", "hello"),
        ("stop", "no-such-run", "--why", "x"),
        ("stop", RUN_ID, "--why", ""),
        ("stop", RUN_ID),
        ("drain", RUN_ID, "--why", "it is finished"),
        ("retry", RUN_ID, "--why", "it is finished"),
        ("promote", f"{RUN_ID}@39", "--why", "no such step"),
        ("promote", RUN_ID, "--why", " "),
        ("sql", "delete from training_runs"),
        ("sql", "select * from no_such_table"),
        ("run", "--intent", "Try it.", "--snapshot", "f" * 64),
        ("note", f"{RUN_ID}/a09", "hello"),
        ("import", "jsonl", "runs.jsonl", "--timezone", "Europe"),
        ("no-such-command",),
    ],
    ids=" ".join,
)
def test_wrong_use_of_a_home_changes_nothing_in_it(
    arguments: tuple[str, ...], story: Story, call: Call, home: Path
) -> None:
    before = files_of(home)
    refused = call(*arguments)
    assert refused.exit_code == 2
    assert refused.stderr.strip()
    assert "Traceback" not in refused.stderr
    assert files_of(home) == before


def test_a_text_file_with_invalid_utf8_is_refused(call: Call, home: Path, tmp_path: Path) -> None:
    source = tmp_path / "bad.txt"
    source.write_bytes(b"good text\n\xff\xfe bad text\n")
    refused = call(*RUN, "--data", str(source))
    assert refused.exit_code == 2
    assert not home.exists()


@pytest.mark.parametrize(
    "text", ["", "month,day\n", "month,day\n1,1\n"], ids=["empty", "no rows", "missing columns"]
)
def test_a_table_without_rows_or_columns_is_refused(
    text: str, call: Call, home: Path, tmp_path: Path
) -> None:
    source = tmp_path / "flights.csv"
    source.write_text(text)
    refused = call(*RUN, "--project", str(EXAMPLES / "tabular"), "--data", str(source))
    assert refused.exit_code == 2
    assert not home.exists()


def test_a_home_of_a_newer_version_is_refused(call: Call, home: Path) -> None:
    home.mkdir()
    (home / "format.json").write_text(json.dumps({"format": 99}))
    for arguments in (("status",), RUN):
        refused = call(*arguments)
        assert refused.exit_code == 2
        assert "newer version" in refused.stderr
    assert list(files_of(home)) == ["format.json"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TRACKS_POSTGRES_URL", "postgresql://nobody:secret@127.0.0.1:1/none"),
        ("TRACKS_POSTGRES_URL", "mysql://host/db"),
        ("TRACKS_STORE", "ftp://host/store"),
    ],
)
def test_a_place_that_cannot_be_reached_is_reported_without_its_password(
    variable: str, value: str, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    refused = call(*RUN)
    assert refused.exit_code == 2
    assert "secret" not in refused.stderr
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((*RUN, "--set", "a=" + "[" * 100_000), "is nested more than"),
        ((*RUN, "--trainer", "TRAINER"), "nested too deeply for Python"),
        (("snapshots", "add", "own", ".", "--checks", "TRAINER"), "nested too deeply for Python"),
        (("export", RUN_ID, "x" * 5000), "Cannot write"),
        (("promote", RUN_ID, "--why", "w", "--bundle", "x" * 5000), "Cannot make"),
    ],
    ids=["a value", "a trainer", "checks", "a name", "a folder"],
)
def test_what_python_cannot_take_is_refused_in_words(
    arguments: tuple[str, ...], hint: str, story: Story, call: Call, tmp_path: Path
) -> None:
    trainer = tmp_path / "deep.py"
    trainer.write_text("x = " + "-" * 200_000 + "1")
    refused = call(*(str(trainer) if each == "TRAINER" else each for each in arguments))
    assert refused.exit_code == 2
    assert hint in refused.stderr


@pytest.mark.parametrize(
    "given",
    [("conform",), ("size", "--trainer"), ("simulate", "--llama3", "--policy"), ("init",)],
    ids=lambda given: given[0],
)
def test_a_path_that_is_too_long_is_refused_in_words(given: tuple[str, ...], call: Call) -> None:
    result = call(*given, "a" * 3000)
    assert result.exit_code == 2
    assert "File name too long" in result.stderr


@pytest.mark.parametrize(("number", "exit_code"), [(errno.ELOOP, 2), (errno.EACCES, 1)])
def test_a_path_that_is_refused_late_is_not_wrong_use(
    number: int, exit_code: int, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "/there")

    monkeypatch.setattr("tracks_dagster.settings.Settings.from_environment", refused)
    result = call("status")
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr == f"tracks: /there: {os.strerror(number)}. Give another path.\n"


def test_a_place_of_nobody_is_reported(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKS_STORE", "~nouser/x")
    refused = call("status")
    assert refused.exit_code == 2
    assert "TRACKS_STORE is '~nouser/x', which names no place here" in refused.stderr


def test_a_date_that_never_is_comes_as_text(story: Story, call: Call) -> None:
    asked = "select date 'infinity' as never, date '-infinity' as before, date '2026-01-31' as then"
    assert json.loads(call("sql", asked, "--json").stdout) == [
        {"never": "infinity", "before": "-infinity", "then": "2026-01-31"}
    ]
