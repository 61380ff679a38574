"""`tracks triage` as a person calls it, on a home with the nine variants in it."""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.histories import History
from tests.six_variants import DONE, FAMILY, QUEUED, write_variants
from tracks_dagster.cli import main
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.wings.triage.judging import BAD_VERDICTS, CLOSABLE, Verdict
from tracks_dagster.wiring import App, build

SLOTS = max(16, os.cpu_count() or 1)
PLANNED = ("triage", "--family", FAMILY, "--devices", "1", "--device-memory", "24GiB")


@pytest.fixture
def variants(home: Path) -> App:
    """The nine variants, as if they had been placed on this machine before its last boot."""
    app = build(Settings.from_environment())
    write_variants(app.store, node=platform.node())
    app.projector.scan()
    return app


def test_the_table_tells_progress_and_metrics_apart(variants: App, call: Call) -> None:
    result = call(*PLANNED)
    assert result.exit_code == 1  # two are dead
    [row] = [line for line in result.stdout.splitlines() if line.startswith("v2-2 ")]
    assert "interrupted" in row
    assert "55.3 %, 830/1500" in row
    assert "83/150" in row
    assert "64.84" not in row
    metrics = result.stdout.split("Metrics, which are not progress:")[1].split("\n\n")[0]
    assert "v2-2: accuracy 64.84" in metrics
    assert "v2-3: accuracy 56.99" in metrics


def test_the_order_of_the_restart_is_reported_with_times(variants: App, call: Call) -> None:
    text = call(*PLANNED).stdout
    order = text.split(
        f"To start, in this order (1 device of 24 GiB as given, and {SLOTS} CPU slots):"
    )[1]
    lines = [line.strip() for line in order.strip().splitlines()[:4]]
    assert [line.split(":")[0] for line in lines] == ["1. v2-2", "2. v2-3", "3. v2-5", "4. v2-6"]
    assert "now" in lines[0]
    assert "now" in lines[1]
    assert "in about 40 min" in lines[2]
    assert "after v2-5" in lines[3]


