"""One attempt as it ran: its change, start, progress, checkpoints, cost, evals, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from tracks_dagster.attempts.continuity import Continuity
from tracks_dagster.attempts.pace import describe_silence, last_sign_at
from tracks_dagster.holds.hold import CleanStart, HoldAct
from tracks_dagster.holds.lineage import skipped_samples
from tracks_dagster.ledger.facts.attempt import AttemptView
from tracks_dagster.ledger.prices import NO_TABLE, Money, Prices
from tracks_dagster.ledger.time_buckets import AttemptTime, RunTime
from tracks_dagster.ledger.timeline import accelerator_of
from tracks_dagster.review.effects.receipts import Receipt, RunReceipts
from tracks_dagster.review.explain.explanation import (
    CheckpointMade,
    Cost,
    DataSeen,
    EvalDone,
    Progress,
    Resumed,
    Tried,
)
from tracks_dagster.review.narrate import sentence
from tracks_dagster.track.bodies import ConfigChange, EvalRequirement
from tracks_dagster.track.names import ALONE
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.records import Json, Kind, Record, format_time
from tracks_dagster.track.roles import STEPS, value_of
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.evals import (
    attempts_at,
    final_checkpoint,
    is_completed,
    lack_of_source,
)
from tracks_dagster.track.states.run_state import AttemptState, RunState


def explain_tried(state: RunState, attempt: AttemptState) -> Tried:
    """Return what differs from the config of the attempt before."""
    return Tried(changes=_changes(state, attempt))


def explain_data(view: AttemptView) -> DataSeen:
    """Return which samples between the attempt's cursors were left out."""
    config, roles = view.attempt.opened.config, view.declared.roles
    return DataSeen(skipped=skipped_samples(config, roles, view.cursor_from, view.cursor_to))


