"""`tracks health` and `tracks alerts`, as a person calls them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.histories import History
from tests.stories import step_line
from tracks_dagster.settings import Settings
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import Alert, CheckpointCadence
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Kind, format_time
from tracks_dagster.wiring import App, build


@pytest.fixture
def app(home: Path) -> App:
    return build(Settings.from_environment())


def trains(app: App, run_id: str = "r-1", *, flat: bool = False) -> History:
    """Store a run that trains right now, with a hundred steps."""
    now = datetime.now(UTC)
    history = History(run_id, begin=now).declare(cadence=CheckpointCadence())
    history.open().supervise().place(world_size=1).restore().write_to(app.store)
    lines = [step_line(step, at=format_time(now)) for step in range(1, 101)]
    if flat:
        lines = [{**line, "loss": 2.0} for line in lines]
    data = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    prefix = journal_prefix(AttemptRef(run_id, 1), history.launch_id, 0)
    app.store.put(f"{prefix}{0:012d}.jsonl", data)
    app.projector.scan()
    return history


def test_a_home_without_a_run_has_nothing_to_say(app: App, call: Call) -> None:
    assert call("health").output == "No run goes on.\n"
    assert call("alerts").output == "No alert is open.\n"


def test_a_run_that_trains_shows_three_lights_in_80_columns(
    app: App, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    trains(app)
    result = call("health", "r-1")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert result.output.startswith("r-1/a01, step 100, as of ")
    for words in ("healthy?", "improving?", "resources well used?", "advice: continue; the loss"):
        assert words in result.output
    assert "r-1" in call("health").output


def test_json_has_lights_findings_advice_and_open_alerts(app: App, call: Call) -> None:
    history = trains(app, flat=True)
    spike = Alert(rule="loss_spike", text="The loss spiked.", data={"step": 90})
    history.add(Kind.ALERT, spike, attempt_id=1).write_to(app.store)
    found = json.loads(call("health", "r-1", "--json").stdout)
    assert found["worst"] == "yellow"
    assert found["improving"]["colour"] == "yellow"
    assert {each["rule"] for each in found["findings"]} == {"loss_flat", "loss_spike"}
    assert found["advice"]["word"] == "retune"
    [alert] = found["open_alerts"]
    assert (alert["rule"], alert["runbook"]) == ("loss_spike", "docs/runbooks/loss_spike.md")


def test_a_red_light_and_a_red_alert_are_exit_code_1(app: App, call: Call) -> None:
    history = trains(app)
    assert call("alerts").exit_code == 0
    left = Alert(rule="no_node_left", text="Every node is excluded.", data={})
    history.add(Kind.ALERT, left, attempt_id=1).write_to(app.store)
    app.projector.scan()
    assert call("health", "r-1").exit_code == 1
    listed = call("alerts")
    assert listed.exit_code == 1
    assert "r-1  red no_node_left\n  Every node is excluded.\n  `tracks pool`" in listed.output
    assert "docs/runbooks/no_node_left.md" in listed.output
    history.end("preempted", last_step=100).write_to(app.store)
    app.projector.scan()
    assert call("alerts").output == "No alert is open.\n"
    past = call("alerts", "history", "--rule", "no_node_left")
    assert "Every node is excluded." in past.output
    assert json.loads(call("alerts", "history", "--json").stdout)[0]["cleared_why"] == (
        "Attempt 1 ended."
    )


def test_a_rule_is_muted_and_unmuted_with_a_reason(app: App, call: Call) -> None:
    trains(app)
    muted = call("alerts", "mute", "loss_flat", "--for", "2h", "--why", "noisy", "--by", "ann")
    assert muted.output == "Alerts of loss_flat are sent to nobody for 2 h.\n"
    assert "loss_flat is muted until " in call("alerts").output
    over = call("alerts", "unmute", "loss_flat", "--why", "calm again", "--by", "ann")
    assert over.output == "Alerts of loss_flat are sent again.\n"
    again = call("alerts", "unmute", "loss_flat", "--why", "calm again", "--by", "ann")
    assert again.output == "No mute of loss_flat is in force.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mute", "loss_falt", "--for", "2h", "--why", "x"), "did you mean loss_flat"),
        (("mute", "loss_flat", "--for", "2", "--why", "x"), "--for: '2' has no unit"),
        (("mute", "loss_flat", "--for", "2h", "--run", "r-9", "--why", "x"), "r-9"),
        (("history", "--rule", "nothing"), "not a rule of alerts"),
        (("list", "--run", "r-9"), "r-9"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    app: App, call: Call, arguments: tuple[str, ...], words: str
) -> None:
    trains(app)
    result = call("alerts", *arguments)
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert app.tracks.find_mutes() is None
