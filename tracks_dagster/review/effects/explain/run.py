"""Explain an attempt from the record alone: what was tried, on what, why it ended, what came next.

Reads the track as far as it holds, the journals and the stored evidence; needs no ledger, no Dagster
and no memory of any person. What the record does not hold is listed as missing, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from urllib.parse import quote

from tracks_dagster.attempts.effects.evidence import read_evidence, read_journal_end, read_places
from tracks_dagster.attempts.expectation import compare
from tracks_dagster.attempts.gates import gate_lines
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.effects.starts import next_start, not_known
from tracks_dagster.holds.hold import CleanStart
from tracks_dagster.holds.lineage import attempt_thing
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.facts.attempt import ATTEMPT
from tracks_dagster.ledger.facts.checkpoint import CHECKPOINT, EVAL, eval_view
from tracks_dagster.ledger.facts.fact import nested
from tracks_dagster.ledger.facts.run import RUN, run_view
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.ledger.time_buckets import RunTime, run_buckets
from tracks_dagster.ledger.timeline import time_at, timeline
from tracks_dagster.reasons.endings import Ending, ending_of
from tracks_dagster.reasons.user_rules import NO_RULES, UserRules
from tracks_dagster.retry.caps import max_cost_of
from tracks_dagster.review.completeness import completeness
from tracks_dagster.review.effects.explain.attempt import (
    evals_owed,
    explain_checkpoints,
    explain_cost,
    explain_data,
    explain_evals,
    explain_progress,
    explain_run_cost,
    explain_start,
    explain_tried,
    missing,
    rests_on,
)
from tracks_dagster.review.effects.explain.end import (
    explain_end,
    explain_next,
    late_messages,
    what_to_do,
)
from tracks_dagster.review.effects.explain.reading import RunRead, read_run
from tracks_dagster.review.effects.explain.stretches import stretches
from tracks_dagster.review.effects.receipts import Receipt, RunReceipts, receipts_of
from tracks_dagster.review.explain.explanation import (
    AttemptExplanation,
    Reference,
    Remark,
    RunExplanation,
    Stretch,
    UiLink,
    Where,
)
from tracks_dagster.review.narrate import sentence
from tracks_dagster.stores.histories import Histories
from tracks_dagster.stores.journals import journal_prefix, read_tail
from tracks_dagster.track.bodies import RankPlace, TimeSpent
from tracks_dagster.track.errors import TrackBroken, UnknownRun
from tracks_dagster.track.imported import ImportedNode, history_of, out_during, out_words
from tracks_dagster.track.names import (
    ALERT_SAVE_FAILED,
    ALONE,
    ATTEMPT_PARTITIONS,
    NO_PREFIX,
    RECEIPTS,
    AttemptRef,
    Prefix,
    attempt_key,
)
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, Kind, format_time
from tracks_dagster.track.states.run_state import AttemptState, RunState, code_of
from tracks_dagster.track.track import code_diff_key

OUT_AFTER = timedelta(hours=1)  # a check or a person drains a node some time after it failed a job
ATTEMPTS_MAX = 12  # of a run, the newest, each in full; the history names all of them
NODES_MAX = 4  # of a gang, that are looked up by name


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainContext:
    """What an explanation may use beside the store; all of it is optional.

    rules: a user's own of the classifier, to weigh evidence by. ledger: remembers the end of a track
    and what is in quarantine. ui_url: of Dagster's web server; empty for paths alone. prefix: of our
    names there. board_url: of the board; empty for no link to it. prices: None where no price is known.
    waits: returns what a run waits for that is late or will not come by itself, as the daemon left it;
    None for a record that no daemon belongs to.
    """

    rules: UserRules = NO_RULES
    ledger: Ledger | None = None
    ui_url: str = ""
    prefix: Prefix = NO_PREFIX
    board_url: str = ""
    prices: Prices | None = None
    waits: Callable[[RunState], str | None] | None = None

    def waits_for(self, state: RunState) -> str | None:
        """Return what the run waits for; None for nothing, or where it is not known."""
        return None if self.waits is None else self.waits(state)


NO_CONTEXT = ExplainContext()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """A run as read for an explanation: its track, receipts, short history and account of time.

    until: the end of that account: its finish, else now while an attempt is open, else its newest
    record. listed: what its history says of nodes, where it was imported.
    """

    read: RunRead
    run: RunReceipts
    history: tuple[Stretch, ...]
    time: RunTime
    until: datetime
    listed: Sequence[ImportedNode] = ()


def load_run(tracks: Tracks, run_id: str, context: ExplainContext = NO_CONTEXT) -> LoadedRun:
    """Read a run once, for its explanation and its report; raises UnknownRun and TrackBroken."""
    read = read_run(tracks, run_id, witness=context.ledger)
    state, run = read.state, receipts_of(tracks.store, read.state)
    newest = max(record.at for record in read.records)  # clocks of several machines wrote them
    until = newest if state.open_attempt is None else max(tracks.now(), newest)
    history = history_of(run_id)
    if (finished_us := timeline(state).finished_us) is not None:
        until = time_at(finished_us)  # by a clock that was set back, it finished before it ended
    return LoadedRun(
        read=read,
        run=run,
        history=stretches(run),
        time=run_buckets(state, as_of=until, spent=_spent(tracks.store, state)),
        until=until,
        listed=Histories(tracks.store).nodes(history) if history is not None else (),
    )


def _where(
    attempt: AttemptState, places: Sequence[RankPlace], listed: Sequence[ImportedNode]
) -> Where:
    nodes = () if attempt.placed is None else nodes_of(attempt.placed)
    if attempt.placed_at is None or attempt.ended_at is None:
        return Where(ranks=tuple(places), nodes=nodes)
    began_at, ended_at = format_time(attempt.placed_at), format_time(attempt.ended_at)
    soon = format_time(attempt.ended_at + OUT_AFTER)
    out = (
        f"{each.node} took no job: {out_words(each)}{_later(each, ended_at)}"
        for each in out_during(listed, nodes, began_at, soon)
    )
    return Where(ranks=tuple(places), nodes=nodes, out=tuple(out))


def _later(node: ImportedNode, ended_at: str) -> str:
    return ", after the attempt had ended" if node.out_since > ended_at else ""


def _spent(store: ObjectStore, state: RunState) -> Mapping[int, tuple[int, TimeSpent]]:
    """Return the time that the journal of an open attempt has measured; empty without any."""
    attempt = state.open_attempt
    if attempt is None or attempt.placed is None:
        return {}
    launch_id = attempt.placed.launch_id
    end = read_journal_end(store, journal_prefix(state.ref(attempt), launch_id, 0))
    if end.spent is None or end.last_step is None:
        return {}
    return {attempt.attempt_id: (end.last_step, end.spent)}


def explain_run(
    tracks: Tracks,
    run_id: str,
    context: ExplainContext = NO_CONTEXT,
    *,
    attempts_max: int = ATTEMPTS_MAX,
) -> RunExplanation:
    """Explain a run and its newest attempts; raises as `load_run`."""
    loaded = load_run(tracks, run_id, context)
    return explain_loaded(tracks, loaded, context, attempts_max=attempts_max)


def explain_loaded(
    tracks: Tracks,
    loaded: LoadedRun,
    context: ExplainContext,
    *,
    attempts_max: int = ATTEMPTS_MAX,
    also: int | None = None,
) -> RunExplanation:
    """Explain a run that was read before: its newest attempts, and `also` the one of that id."""
    records, receipts = loaded.read.records, loaded.run.receipts
    newest = max(0, len(receipts) - attempts_max)
    holds = Holds(tracks)
    chosen = [r for i, r in enumerate(receipts) if i >= newest or r.attempt.attempt_id == also]
    return RunExplanation(
        run_id=loaded.run.state.run_id,
        facts=nested(RUN, run_view(loaded.run.state)),
        state=loaded.run.status.state,
        why=loaded.run.status.why,
        attempts=tuple(
            _explain(tracks.store, loaded, receipt, context, holds) for receipt in chosen
        ),
        promotions=tuple(sentence(r) for r in records if r.kind is Kind.PROMOTION_DECIDED),
        history=loaded.history,
        left_out=len(receipts) - len(chosen),
        cost=explain_run_cost(loaded.run, loaded.time, context.prices),
        broken=loaded.read.broken,
        waits_for=context.waits_for(loaded.run.state),
        expectation=_expectation(tracks, loaded.run.state),
        gates=_gates(loaded.run.state),
        inexact=tuple(
            f"attempt {each.attempt.attempt_id}: continuity {each.continuity.sentence}"
            for each in receipts
            if each.continuity is not None and each.continuity.agree is False
        ),
        cap=max_cost_of(loaded.run.state),
    )


def _gates(state: RunState) -> tuple[str, ...]:
    return tuple(gate_lines(state.declared, None if state.judged is None else state.judged.body))


def _expectation(tracks: Tracks, state: RunState) -> tuple[str, ...]:
    branched = state.declared.branched_from
    asks = state.declared.expect is not None and branched is not None
    try:
        source = tracks.find_run(branched.run_id) if asks and branched is not None else None
    except TrackBroken:  # its own explanation says so
        source = None
    return tuple(compare(state, source))


def explain_attempt(
    tracks: Tracks, run_id: str, attempt_id: int, context: ExplainContext = NO_CONTEXT
) -> AttemptExplanation:
    """Explain one attempt; raises UnknownRun, and TrackBroken where the record does not reach it."""
    loaded = load_run(tracks, run_id, context)
    count = len(loaded.run.receipts)
    if loaded.run.state.attempt(attempt_id) is None:
        if (broken := loaded.read.broken) is not None:
            raise TrackBroken(
                f"Whether {run_id} has an attempt {attempt_id} cannot be known: {broken.meaning} "
                f"{broken.to_do} Before that, {_which(run_id, count)}"
            )
        raise UnknownRun(
            f"Training run {run_id} has no attempt {attempt_id}; {_which(run_id, count)}"
        )
    receipt = loaded.run.receipts[attempt_id - 1]
    return _explain(tracks.store, loaded, receipt, context, Holds(tracks))


def _which(run_id: str, count: int) -> str:
    """Say which attempts there are."""
    if not count:
        return f"it has none yet. `tracks status {run_id}` says what it waits for."
    newest = attempt_key(run_id, count)
    return f"it has {count}, the newest is {newest}: `tracks explain {newest}`."


def _explain(
    store: ObjectStore, loaded: LoadedRun, receipt: Receipt, context: ExplainContext, holds: Holds
) -> AttemptExplanation:
    run, records = loaded.run, list(loaded.read.records)
    state, attempt = run.state, receipt.attempt
    evidence, evidence_problem = read_evidence(store, attempt)
    late = tuple(late_messages(store, state.run_id, attempt))
    places = read_places(store, state.ref(attempt), attempt.placed)
    start = _start(holds, state)
    return AttemptExplanation(
        key=attempt_key(state.run_id, attempt.attempt_id),
        run_id=state.run_id,
        attempt_id=attempt.attempt_id,
        view=receipt.view,
        facts=_facts(state, receipt),
        tried=explain_tried(state, attempt),
        data=explain_data(receipt.view),
        code=receipt.view.code,
        where=_where(attempt, places, loaded.listed),
        resumed=explain_start(attempt, records, receipt.continuity),
        checkpoints=explain_checkpoints(state, attempt),
        failed_saves=receipt.failed_saves,
        ended=explain_end(attempt, evidence, context.rules, late),
        progress=explain_progress(
            receipt, state.run_id, loaded.until, _last_line_at(store, loaded, attempt)
        ),
        cost=explain_cost(
            run, receipt, loaded.time.attempts[attempt.attempt_id - 1], context.prices
        ),
        next=explain_next(run, attempt, records, loaded.read.broken),
        resumes_from=run.final if state.finished is not None else start.resume,
        rests_on=rests_on(state, start),
        evals=explain_evals(state, attempt),
        evals_owed=tuple(evals_owed(state)),
        history=loaded.history,
        quarantined=tuple(_quarantined(holds, state, attempt)),
        words=_remarks(state, attempt),
        missing=tuple(missing(receipt, evidence_problem)),
        completeness=completeness(
            replace(receipt.view, is_evidence_there=evidence_problem is None)
        ),
        what_to_do=what_to_do(run, attempt, loaded.read.broken, start, context.waits_for(state)),
        links=tuple(explain_links(state, attempt, context.ui_url, context.prefix)),
        references=tuple(references(state, attempt)),
        broken=loaded.read.broken,
        waits_for=context.waits_for(state),
    )


def _facts(state: RunState, receipt: Receipt) -> dict[str, Json]:
    number = receipt.attempt.attempt_id
    evals = [each for each in state.evals if each.opened.checkpoint.attempt_id == number]
    return {
        **nested(ATTEMPT, receipt.view),
        "checkpoints": [
            nested(CHECKPOINT, each) for each in state.checkpoints if each.ref.attempt_id == number
        ],
        "evals": [nested(EVAL, eval_view(state, each)) for each in evals],
    }


def _quarantined(holds: Holds, state: RunState, attempt: AttemptState) -> Iterator[str]:
    """Yield a sentence for each source in quarantine that the attempt descends from."""
    try:
        sources = holds.of_attempt(state, attempt.attempt_id)
    except TrackBroken as error:
        yield not_known(error)
        return
    for hold in sources.values():
        yield f"it {hold.words} It is in quarantine since {hold.at:%Y-%m-%dT%H:%M:%SZ}."


def _last_line_at(store: ObjectStore, loaded: LoadedRun, attempt: AttemptState) -> datetime | None:
    """Return when the newest line of an open attempt's journal was written."""
    if not attempt.is_open or attempt.placed is None:
        return None
    run_id, launch_id = loaded.run.state.run_id, attempt.placed.launch_id
    return read_tail(
        store, AttemptRef(run_id, attempt.attempt_id), launch_id, steps_max=1
    ).last_line_at


