"""Judges what a trainer did in the trials of `tracks conform`: findings by name. Pure.

A trial is a run that is interrupted once, or played a fault, and resumed; the calm run is the same one
undisturbed. What is compared is what `training.observing` saw of each step, the losses of the journal
and the last checkpoint. A finding is of the first step after the resume wherever it can be: there a
state that was not restored still stands alone, one step later it has changed everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tracks_dagster.track.text.safe_text import one_line
from tracks_dagster.wings.lab.conformance.defects import DEFECTS, Finding
from tracks_dagster.wings.lab.conformance.seen import (
    HANG,
    INTERRUPTS,
    PLANTED,
    SAVED,
    AttemptSeen,
    Kind,
    RankSeen,
    State,
    TrialSeen,
)

WORDS_CHARACTERS_MAX = 160  # of what a trainer said, in a finding
SHIFT_STEPS = 3  # in a row that must be alike before batches count as those of another step
FOLDER = "folder"  # begins the names of files in `contents`
MADE_AGAIN_MIN = (
    3  # iterators over a loader, of one batch each, before they count as made in the loop
)

# In the words of an attempt whose script is behind the checkpoint that it resumed from.
_BEHIND = re.compile(
    r"[Ss]tep (\d+) (?:ended in an attempt that resumed from step|"
    r"was reported after step|and step|ended after step) (\d+)"
)
_UNHEARD = re.compile(r"asked for a signal and none came")  # in the words of `training.drills`
_SAYS_NAN = re.compile(r"The loss of step \d+ is (?:nan|-?inf)")  # in those of `training.step_log`
_UNREGISTERED = re.compile(r"is not registered: no checkpoint would have its state")
_CHANGED = re.compile(r"changed while (?:it was committed|they were listed)")
_AVERAGES = re.compile(r"(?:^|[^a-z])(?:ema|averaged?|shadow|swa)(?:[^a-z]|$)", re.IGNORECASE)


def judge(
    calm: TrialSeen,
    seen: TrialSeen,
    *,
    tolerance: float = 0.0,
    unstable: frozenset[str] = frozenset(),
) -> list[Finding]:
    """Return what is wrong in a trial beside the calm run of its shape, which may be the trial itself.

    tolerance: relative, within which numbers count as the same; 0: to the bit. unstable: names in
    `contents` that differ between two calm runs already.
    """
    found = [*_in_any_run(seen), *_of_kind(calm, seen, _Same(tolerance), unstable)]
    first = dict(reversed(found))
    return [
        Finding(name=name, detail=first[name], trial=seen.trial)
        for name in DEFECTS
        if name in first
    ]


Named = tuple[str, str]  # a finding's name, and what was seen


def _of_kind(
    calm: TrialSeen, seen: TrialSeen, same: _Same, unstable: frozenset[str]
) -> Iterator[Named]:
    kind = seen.trial.kind
    if any(_UNREGISTERED.search(attempt.words) for attempt in seen.attempts):
        words = next(a.words for a in seen.attempts if _UNREGISTERED.search(a.words))
        yield "optimizer_not_registered", _short(words)
    elif (
        kind not in INTERRUPTS and kind not in (Kind.ERROR, Kind.NAN) and not seen.last.is_complete
    ):
        yield "does_not_finish", f"{seen.last.reason}: {_short(seen.last.words)}"
    elif kind is Kind.AGAIN:
        yield from _not_deterministic(calm, seen, same)
    elif kind is Kind.ERROR:
        yield from _error_hidden(seen.last)
    elif kind is Kind.NAN:
        yield from _nan_hidden(seen)
    elif kind in INTERRUPTS:
        if kind is Kind.SIGTERM:
            yield from _sigterm(seen)
        if len(seen.attempts) > 1:
            yield from _resumed(calm, seen, same, unstable)


@dataclass(frozen=True, slots=True)
class _Same:
    """When two values count as the same."""

    tolerance: float

    def number(self, a: float, b: float) -> bool:
        return a == b or abs(a - b) <= self.tolerance * max(abs(a), abs(b))

    def numbers(self, a: Sequence[float], b: Sequence[float]) -> bool:
        return len(a) == len(b) and all(map(self.number, a, b))

    def state(self, a: State | None, b: State | None) -> bool:
        """Whether two states are the same; what was not seen of one run counts as the same."""
        if a is None or b is None or a[0] == b[0]:
            return True
        return bool(self.tolerance) and a[1] >= 0 and self.number(a[1], b[1])


def _in_any_run(seen: TrialSeen) -> Iterator[Named]:
    """Yield what one run shows without another beside it."""
    for attempt in seen.attempts:
        yield from _loaders(attempt)
        for path in attempt.half_written:
            yield "half_write_visible", f"{path} changed after it had its final name"
        for text in attempt.alerts:
            if _CHANGED.search(text):
                yield "half_write_visible", _short(text)
        seen_by = [path for rank in attempt.ranks for path in rank.files]
        for path in sorted({path for path in seen_by if seen_by.count(path) > 1}):
            yield (
                "every_rank_writes",
                f"{seen_by.count(path)} of {len(attempt.ranks)} ranks wrote {path}",
            )


def _loaders(attempt: AttemptSeen) -> Iterator[Named]:
    """Yield a loader of which each iterator gave one batch; beside one that is gone through it may be
    for a look at the validation data, unless the same first batch was trained on again and again."""
    loaders = attempt.ranks[0].loaders if attempt.ranks else ()
    is_made_again = all(each.made == each.given for each in loaders)
    for each in loaders:
        is_stuck = each.made == each.given and each.trained_again >= MADE_AGAIN_MIN - 1
        if (is_made_again or is_stuck) and each.made >= MADE_AGAIN_MIN and each.length != 1:
            yield (
                "loader_made_anew",
                f"{each.made} iterators over a loader of {each.length or 'many'} batches gave "
                f"{each.given} batches",
            )


def _not_deterministic(calm: TrialSeen, again: TrialSeen, same: _Same) -> Iterator[Named]:
    for step in sorted(calm.last.losses):
        what = _difference(calm.last, again.last, step, same)
        if what:
            yield "not_deterministic", f"from step {step} on: {what}"
            return


def _difference(calm: AttemptSeen, other: AttemptSeen, step: int, same: _Same) -> str:
    """Return what differs in a step, in words; nothing where all is the same."""
    if not _same_data(calm, other, step):
        return "other samples"
    if not same.number(calm.losses.get(step, 0.0), other.losses.get(step, 0.0)):
        return f"loss {other.losses.get(step)} instead of {calm.losses.get(step)}"
    for ours, theirs in zip(calm.ranks, other.ranks, strict=False):
        for name, value in ours.step(step).state.items():
            if name.startswith("trained") and not same.state(
                value, theirs.step(step).state.get(name)
            ):
                return "other weights after it"
    return ""


def _same_data(calm: AttemptSeen, other: AttemptSeen, step: int, of: int | None = None) -> bool:
    """Whether a step trained on the samples of the calm run's step `of`, by default the same one."""
    of = step if of is None else of
    if step in other.samples and of in calm.samples and other.samples[step] != calm.samples[of]:
        return False
    return all(
        theirs.step(step).inputs == ours.step(of).inputs
        for ours, theirs in zip(calm.ranks, other.ranks, strict=False)
        if ours.step(of).inputs and theirs.step(step).inputs
    )


