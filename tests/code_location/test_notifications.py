"""The sensor that sends alerts: by the home's notify.yaml, without a secret in what Dagster stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from dagster import DagsterInstance, SensorEvaluationContext, SkipReason, build_sensor_context

from tests.fakes import FakeClock
from tests.histories import History
from tests.plain_site import send_notifications
from tests.receivers import Hook, hook_server
from tracks_dagster.home.on_demand import BOARD_FILE
from tracks_dagster.home.web_server import ADDRESS_FILE
from tracks_dagster.processes.process import this_process, write_process
from tracks_dagster.wiring import App


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """A webhook on this machine, whatever proxy that is behind."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with hook_server() as served:
        yield served


@pytest.fixture
def at_two(app: App) -> App:
    """The application at the time of the tests' records."""
    return replace(app, now=FakeClock())


def context_of(app: App, instance: DagsterInstance, cursor: str | None) -> SensorEvaluationContext:
    return build_sensor_context(instance=instance, resources={"app": app}, cursor=cursor)


def ticked(app: App, instance: DagsterInstance, cursor: str | None) -> tuple[str, str | None]:
    """Return what a tick says, and the cursor that it leaves."""
    with context_of(app, instance, cursor) as context:
        result = send_notifications(context)
        assert isinstance(result, SkipReason)
        return result.skip_message or "", context.cursor


def test_an_alert_goes_from_its_record_to_the_webhook_of_the_homes_file(
    at_two: App, instance: DagsterInstance, hook: Hook
) -> None:
    file = at_two.settings.home / "notify.yaml"
    words, cursor = ticked(at_two, instance, None)
    assert words == "there is no notify.yaml, so nobody is sent anything"
    file.write_text(f"- {{name: oncall, to: '{hook.url}/hook/T0k3n-a1b2c3'}}\n")
    assert ticked(at_two, instance, cursor)[0] == "nothing is to be sent"
    history = History("r-1").declare().open().alert("The save of step 40 failed.")
    history.write_to(at_two.store)
    at_two.tracks.project(history.name)
    hook.status = 500
    words, cursor = ticked(at_two, instance, cursor)
    assert words == "oncall: It answers HTTP 500 Internal Server Error: ok."
    hook.status = 200
    at_two.now.advance(60)  # type: ignore[attr-defined]
    assert ticked(at_two, instance, cursor)[0] == "oncall: runs/r-1/2 is sent"
    assert [each["sentence"] for each in hook.got] == ["The save of step 40 failed."]
    kept = b"".join(at_two.store.get(key) or b"" for key in at_two.store.list(""))
    assert b"T0k3n-a1b2c3" not in kept
    file.write_text("- {name: oncall, to: 'htps://hooks/T0k3n-a1b2c3'}\n- {nam: b}\n")
    words, cursor = ticked(at_two, instance, cursor)
    assert "line 1: notify[0].to: " in words or "line 2: " in words
    assert "T0k3n-a1b2c3" not in words


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_message_leads_to_the_run_on_the_board_and_to_the_attempt_in_dagster(
    at_two: App, instance: DagsterInstance, hook: Hook, is_ended: bool
) -> None:
    home = at_two.settings.home
    (home / "notify.yaml").write_text(f"- {{name: oncall, to: '{hook.url}', also: refused}}\n")
    _, cursor = ticked(at_two, instance, None)
    history = History("r-1").declare().open().supervise().place().restore().alert("an alert")
    if is_ended:
        history.end("code_error").refuse()
    history.write_to(at_two.store)
    at_two.tracks.project(history.name)
    dagster = (home / "dagster", ADDRESS_FILE, "http://127.0.0.1:3000")
    for folder, name, address in (dagster, (home, BOARD_FILE, "http://127.0.0.1:3001")):
        folder.mkdir(exist_ok=True)
        write_process(folder / name, this_process(), address=address)
    ticked(at_two, instance, cursor)
    asset = "receipts" if is_ended else "training_attempts"
    pages = [
        "http://127.0.0.1:3001/runs/r-1",
        f"http://127.0.0.1:3000/assets/{asset}?view=partitions&partition=r-1%2Fa01",
    ]
    assert [each["links"] for each in hook.got] == [pages] * (1 + is_ended)
    assert [each["link"] for each in hook.got] == pages[:1] * (1 + is_ended)


def test_a_cursor_of_another_version_costs_a_look_and_sends_nothing_twice(
    at_two: App, instance: DagsterInstance, hook: Hook
) -> None:
    (at_two.settings.home / "notify.yaml").write_text(f"- {{name: oncall, to: '{hook.url}'}}\n")
    ticked(at_two, instance, None)
    history = History("r-1").declare().open().alert("an alert")
    history.write_to(at_two.store)
    at_two.tracks.project(history.name)
    for cursor in (None, "not json", "[]", '{"seen": 3}', '{"seen": {"runs/r-1": "x"}}'):
        ticked(at_two, instance, cursor)
    assert hook.keys == ["runs/r-1/2"]
