"""Open an attempt in a person's name, outside of the automatic budget: recorded, and never a debit."""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.core.avoidance import own_compute
from tracks_dagster.core.bodies import AttemptOpened, ConfigChange
from tracks_dagster.core.checkpoints import CheckpointRef
from tracks_dagster.core.errors import Contended, InvalidInput
from tracks_dagster.core.families import FAMILIES, resolve_config
from tracks_dagster.core.policy import RetryPolicy
from tracks_dagster.core.reasons import TerminationReason
from tracks_dagster.core.records import Json, Kind, Record
from tracks_dagster.core.rollback import from_onset_on
from tracks_dagster.core.run_state import AttemptState, RunState
from tracks_dagster.core.track import DECISIONS_MAX, run_track
from tracks_dagster.services.avoiding import avoid_now
from tracks_dagster.services.branch_source import source_withdrawn
from tracks_dagster.services.node_health import NodeHealth
from tracks_dagster.services.quarantine.clean_starts import resume_or_refuse
from tracks_dagster.services.quarantine.snapshots import refuse_withdrawn
from tracks_dagster.services.remedying import quarantine_all
from tracks_dagster.services.tracks import Tracks

ENDED_WITH_ALL_STEPS = frozenset({TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED})


def retry_by_person(
    tracks: Tracks,
    run_id: str,
    *,
    by: str,
    why: str,
    changes: Mapping[str, Json],
    policy: RetryPolicy,
    allows_environment_change: bool = False,
    nodes: NodeHealth | None = None,
) -> Record:
    """Open the next attempt in the name of `by`, with `changes` to the config; no budget is spent.

    What was saved after the numbers went wrong (`policy` says for which reasons) is quarantined first:
    no attempt resumes from it, whoever opens it.
    allows_environment_change: it may resume with other libraries than those that wrote its
    checkpoint. nodes: strikes the node that the newest attempt ended on, where no sensor has come to
    it. Raises UnknownRun, and InvalidInput, with nothing opened, when an attempt is open,
    the run is finished, what it branched from or its snapshot was withdrawn, all that it could resume
    from descends from a source in quarantine, or a change cannot be used.
    """
    tracks.run(run_id)
    try:
        for _ in range(DECISIONS_MAX):
            state = tracks.run(run_id)
            last = _retriable(state, changes)
            if nodes is not None:
                nodes.look(state, by=by)
            avoidance = avoid_now(tracks, own_compute(last.opened))
            resume, left_out = _check_sources(tracks, state, last)
            config = _changed_config(state, last, changes)
            if tainted := from_onset_on(state, last, policy):
                quarantine_all(tracks, state, tainted, by=by)
                continue
            opened = AttemptOpened(
                cause="manual_retry",
                decided_by=by,
                decision=" ".join(filter(None, (why, left_out, avoidance.words))),
                config=config,
                compute=avoidance.compute,
                snapshot=last.opened.snapshot,
                resume=resume,
                remediation=_differences(last.opened.config, config, why=f"{by}: {why}"),
                counted_seqs=(last.ended_seq,) if last.ended_seq is not None else (),
                allows_environment_change=allows_environment_change,
                cadence=last.opened.cadence,
                avoided_nodes=avoidance.nodes,
            )
            draft = tracks.draft(Kind.ATTEMPT_OPENED, opened, attempt_id=last.attempt_id + 1)
            after = tracks.append_to(state, draft)
            if after is not None:
                return after.head
    finally:  # also what a caller left who was killed right after its append
        tracks.project(run_track(run_id))
    raise Contended(
        f"Attempt {len(tracks.run(run_id).attempts) + 1} of {run_id} lost its place {DECISIONS_MAX} "
        "times in a row to other records: give the same command again."
    )


def _check_sources(
    tracks: Tracks, state: RunState, last: AttemptState
) -> tuple[CheckpointRef | None, str]:
    """Return what the attempt resumes from, and what was left out, in words.

    Raises InvalidInput when what the run branched from, or its snapshot, was withdrawn, or nothing is
    left that does not descend from a source in quarantine.
    """
    doing = f"Training run {state.run_id} cannot be retried"
    gone = source_withdrawn(tracks, state)
    if gone is not None and not state.resumable:
        raise InvalidInput(f"{doing}: {gone}")
    refuse_withdrawn(tracks, last.opened.snapshot, doing=doing)
    return resume_or_refuse(tracks, state, source_withdrawn=gone, doing=doing)


def _retriable(state: RunState, changes: Mapping[str, Json]) -> AttemptState:
    """Return the newest attempt of a run that a person may retry; raises InvalidInput."""
    if state.finished is not None:
        raise InvalidInput(
            f"Training run {state.run_id} is finished ({state.finished.stop_cause}) and cannot be "
            "retried; declare a new one with `tracks run`."
        )
    if any(stop.body.mode == "stop" for stop in state.stops):
        raise InvalidInput(
            f"Training run {state.run_id} was stopped and is about to be finished; declare a new one "
            "with `tracks run`."
        )
    last = state.last_attempt
    if last is None or last.is_open:
        number = 1 if last is None else last.attempt_id
        raise InvalidInput(
            f"Attempt {number} of training run {state.run_id} has not ended; "
            f"`tracks drain {state.run_id}` ends it, then it can be retried."
        )
    if last.reason in ENDED_WITH_ALL_STEPS and "steps" not in changes:
        raise InvalidInput(
            f"Training run {state.run_id} has all its steps (attempt {last.attempt_id} ended as "
            f"{last.reason}) and waits for its evals; `--set steps=N` lets it train on, "
            f"`tracks waive {state.run_id} SUITE` lets an eval go."
        )
    return last


def _changed_config(
    state: RunState, last: AttemptState, changes: Mapping[str, Json]
) -> dict[str, Json]:
    """Return the config of the newest attempt with `changes`, checked as when it was declared."""
    before = dict(last.opened.config)
    if not changes:
        return before
    unknown = sorted(set(changes) - set(before))
    if unknown:
        raise InvalidInput(
            f"The config of {state.run_id} has no key {unknown[0]!r}; it has: "
            f"{', '.join(sorted(before))}."
        )
    if "accumulation" in changes:
        raise InvalidInput(
            "accumulation follows from global_batch, micro_batch and the ranks: change micro_batch."
        )
    family = FAMILIES.get(state.declared.model_family)
    if family is None:
        return {**before, **changes}
    given = {**before, **changes}
    own = {key: given[key] for key in given if key not in family.keys and key != "accumulation"}
    keys = {key: given[key] for key in given if key in family.keys}
    return {**resolve_config(family, keys, ranks=last.opened.compute.ranks), **own}


def _differences(
    before: Mapping[str, Json], after: Mapping[str, Json], *, why: str
) -> tuple[ConfigChange, ...]:
    return tuple(
        ConfigChange(key=key, before=before.get(key), after=value, why=why)
        for key, value in after.items()
        if before.get(key) != value
    )
