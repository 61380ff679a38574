"""Tell an explanation in plain text: what a tired person reads at night, the end before the details.

Pure: text in, nothing out. Colours and widths are not its business, so it reads the same in a mail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tracks_dagster.services.explanation import (
    AttemptExplanation,
    Cost,
    Next,
    RunExplanation,
    Where,
)

LABEL_WIDTH = 14


def run_text(run: RunExplanation) -> str:
    """Return the run in a few lines, then each of its attempts."""
    head = [f"{run.run_id}: {run.state}. {run.why}".rstrip(), *run.promotions]
    return "\n\n".join(["\n".join(head), *(attempt_text(attempt) for attempt in run.attempts)])


def attempt_text(attempt: AttemptExplanation) -> str:
    """Return one attempt as labelled lines: why it ended, what to do, then everything else."""
    lines = [_headline(attempt)]
    sections: Sequence[tuple[str, Iterable[str]]] = (
        ("why it ended", _why(attempt)),
        ("decided next", _decided(attempt.next)),
        ("what to do", [attempt.what_to_do]),
        ("what it tried", _tried(attempt)),
        ("changed", _changes(attempt)),
        ("data", _data(attempt)),
        ("code", _code(attempt)),
        ("where", _where(attempt.where)),
        ("began", _began(attempt)),
        ("checkpoints", _checkpoints(attempt)),
        ("cost", _cost(attempt.cost)),
        ("evals", _evals(attempt)),
        ("words", [f"{_time(w.at)} {w.by}: {w.text}" for w in attempt.words]),
        ("missing", attempt.missing),
    )
    for label, section in sections:
        for index, line in enumerate(section):
            lines.append(f"  {label if index == 0 else '':<{LABEL_WIDTH}}{line}")
    return "\n".join(lines)


def _headline(attempt: AttemptExplanation) -> str:
    reason = attempt.ended.reason if attempt.ended else "open"
    return f"{attempt.key}: {reason}"


def _why(attempt: AttemptExplanation) -> Iterator[str]:
    ended = attempt.ended
    if ended is None:
        yield "It has not ended."
        return
    yield ended.sentence
    yield f"rule {ended.rule}, confidence {ended.confidence:.0%}, closed by {ended.closed_by}"
    for line in ended.lines:
        yield f"| {line}"
    for line in ended.traceback_tail:
        yield f"> {line}"
    for line in ended.against:
        yield f"against it: {line}"
    if ended.reclassified_why:
        yield f"read again later: {ended.reclassified_why}"


def _decided(decision: Next) -> Iterator[str]:
    by = f" by {decision.decided_by}" if decision.decided_by else ""
    yield f"{decision.what}{by}: {decision.decision}"
    for record in decision.counted:
        yield f"counted record {record.seq} ({record.kind}): {record.sentence}"


def _tried(attempt: AttemptExplanation) -> Iterator[str]:
    tried = attempt.tried
    yield tried.intent
    yield f"{tried.model_family}, stage {tried.stage}, owner {tried.owner}, team {tried.team}"
    yield f"opened by {tried.decided_by} ({tried.cause}) at {_time(tried.opened_at)}"
    yield tried.decision
    yield " ".join(f"{key}={value}" for key, value in sorted(tried.config.items()))


def _changes(attempt: AttemptExplanation) -> Iterator[str]:
    if attempt.attempt_id > 1 and not attempt.tried.changes:
        yield "nothing: the same config as the attempt before"
    for change in attempt.tried.changes:
        yield f"{change.key}: {change.before} → {change.after} ({change.why})"


def _data(attempt: AttemptExplanation) -> Iterator[str]:
    data = attempt.data
    yield f"{data.dataset}, snapshot {data.snapshot_id}"
    if data.cursor_from is not None and data.cursor_to is not None:
        yield f"samples {data.cursor_from} to {data.cursor_to} of the order that its seed gives"
    for first, last in data.skipped:
        yield f"without samples {first} to {last}, which a skip window leaves out"


def _code(attempt: AttemptExplanation) -> Iterator[str]:
    code = attempt.code
    if code.git_commit is None:
        yield f"version {code.package_version}; no git checkout"
        return
    where = f"branch {code.branch}" if code.branch else "detached HEAD"
    yield f"{code.git_commit} ({where}{', with local changes' if code.dirty else ''})"


def _where(where: Where) -> Iterator[str]:
    for rank in where.ranks:
        yield f"rank {rank.rank} on {rank.node}, {rank.device} ({rank.accelerator}), pid {rank.pid}"
    if where.environment:
        yield " ".join(f"{name}={value}" for name, value in sorted(where.environment.items()))
    for dagster_run_id in where.dagster_run_ids:
        yield f"Dagster run {dagster_run_id}"


def _began(attempt: AttemptExplanation) -> Iterator[str]:
    resumed = attempt.resumed
    if resumed.checkpoint is None:
        yield "afresh, at step 0"
    else:
        ref = resumed.checkpoint
        of_run = f" of {ref.run_id}, which it branched from" if ref.run_id != attempt.run_id else ""
        yield (
            f"from step {resumed.step} of attempt {ref.attempt_id}{of_run}, manifest "
            f"{ref.manifest_sha256}"
        )
    if resumed.allows_environment_change:
        yield "allowed to go on with other libraries than those that wrote it"
    if resumed.fallback_why:
        yield f"a fallback: {resumed.fallback_why}"
    yield from resumed.passed_over
    if resumed.continuity is not None:
        yield f"continuity {resumed.continuity.sentence}"


def _checkpoints(attempt: AttemptExplanation) -> Iterator[str]:
    if not attempt.checkpoints:
        yield "none committed"
    for made in attempt.checkpoints:
        pins = f", held by {', '.join(made.pins)}" if made.pins else ""
        yield (
            f"step {made.step}: {made.status} ({made.trigger}), {made.total_bytes} bytes, "
            f"manifest {made.manifest_sha256[:12]}{pins}"
        )
    if attempt.failed_saves:
        yield f"saves failed: {len(attempt.failed_saves)}"
    for sentence in attempt.failed_saves:
        yield f"| {sentence}"


def _cost(cost: Cost) -> Iterator[str]:
    yield f"{cost.kept_steps} steps kept, {cost.lost_steps} lost"
    if cost.device_seconds is not None:
        wall = f" in {cost.wall_s:.0f} s" if cost.wall_s is not None else ""
        yield f"{cost.device_seconds:.1f} device seconds ({cost.accelerator}){wall}"


def _evals(attempt: AttemptExplanation) -> Iterator[str]:
    for done in attempt.evals:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(done.metrics.items()))
        result = metrics or done.message or "not ended"
        yield f"{done.eval_id} (try {done.number}): {done.reason or 'open'}, {result}"


def _time(text: str) -> str:
    """Return a record's time to the second: people compare it with a clock."""
    return f"{text[:19]}Z"
