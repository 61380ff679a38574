"""What a new engineer asks about a failed attempt, and how its answer is found in a text alone.

Each question names the parts of the text in which its answer stands, and checks what it finds there
against the record: a text that says something else, or nothing, does not answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.incidents.parts import parts_of
from tracks_dagster.ledger.time_buckets import run_buckets
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.track.states.accounting import kept_and_lost
from tracks_dagster.track.states.evals import is_completed
from tracks_dagster.track.states.run_state import AttemptState, RunState

NOT_PLACED = (
    "environment",
    "packages",
    "image",
    "cursor range",
    "launch",
    "ranks",
    "nodes",
    "devices",
)


@dataclass(frozen=True)
class Asked:
    """The text, and what is true.

    truth: words of the incident's cause that its author knows. evidence: as it was stored.
    """

    text: str
    state: RunState
    attempt: AttemptState
    truth: tuple[str, ...]
    evidence: Evidence

    def part(self, label: str) -> str:
        """Return the lines of one part of the text."""
        return "\n".join(parts_of(self.text).get(label, []))


@dataclass(frozen=True)
class Question:
    """words: as a person asks; labels: of the parts that answer; answers: what has to stand there."""

    words: str
    labels: tuple[str, ...]
    expected: Callable[[Asked], Iterator[str]]

    def is_answered(self, asked: Asked) -> bool:
        """Whether all that is expected stands in the parts."""
        found = "\n".join(asked.part(label) for label in self.labels)
        expected = list(self.expected(asked))
        assert expected, f"nothing is expected of {self.words!r}"
        return all(each in found for each in expected)


def unanswered(asked: Asked) -> list[str]:
    """Return the questions that the text does not answer."""
    return [each.words for each in QUESTIONS if not each.is_answered(asked)]


# --- what has to stand in an answer -----------------------------------------------------------------


def _intent(asked: Asked) -> Iterator[str]:
    declared = asked.state.declared
    yield from (declared.intent, declared.model_family, declared.stage)
    yield from (f"owner {declared.owner}", f"team {declared.team}")


def _config(asked: Asked) -> Iterator[str]:
    for key, value in asked.attempt.opened.config.items():
        yield f"{key}={value}"


def _changes(asked: Asked) -> Iterator[str]:
    before = asked.state.attempt(asked.attempt.attempt_id - 1)
    if before is None:
        yield "it is the first attempt"
        return
    old, new = before.opened.config, asked.attempt.opened.config
    changed = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
    beside = [c.key for c in asked.attempt.opened.remediation if c.key not in new]
    if not changed and not beside:
        yield "the same config as the attempt before"
    yield from (f"{key}: {old.get(key)} → {new.get(key)}" for key in changed)
    yield from (f"{key}: " for key in beside)


def _data(asked: Asked) -> Iterator[str]:
    snapshot, attempt = asked.attempt.opened.snapshot, asked.attempt
    yield from (snapshot.dataset, snapshot.snapshot_id)
    if attempt.restored is None:
        yield "no sample of it"
        return
    last = attempt.ended.last_step if attempt.ended else None
    yield f"samples {48 * attempt.resumed_step} to {48 * (last or attempt.resumed_step)}"


def _code(asked: Asked) -> Iterator[str]:
    yield str(asked.state.declared.code.git_commit)
    yield "with local changes" if asked.state.declared.code.dirty else "no local changes"


def _placement(asked: Asked) -> Iterator[str]:
    placed = asked.attempt.placed
    if placed is None:
        yield "on no machine that is known of"
        yield "nodes, devices: no rank 0 came up"
        return
    for rank in placed.ranks:
        yield f"rank {rank.rank} on {rank.node}, {rank.device} ({rank.accelerator})"
    yield str(placed.image)
    yield from (f"{name}={version}" for name, version in placed.environment.items())


def _resumed(asked: Asked) -> Iterator[str]:
    source = asked.attempt.resumed_from
    if source is None:
        yield "afresh, at step 0"
        return
    yield f"from step {source.step} of attempt {source.attempt_id}"
    yield source.manifest_sha256


def _continuity(asked: Asked) -> Iterator[str]:
    """The worlds resume exactly: as many steps agree as both attempts ran."""
    attempt, before = asked.attempt, asked.state.attempt(asked.attempt.attempt_id - 1)
    if not attempt.resumed_step or before is None:
        yield "afresh, at step 0"
        return
    last = (_last_step(before), _last_step(attempt))
    both = min(last) - attempt.resumed_step
    yield f"continuity verified over {both} steps" if both > 0 else "continuity not compared: step"


def _last_step(attempt: AttemptState) -> int:
    return (attempt.ended.last_step if attempt.ended else None) or 0


def _made(asked: Asked) -> Iterator[str]:
    number = asked.attempt.attempt_id
    made = [c for c in asked.state.checkpoints if c.ref.attempt_id == number]
    for each in made:
        yield f"step {each.ref.step}: {each.status}"
        yield each.ref.manifest_sha256[:12]
    if not made:
        yield "none committed"


def _real(asked: Asked) -> Iterator[str]:
    finished = asked.state.finished
    real = finished.final if finished is not None else asked.state.resumes_from
    if real is None:
        yield "resumes from: no checkpoint" if finished is None else "final checkpoint: none"
    else:
        what = "resumes from" if finished is None else "final checkpoint"
        yield f"{what}: step {real.step} of attempt {real.attempt_id}"
        yield real.manifest_sha256[:12]


def _why(asked: Asked) -> Iterator[str]:
    ended, reason = asked.attempt.ended, asked.attempt.reason
    assert ended is not None
    assert reason is not None
    yield from (reason.sentence, f"rule {ended.rule}", *ended.lines)


def _truth(asked: Asked) -> Iterator[str]:
    yield from asked.truth


def _against(asked: Asked) -> Iterator[str]:
    against = classify(asked.evidence).against
    yield from (f"against it: {line}" for line in against)
    if not against:
        yield "nothing in the evidence speaks for another reason"


def _cost(asked: Asked) -> Iterator[str]:
    account = kept_and_lost(asked.state)[asked.attempt.attempt_id - 1]
    attempt, ended = asked.attempt, asked.attempt.ended
    assert ended is not None
    assert attempt.ended_at is not None
    wall_s = (attempt.ended_at - attempt.opened_at).total_seconds()
    yield f"{account.kept} steps kept, {account.lost} lost"
    yield f"{ended.device_seconds:.1f} device seconds ({ended.accelerator}) in {wall_s:.0f} s"
    until = asked.state.attempts[-1].ended_at or attempt.ended_at  # later ones lose steps of this
    spent = run_buckets(asked.state, as_of=until).attempts[attempt.attempt_id - 1]
    for name, seconds in spent.seconds.items():
        if round(seconds, 1):
            yield f"{name.replace('_', ' ')} {seconds:.1f}"


def _history(asked: Asked) -> Iterator[str]:
    for attempt, account in zip(asked.state.attempts, kept_and_lost(asked.state), strict=True):
        yield f"a{attempt.attempt_id:02d} {attempt.reason or 'open'}: "
        yield f"{account.kept} kept, {account.lost} lost"
    for before, attempt in zip(asked.state.attempts, asked.state.attempts[1:], strict=False):
        kept = kept_and_lost(asked.state)[attempt.attempt_id - 1].kept
        if attempt.fingerprint and attempt.fingerprint == before.fingerprint and not kept:
            yield f"it failed just as a{before.attempt_id:02d} did, with nothing kept since"


def _decided(asked: Asked) -> Iterator[str]:
    state, number = asked.state, asked.attempt.attempt_id
    following = state.attempt(number + 1)
    if following is not None:
        yield f"retried by {following.opened.decided_by}"
        yield following.opened.decision
        seqs: tuple[int, ...] = following.opened.counted_seqs
    elif state.finished is not None:
        yield f"finished by {state.finished.decided_by}"
        seqs = ()
    else:
        assert state.refusal is not None
        yield f"refused by {state.refusal.body.decided_by}"
        yield state.refusal.body.decision
        seqs = state.refusal.body.counted_seqs
    yield from (f"counted record {seq} " for seq in seqs)


def _evals(asked: Asked) -> Iterator[str]:
    for required in asked.state.declared.evals:
        yield f"required: {required.suite}, version {required.suite_version}"
    number = asked.attempt.attempt_id
    tries = [e for e in asked.state.evals if e.opened.checkpoint.attempt_id == number]
    for each in tries:
        assert each.ended is not None
        yield f"{each.opened.eval_id} (try {each.opened.number}): {each.ended.reason}"
    if any(map(is_completed, tries)):
        yield "completed on step"
    if not tries:
        yield "none of its checkpoints was evaluated"


def _to_do(asked: Asked) -> Iterator[str]:
    refusal = asked.state.refusal
    is_last = asked.state.last_attempt == asked.attempt
    if refusal is not None and is_last:
        yield refusal.body.what_to_do
    elif is_last:
        yield "Nothing: the run is finished."
    else:
        following = f"{asked.state.run_id}/a{asked.attempt.attempt_id + 1:02d}"
        yield f"Nothing: the run went on; `tracks explain {following}` shows how."


def _budget(asked: Asked) -> Iterator[str]:
    debit = asked.attempt.opened.debit
    if debit is None:
        yield "spends nothing from the retry budget"
    else:
        yield f"spent {debit.amount:g} of the budget for {debit.reason}"


def _ui(asked: Asked) -> Iterator[str]:
    asset = "training_attempts" if asked.attempt.is_open else "receipts"
    yield f"/assets/{asset}?view=partitions&partition="
    yield from (f"/runs/{claim.body.dagster_run_id}" for claim in asked.attempt.claims)


def _score(asked: Asked) -> Iterator[str]:
    placed, first = asked.attempt.placed is not None, asked.attempt.opened.debit is None
    missing = ["budget debit"] * first
    if not placed:
        missing += [*NOT_PLACED, "started at"]
        yield f"not {', '.join(NOT_PLACED)}: no rank 0 came up"
        yield "not started at: no rank was seen to start"
    if first:
        yield "not budget debit: a first attempt spends nothing"
    yield f"{30 - len(missing)} of 30 fields are recorded"


QUESTIONS = (
    Question("What was the run for, and whose is it?", ("what it tried",), _intent),
    Question("With which config?", ("what it tried",), _config),
    Question("What was changed since the attempt before?", ("changed",), _changes),
    Question("On which data, and how much of it?", ("data",), _data),
    Question("With which code?", ("code",), _code),
    Question("Where did it run, and in which environment?", ("where", "receipt"), _placement),
    Question("From which checkpoint did it begin?", ("began",), _resumed),
    Question("Did the resume repeat what was computed before?", ("began",), _continuity),
    Question("Which checkpoints did it make?", ("checkpoints",), _made),
    Question("Which checkpoint is the real one now?", ("checkpoints",), _real),
    Question("Why did it end?", ("why it ended",), _why),
    Question(
        "What was the true cause?",
        ("why it ended", "quarantine", "what follows", "what to do", "evals", "receipt"),
        _truth,
    ),
    Question("What speaks against that?", ("why it ended",), _against),
    Question("What did it cost?", ("what it cost",), _cost),
    Question("What did its opening spend from the budget?", ("what it cost", "receipt"), _budget),
    Question("Which attempts did real work, which failed again alike?", ("history",), _history),
    Question("What was decided, by whom, counting what?", ("what follows",), _decided),
    Question("How do its evals stand?", ("evals",), _evals),
    Question("What is to be done now?", ("what to do",), _to_do),
    Question("Where is it in Dagster?", ("in Dagster",), _ui),
    Question("What is missing from the record?", ("receipt",), _score),
)