def _start(holds: Holds, state: RunState) -> CleanStart:
    """Return where a next attempt may begin; words only where one may be opened."""
    try:
        start = next_start(holds, state)
    except TrackBroken:
        return CleanStart(resume=state.resumes_from)  # the quarantines say that it is broken
    may_be_opened = state.finished is None and state.open_attempt is None
    return start if may_be_opened else replace(start, words="")


def _remarks(state: RunState, attempt: AttemptState) -> tuple[Remark, ...]:
    """Return the notes of this attempt, those of the run from its opening to the next one's, and the
    stops and alerts of that time."""
    successor = state.attempt(attempt.attempt_id + 1)
    until = successor.opened_seq if successor else state.head.seq + 1
    others = {n.seq for n in state.notes if n.attempt_id not in (None, attempt.attempt_id)}
    own = {n.seq for n in state.notes if n.attempt_id == attempt.attempt_id}
    notes = [(n.seq, n.at, n.body.by, n.body.text) for n in state.notes]
    stops = [(s.seq, s.at, s.body.by, f"{s.body.mode}: {s.body.why}") for s in state.stops]
    alerts = [
        (a.seq, a.at, f"{'open alert' if a.is_open else 'alert'} {a.body.rule}", a.body.text)
        for a in state.alerts
        if a.body.rule != ALERT_SAVE_FAILED  # is among the checkpoints
    ]
    return tuple(
        Remark(seq=seq, at=format_time(at), by=by, text=text)
        for seq, at, by, text in sorted(notes + stops + alerts)
        if seq in own or (attempt.opened_seq < seq < until and seq not in others)
    )