def _error_hidden(attempt: AttemptSeen) -> Iterator[Named]:
    if not any(rank.is_played for rank in attempt.ranks):
        return
    if attempt.is_complete:
        yield "error_hidden", "training went on as if nothing had happened"
    elif attempt.reason == HANG:
        yield "error_hidden", f"it neither ended nor went on: {_short(attempt.words)}"
    elif PLANTED not in attempt.words:
        yield "error_hidden", f"what came out is only: {_short(attempt.words) or 'nothing'}"


def _nan_hidden(seen: TrialSeen) -> Iterator[Named]:
    """A loss that stays finite where the weights are NaN hides it, also where a save finds them; one
    that is read a step late does not."""
    attempt = seen.last
    if not any(rank.is_played for rank in attempt.ranks) or _SAYS_NAN.search(attempt.words):
        return
    finite = [step for step in sorted(attempt.losses) if step >= seen.trial.step]
    if finite:
        loss = attempt.losses[finite[0]]
        yield (
            "nan_hidden",
            f"all weights were NaN, and step {finite[0]} reported a loss of {loss:g}",
        )
    elif attempt.reason != "nan_loss":
        yield "nan_hidden", f"it ended as {attempt.reason}: {_short(attempt.words)}"


def _sigterm(seen: TrialSeen) -> Iterator[Named]:
    first, step = seen.attempts[0], seen.trial.step
    if _UNHEARD.search(first.words):
        yield "sigterm_swallowed", f"it came after step {step}, and nothing took notice"
    elif first.was_killed:
        yield "sigterm_swallowed", f"it came after step {step}, and its processes had to be killed"
    elif first.is_complete:
        yield "sigterm_swallowed", f"it came after step {step}, and the script trained to its end"
    elif max(first.commits, default=0) < step:
        yield (
            "sigterm_unsaved",
            f"it came after step {step}; the newest checkpoint is of step "
            f"{max(first.commits, default=0)}",
        )


