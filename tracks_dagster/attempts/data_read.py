"""Whether a run read all of its data at least once, by what its commits say of the order of samples.

A whole pass counts: every sample of one epoch, none left out. What nobody counted is unknown, and
shows nothing. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.holds.hold import short_id
from tracks_dagster.holds.lineage import skipped_samples
from tracks_dagster.track.roles import GLOBAL_BATCH, STEPS, key_of, value_of
from tracks_dagster.track.states.accounting import cursor_from
from tracks_dagster.track.states.evals import final_checkpoint
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRead:
    """is_whole: every sample was read at least once. why: with the numbers, and what would read all."""

    is_whole: bool
    why: str


def judge_data(state: RunState) -> DataRead:
    """Return how much of its snapshot a finished run read, to its final checkpoint.

    Of passes of 400 samples, samples 0 to 960 are two and a part; where a skip window took out 240 to
    264, the second is still whole.
    """
    snapshot = state.declared.snapshot
    of = "the data" if snapshot is None else f"snapshot {short_id(snapshot)} of {snapshot.dataset}"
    final = final_checkpoint(state)
    commit = None if final is None else state.checkpoint(final.manifest_sha256)
    if commit is None:
        return _unknown(of, "it has no final checkpoint")
    body = commit.body
    if body.cursor is None:
        return _in_own_order(of, body.epoch)
    if body.pass_samples is None:
        return _unknown(of, "an older version recorded no length of its data")
    return _in_our_order(state, of, body.cursor, body.pass_samples)


def _unknown(of: str, why: str) -> DataRead:
    return DataRead(is_whole=False, why=f"how much of {of} it read is unknown: {why}")


def _in_own_order(of: str, passes: int | None) -> DataRead:
    """Return it of a loader in an order of its own; a pass is counted when the next one begins."""
    if passes is None:
        return _unknown(of, "its script fetches its batches itself")
    read = f"its own loader went through {of} {counted(passes, 'time')}"
    if passes > 0:
        return DataRead(is_whole=True, why=read)
    return DataRead(is_whole=False, why=f"{read}; one step of the next pass would show that it did")


def _in_our_order(state: RunState, of: str, cursor: int, pass_samples: int) -> DataRead:
    roles, begun = state.declared.roles, cursor_from(state.attempts[0]) or 0
    skipped = {
        each
        for attempt in state.attempts
        for each in skipped_samples(attempt.opened.config, roles, begun, cursor)
    }
    starts = (n * pass_samples for n in range(-(-begun // pass_samples), cursor // pass_samples))
    is_whole = any(
        all(last <= start or start + pass_samples <= first for first, last in skipped)
        for start in starts
    )
    read = f"it read {counted(cursor - begun, 'sample')} of {of}, where a pass has {pass_samples}"
    if skipped:
        left_out = ", ".join(f"{first} to {last}" for first, last in sorted(skipped))
        read = f"{read}; {left_out} of the order were left out (skip_windows)"
    if not is_whole:
        read = f"{read}; {_advice(state, pass_samples)}"
    return DataRead(is_whole=is_whole, why=read)


def _advice(state: RunState, pass_samples: int) -> str:
    """Return what would read all."""
    config, roles = state.declared.config, state.declared.roles
    batch, steps = value_of(config, roles, GLOBAL_BATCH), key_of(config, roles, STEPS)
    if type(batch) is not int or batch < 1:
        return "give it more steps"
    return f"{steps or STEPS} = {-(-pass_samples // batch)} from step 0 on would read all"
