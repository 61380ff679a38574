"""`profile:` and `stages:` of a policy file: what a profile says, as the file changes it.

profile: strict               # light: no gates, as shipped
stages:
  fresh: 7d
  smoke: {steps: 20, time: 5min}
  canary: {steps: 200, time: 30min, money: 20, loss_falls: 2%, trend_p_max: 0.05}
  full: {needs: [tests, smoke, canary, conform]}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import PlainValidator

from tracks_dagster.retry.stages import PROFILES, Profile, StagePolicy
from tracks_dagster.track.bodies import GATES
from tracks_dagster.track.effects.settings_file import LEFT_OUT, FileModel, SettingsFile
from tracks_dagster.track.names import STAGES
from tracks_dagster.track.text import units
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import shown


def read_stages(profile: Profile, row: StagesRow, file: SettingsFile) -> StagePolicy:
    """Return the stages of `profile` as the row changes them; what cannot be goes to `file.refuse`."""
    base, given = PROFILES[profile], row.given()
    rules = dict(base.rules)
    for stage in STAGES:
        try:
            rules[stage] = replace(rules[stage], **_fields(given.get(stage)))
        except ValueError as error:
            file.refuse(("stages", stage), str(error))
    fresh = {"fresh_s": given["fresh_s"]} if "fresh_s" in given else {}
    try:
        return replace(base, rules=rules, **fresh)
    except ValueError as error:  # each holds by itself, but not beside the others
        file.refuse(("stages",), str(error))
        return base


def _fields(row: _Stage | None) -> dict[str, Any]:
    return {} if row is None else {_NAMES.get(name, name): v for name, v in row.given().items()}


# Fields of a row that the rule calls otherwise: a file says what they mean, code has the unit.
_NAMES = {"time_s": "device_s", "loss_falls": "loss_falls_by"}


def _needs(value: object) -> tuple[str, ...]:
    """Read a list of gates."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{shown(value)} is not a list; write for example [tests, smoke, canary].")
    for each in value:
        if each not in GATES:
            raise ValueError(unknown("gate", str(each), list(GATES)))
    return tuple(dict.fromkeys(value))


ProfileName = Annotated[
    Profile, PlainValidator(units.one_of("profile", {each.value: each for each in Profile}))
]
_CountOrNone = Annotated[int | None, PlainValidator(units.or_none(units.count))]
_SecondsOrNone = Annotated[float | None, PlainValidator(units.or_none(units.duration_s))]


class _Stage(FileModel):
    steps: _CountOrNone = LEFT_OUT
    time_s: _SecondsOrNone = LEFT_OUT
    money: Annotated[float | None, PlainValidator(units.or_none(units.amount_of_money))] = LEFT_OUT
    loss_falls: Annotated[float | None, PlainValidator(units.or_none(units.share))] = LEFT_OUT
    trend_p_max: Annotated[float, PlainValidator(units.share)] = LEFT_OUT
    needs: Annotated[tuple[str, ...], PlainValidator(_needs)] = LEFT_OUT


class StagesRow(FileModel):
    """`stages:`: one row a stage, and how long what was shown counts."""

    fresh_s: Annotated[float, PlainValidator(units.duration_s)] = LEFT_OUT
    kitchen_sink: _Stage = LEFT_OUT
    smoke: _Stage = LEFT_OUT
    canary: _Stage = LEFT_OUT
    full: _Stage = LEFT_OUT
