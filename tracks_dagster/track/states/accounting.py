"""How the steps of a run divide among its attempts: which were kept, which were lost.

A later rollback changes what an earlier attempt kept, so accounts are computed from the whole track
and stored nowhere but in the ledger, which follows it. Seconds and money are not counted here.

With resume_i the step that attempt i really restored and last_i the last step it ran:

    end_i  = min(last_i, resume_j for every later attempt j)
    kept_i = max(0, end_i - resume_i)
    lost_i = last_i - resume_i - kept_i

The newest attempt, once it has ended, is followed by none yet: steps that no usable checkpoint of it
holds are lost, whether the run is refused, finished or about to be retried. While it is open its
steps count as kept.

    saved = its newest commit, neither quarantined nor deleted, else resume
    end   = min(last, saved)

Attempt 1 runs steps 1 to 23 and is preempted after its commit of step 20; attempt 2 restores 20 and
runs to 40. end_1 = min(23, 20) = 20: attempt 1 kept 20 steps and lost 3, attempt 2 kept 20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracks_dagster.track.names import IMPORTED
from tracks_dagster.track.states.run_state import AttemptState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """What one attempt ran: steps resume + 1 to last; equal when it ran none.

    saved: the step up to which its checkpoints hold it; None while it is open, and of the newest of an
    imported run.
    """

    attempt_id: int
    resume: int
    last: int
    saved: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAccount:
    """One attempt's share of a run's steps. kept + lost == last - resume.

    end: the run still rests on the attempt's steps resume + 1 to end, on none when end <= resume.
    """

    attempt_id: int
    resume: int
    last: int
    end: int
    kept: int
    lost: int

    @property
    def first(self) -> int:
        """The first step that it may have run: 0 at a run's beginning, where others than ours count."""
        return self.resume + 1 if self.resume else 0


def kept_and_lost(
    state: RunState, last_steps: Mapping[int, int] | None = None
) -> tuple[StepAccount, ...]:
    """Return the account of every attempt, oldest first.

    last_steps: newest step by attempt id, from the journals, for an attempt that is still open.
    Where it is not given, the attempt's newest commit, else what it restored, has to do.
    """
    known = last_steps or {}
    commits, usable = newest_commits(state), newest_commits(state, usable_only=True)
    spans = [_span(a, commits, usable, known) for a in state.attempts]
    if spans and state.declared.compute.launcher == IMPORTED:
        spans[-1] = replace(spans[-1], saved=None)  # what it saved there is not known
    return step_accounts(spans)


def newest_step(state: RunState, last_steps: Mapping[int, int] | None = None) -> int | None:
    """Return the step that a run is at, the same on every page; None before its first attempt.

    The last step that its newest attempt ran, else the one that it resumes from: what an earlier
    attempt ran beyond that is lost. last_steps: as of `kept_and_lost`.
    """
    accounts = kept_and_lost(state, last_steps)
    return accounts[-1].last if accounts else None


def step_accounts(spans: Sequence[StepSpan]) -> tuple[StepAccount, ...]:
    """Return the account of each span; `spans` are a run's attempts, oldest first."""
    accounts: list[StepAccount] = []
    # The smallest resume of all later attempts; of the newest, what a next one would find.
    resume_later = spans[-1].saved if spans else None
    for span in reversed(spans):
        end = span.last if resume_later is None else min(span.last, resume_later)
        kept = max(0, end - span.resume)
        accounts.append(
            StepAccount(
                attempt_id=span.attempt_id,
                resume=span.resume,
                last=span.last,
                end=end,
                kept=kept,
                lost=span.last - span.resume - kept,
            )
        )
        resume_later = span.resume if resume_later is None else min(resume_later, span.resume)
    return tuple(reversed(accounts))


def newest_commits(state: RunState, *, usable_only: bool = False) -> dict[int, int]:
    """Return the greatest committed step by attempt id, of the attempts that committed any.

    usable_only: leave out what was quarantined or deleted.
    """
    newest: dict[int, int] = {}
    for checkpoint in state.checkpoints:
        ref = checkpoint.ref
        if usable_only and not checkpoint.is_resumable:
            continue
        newest[ref.attempt_id] = max(ref.step, newest.get(ref.attempt_id, 0))
    return newest


def _span(
    attempt: AttemptState,
    commits: Mapping[int, int],
    usable: Mapping[int, int],
    known: Mapping[int, int],
) -> StepSpan:
    reported = attempt.ended.last_step if attempt.ended else known.get(attempt.attempt_id)
    # A commit proves its step, also where the journal's tail was lost with the machine.
    last = max(attempt.resumed_step, commits.get(attempt.attempt_id, 0), reported or 0)
    saved = max(attempt.resumed_step, usable.get(attempt.attempt_id, 0))
    return StepSpan(
        attempt_id=attempt.attempt_id,
        resume=attempt.resumed_step,
        last=last,
        saved=None if attempt.is_open else saved,
    )


def cursor_from(attempt: AttemptState) -> int | None:
    """Return how much of the order was consumed before the attempt; None before it has restored."""
    if attempt.restored is not None:
        return attempt.restored.cursor
    return attempt.ended.cursor_from if attempt.ended is not None else None
