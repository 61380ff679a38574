"""Mutes alerts for a while, by a person's word: they are recorded, and sent to nobody."""

from __future__ import annotations

from datetime import timedelta

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import ANY_RULE, MuteDecision
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Draft, Kind, Record, format_time
from tracks_dagster.track.states.mute_state import Mute, MuteState
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.wings.watch.health.rules import RULES

MUTE_S_MIN = 1.0
MUTE_S_MAX = (
    30 * 86_400.0
)  # a rule that nobody wants to hear of for longer is left out of notify.yaml


def mute(
    tracks: Tracks, rule: str, *, run_id: str | None, for_s: float, by: str, why: str
) -> Record:
    """Append the mute of a rule, or of ANY_RULE, for one run or for all (None).

    Raises InvalidInput for a rule that there is not and for a time out of bounds, UnknownRun.
    """
    check_rule(rule)
    if not MUTE_S_MIN <= for_s <= MUTE_S_MAX:
        raise InvalidInput(
            f"A mute of {for_s:g} s is out of bounds; write 1s to 30d, for example --for 2h."
        )
    if run_id is not None:
        tracks.run(run_id)
    until = format_time(tracks.now() + timedelta(seconds=for_s))
    body = MuteDecision(rule=rule, run_id=run_id, by=by, why=why, until_at=until)
    draft = tracks.draft(Kind.ALERTS_MUTED, body)
    record = tracks.decide_mutes(lambda state: draft)
    assert record is not None, "it is decided whatever was muted before"
    return record


def unmute(tracks: Tracks, rule: str, *, run_id: str | None, by: str, why: str) -> Record | None:
    """Append the end of the mutes of that rule and run; None where none holds. Raises InvalidInput."""
    check_rule(rule)
    now = tracks.now()
    draft = tracks.draft(
        Kind.ALERTS_UNMUTED, MuteDecision(rule=rule, run_id=run_id, by=by, why=why)
    )

    def chosen(state: MuteState | None) -> Draft | None:
        in_force: tuple[Mute, ...] = state.in_force(now) if state is not None else ()
        is_muted = any((m.body.rule, m.body.run_id) == (rule, run_id) for m in in_force)
        return draft if is_muted else None

    return tracks.decide_mutes(chosen)


def check_rule(rule: str) -> None:
    """Raise InvalidInput where there is no such rule; ANY_RULE is one."""
    if rule != ANY_RULE and rule not in RULES:
        raise InvalidInput(f"{unknown('rule of alerts', rule, list(RULES))} * mutes them all.")
