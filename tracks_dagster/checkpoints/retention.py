"""Which checkpoints of a run may go, which must stay, and why. Pure.

A checkpoint is superseded when the run's `RetentionRule` lets go of it and nothing holds it. It is
deleted once the rule's grace is over. `protection` has what no rule may break;
`checkpoints.effects.retention` reads and removes bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from tracks_dagster.track.bodies import DELETE_AFTER_S_MAX, DIRECTIONS, KEEP_MAX, RetentionRule
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.journal_lines import LOSS
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.metric_values import METRIC_NAME_CHARS_MAX
from tracks_dagster.track.states.protection import against_deleting, against_superseding, newest
from tracks_dagster.track.states.run_state import CheckpointState, RunState

ChunkSizes = Mapping[str, int]  # key of a stored chunk → its size in bytes


class Fate(Enum):
    """What becomes of a checkpoint."""

    KEEP = "it stays"
    SUPERSEDE = "it is let go, and deleted after the grace"
    DELETE = "its deletion is decided and its bytes are removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One checkpoint that is not deleted, what becomes of it now, and why: a phrase for each reason."""

    checkpoint: CheckpointState
    fate: Fate
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What a deletion removes beside the manifest: the chunks that no other checkpoint names."""

    ref: CheckpointRef
    why: str
    chunks: ChunkSizes


def check_rule(rule: RetentionRule) -> RetentionRule:
    """Return `rule` if it can be kept to; raises InvalidInput with all that keeps it from that."""
    problems = list(_problems(rule))
    if problems:
        raise InvalidInput("\n".join(problems))
    return rule


def _problems(rule: RetentionRule) -> Iterator[str]:
    if not 1 <= rule.keep_last <= KEEP_MAX:
        yield f"keep_last is {rule.keep_last}; keep 1 to {KEEP_MAX} checkpoints: a resume needs one."
    if not 0 <= rule.keep_best <= KEEP_MAX:
        yield f"keep_best is {rule.keep_best}; use 0 to {KEEP_MAX}."
    if not rule.metric.strip():
        yield "The metric by which the best checkpoints are kept has no name."
    if len(rule.metric) > METRIC_NAME_CHARS_MAX:
        yield (
            f"The metric {rule.metric!r} has a name of {len(rule.metric)} characters; commits hold "
            f"metrics of up to {METRIC_NAME_CHARS_MAX}, so no checkpoint could be kept by it. Report "
            "it under a shorter name."
        )
    if rule.direction not in DIRECTIONS:
        yield f"direction is {rule.direction!r}; the best is the min or the max."
    if rule.milestone_every_steps is not None and rule.milestone_every_steps < 1:
        yield (
            f"A milestone every {rule.milestone_every_steps} steps is not possible; use 1 or more, "
            "or none."
        )
    if not 0 <= rule.delete_after_s <= DELETE_AFTER_S_MAX:
        yield f"delete_after_s is {rule.delete_after_s}; use 0 to {DELETE_AFTER_S_MAX:.0f} seconds."


def judge(state: RunState, now: datetime, *, ignores_grace: bool = False) -> tuple[Judged, ...]:
    """Return the fate of every checkpoint that is not deleted, oldest first.

    ignores_grace: a superseded one may go at once, because the space is needed; a quarantine may
    still be investigated, so its grace stays.
    """
    wanted = wanted_by_rule(state)
    return tuple(
        _judge(state, c, wanted.get(c.ref.manifest_sha256, ()), now, ignores_grace)
        for c in state.checkpoints
        if not c.deleted
    )


def judge_one(
    state: RunState, manifest_sha256: str, now: datetime, *, ignores_grace: bool = False
) -> Judged | None:
    """Return the fate of one checkpoint; None when it is deleted or was never committed.

    Linear in the number of checkpoints, where `judge` is quadratic: for a decision about one.
    """
    checkpoint = state.checkpoint(manifest_sha256)
    if checkpoint is None or checkpoint.deleted:
        return None
    wanted = wanted_by_rule(state).get(manifest_sha256, ())
    return _judge(state, checkpoint, wanted, now, ignores_grace)


def wanted_by_rule(state: RunState) -> dict[str, tuple[str, ...]]:
    """Return manifest sha256 → why the rule keeps it: last, best, milestone.

    Only what can be resumed from counts: a quarantined checkpoint takes no place of the last K.
    """
    rule = state.declared.retention
    usable = sorted(
        (c for c in state.checkpoints if c.is_resumable),
        key=lambda c: (c.ref.attempt_id, c.ref.step),
        reverse=True,
    )
    words: dict[str, tuple[str, ...]] = {}

    def keep(checkpoint: CheckpointState, why: str) -> None:
        sha256 = checkpoint.ref.manifest_sha256
        words[sha256] = (*words.get(sha256, ()), why)

    for place, checkpoint in enumerate(usable[: rule.keep_last], start=1):
        keep(checkpoint, f"number {place} of the last {rule.keep_last}")
    for place, checkpoint in enumerate(_best(usable, rule)[: rule.keep_best], start=1):
        value = checkpoint.body.metrics[rule.metric]
        # The loss of one step is noisy: who reads "best" has to know what it is the best by.
        what = "training loss of this step alone" if rule.metric == LOSS else rule.metric
        keep(checkpoint, f"number {place} of the best {rule.keep_best}: {what} {value:.6g}")
    for checkpoint in usable:
        if rule.milestone_every_steps and checkpoint.ref.step % rule.milestone_every_steps == 0:
            keep(checkpoint, f"milestone every {rule.milestone_every_steps} steps")
    return words


def best_of(state: RunState) -> CheckpointState | None:
    """Return the best committed checkpoint by the rule's metric, of equal ones the newer; None where no
    one has it."""
    usable = [c for c in state.checkpoints if c.is_resumable]
    usable.sort(key=lambda c: (c.ref.attempt_id, c.ref.step), reverse=True)
    return next(iter(_best(usable, state.declared.retention)), None)


def plan_deletions(
    state: RunState, now: datetime, named: Mapping[str, ChunkSizes], *, ignores_grace: bool = False
) -> tuple[Deletion | str, ...]:
    """Return every deletion that is due, oldest first, or why it is not known yet.

    Each is planned as it is once those before it are done: of two that share a chunk, the second
    removes it.

    named: manifest sha256 → the chunks that it names. Every checkpoint that is not deleted must be
    in it, quarantined ones too: a chunk that one of them needs must not go. A quarantined one that
    is itself due may be missing (its manifest is corrupt): then no chunk is named, and what lies
    under its prefix goes as leftovers. ignores_grace: as in `judge`.
    """
    there = {c.ref.manifest_sha256: c.ref for c in state.checkpoints if not c.deleted}
    unread = {sha256: ref for sha256, ref in there.items() if sha256 not in named}
    name_counts = Counter(key for sha256 in there for key in named.get(sha256, ()))
    # A run removes nothing but its own: no manifest of ours names a chunk of another run.
    own = f"runs/{state.run_id}/attempts/"
    plans: list[Deletion | str] = []
    for judged in judge(state, now, ignores_grace=ignores_grace):
        if judged.fate is not Fate.DELETE:
            continue
        ref, why = judged.checkpoint.ref, "; ".join(judged.why)
        names = named.get(ref.manifest_sha256, {})
        if judged.checkpoint.quarantined and ref.manifest_sha256 in unread:
            del unread[ref.manifest_sha256]
        elif unread:
            plans.append(_why_unknown(unread.values()))
            continue
        chunks = {
            key: size
            for key, size in sorted(names.items())
            if name_counts[key] == 1 and key.startswith(own)
        }
        name_counts.subtract(names.keys())
        plans.append(Deletion(ref=ref, why=why, chunks=chunks))
    return tuple(plans)


def still_asked_for(
    deletion: Deletion,
    state: RunState,
    now: datetime,
    named: Mapping[str, ChunkSizes],
    *,
    ignores_grace: bool = False,
) -> bool:
    """Whether the state asks for exactly this deletion, which was planned with `named`.

    Linear in the number of checkpoints: the same checkpoints need the same chunks.
    """
    sha256 = deletion.ref.manifest_sha256
    judged = judge_one(state, sha256, now, ignores_grace=ignores_grace)
    if judged is None or judged.fate is not Fate.DELETE or "; ".join(judged.why) != deletion.why:
        return False
    there = {c.ref.manifest_sha256 for c in state.checkpoints if not c.deleted}
    return not deletion.chunks or there == named.keys()


def _why_unknown(unread: Iterable[CheckpointRef]) -> str:
    steps = ", ".join(f"step {ref.step} of attempt {ref.attempt_id}" for ref in unread)
    return f"it is not known which chunks others need: the manifest of {steps} cannot be read"


def _judge(
    state: RunState,
    checkpoint: CheckpointState,
    wanted: tuple[str, ...],
    now: datetime,
    ignores_grace: bool,
) -> Judged:
    if checkpoint.status == "committed":
        against = (*wanted, *against_superseding(state, checkpoint))
        if against:
            return Judged(checkpoint=checkpoint, fate=Fate.KEEP, why=against)
        return Judged(checkpoint=checkpoint, fate=Fate.SUPERSEDE, why=(_why_superseded(state),))
    # A quarantine of newer ones can bring a superseded checkpoint back among the last or the best.
    against = (*wanted, *against_deleting(state, checkpoint))
    # A later quarantine starts the grace again: it may still be investigated.
    let_go_at = checkpoint.quarantined_at or checkpoint.superseded_at or now
    until = let_go_at + timedelta(seconds=state.declared.retention.delete_after_s)
    is_waived = ignores_grace and not checkpoint.quarantined
    if now < until and not is_waived:
        against = (*against, f"grace until {format_time(until)[:19]} UTC")
    if against:
        return Judged(checkpoint=checkpoint, fate=Fate.KEEP, why=against)
    over = (
        "and the grace is over"
        if now >= until
        else "and its space is needed before the grace is over"
    )
    why = f"{checkpoint.status} at {format_time(let_go_at)[:19]} UTC, {over}"
    return Judged(checkpoint=checkpoint, fate=Fate.DELETE, why=(why,))


def _why_superseded(state: RunState) -> str:
    rule = state.declared.retention
    kept = [f"the last {rule.keep_last}"]
    if rule.keep_best:
        kept.append(f"the best {rule.keep_best} by {rule.metric}")
    if rule.milestone_every_steps:
        kept.append(f"the milestones every {rule.milestone_every_steps} steps")
    target = newest(state)
    verified = f"; step {target.ref.step}, the newest, was verified" if target else ""
    return f"not among {', '.join(kept)}, and nothing pins it{verified}"


def _best(usable: list[CheckpointState], rule: RetentionRule) -> list[CheckpointState]:
    """Return the best of `usable`, best first; of equal ones the newer. NaN is never the best."""
    measured = [c for c in usable if math.isfinite(c.body.metrics.get(rule.metric, math.nan))]
    sign = 1.0 if rule.direction == "min" else -1.0
    return sorted(measured, key=lambda c: sign * c.body.metrics[rule.metric])