def _changes(state: RunState, attempt: AttemptState) -> tuple[ConfigChange, ...]:
    """Return what differs from the config of the attempt before, each with its reason if known,
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


def explain_start(
    attempt: AttemptState, records: Sequence[Record], continuity: Continuity | None
) -> Resumed:
    """Return what was passed over for what `attempt` resumed from; records: the whole track."""
    return Resumed(
        passed_over=tuple(f"record {r.seq}: {sentence(r)}" for r in _passed_over(attempt, records)),
        continuity=continuity,
    )


def _passed_over(attempt: AttemptState, records: Sequence[Record]) -> Iterator[Record]:
    """Yield the quarantines that the attempt made itself, and that of what it was to resume from."""
    asked = attempt.opened.resume
    for record in records[attempt.opened_seq :]:
        if record.kind is not Kind.CHECKPOINT_QUARANTINED:
            continue
        is_asked = asked is not None and record.body["manifest_sha256"] == asked.manifest_sha256
        was_before = attempt.restored_at is None or record.at <= attempt.restored_at
        if was_before and (is_asked or record.attempt_id == attempt.attempt_id):
            yield record


def explain_progress(
    receipt: Receipt, run_id: str, now: datetime, last_line_at: datetime | None
) -> Progress | None:
    """Return how far the attempt is at `now`; None once it has ended.

    last_line_at: of its journal's newest line, a heartbeat or a step.
    """
    attempt = receipt.attempt
    if not attempt.is_open:
        return None
    newest = receipt.steps[-1] if receipt.steps else None
    silent = describe_silence(run_id, last_sign_at(attempt, last_line_at), now)
    return Progress(
        step=newest.step if newest else None,
        steps=_steps(receipt),
        at=newest.at if newest else None,
        last_committed_step=receipt.last_committed_step,
        sentence=_waits(attempt) or " ".join(filter(None, (_runs(receipt), silent))),
    )


def _waits(attempt: AttemptState) -> str | None:
    """Say what it waits for before its ranks have come together, or None."""
    if attempt.placed is not None:
        return None
    if not attempt.claims:
        return "It is open, and no Dagster run has claimed it yet: nothing has been started for it."
    return "It is open: a Dagster run has claimed it, and its ranks are not together yet."


def _runs(receipt: Receipt) -> str:
    began = receipt.attempt.resumed_step
    if not receipt.steps:
        return f"It is still running; no step past step {began} is in its journal yet."
    newest, steps = receipt.steps[-1], _steps(receipt)
    of = f" of {steps}" if steps is not None else ""
    safe = receipt.last_committed_step
    saved = f"step {safe} is its last commit" if safe is not None else "it has committed none"
    return (
        f"It is still running: step {newest.step}{of} at {newest.at[:19]}Z by its journal; "
        f"{saved}, so {newest.step - max(safe or 0, began)} steps would be lost if it ended now."
    )


def _steps(receipt: Receipt) -> Json:
    """Return how many steps its config names, None where it names none."""
    return value_of(receipt.attempt.opened.config, receipt.view.declared.roles, STEPS)


def missing(receipt: Receipt, evidence_problem: str | None) -> Iterator[str]:
    """Yield a sentence for each thing that the record should hold and does not."""
    attempt = receipt.attempt
    if not attempt.claims and receipt.view.declared.model_family != ALONE:
        yield "No Dagster run has claimed it."
    if attempt.placed is None:
        yield "It was never placed: no rank 0 came up, so nodes and devices are not known."
    elif not receipt.steps:
        yield "Its journal holds no step: it ran none, or the machine went before it was shipped."
    elif (gap := journal_gap(receipt)) is not None:
        yield gap
    if evidence_problem is not None:
        yield evidence_problem


def journal_gap(receipt: Receipt) -> str | None:
    """Say that the end of the journal was not shipped; None where it reaches the last step."""
    ended = receipt.attempt.ended
    if ended is None or not receipt.steps or (ended.last_step or 0) <= receipt.steps[-1].step:
        return None
    return (
        f"Its journal ends at step {receipt.steps[-1].step}, its last step was {ended.last_step}: "
        "the rest was not shipped."
    )


def explain_checkpoints(state: RunState, attempt: AttemptState) -> tuple[CheckpointMade, ...]:
    """Return the checkpoints that the attempt committed, and what became of each."""
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


def rests_on(state: RunState, next_start: CleanStart) -> str:
    """Say which checkpoint is the real one now, whichever attempt made it.

    next_start: where a next attempt may begin, as far as holds go.
    """
    start, hold = next_start.resume, next_start.hold
    is_lost = hold is not None and hold.act is HoldAct.LOSS
    if state.finished is None:
        if next_start.words and is_lost:
            return f"resumes from: nothing: {next_start.words}"
        if next_start.words and hold is not None and state.resumes_from is not None:
            asked = _named(state, state.resumes_from)
            return (
                f"resumes from: {asked}, not before the quarantine under 'what to do' is released"
            )
        if start is None:
            return "resumes from: no checkpoint; a next attempt begins afresh"
        return f"resumes from: {_named(state, start)}"
    final = state.finished.final
    if final is None:
        return "final checkpoint: none, nothing was saved"
    final_words = f"final checkpoint: {_named(state, final)}"
    if final != state.resumes_from:
        made = state.checkpoint(final.manifest_sha256)
        status = made.status if made is not None else "not in the record"
    elif final != start:
        status = "lost" if is_lost else "in quarantine, or made from what is"
    else:
        return final_words
    newest = (
        f"the newest that may be used is {_named(state, start)}" if start else "no other is left"
    )
    return f"{final_words}; {status}; {newest}"


def _named(state: RunState, ref: CheckpointRef) -> str:
    source = "" if ref.run_id == state.run_id else f" of {ref.run_id}"
    return (
        f"step {ref.step} of attempt {ref.attempt_id}{source}, manifest {ref.manifest_sha256[:12]}"
    )


def explain_cost(
    run: RunReceipts, receipt: Receipt, time: AttemptTime, prices: Prices | None
) -> Cost:
    """Return the attempt's share of the run's steps and of its time, and its debit."""
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
        debit=attempt.opened.debit,
        seconds=time.seconds,
        device_seconds_by=time.device_seconds,
        money=_money(attempt, time, prices),
    )


def explain_run_cost(run: RunReceipts, time: RunTime, prices: Prices | None) -> Cost:
    """Return what all attempts of the run cost together, until `time` ends."""
    ended = [receipt.attempt.ended for receipt in run.receipts if receipt.attempt.ended]
    accounts = [receipt.account for receipt in run.receipts]
    pairs = zip(run.receipts, time.attempts, strict=True)
    return Cost(
        kept_steps=sum(account.kept for account in accounts),
        lost_steps=sum(account.lost for account in accounts),
        device_seconds=sum(each.device_seconds for each in ended) if ended else None,
        accelerator=", ".join(sorted({each.accelerator for each in ended})) or None,
        wall_s=time.wall_s,
        debit=None,
        seconds=time.seconds,
        device_seconds_by=time.device_seconds,
        money=_sum([_money(receipt.attempt, each, prices) for receipt, each in pairs], prices),
    )


def _sum(attempts: Sequence[Money], prices: Prices | None) -> Money:
    """Return the money of several attempts; not known where that of one of them is not."""
    if prices is None:
        return Money(device="", unknown_why=NO_TABLE)
    unknown = next((money.unknown_why for money in attempts if money.amount is None), None)
    per_hour = {money.per_device_hour for money in attempts}
    return Money(
        device=", ".join(sorted({money.device for money in attempts})),
        currency=prices.currency,
        source=prices.source,
        per_device_hour=per_hour.pop() if len(per_hour) == 1 else None,
        amount=None if unknown else sum(money.amount or 0.0 for money in attempts),
        wasted=None if unknown else sum(money.wasted or 0.0 for money in attempts),
        unknown_why=unknown,
    )


def _money(attempt: AttemptState, time: AttemptTime, prices: Prices | None) -> Money:
    compute = attempt.opened.compute
    accelerator, device_class, pool = (
        accelerator_of(attempt),
        compute.device_class,
        pool_of(compute),
    )
    device = accelerator or device_class
    if prices is None:
        return Money(device=device, unknown_why=NO_TABLE)
    price = prices.of(accelerator, device_class, pool=pool)
    if price is None:
        return Money(
            device=device,
            currency=prices.currency,
            source=prices.source,
            unknown_why=f"the price table has no price for {device}",
        )
    hours = sum(time.device_seconds.values()) / 3600
    kept_hours = time.device_seconds["step_kept"] / 3600
    return Money(
        device=device,
        currency=prices.currency,
        source=prices.source,
        per_device_hour=price,
        amount=price * hours,
        wasted=price * (hours - kept_hours),
    )


def explain_evals(state: RunState, attempt: AttemptState) -> tuple[EvalDone, ...]:
    """Return every try at an eval of a checkpoint that the attempt made."""
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


def evals_owed(state: RunState) -> Iterator[str]:
    """Yield a sentence on the state of each eval that the run declares."""
    for required in state.declared.evals:
        data = "" if required.snapshot is None else f", on {required.snapshot.dataset}"
        kind = "required" if required.is_required else "asked for"
        what = f"{required.suite}, version {required.suite_version}{data}"
        yield f"{kind}: {what}: {_describe_eval(state, required)}"


def _describe_eval(state: RunState, required: EvalRequirement) -> str:
    waived = next((w.body for w in state.waivers if w.body.suite == required.suite), None)
    if waived is not None:
        return f"waived by {waived.by}: {waived.why}"
    final = final_checkpoint(state)
    if final is None:
        return "not due yet, the run has not all its steps"
    tries = attempts_at(state, required, final)
    if any(is_completed(each) for each in tries):
        return f"completed on step {final.step}"
    if not tries:
        lack = lack_of_source(state, required, final)
        return lack or f"due on step {final.step}, not tried yet"
    ended = tries[-1].ended
    how = f"the last ended as {ended.reason}" if ended is not None else "the last has not ended"
    return f"due on step {final.step}, tried {len(tries)} times, {how}"
