"""Explain an attempt from the record alone: what was tried, on what, why it ended, what came next.

Reads the track, the journals and the stored evidence; needs no ledger, no Dagster and no memory of
any person. What the record does not hold is listed as missing, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracks_dagster.core.bodies import ConfigChange, RankPlace
from tracks_dagster.core.errors import UnknownRun
from tracks_dagster.core.names import attempt_key
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.core.records import Json, Kind, Record, format_time
from tracks_dagster.core.run_state import AttemptState, RunState
from tracks_dagster.core.skip_windows import SKIP_WINDOWS, skipped_blocks
from tracks_dagster.core.track import run_track
from tracks_dagster.core.user_rules import NO_RULES, UserRules
from tracks_dagster.services.explain_began import explain_began
from tracks_dagster.services.explain_end import explain_end, read_evidence
from tracks_dagster.services.explain_next import explain_next, what_to_do
from tracks_dagster.services.explanation import (
    AttemptExplanation,
    CheckpointMade,
    Cost,
    DataSeen,
    EvalDone,
    RankPlaced,
    RunExplanation,
    Tried,
    Where,
    Words,
)
from tracks_dagster.services.narrate import sentence
from tracks_dagster.services.placements import read_places
from tracks_dagster.services.receipts import Receipt, RunReceipts, read_receipts
from tracks_dagster.services.tracks import Tracks


def explain_run(tracks: Tracks, run_id: str, rules: UserRules = NO_RULES) -> RunExplanation:
    """Explain a run and all of its attempts; raises UnknownRun. rules: a user's own, to weigh by."""
    run = read_receipts(tracks, run_id)
    records = tracks.records(run_track(run_id))
    return RunExplanation(
        run_id=run_id,
        state=run.status.state,
        why=run.status.why,
        attempts=tuple(_explain(tracks.store, run, records, r, rules) for r in run.receipts),
        promotions=tuple(sentence(r) for r in records if r.kind is Kind.PROMOTION_DECIDED),
    )


def explain_attempt(
    tracks: Tracks, run_id: str, attempt_id: int, rules: UserRules = NO_RULES
) -> AttemptExplanation:
    """Explain one attempt; raises UnknownRun. rules: a user's own, to weigh by."""
    run = read_receipts(tracks, run_id)
    if run.state.attempt(attempt_id) is None:
        raise UnknownRun(
            f"Training run {run_id} has no attempt {attempt_id}; it has {len(run.receipts)}."
        )
    records = tracks.records(run_track(run_id))
    return _explain(tracks.store, run, records, run.receipts[attempt_id - 1], rules)


def _explain(
    store: ObjectStore,
    run: RunReceipts,
    records: list[Record],
    receipt: Receipt,
    rules: UserRules,
) -> AttemptExplanation:
    state, attempt = run.state, receipt.attempt
    evidence, evidence_problem = read_evidence(store, attempt)
    places = read_places(store, state.run_id, attempt.attempt_id, attempt.placed)
    return AttemptExplanation(
        key=attempt_key(state.run_id, attempt.attempt_id),
        run_id=state.run_id,
        attempt_id=attempt.attempt_id,
        tried=_tried(state, attempt),
        data=_data(receipt),
        code=state.declared.code,
        where=_where(attempt, places),
        resumed=explain_began(attempt, records, receipt.continuity),
        checkpoints=_checkpoints(state, attempt),
        failed_saves=receipt.failed_saves,
        ended=explain_end(attempt, evidence, rules),
        cost=_cost(receipt),
        next=explain_next(run, attempt, records),
        evals=_evals(state, attempt),
        words=_words(state, attempt),
        missing=tuple(_missing(receipt, evidence_problem)),
        what_to_do=what_to_do(run, attempt),
    )


def _tried(state: RunState, attempt: AttemptState) -> Tried:
    declared, opened = state.declared, attempt.opened
    return Tried(
        intent=declared.intent,
        model_family=declared.model_family,
        stage=declared.stage,
        owner=declared.owner,
        team=declared.team,
        trainer=declared.trainer,
        cause=opened.cause,
        decided_by=opened.decided_by,
        decision=opened.decision,
        opened_at=format_time(attempt.opened_at),
        config=opened.config,
        changes=_changes(state, attempt),
    )


def _changes(state: RunState, attempt: AttemptState) -> tuple[ConfigChange, ...]:
    """Return what differs from the config of the attempt before, each with its why if one is told,
    and what a remedy changed beside the config: what it asks for, how often it saves."""
    before = state.attempt(attempt.attempt_id - 1)
    if before is None:
        return ()
    old, new = before.opened.config, attempt.opened.config
    whys = {change.key: change.why for change in attempt.opened.remediation}
    beside = (
        each for each in attempt.opened.remediation if each.key not in old.keys() | new.keys()
    )
    return (
        *_config_changes(old, new, whys),
        *sorted(beside, key=lambda change: change.key),
    )


def _config_changes(
    old: Mapping[str, Json], new: Mapping[str, Json], whys: Mapping[str, str]
) -> tuple[ConfigChange, ...]:
    return tuple(
        ConfigChange(
            key=key,
            before=old.get(key),
            after=new.get(key),
            why=whys.get(key, "follows from the other changes"),
        )
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    )