def run_address(dagster_run_id: str, ui_url: str = "") -> str:
    """Return the page of a Dagster run; ui_url: of the web server, empty for the path alone."""
    return f"{ui_url.rstrip('/')}/runs/{quote(dagster_run_id)}"


def attempt_address(
    run_id: str, attempt: AttemptState, ui_url: str = "", prefix: Prefix = NO_PREFIX
) -> str:
    """Return the page of the attempt's receipt; of its own partition, while it has not ended."""
    partition = quote(attempt_key(run_id, attempt.attempt_id), safe="")
    asset = ATTEMPT_PARTITIONS if attempt.is_open else RECEIPTS
    path = f"{prefix.page(asset)}?view=partitions&partition={partition}"
    return f"{ui_url.rstrip('/')}{path}"


def explain_links(
    state: RunState, attempt: AttemptState, ui_url: str, prefix: Prefix
) -> Iterator[UiLink]:
    """Yield the pages that show this attempt: its partition, and each Dagster run that claimed it.

    None of a script that runs outside an attempt: Dagster knows nothing of it.
    """
    if state.declared.model_family == ALONE:
        return
    address = attempt_address(state.run_id, attempt, ui_url, prefix)
    yield UiLink(what="the attempt's asset partition", address=address)
    for claim in attempt.claims:
        id_ = claim.body.dagster_run_id
        yield UiLink(what=f"Dagster run {id_}", address=run_address(id_, ui_url))


