"""The lines of each part of an explanation, shared by the text and the HTML report.

A line is a whole sentence or a list of facts that needs nothing from outside: what it names can be
looked up by a command of the last section, its terms are in the glossary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.ledger.facts.attempt import EVIDENCE_LOST, OWN_ORDER
from tracks_dagster.ledger.prices import Money
from tracks_dagster.review.explain.explanation import (
    AttemptExplanation,
    Break,
    Cost,
    Ended,
    EvalDone,
    Next,
    Stretch,
)
from tracks_dagster.review.explain.glossary import bucket_label
from tracks_dagster.track.records import format_time
from tracks_dagster.track.text.safe_text import one_line
from tracks_dagster.track.text.units import cost_text
from tracks_dagster.track.track import code_diff_key

CHECKPOINTS_MAX = 12  # of one attempt, the newest; `tracks checkpoints list` has all
RANKS_MAX = 16  # that are listed one by one
NODES_MAX = 16  # likewise
REMARKS_MAX = 20  # notes, stops and alerts of one attempt, the newest
SECONDS_SHOWN_MIN = 0.05  # what is less is 0.0 in the text


@dataclass(frozen=True, slots=True)
class Section:
    """One part: a label of a word or three, and its lines."""

    label: str
    lines: tuple[str, ...]


def sections(attempt: AttemptExplanation) -> list[Section]:
    """Return the parts in the order that they are asked for; a part without a line is left out."""
    parts = {
        "quarantine": attempt.quarantined,
        "why it ended" if attempt.ended else "how far it is": _why(attempt),
        "what follows": _follows(attempt.next),
        "what to do": [attempt.what_to_do],
        "what it cost": cost_lines(attempt.cost),
        "what it tried": _tried(attempt),
        "changed": _changes(attempt),
        "data": _data(attempt),
        "code": _code(attempt),
        "where": _where(attempt),
        "began": _began(attempt),
        "checkpoints": _checkpoints(attempt),
        "evals": _evals(attempt),
        "history": history_lines(attempt.history, attempt.broken),
        "notes": _notes(attempt),
        "missing": attempt.missing,
        "receipt": _receipt(attempt),
        "in Dagster": [f"{link.what}: {link.address}" for link in attempt.links],
        "to look up": [f"{each.what}: `{each.command}`" for each in attempt.references],
    }
    labelled = (Section(label, tuple(lines)) for label, lines in parts.items())
    return [part for part in labelled if part.lines]


def history_lines(history: Sequence[Stretch], broken: Break | None = None) -> Iterator[str]:
    """Yield a line for each stretch: what it ended as, which steps it ran, what was kept of them.

    broken: where the track stops holding; an end behind it is not known.
    """
    no_end = open_word(broken)
    for each in history:
        many = each.count > 1
        name = f"a{each.first:02d} to a{each.last:02d}" if many else f"a{each.first:02d}"
        ends = f"{each.count} attempts, {each.reason}" if many else each.reason or no_end
        ran = (
            f"steps {each.from_step} to {each.to_step}"
            if each.to_step > each.from_step
            else "no step"
        )
        yield (
            f"{name} {ends}: {ran}, {each.kept_steps} kept, {each.lost_steps} lost{_repeats(each)}"
        )


def open_word(broken: Break | None) -> str:
    """Return what an attempt without a recorded end is called: the end may lie behind a break."""
    return "open" if broken is None else "end not known"


def _repeats(stretch: Stretch) -> str:
    if stretch.count > 1 and stretch.repeat_count:
        which = (
            "each" if stretch.repeat_count == stretch.count else f"{stretch.repeat_count} of them"
        )
        return f"; {which} failed just as an attempt before, with nothing kept in between"
    if stretch.repeats is None:
        return ""
    return f"; it failed just as a{stretch.repeats:02d} did, with nothing kept since"


def _why(attempt: AttemptExplanation) -> Iterator[str]:
    ended = attempt.ended
    if ended is None and attempt.broken is not None:
        last = attempt.broken.seq - 1
        yield f"whether it has ended is not known: what came after record {last} cannot be read"
        return
    if ended is None:
        yield attempt.progress.sentence if attempt.progress else "It has not ended."
        return
    yield f"{ended.sentence} It ended at {clock_time(ended.ended_at)}."
    yield f"rule {ended.rule}, confidence {ended.confidence:.0%}, closed by {_closer(attempt, ended)}"
    if ended.root_message not in ("", ended.reason, *ended.lines):
        yield f"root message: {ended.root_message}"
    for line in ended.lines:
        yield f"| {line}"
    for line in ended.traceback_tail:
        yield f"> {line}"
    yield from judgement(attempt, ended)
    yield from ended.ranks
    yield from ended.late
    if ended.reclassified_why:
        yield f"read again later: {ended.reclassified_why}"


def judgement(attempt: AttemptExplanation, ended: Ended) -> Iterator[str]:
    """Yield what speaks against the reason, or that nothing does, or that it is unknown."""
    if is_evidence_lost(attempt):
        yield "what speaks against it is not known: the stored evidence is gone or was changed"
        return
    for line in ended.against:
        yield f"against it: {line}"
    if not ended.against:
        yield "nothing in the evidence speaks for another reason"


def is_evidence_lost(attempt: AttemptExplanation) -> bool:
    """Whether the evidence of the end is gone or was changed, so that it cannot be weighed again."""
    return EVIDENCE_LOST.name in {each.absence for each in attempt.completeness.fields}


def _closer(attempt: AttemptExplanation, ended: Ended) -> str:
    """Say who recorded the end: a bare id of a Dagster run does not show that its supervisor did."""
    claims = attempt.view.attempt.claims
    is_supervisor = ended.closed_by in {claim.body.dagster_run_id for claim in claims}
    return f"the supervisor of Dagster run {ended.closed_by}" if is_supervisor else ended.closed_by


def _follows(decision: Next) -> Iterator[str]:
    by = f" by {decision.decided_by}" if decision.decided_by else ""
    yield f"{decision.what}{by}: {decision.decision}"
    for record in decision.counted:
        yield f"counted record {record.seq} ({record.kind}): {record.sentence}"
    if decision.what in ("retried", "refused") and not decision.counted:
        yield "no earlier record had to be counted for it"


def _tried(attempt: AttemptExplanation) -> Iterator[str]:
    view, run, opened = attempt.view, attempt.view.declared, attempt.view.attempt.opened
    yield run.intent
    named = f", class {run.workload_class}" if run.workload_class is not None else ""
    who = f"owner {run.owner}, team {run.team}"
    on_call = f", on call {run.on_call}" if run.on_call is not None else ""
    yield f"{run.model_family}, stage {run.stage}{named}, {who}{on_call}"
    if run.experiment is not None:
        against = "" if run.baseline is None else f", compared with {run.baseline}"
        command = f"`tracks diff --experiment {run.experiment}`"
        yield f"of the experiment {run.experiment}{against} ({command})"
    if view.trainer != "family":
        program = attempt.view.attempt.opened.program or run.program
        started = "" if program is None else f", started as {' '.join(program.entry)}"
        by = f" by {program.python}" if program is not None and program.python else ""
        yield f"code of the owner's, stored as {view.trainer}{started}{by}"
    opened_at = clock_time(format_time(view.attempt.opened_at))
    yield f"opened by {opened.decided_by} ({opened.cause}) at {opened_at}"
    yield opened.decision
    config = " ".join(f"{key}={value}" for key, value in sorted(opened.config.items()))
    yield f"config: {config}"


def _changes(attempt: AttemptExplanation) -> Iterator[str]:
    if attempt.attempt_id == 1:
        yield "nothing to compare with: it is the first attempt"
    elif not attempt.tried.changes:
        yield "nothing: the same config as the attempt before"
    for change in attempt.tried.changes:
        yield f"{change.key}: {change.before} → {change.after} ({change.why})"


def _data(attempt: AttemptExplanation) -> Iterator[str]:
    view, snapshot = attempt.view, attempt.view.attempt.opened.snapshot
    if snapshot is None:
        yield "no snapshot was named: what the script reads by itself"
    else:
        yield f"{snapshot.dataset}, snapshot {snapshot.snapshot_id}"
    if view.cursor_from is not None and view.cursor_to is not None:
        yield f"samples {view.cursor_from} to {view.cursor_to} of the order that its seed gives"
    elif view.cursor_from is not None:
        yield f"from sample {view.cursor_from} of the order that its seed gives; how far is not known"
    elif OWN_ORDER.holds(view):
        yield "samples in an order of the script's own: each checkpoint has what its loader says"
    else:
        yield "no sample of it that is known of"
    for first, last in attempt.data.skipped:
        yield f"without samples {first} to {last}, which a skip window leaves out"


def _code(attempt: AttemptExplanation) -> Iterator[str]:
    code, stored = attempt.code, attempt.view.code_sha256
    if code.git_commit is None:
        name = f"version {code.package_version}" if stored is None else f"stored code {stored}"
        yield f"{name}; no git checkout"
        return
    where = f"branch {code.branch}" if code.branch else "detached HEAD"
    local = ", with local changes that no commit holds" if code.dirty else ", no local changes"
    if code.diff_sha256 is not None:
        local = f", with local changes, kept as {code_diff_key(attempt.run_id, code.diff_sha256)}"
    yield f"{code.git_commit} ({where}{local})"


def _where(attempt: AttemptExplanation) -> Iterator[str]:
    ranks, placed = attempt.where.ranks, attempt.view.attempt.placed
    nodes, out = attempt.where.nodes, attempt.where.out
    if not ranks and nodes:
        more = f" and {len(nodes) - NODES_MAX} more" if len(nodes) > NODES_MAX else ""
        yield f"on {', '.join(nodes[:NODES_MAX])}{more}"
    elif not ranks:
        yield "on no machine that is known of"
    yield from out[:NODES_MAX]
    if len(out) > NODES_MAX:
        yield f"and {len(out) - NODES_MAX} more nodes that took no job"
    for rank in ranks[:RANKS_MAX]:
        yield f"rank {rank.rank} on {rank.node}, {rank.device} ({rank.accelerator}), pid {rank.pid}"
    if len(ranks) > RANKS_MAX:
        others = sorted({rank.node for rank in ranks[RANKS_MAX:]})
        yield f"{len(ranks) - RANKS_MAX} more ranks on {', '.join(others)}"
    if placed is not None:
        image = f"image {placed.image}" if placed.image else "no container image"
        yield f"launch {placed.launch_id}, {image}"
        if placed.asked:
            given = _pairs(placed.granted) or "nothing that the queue says"
            yield f"asked of the cluster: {_pairs(placed.asked)}; granted: {given}"
        yield " ".join(f"{name}={value}" for name, value in sorted(placed.environment.items()))
        if "threads" in placed.environment and all(r.accelerator == "cpu" for r in ranks):
            yield f"threads={placed.environment['threads']} of torch in each rank: docs/devices.md"


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _began(attempt: AttemptExplanation) -> Iterator[str]:
    resumed, record = attempt.resumed, attempt.view.attempt
    if record.resumed_from is None:
        yield "afresh, at step 0"
    else:
        ref = record.resumed_from
        of_run = f" of {ref.run_id}, which it branched from" if ref.run_id != attempt.run_id else ""
        yield (
            f"from step {record.resumed_step} of attempt {ref.attempt_id}{of_run}, manifest "
            f"{ref.manifest_sha256}"
        )
    if record.opened.allows_environment_change:
        yield "allowed to resume with other libraries than those that wrote it"
    if record.restored is not None and record.restored.fallback_why:
        yield f"a fallback: {record.restored.fallback_why}"
    for line in record.restored.inexact if record.restored else ():
        yield f"cannot be exact: {line}"
    for line in record.restored.changed if record.restored else ():
        yield f"built otherwise than for it: {line}"
    yield from resumed.passed_over
    if resumed.continuity is not None:
        yield f"continuity {resumed.continuity.sentence}"


def _checkpoints(attempt: AttemptExplanation) -> Iterator[str]:
    made = attempt.checkpoints
    if not made:
        yield "none committed"
    if len(made) > CHECKPOINTS_MAX:
        yield f"{len(made) - CHECKPOINTS_MAX} older ones are left out"
    for each in made[-CHECKPOINTS_MAX:]:
        pins = f", held by {', '.join(each.pins)}" if each.pins else ""
        yield (
            f"step {each.step}: {each.status} ({each.trigger}), {each.total_bytes} bytes, "
            f"manifest {each.manifest_sha256[:12]}{pins}"
        )
    if attempt.failed_saves:
        yield f"saves failed: {len(attempt.failed_saves)}"
    for sentence in attempt.failed_saves:
        yield f"| {sentence}"
    yield attempt.rests_on


def cost_lines(cost: Cost) -> Iterator[str]:
    """Yield steps, seconds, money and debit of an attempt, or of all attempts of a run."""
    yield f"{cost.kept_steps} steps kept, {cost.lost_steps} lost"
    if cost.device_seconds is not None:
        wall = f" in {cost.wall_s:.0f} s" if cost.wall_s is not None else ""
        yield f"{cost.device_seconds:.1f} device seconds ({cost.accelerator}){wall}"
    for what, seconds in (
        ("seconds by bucket", cost.seconds),
        ("device seconds by bucket", cost.device_seconds_by),
    ):
        parts = [
            f"{bucket_label(bucket)} {spent:.1f}"
            for bucket, spent in seconds.items()
            if spent >= SECONDS_SHOWN_MIN
        ]
        if parts:
            yield f"{what}: {', '.join(parts)}"
    yield format_money(cost.money)
    if cost.debit is not None:
        why = f" ({cost.debit.why})" if cost.debit.why else ""
        yield f"opening it spent {cost.debit.amount:g} of the budget for {cost.debit.reason}{why}"


def format_money(money: Money) -> str:
    """Return what it cost in money, or why that is not known."""
    if money.amount is None:
        return f"in money not known: {money.unknown_why}"
    price = f" at {money.per_device_hour:g} a device hour" if money.per_device_hour else ""
    return (
        f"{cost_text(money.amount)} {money.currency}{price}, "
        f"{cost_text(money.wasted or 0.0)} of it not for steps that were kept (prices: {money.source})"
    )


def _evals(attempt: AttemptExplanation) -> Iterator[str]:
    yield from eval_lines(attempt.evals)
    if not attempt.evals:
        yield "none of its checkpoints was evaluated"
    yield from attempt.evals_owed


def eval_lines(evals: Sequence[EvalDone]) -> Iterator[str]:
    """Yield a line for each eval."""
    for done in evals:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(done.metrics.items()))
        result = "; ".join(filter(None, (metrics, done.message))) or "not ended"
        yield f"{done.eval_id} (try {done.number}): {done.reason or 'open'}, {result}"


def _notes(attempt: AttemptExplanation) -> Iterator[str]:
    older = len(attempt.words) - REMARKS_MAX
    if older > 0:
        yield (
            f"{older} older notes are left out: `tracks search WORD --run {attempt.run_id}` finds "
            f"them, `tracks explain {attempt.key} --json` has all"
        )
    for each in attempt.words[-REMARKS_MAX:]:
        yield one_line(f"{clock_time(each.at)} {each.by}: {each.text}")


def _receipt(attempt: AttemptExplanation) -> Iterator[str]:
    score = attempt.completeness
    yield f"{score.recorded_count} of {len(score.fields)} fields are recorded"
    yield from score.absences


def clock_time(text: str) -> str:
    """Return a record's time to the second: people compare it with a clock."""
    return f"{text[:19]}Z"


def span(seconds: float) -> str:
    """Return a length of time in two units at most: "3 d 4 h", "12 min 5 s", "0.4 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"