def _resumed(
    calm: TrialSeen, seen: TrialSeen, same: _Same, unstable: frozenset[str]
) -> Iterator[Named]:
    """Yield what the last attempt did otherwise than the calm run."""
    last, first = seen.last, seen.last.resumed + 1
    if not last.is_complete:
        yield from _fails(calm.last, last, same)
        return
    causes = [*_data(calm.last, last, first), *_states_at(calm.last, last, first, same)]
    steps = range(first, calm.last.last_step + 1)
    found = ((step, _difference(calm.last, last, step, same)) for step in steps)
    differs = next(((step, what) for step, what in found if what), None)
    if causes or differs:
        suspects = list(_script_state(calm.last, last, first, same))
        yield from suspects
        # What the script keeps in Python may overwrite what was restored, in its first step.
        left = [each for each in causes if not suspects or each[0] not in _OVERWRITTEN]
        yield from _for_who_registers(left) if _registers(seen) else left
    if causes:
        return
    if differs:
        if not suspects:
            step, what = differs
            yield "inexact", f"from step {step} on, resumed from step {last.resumed}: {what}"
        return
    if not same.tolerance:
        yield from _contents(calm, seen, unstable)


_OVERWRITTEN = ("weights_not_restored", "inexact")


def _registers(seen: TrialSeen) -> bool:
    """Whether the script names its states to us, by a.register, and writes no folder of its own."""
    return bool(seen.contents) and not any(name.startswith(FOLDER) for name in seen.contents)


def _for_who_registers(causes: Sequence[Named]) -> Iterator[Named]:
    """Yield findings as they are of a script whose generators we restore: it draws behind a save."""
    for name, detail in causes:
        yield ("draws_after_report" if name == "rng_not_restored" else name), detail


def _script_state(calm: AttemptSeen, last: AttemptSeen, first: int, same: _Same) -> Iterator[Named]:
    """Yield what parts of the model keep where no checkpoint looks, and was another after a resume."""
    for ours, theirs in zip(calm.ranks, last.ranks, strict=False):
        mine, other = ours.step(first), theirs.step(first)
        for name, value in sorted(other.attributes.items()):
            if (was := mine.attributes.get(name, value)) == value:
                continue
            kind = "requires_grad" if name.endswith(".requires_grad") else "attribute"
            detail = f"{name} is {value} instead of {was} at the start of step {first}"
            yield f"{kind}_not_restored", detail
        if not same.state(mine.state.get("unsaved"), other.state.get("unsaved")):
            yield "buffer_not_persistent", f"it differs at the start of step {first}"


