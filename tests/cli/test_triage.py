"""`tracks triage` as a person calls it, on a home with the nine variants in it."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.six_variants import DONE, FAMILY, QUEUED, write_variants
from tracks_dagster.cli import main
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import App, build

PLANNED = ("triage", "--family", FAMILY, "--devices", "1", "--device-memory", "24GiB")


@pytest.fixture
def variants(home: Path) -> App:
    """The nine variants, as if they had been placed on this machine before its last boot."""
    app = build(Settings.from_environment())
    write_variants(app.store, node=platform.node())
    app.projector.scan()
    return app


def test_the_table_tells_progress_and_metrics_apart(variants: App, call: Call) -> None:
    told = call(*PLANNED)
    assert told.exit_code == 1  # two are dead
    [row] = [line for line in told.stdout.splitlines() if line.startswith("v2-2 ")]
    assert "interrupted" in row
    assert "55.3 %, 830/1500" in row
    assert "83/150" in row
    assert "64.84" not in row
    metrics = told.stdout.split("Metrics, which are not progress:")[1].split("\n\n")[0]
    assert "v2-2: accuracy 64.84" in metrics
    assert "v2-3: accuracy 56.99" in metrics


def test_the_order_of_the_restart_is_told_with_times(variants: App, call: Call) -> None:
    text = call(*PLANNED).stdout
    order = text.split("To start, in this order, on 1 device of 24 GiB as given:")[1]
    lines = [line.strip() for line in order.strip().splitlines()[:4]]
    assert [line.split(":")[0] for line in lines] == ["1. v2-2", "2. v2-3", "3. v2-5", "4. v2-6"]
    assert "now" in lines[0]
    assert "now" in lines[1]
    assert "in about 40 min" in lines[2]
    assert "after v2-5" in lines[3]


def test_json_has_every_cell_and_its_evidence(variants: App, call: Call) -> None:
    found = json.loads(call(*PLANNED, "--json").stdout)
    lines = {line["run_id"]: line for line in found["lines"]}
    assert {run_id: lines[run_id]["standing"] for run_id in (*DONE, *QUEUED)} == {
        **dict.fromkeys(DONE, "done"),
        **dict.fromkeys(QUEUED, "queued"),
    }
    assert (lines["v2-3"]["percent"], lines["v2-3"]["metrics"]["accuracy"]) == (28.0, 56.99)
    assert {sign["cell"] for sign in lines["v2-3"]["signs"]} >= {"verdict", "progress", "code"}
    assert [each["run_id"] for each in found["plan"]] == ["v2-2", "v2-3", "v2-5", "v2-6"]
    assert found["acts"] == []


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_without_apply_nothing_is_changed(
    extra: tuple[str, ...], variants: App, call: Call, home: Path
) -> None:
    before = files_of(home)
    call(*PLANNED, *extra)
    assert files_of(home) == before


def test_apply_closes_opens_and_says_so(variants: App, call: Call) -> None:
    told = call(*PLANNED, "--apply", "--by", "ann", "--why", "the night's reboot")
    assert told.exit_code == 0, told.stderr
    assert "v2-2: closed" in told.stdout
    assert "`tracks up`" in told.stdout
    state = variants.tracks.run("v2-2")
    assert state.attempts[0].reason is not None
    assert any("the night's reboot" in note.body.text for note in state.notes)
    assert not variants.tracks.run("v2-5").attempts


def test_only_the_runs_that_were_named_are_told(variants: App, call: Call) -> None:
    found = json.loads(call("triage", "v2-2", "v1-1", "--json").stdout)
    assert [line["run_id"] for line in found["lines"]] == ["v1-1", "v2-2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("v2-22",), "did you mean"),
        (("--device-memory", "24"), "no size"),
        (("v2-2", "--family", FAMILY), "not both"),
        (("No/Run",), "cannot name a training run"),
    ],
)
def test_wrong_use_is_told_with_what_is_right(
    arguments: tuple[str, ...], words: str, variants: App, call: Call
) -> None:
    told = call("triage", *arguments)
    assert told.exit_code != 0
    assert words in told.stderr


def test_the_answer_fits_a_narrow_terminal(
    variants: App, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr("tracks_dagster.cli.common.FILE_WIDTH", 80)
    table = call(*PLANNED).stdout.split("\n\n")[0].splitlines()[1:]
    assert max(len(line) for line in table) <= 80
    assert len(table) == 1 + 9  # a row each: nothing had to be folded


def test_a_home_where_everything_is_over_says_so(home: Path, call: Call) -> None:
    build(Settings.from_environment())
    told = call("triage")
    assert told.exit_code == 0
    assert "No training run is open" in told.stdout


def test_the_command_is_listed(call: Call) -> None:
    assert "triage" in main.list_commands(None)  # type: ignore[arg-type]