def _data(receipt: Receipt) -> DataSeen:
    attempt, steps = receipt.attempt, receipt.steps
    cursor_from = attempt.restored.cursor if attempt.restored else None
    cursor_to = steps[-1].cursor_to if steps else None
    if attempt.ended is not None:
        cursor_from = attempt.ended.cursor_from if cursor_from is None else cursor_from
        cursor_to = attempt.ended.cursor_to if cursor_to is None else cursor_to
    snapshot, config = attempt.opened.snapshot, attempt.opened.config
    return DataSeen(
        dataset=snapshot.dataset,
        snapshot_id=snapshot.snapshot_id,
        cursor_from=cursor_from,
        cursor_to=cursor_to,
        skipped=_skipped(config, cursor_from, cursor_to),
    )


def _skipped(
    config: Mapping[str, Json], cursor_from: int | None, cursor_to: int | None
) -> tuple[tuple[int, int], ...]:
    """Return the ranges of samples that the attempt's skip windows left out between its cursors."""
    batch = config.get("global_batch")
    if type(batch) is not int or cursor_from is None or cursor_to is None:
        return ()
    blocks = skipped_blocks(config.get(SKIP_WINDOWS))
    ranges = [((first - 1) * batch, last * batch) for first, last in blocks]
    return tuple(each for each in ranges if cursor_from <= each[0] and each[1] <= cursor_to)


def _where(attempt: AttemptState, places: Sequence[RankPlace]) -> Where:
    placed = attempt.placed
    return Where(
        launch_id=placed.launch_id if placed else None,
        ranks=tuple(
            RankPlaced(
                rank=place.rank,
                node=place.node,
                device=place.device,
                accelerator=place.accelerator,
                pid=place.pid,
                boot_id=place.boot_id,
            )
            for place in places
        ),
        image=placed.image if placed else None,
        environment=placed.environment if placed else {},
        environment_sha256=placed.environment_sha256 if placed else None,
        dagster_run_ids=tuple(claim.body.dagster_run_id for claim in attempt.claims),
    )


def _checkpoints(state: RunState, attempt: AttemptState) -> tuple[CheckpointMade, ...]:
    return tuple(
        CheckpointMade(
            step=c.ref.step,
            manifest_sha256=c.ref.manifest_sha256,
            status=c.status,
            trigger=c.body.trigger,
            committed_at=format_time(c.at),
            total_bytes=c.body.total_bytes,
            pins=tuple(sorted(c.pins)),
        )
        for c in state.checkpoints
        if c.ref.attempt_id == attempt.attempt_id
    )


def _cost(receipt: Receipt) -> Cost:
    attempt, account = receipt.attempt, receipt.account
    wall_s = None
    if attempt.ended_at is not None:
        wall_s = (attempt.ended_at - attempt.opened_at).total_seconds()
    return Cost(
        kept_steps=account.kept,
        lost_steps=account.lost,
        device_seconds=attempt.ended.device_seconds if attempt.ended else None,
        accelerator=attempt.ended.accelerator if attempt.ended else None,
        wall_s=wall_s,
    )


def _evals(state: RunState, attempt: AttemptState) -> tuple[EvalDone, ...]:
    return tuple(
        EvalDone(
            eval_id=e.opened.eval_id,
            number=e.opened.number,
            checkpoint_step=e.opened.checkpoint.step,
            reason=e.ended.reason if e.ended else None,
            metrics=e.ended.metrics if e.ended else {},
            message=e.ended.message if e.ended else "",
        )
        for e in state.evals
        if e.opened.checkpoint.attempt_id == attempt.attempt_id
    )


def _words(state: RunState, attempt: AttemptState) -> tuple[Words, ...]:
    """Return notes and stops of the time from this attempt's opening to the next one's."""
    successor = state.attempt(attempt.attempt_id + 1)
    until = successor.opened_seq if successor else state.head.seq + 1
    notes = [(n.seq, n.at, n.body.by, n.body.text) for n in state.notes]
    stops = [(s.seq, s.at, s.body.by, f"{s.body.mode}: {s.body.why}") for s in state.stops]
    return tuple(
        Words(seq=seq, at=format_time(at), by=by, text=text)
        for seq, at, by, text in sorted(notes + stops)
        if attempt.opened_seq < seq < until
    )


def _missing(receipt: Receipt, evidence_problem: str | None) -> Iterable[str]:
    attempt = receipt.attempt
    if not attempt.claims:
        yield "No Dagster run has claimed it."
    if attempt.placed is None:
        yield "It was never placed: no rank 0 came up, so nodes and devices are not known."
    elif not receipt.steps:
        yield "Its journal holds no step: it ran none, or the machine went before it was shipped."
    elif attempt.ended and (attempt.ended.last_step or 0) > receipt.steps[-1].step:
        yield (
            f"Its journal ends at step {receipt.steps[-1].step}, its last step was "
            f"{attempt.ended.last_step}: the rest was not shipped."
        )
    if evidence_problem is not None:
        yield evidence_problem