def _fails(calm: AttemptSeen, last: AttemptSeen, same: _Same) -> Iterator[Named]:
    """Yield why an attempt that resumed did not come to its end."""
    behind = _BEHIND.search(last.words)
    if behind is None or not last.resumed:
        yield "resume_fails", f"from step {last.resumed}: {last.reason}: {_short(last.words)}"
        return
    step, done = int(behind[1]), int(behind[2])
    detail = f"it resumed from step {last.resumed}, and trained step {step}"
    if step == 1 < done:
        yield "not_resumed", detail
        return
    yield "retrains_last_step", detail
    yield from _states_at(calm, last, last.resumed + 1, same)  # what it has brought back


def _data(calm: AttemptSeen, last: AttemptSeen, first: int) -> Iterator[Named]:
    """Yield where the samples after a resume are those of another step."""
    steps = range(first, calm.last_step + 1)
    at = next((step for step in steps if not _same_data(calm, last, step)), None)
    if at is None:
        return
    compared = range(at, calm.last_step + 1)[:SHIFT_STEPS]
    moved = [
        of
        for of in range(1, calm.last_step + 2 - len(compared))
        if of != at and all(_same_data(calm, last, s, of + s - at) for s in compared)
    ]
    if at == first > 2 and first - 1 in moved:
        yield (
            "retrains_last_step",
            f"resumed from step {first - 1}, step {first} had the samples of step {first - 1}",
        )
    elif moved and moved[0] < at:
        yield "data_reset", f"step {at} had the samples of step {moved[0]}"
    elif moved:
        yield (
            "data_skipped",
            f"step {at} had the samples of step {moved[0]}: {moved[0] - at} left out",
        )
    elif _rows_are_known(calm, last, at):
        yield "data_changed", f"step {at} had samples that belong to other steps"
    elif not _random_differs(calm, last, first):
        yield "data_changed", f"step {at} had samples that the undisturbed run never saw"


def _rows_are_known(calm: AttemptSeen, last: AttemptSeen, first: int) -> bool:
    """Whether at least half of a step's samples are some of the calm run's: only their order is new."""
    for ours, theirs in zip(calm.ranks, last.ranks, strict=False):
        known = frozenset[str]().union(*(each.rows for each in ours.steps.values()))
        rows = theirs.step(first).rows
        if rows and 2 * len(rows & known) >= len(rows):
            return True
    return False


def _random_differs(calm: AttemptSeen, last: AttemptSeen, first: int) -> list[str]:
    """Return the libraries whose random numbers differ in a step and are drawn from in most steps."""
    return [
        name
        for ours, theirs in zip(calm.ranks, last.ranks, strict=False)
        for name, value in theirs.step(first).random.items()
        if value != ours.step(first).random.get(name, value) and _is_drawn(ours, name)
    ]


def _is_drawn(rank: RankSeen, library: str) -> bool:
    """Whether a library's generator moves from step to step: else its state does not matter."""
    states = [
        each.random[library] for _, each in sorted(rank.steps.items()) if library in each.random
    ]
    moves = sum(a != b for a, b in pairwise(states))
    return 2 * moves > len(states) - 1


_STATES = {
    "weights": "weights_not_restored",
    "buffers": "weights_not_restored",
    "optimizer": "optimizer_not_restored",
    "scaler": "scaler_not_restored",
}


def _states_at(calm: AttemptSeen, last: AttemptSeen, first: int, same: _Same) -> Iterator[Named]:
    """Yield each state that was another one when the first step after a resume began."""
    at = f"at the start of step {first}"
    missing = set()
    for number, (ours, theirs) in enumerate(zip(calm.ranks, last.ranks, strict=False)):
        where = f"{at}, on rank {number}" if len(calm.ranks) > 1 else at
        for name, value in theirs.step(first).state.items():
            kind = name.partition("-")[0]
            if kind not in _STATES or same.state(ours.step(first).state.get(name), value):
                continue
            if kind != "buffers" or not _is_overwritten(ours, theirs, first + 1, same):
                missing.add(kind)
                yield _STATES[kind], f"the {kind} differ{'' if kind[-1] == 's' else 's'} {where}"
        yield from _rates(ours, theirs, first, same, is_new_optimizer="optimizer" in missing)
        yield from _averages(ours, theirs, first, same)
    if names := sorted(set(_random_differs(calm, last, first))):
        yield "rng_not_restored", f"the random numbers of {', '.join(names)} differ {at}"


