"""Config and cadence of a run that is to be declared: as a person overrides them, and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tracks_dagster.data.families import REPORTED, Family, resolve_config
from tracks_dagster.track.bodies import CheckpointCadence, RetentionRule
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.safe_text import WORDS_CHARACTERS_MAX

RANKS_MAX = 4096


def whole_config(
    family: Family, overrides: Mapping[str, Json], *, ranks: int, has_own_trainer: bool
) -> dict[str, Json]:
    """Return the whole config; a trainer of one's own may have keys that the family does not.

    Raises InvalidInput.
    """
    check_ranks(ranks)
    own: dict[str, Json] = {}
    if has_own_trainer:
        own = {key: value for key, value in overrides.items() if key not in family.keys}
    for key, value in own.items():
        check_own(key, value)
    given = {key: value for key, value in overrides.items() if key not in own}
    return {**resolve_config(family, given, ranks=ranks), **own}


def check_ranks(ranks: int) -> None:
    """Raise InvalidInput unless that many processes can train."""
    if not 1 <= ranks <= RANKS_MAX:
        raise InvalidInput(f"{ranks} ranks cannot train; use 1 to {RANKS_MAX}.")


def check_own(key: str, value: Json) -> None:
    """Raise InvalidInput unless `value` may stand under a key that only one's own trainer knows."""
    is_text = isinstance(value, str) and len(value) <= WORDS_CHARACTERS_MAX
    is_number = isinstance(value, int | float) and math.isfinite(value)
    if not (is_text or is_number or value is None):
        raise InvalidInput(f"{key} = {value!r} is no short text, number, true, false or null.")


def check_best_metric(rule: RetentionRule) -> None:
    """Raise InvalidInput for a metric that a family that ships does not report: no checkpoint would
    ever be the best by it."""
    if rule.keep_best and rule.metric not in REPORTED:
        raise InvalidInput(
            f"No checkpoint can be the best by {rule.metric!r}: the family's own trainer reports "
            f"{', '.join(REPORTED)}. Choose one of these, or give a script that reports it."
        )


def checked_cadence(
    every_steps: int | None, every_s: float | None, *, may_be_off: bool
) -> CheckpointCadence:
    """Return when checkpoints are saved; raises InvalidInput.

    may_be_off: whether the policy allows a run that saves neither by steps nor by time.
    """
    if every_steps is None and every_s is None and not may_be_off:
        raise InvalidInput(
            "Without periodic checkpoints a run loses all its work at the first failure. Save every "
            "so many steps or seconds (`tracks run --checkpoint-every N`, --checkpoint-every-s "
            "SECONDS; in the launchpad checkpoint_every_steps, checkpoint_every_s). Where that is "
            "meant, the policy file says so: limits: {checkpoints_may_be_off: true}."
        )
    if every_steps is not None and every_steps < 1:
        raise InvalidInput(
            f"A checkpoint every {every_steps} steps is not possible; use 1 or more."
        )
    if every_s is not None and not every_s > 0:
        raise InvalidInput(f"A checkpoint every {every_s} s is not possible; use more than 0.")
    return CheckpointCadence(every_steps=every_steps, every_s=every_s)
