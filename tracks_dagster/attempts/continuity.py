"""Whether a resumed attempt repeats the dead one's losses, compared step by step, exactly.

After a resume the steps that an earlier attempt had already run past the resume point are run again.
Their losses must be the same floats, or the resume was not exact; where the code is another one, they
are compared too, and it is said. Pure: who reads the journals is `review.effects.receipts`, and at an
attempt's end `attempts.effects.repeated_steps`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import (
    AttemptState,
    RunState,
    stored_code_sha256,
    trainer_of,
)
from tracks_dagster.track.text.units import counted

CODE_DIGITS = 12  # of the sha256 of stored code, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLosses:
    """What one attempt ran. losses: of the steps whose journal lines are in the store.

    beside: what else the losses depend on, by name: device, snapshot. code: names what it ran.
    resumed_step: 0 when it began afresh; resumed_from: the attempt of this run that saved it, None for
    one of another run; last_step: the last step it is known to have finished.
    """

    attempt_id: int
    config: Mapping[str, Json]
    ranks: int
    resumed_step: int
    last_step: int | None
    losses: Mapping[int, float]
    code: str = ""
    resumed_from: int | None = None
    beside: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuity:
    """The comparison. agree is None, with a reason, where no step could be compared.

    first_difference: the first step whose loss differs, or None. other_code: who ran other code, of
    the attempts that it went on from or was compared with, in words; None where nobody did.
    """

    steps_compared: int
    agree: bool | None
    first_difference: int | None
    reason: str | None
    other_code: str | None = None

    @property
    def sentence(self) -> str:
        """The result in words."""
        more = f"; {self.other_code}" if self.other_code else ""
        if self.agree is None:
            return f"not compared: {self.reason}{more}"
        if self.agree:
            return f"verified over {counted(self.steps_compared, 'step')}{more}"
        found = (
            f"of {counted(self.steps_compared, 'step')} compared, step {self.first_difference} is the "
            "first with another loss"
        )
        if self.other_code:
            return f"{found}{more}, which may be why"
        return f"broken: {found}; the resume was not exact"


def continuity(resumed: AttemptLosses, earlier: Sequence[AttemptLosses]) -> Continuity | None:
    """Compare `resumed` with what `earlier` attempts (oldest first) ran past its resume point.

    None for an attempt that began afresh: it resumed nothing.
    """
    if resumed.resumed_step == 0:
        return None
    before: dict[int, AttemptLosses] = {}  # by step, the newest attempt that ran it
    objection = f"no step had been run past step {resumed.resumed_step}"
    for attempt in earlier:
        last_step = attempt.last_step or 0
        ran_past = last_step > resumed.resumed_step
        difference = _difference(resumed, attempt)
        if difference is not None and last_step > attempt.resumed_step:
            # What comes after may rest on weights that it made in other floating-point steps.
            objection = difference if ran_past or before else objection
            before.clear()
        elif ran_past:
            past = [step for step in attempt.losses if step > resumed.resumed_step]
            before.update(dict.fromkeys(past, attempt))
            objection = objection if past else _not_shipped(resumed, attempt)
    steps = sorted(before.keys() & resumed.losses.keys())
    if before and not steps:
        objection = (
            f"{_span(before)} of an earlier attempt cannot be found in this one's journal: it ended "
            "before it got there, or the journal was not shipped"
        )
    used = {resumed.resumed_from, *(before[step].attempt_id for step in steps)}
    other_code = _other_code(resumed, [each for each in earlier if each.attempt_id in used])
    first = next(
        (step for step in steps if before[step].losses[step] != resumed.losses[step]), None
    )
    return Continuity(
        steps_compared=len(steps),
        agree=first is None if steps else None,
        first_difference=first,
        reason=None if steps else objection,
        other_code=other_code,
    )


def attempt_losses(
    state: RunState, attempt: AttemptState, losses: Mapping[int, float]
) -> AttemptLosses:
    """Return what an attempt ran, by its track; losses: of its steps that were read, oldest first."""
    trainer, ref, snapshot = (
        trainer_of(state, attempt),
        attempt.resumed_from,
        attempt.opened.snapshot,
    )
    beside = {} if snapshot is None else {"snapshot": snapshot.snapshot_id[:12]}
    if attempt.placed is not None and attempt.placed.ranks:
        beside["device"] = attempt.placed.ranks[0].accelerator
    return AttemptLosses(
        attempt_id=attempt.attempt_id,
        config=attempt.opened.config,
        ranks=attempt.placed.world_size if attempt.placed else attempt.opened.compute.ranks,
        resumed_step=attempt.resumed_step,
        last_step=attempt.ended.last_step if attempt.ended else max(losses, default=None),
        losses=losses,
        code=(stored_code_sha256(trainer) or trainer)[:CODE_DIGITS],
        resumed_from=ref.attempt_id if ref is not None and ref.run_id == state.run_id else None,
        beside=beside,
    )


def _other_code(resumed: AttemptLosses, used: Sequence[AttemptLosses]) -> str | None:
    """Name the newest of these attempts that ran other code, or None."""
    other = next((each for each in reversed(used) if each.code != resumed.code), None)
    if other is None:
        return None
    return f"attempt {other.attempt_id} ran other code ({other.code} → {resumed.code})"


def _difference(resumed: AttemptLosses, attempt: AttemptLosses) -> str | None:
    """Say why the losses of `attempt` need not be the same floats, or None."""
    if attempt.ranks != resumed.ranks:
        return (
            f"attempt {attempt.attempt_id} ran on {counted(attempt.ranks, 'rank')}, "
            f"attempt {resumed.attempt_id} on {resumed.ranks}"
        )
    for name in sorted(attempt.beside.keys() & resumed.beside.keys()):
        before, after = attempt.beside[name], resumed.beside[name]
        if before != after:
            return f"attempt {attempt.attempt_id} had another {name} ({before} → {after})"
    keys = sorted(attempt.config.keys() | resumed.config.keys())
    changed = [key for key in keys if attempt.config.get(key) != resumed.config.get(key)]
    if not changed:
        return None
    listed = ", ".join(
        f"{key} {attempt.config.get(key)} → {resumed.config.get(key)}" for key in changed
    )
    return f"attempt {attempt.attempt_id} had another config ({listed})"


def _not_shipped(resumed: AttemptLosses, attempt: AttemptLosses) -> str:
    return (
        f"the journal of attempt {attempt.attempt_id} was not shipped past step "
        f"{resumed.resumed_step}; its last step was {attempt.last_step}"
    )


def _span(steps: Collection[int]) -> str:
    first, last = min(steps), max(steps)
    return f"step {first}" if first == last else f"steps {first} to {last}"