def _is_overwritten(ours: RankSeen, theirs: RankSeen, after: int, same: _Same) -> bool:
    """Whether other buffers were the same a step later: DDP gives every rank those of rank 0 before
    each forward pass, so what the others have of their own is not used. Unknown counts as yes."""
    name = "buffers"
    return same.state(ours.step(after).state.get(name), theirs.step(after).state.get(name))


def _rates(
    ours: RankSeen, theirs: RankSeen, first: int, same: _Same, *, is_new_optimizer: bool
) -> Iterator[Named]:
    """A new optimizer has the first rate once, until the schedule sets it; a new schedule has wrong
    ones from then on."""
    wrong = [
        step
        for step in sorted(theirs.steps)
        if step >= first
        and (ours.step(step).lr and theirs.step(step).lr)  # seen of both
        and not same.numbers(ours.step(step).lr, theirs.step(step).lr)
    ]
    if not wrong or (is_new_optimizer and wrong == [first]):
        return
    step = wrong[0]
    if (now := len(theirs.step(step).lr)) != (then := len(ours.step(step).lr)):
        yield (
            "group_not_restored",
            f"in step {step} the optimizers have {now} parameter groups instead of {then}",
        )
        return
    is_rate, should_be = next(
        (
            (a, b)
            for a, b in zip(theirs.step(step).lr, ours.step(step).lr, strict=True)
            if not same.number(a, b)
        )
    )
    yield (
        "scheduler_not_restored",
        f"in step {step} the learning rate is {is_rate:g} instead of {should_be:g}",
    )


def _averages(ours: RankSeen, theirs: RankSeen, first: int, same: _Same) -> Iterator[Named]:
    mine, other = ours.step(first).state, theirs.step(first).state
    trained_alike = same.state(mine.get("trained"), other.get("trained"))
    if trained_alike and not same.state(mine.get("averaged"), other.get("averaged")):
        yield (
            "ema_not_restored",
            f"the averaged weights differ after step {first}, and the others do not",
        )


def _contents(calm: TrialSeen, seen: TrialSeen, unstable: frozenset[str]) -> Iterator[Named]:
    """Yield what the last checkpoint holds otherwise, where every step was the same.

    A framework's file has bookkeeping of its own in it, such as how often it was resumed: where the
    weights were seen, only the tensors in it count, and a file of averages. What was saved before the
    resume only, such as the best weights so far, is not a difference.
    """
    ours, theirs = calm.contents, seen.contents
    names = sorted((ours.keys() | theirs.keys()) - unstable)
    other = [
        name
        for name in names
        if ours.get(name) != theirs.get(name)
        and (not name.startswith(SAVED) or (name in ours and name in theirs))
    ]
    averaged = [name for name in other if _AVERAGES.search(name)]
    if averaged:
        yield "ema_not_restored", f"every step was the same, and {averaged[0]} at the end was not"
        return
    if _weights_were_seen(seen.last):
        other = [name for name in other if not name.startswith(FOLDER)]
    if other:
        yield "inexact", f"every step was the same, and {other[0]} of the last checkpoint was not"


def _weights_were_seen(attempt: AttemptSeen) -> bool:
    return any("trained" in step.state for rank in attempt.ranks for step in rank.steps.values())


def unstable_contents(calm: TrialSeen, again: TrialSeen) -> frozenset[str]:
    """Return what differs in the last checkpoints of two calm runs: a time, a path, a random name."""
    names = calm.contents.keys() | again.contents.keys()
    return frozenset(n for n in names if calm.contents.get(n) != again.contents.get(n))


def _short(text: str) -> str:
    """Return the last line of what a trainer said, bounded."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    line = one_line(lines[-1]) if lines else ""
    return line if len(line) <= WORDS_CHARACTERS_MAX else f"{line[:WORDS_CHARACTERS_MAX]}…"