def test_the_plan_has_the_devices_that_the_daemon_gives_out(
    variants: App, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("TRACKS_DEVICES", "2")
    for run_id in ("on-cpu-1", "on-cpu-2", "on-cpu-3"):
        History(run_id).declare(compute=ComputeRequest()).write_to(variants.store)
    variants.projector.scan()
    text = call("triage", "on-cpu-1", "on-cpu-2", "on-cpu-3").stdout
    assert "To start, in this order (2 slots by TRACKS_DEVICES):" in text
    assert text.count(": now on ") == 2


def test_what_to_do_is_said_before_the_evidence_for_it(variants: App, call: Call) -> None:
    result = call(*PLANNED).stdout
    head, order = result.splitlines()[1], result.split("What to do:")[1].split("\n\n")[0]
    assert head == "9 runs: 5 done, 2 interrupted and dead, 2 queued."
    assert re.search(r"Known after \d+\.\d s\.$", result.splitlines()[0])
    first, second = order.strip().splitlines()
    assert first.strip().startswith(f"1. `tracks {' '.join(PLANNED)} --apply --why")
    assert "records the end of v2-2, v2-3 and opens v2-2, v2-3" in first
    assert "`tracks up` continues v2-2, v2-3." in second
    assert result.splitlines()[3] == "What to do:"
    assert result.index("To start, in this order") < result.index("Evidence:")


def test_one_run_alone_is_counted_as_one(variants: App, call: Call) -> None:
    assert call("triage", "v2-2").stdout.splitlines()[1] == "1 run: 1 interrupted and dead."


def test_each_runs_own_pace_is_reported_with_its_interval(variants: App, call: Call) -> None:
    paces = call(*PLANNED).stdout.split("Pace, each by its own steps:")[1].split("\n\n")[0]
    two, three = paces.strip().splitlines()
    assert two.strip().startswith("v2-2: 3.59 ± 0.06 s a step, 0.60 min an epoch")
    assert "1.39 min an epoch" in three


def test_a_device_that_is_not_known_is_asked_for(variants: App, call: Call) -> None:
    result = call("triage", "v2-2").stdout
    needs = "needs 1 device with 9.8 GiB; there is no device of kind gpu here"
    assert f"v2-2: never here ({needs}: give --devices and --device-memory)" in result


def test_json_has_every_cell_and_its_evidence(variants: App, call: Call) -> None:
    found = json.loads(call(*PLANNED, "--json").stdout)
    lines = {line["run_id"]: line for line in found["lines"]}
    assert {run_id: lines[run_id]["standing"] for run_id in (*DONE, *QUEUED)} == {
        **dict.fromkeys(DONE, "done"),
        **dict.fromkeys(QUEUED, "queued"),
    }
    assert (lines["v2-3"]["percent"], lines["v2-3"]["metrics"]["accuracy"]) == (28.0, 56.99)
    assert {sign["cell"] for sign in lines["v2-3"]["signs"]} >= {"verdict", "progress", "code"}
    assert found["plan"]["order"] == ["v2-2", "v2-3", "v2-5", "v2-6"]
    assert found["acts"] == []


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_without_apply_nothing_is_changed(
    extra: tuple[str, ...], variants: App, call: Call, home: Path
) -> None:
    before = files_of(home)
    call(*PLANNED, *extra)
    assert files_of(home) == before


def test_apply_closes_opens_and_says_so(variants: App, call: Call) -> None:
    result = call(*PLANNED, "--apply", "--by", "ann", "--why", "the night's reboot")
    assert result.exit_code == 0, result.stderr
    assert "v2-2: closed" in result.stdout
    assert "`tracks up`" in result.stdout
    state = variants.tracks.run("v2-2")
    assert state.attempts[0].reason is not None
    assert any("the night's reboot" in note.body.text for note in state.notes)
    assert not variants.tracks.run("v2-5").attempts


def test_apply_says_that_nothing_starts_without_a_daemon_and_exits_with_1_for_what_is_left(
    home: Path, call: Call
) -> None:
    app = build(Settings.from_environment())
    orphan = History("orphan").declare().open().supervise().place().restore()
    orphan.write_to(app.store)
    app.projector.scan()
    found = call("triage", "orphan", "--json")
    [line] = json.loads(found.stdout)["lines"]
    assert (line["verdict"], found.exit_code) == ("not_seen", 1)
    result = call("triage", "orphan", "--apply")
    assert "No daemon is up: nothing that was opened starts before `tracks up`" in result.stdout
    assert result.exit_code == 1  # it is no less there than before, as an orphan would be
    assert {Verdict.ORPHANED, Verdict.NOT_SEEN} == BAD_VERDICTS - CLOSABLE


def test_only_the_runs_that_were_named_are_reported(variants: App, call: Call) -> None:
    found = json.loads(call("triage", "v2-2", "v1-1", "--json").stdout)
    assert [line["run_id"] for line in found["lines"]] == ["v1-1", "v2-2"]


def test_runs_that_were_not_looked_at_are_reported_beside_the_order(
    variants: App, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    words = "newer ones were not looked at: they may hold devices that this order gives away"
    assert words not in call("triage", "v2-2", "--devices", "1").stdout
    monkeypatch.setattr(
        "tracks_dagster.wings.triage.effects.reading.RUNS_MAX", 3
    )  # four are not over
    assert words in call("triage", "v2-2", "--devices", "1").stdout
    assert json.loads(call("triage", "v2-2", "--json").stdout)["unfinished_more"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("v2-22",), "did you mean"),
        (("--device-memory", "24"), "not a size"),
        (("v2-2", "--family", FAMILY), "not both"),
        (("--family", f"{FAMILY}r"), f"no run of family '{FAMILY}r'; did you mean {FAMILY}?"),
        (("No/Run",), "cannot name a training run"),
    ],
)
def test_wrong_use_is_reported_with_what_is_right(
    arguments: tuple[str, ...], words: str, variants: App, call: Call
) -> None:
    result = call("triage", *arguments)
    assert result.exit_code != 0
    assert words in result.stderr


def test_the_answer_fits_a_narrow_terminal(
    variants: App, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr("tracks_dagster.cli.common.FILE_WIDTH", 80)
    table = call(*PLANNED).stdout.split("\n\n")[2].splitlines()
    assert max(len(line) for line in table) <= 80
    assert len(table) == 1 + 9  # a row each: nothing had to be folded


def test_a_home_where_everything_is_over_says_so(home: Path, call: Call) -> None:
    build(Settings.from_environment())
    result = call("triage")
    assert result.exit_code == 0
    assert "No training run is open" in result.stdout


def test_the_command_is_listed(call: Call) -> None:
    assert "triage" in main.list_commands(None)  # type: ignore[arg-type]
