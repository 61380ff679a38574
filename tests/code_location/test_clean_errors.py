"""No error that Dagster stores shows a secret, whatever it was raised from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest
from dagster import AssetsDefinition, DagsterEventType, DagsterInstance, Out, Output, job, op

from tracks_dagster.clean_errors import CHAIN_MAX, CleanedError, clean_error, without_secrets
from tracks_dagster.definitions import defs
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.redact import redact

TOKEN = "hf_PlantedPlantedPlanted0123456789ab"
SECRET = "wJalrXUtnFEMI7MDENGbPxRfiCYEXAMPLEKEY"


def driver_fails() -> NoReturn:
    try:
        raise OSError(f"password authentication failed for {SECRET}")
    except OSError as error:
        error.add_note(f"tried {TOKEN}")
        try:
            raise ValueError("while the first was handled")
        except ValueError as second:
            raise InvalidInput("Cannot open the ledger.") from second


@op
@without_secrets
def fails() -> None:
    """Fail at once."""
    driver_fails()


@op(out=Out(int))
@without_secrets
def fails_later() -> Iterator[Output[int]]:
    """Fail after an event."""
    yield Output(1)
    driver_fails()


@job
def both() -> None:
    """Fail twice."""
    fails()
    fails_later()


def test_what_dagster_stores_of_an_error_shows_no_secret_and_still_its_chain(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    ended = both.execute_in_process(instance=instance, raise_on_error=False)
    assert not ended.success
    stored = [str(entry) for entry in instance.all_logs(ended.run_id)]
    failures = [
        str(entry)
        for entry in instance.all_logs(ended.run_id, of_type=DagsterEventType.STEP_FAILURE)
    ]
    assert len(failures) == 2
    for entry in failures:
        assert "Cannot open the ledger." in entry
        assert "while the first was handled" in entry
        assert "password authentication failed for [hidden]" in entry
        assert "driver_fails" in entry  # where it was raised
    assert all(TOKEN not in entry and SECRET not in entry for entry in stored)


def test_an_error_without_a_secret_is_raised_as_it_is() -> None:
    error = InvalidInput("Cannot open the ledger.")

    @without_secrets
    def body() -> None:
        raise error

    with pytest.raises(InvalidInput) as raised:
        body()
    assert raised.value is error


def test_of_a_chain_without_an_end_a_bounded_part_is_kept() -> None:
    first = error = ValueError(TOKEN)
    for number in range(2 * CHAIN_MAX):
        error.__cause__ = ValueError(number)
        error = error.__cause__
    cleaned, count = clean_error(first, redact), 0
    assert isinstance(cleaned, CleanedError)
    assert str(cleaned) == "ValueError: [hidden]"
    behind: BaseException | None = cleaned
    while behind is not None:
        behind, count = behind.__cause__, count + 1
    assert count == CHAIN_MAX


def test_every_asset_op_and_sensor_of_the_code_location_has_the_door() -> None:
    repository = defs.get_repository_def()
    bodies = {
        node.name: node.compute_fn.decorated_fn
        for each in repository.get_all_jobs()
        for node in each.all_node_defs
        if hasattr(node, "compute_fn")
    }
    bodies |= {each.name: each.__wrapped__ for each in repository.sensor_defs}
    assets = [each for each in defs.assets or () if isinstance(each, AssetsDefinition)]
    assert {each.op.name for each in assets if each.is_executable} <= set(bodies)
    assert len(bodies) > len(assets)
    assert [name for name, body in bodies.items() if not hasattr(body, "__wrapped__")] == []