def references(state: RunState, attempt: AttemptState) -> Iterator[Reference]:
    """Yield the command that resolves each kind of id that the explanation of `attempt` names."""
    run_id, key = state.run_id, attempt_key(state.run_id, attempt.attempt_id)
    yield Reference(what="a record by its number", command=f"tracks explain {run_id} --records")
    yield Reference(what="a checkpoint", command=f"tracks checkpoints list {run_id}")
    source = attempt.resumed_from
    if source is not None and source.run_id != run_id:
        what = f"a checkpoint of {source.run_id}"
        yield Reference(what=what, command=f"tracks checkpoints list {source.run_id}")
    if (snapshot := attempt.opened.snapshot) is not None:
        yield Reference(what="the snapshot", command=f"tracks snapshots list {snapshot.dataset}")
    thing = attempt_thing(run_id, attempt.attempt_id)
    yield Reference(what="what it rests on, what came of it", command=f"tracks lineage {thing}")
    for node in nodes_of(attempt.placed)[:NODES_MAX] if attempt.placed is not None else ():
        yield Reference(what=f"what else ran on {node}", command=f"tracks blast node:{node}")
    if attempt.ended is not None:
        yield Reference(what="the evidence, whole", command=f"tracks explain {key} --evidence")
    yield from _same_failures(state, attempt)
    yield Reference(what="a reason, and how often it is retried", command="tracks policy")
    code = code_of(state, attempt)
    commit = code.git_commit
    if commit is not None:
        yield Reference(what="the code, in its checkout", command=f"git show {commit}")
    diff = code.diff_sha256
    if diff is not None:
        what = (
            f"its local changes, store/{code_diff_key(run_id, diff)} in the archive, for git apply"
        )
        yield Reference(what=what, command=f"tracks export {run_id}")


def _same_failures(state: RunState, attempt: AttemptState) -> Iterator[Reference]:
    """Yield where else it failed just so, or where the attempt before did, whose fingerprint the
    decision to open this one names."""
    before = state.attempt(attempt.attempt_id - 1)
    for each, what in ((attempt, "the same failure"), (before, "the failure before it")):
        if each is None or each.reason is None or ending_of(each.reason) is Ending.AS_MEANT:
            continue
        if not each.fingerprint:
            continue
        query = (
            "select fingerprint, run_id, attempt_id from training_attempts where fingerprint = "
            f"'{each.fingerprint}'"
        )
        yield Reference(what=f"{what}, elsewhere", command=f'tracks sql "{query}"')
