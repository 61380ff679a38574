"""One line of the answer: from what was read of a run, and the verdict on it.

Progress is steps of all steps. A metric is never progress, however much it looks like a percentage:
metrics are listed apart, under their own names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracks_dagster.attempts.pace import Pace, Span, mean_step, measure, time_for
from tracks_dagster.attempts.ports import GangReport
from tracks_dagster.reasons.hangs import Phase
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import AttemptRef, run_track
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, format_time, parse_time
from tracks_dagster.track.roles import STEPS, value_of
from tracks_dagster.track.states.evals import HAS_ALL_STEPS
from tracks_dagster.track.track import log_key
from tracks_dagster.wings.triage.effects.reading import Commit, RunRead
from tracks_dagster.wings.triage.judging import Judgement, Sign, Verdict

_STANDINGS = {
    Verdict.ALIVE: "running",
    Verdict.ORPHANED: "running",
    Verdict.DEAD: "interrupted",
    Verdict.FINISHED_UNRECORDED: "ended",
    Verdict.NOT_SEEN: "unseen",
    Verdict.QUEUED: "queued",
    Verdict.NOT_STARTED: "queued",
    Verdict.REFUSED: "refused",
    Verdict.DONE: "done",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One run. standing: in a person's word; verdict: a `Verdict`'s word; why: a sentence.

    step, steps: the last step that was finished, of how many; percent: of these two, nothing else.
    epoch: passes over the data that were finished at the last commit; epochs: of how many, where the
    config has it. metrics: as reported at `metrics_step`. committed_step: what a restart resumes
    from, 0 for the beginning. lost_steps, lost_s: finished since, to be run again after an end.
    step_s: of the newest steps, with its interval of 95 %; epoch_s: of as many steps as a pass takes.
    left_s: of the steps that are left, with its interval of 95 %; from the last commit on, unless it
    runs. accelerator: what its last placement named, "cpu" without one; None before there was one.
    memory_bytes: of one rank's device. is_due: whether a restart is proposed. held_by: the mode
    of what a person asked for, "stop" or "drain". workload_class: None: the policy's default one.
    is_supervised: None where nobody can tell, and without an open attempt.
    """

    run_id: str
    family: str
    standing: str
    verdict: str
    why: str
    attempt_id: int | None
    step: int
    steps: int | None
    percent: float | None
    epoch: int | None
    epochs: Json
    metrics: Mapping[str, float]
    metrics_step: int | None
    committed_step: int
    committed_at: str | None
    lost_steps: int
    lost_s: float | None
    step_s: float | None
    step_low_s: float | None
    step_high_s: float | None
    epoch_s: float | None
    pace: str | None
    steps_left: int | None
    left_s: float | None
    left_low_s: float | None
    left_high_s: float | None
    left_how: str
    code: str
    launcher: str
    device_class: str
    accelerator: str | None
    ranks: int
    workload_class: str | None
    team: str | None
    owner: str | None
    memory_bytes: int | None
    memory_how: str
    is_due: bool
    held_by: str | None
    is_supervised: bool | None
    signs: tuple[Sign, ...] = field(default=())


def line_of(read: RunRead, judged: Judgement, report: GangReport | None) -> Line:
    """Return the line of one run."""
    progress = _progress(read, judged.verdict, report)
    pace, compute = _pace(read), _compute(read)
    time = _time(read, pace, progress)
    memory_bytes, memory_how = _memory(read, compute)
    code = code_words(read.row)
    return Line(
        run_id=read.run_id,
        family=read.row["model_family"],
        standing=_standing(read, judged.verdict),
        verdict=judged.verdict.word,
        why=judged.why,
        **progress,
        **time,
        code=code,
        launcher=compute.launcher,
        device_class=compute.device_class,
        accelerator=_accelerator(read),
        ranks=compute.ranks,
        workload_class=read.row["workload_class"],
        team=read.row["team"],
        owner=read.row["owner"],
        memory_bytes=memory_bytes,
        memory_how=memory_how,
        is_due=_is_due(read, judged.verdict, progress["steps_left"]),
        held_by=read.asked_stop.mode if read.asked_stop is not None else None,
        is_supervised=judged.is_supervised,
        signs=(
            *judged.signs,
            *cell_signs(
                read,
                step=progress["step"],
                code=code,
                pace=pace,
                left_how=time["left_how"],
                memory_how=memory_how,
            ),
        ),
    )


def _progress(read: RunRead, verdict: Verdict, report: GangReport | None) -> dict[str, Any]:
    """Return the fields that count steps, and apart from them the metrics."""
    config, commit = _config(read), read.commit
    lives = verdict in (Verdict.ALIVE, Verdict.ORPHANED)
    step, committed = last_step(read, report), committed_step(read)
    ran = step if lives else last_step(read, report, is_of_newest=False)
    steps, begin = _steps(read, config), step if lives else committed
    is_over = verdict is Verdict.DONE or _reason(read) in HAS_ALL_STEPS
    metrics, metrics_step = _metrics(read)
    attempt = read.tail.attempt if read.tail is not None else None
    return {
        "attempt_id": attempt.attempt_id if attempt is not None else None,
        "step": step,
        "steps": steps,
        "percent": round(100.0 * step / steps, 1) if steps else None,
        "epoch": commit.epoch if commit else None,
        "epochs": config.get("epochs"),
        "metrics": metrics,
        "metrics_step": metrics_step,
        "committed_step": committed,
        "committed_at": format_time(commit.at) if commit else None,
        "lost_steps": 0 if is_over else max(0, ran - committed),
        "steps_left": None if steps is None else 0 if is_over else max(0, steps - begin),
    }


def _time(read: RunRead, pace: Pace | None, progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are seconds."""
    span, how = _left(read, pace, progress["steps_left"])
    step = mean_step(pace) if pace else None
    steps, epochs = progress["steps"], progress["epochs"]
    whole = pace is not None and steps and isinstance(epochs, int) and epochs > 0
    return {
        "lost_s": progress["lost_steps"] * pace.step_s if pace else None,
        "step_s": step.seconds if step else None,
        "step_low_s": step.low_s if step else None,
        "step_high_s": step.high_s if step else None,
        "epoch_s": pace.step_s * steps / epochs if pace and whole else None,
        "pace": pace.how if pace else None,
        "left_s": span.seconds if span else None,
        "left_low_s": span.low_s if span else None,
        "left_high_s": span.high_s if span else None,
        "left_how": how,
    }


def code_words(row: Mapping[str, Json]) -> str:
    """Return the commit of the code, also on a detached HEAD and with uncommitted changes."""
    commit = row["git_commit"]
    if commit is None:
        return f"no checkout, version {row['package_version']}"
    at = f"{commit[:12]} on {row['git_branch']}" if row["git_branch"] else f"detached {commit[:12]}"
    return f"{at}, uncommitted changes" if row["git_dirty"] else at


def _standing(read: RunRead, verdict: Verdict) -> str:
    if verdict is not Verdict.ENDED:
        return _STANDINGS[verdict]
    if _reason(read) in HAS_ALL_STEPS:
        return "finishing"
    is_stopped = read.asked_stop is not None or _reason(read) is TerminationReason.USER_CANCELLED
    return "waiting" if is_stopped else "interrupted"


def _is_due(read: RunRead, verdict: Verdict, left: int | None) -> bool:
    """Whether a restart is proposed: steps are left, nobody runs them, and no person holds it."""
    if left == 0 or read.asked_stop is not None:
        return False
    if verdict is Verdict.ENDED:
        return _reason(read) not in (*HAS_ALL_STEPS, TerminationReason.USER_CANCELLED)
    return verdict in (
        Verdict.DEAD,
        Verdict.FINISHED_UNRECORDED,
        Verdict.QUEUED,
        Verdict.NOT_STARTED,
    )


def _reason(read: RunRead) -> TerminationReason | None:
    attempt = read.tail.attempt if read.tail is not None else None
    return attempt.reason if attempt is not None else None


def _config(read: RunRead) -> Mapping[str, Json]:
    attempt = read.tail.attempt if read.tail is not None else None
    if attempt is not None:
        return attempt.opened.config
    text = read.attempts[-1]["attempt_config_json"] if read.attempts else read.row["config_json"]
    config: Mapping[str, Json] = parse_json(text)
    return config


def _steps(read: RunRead, config: Mapping[str, Json]) -> int | None:
    steps = value_of(config, parse_json(read.row["roles_json"]), STEPS)
    return steps if isinstance(steps, int) and steps > 0 else None


def _pace(read: RunRead) -> Pace | None:
    if read.paced is None:
        return None
    ends = [parse_time(step.at).timestamp() for step in read.journal.steps]
    return measure(read.paced, ends)


def _left(read: RunRead, pace: Pace | None, left: int | None) -> tuple[Span | None, str]:
    """Return how long what is left takes, and how that is known."""
    if left is None:
        return None, "its config does not say how many steps it has"
    if left == 0:
        return Span(seconds=0.0, low_s=0.0, high_s=0.0), "no step is left"
    if pace is not None:
        return time_for(pace, left), pace.how
    if read.row["estimated_device_s"] is None:
        return None, "no step of it was ever measured"
    device_s = float(read.row["estimated_device_s"])
    steps = left / (left + committed_step(read))
    seconds = device_s / max(1, read.row["ranks"]) * steps
    return Span(seconds=seconds), "as declared; no step of it was ever measured"


def _compute(read: RunRead) -> ComputeRequest:
    tail = read.tail
    if tail is not None and tail.attempt is not None:
        return tail.attempt.opened.compute
    if tail is not None and tail.declared is not None:
        return tail.declared.compute
    row = read.row
    return ComputeRequest(
        launcher=row["launcher"], ranks=row["ranks"], device_class=row["device_class"]
    )


def _accelerator(read: RunRead) -> str | None:
    attempt = read.tail.attempt if read.tail is not None else None
    if attempt is not None and attempt.placed is not None and attempt.placed.ranks:
        return attempt.placed.ranks[0].accelerator
    placed = [str(a["accelerator"]) for a in read.attempts if a["launch_id"] is not None]
    return placed[-1] if placed else None


def _memory(read: RunRead, compute: ComputeRequest) -> tuple[int | None, str]:
    """Return what one rank takes of its device, as it measured it, else as it was asked for."""
    measured = [step.metrics.get(MEMORY_METRIC) for step in read.journal.steps[-1:]]
    if measured and measured[0] is not None:
        return int(measured[0]), f"measured by itself in step {read.journal.steps[-1].step}"
    if compute.memory_bytes is not None:
        return compute.memory_bytes // compute.ranks_per_node, "as asked for"
    return None, "not known"


def _metrics(read: RunRead) -> tuple[Mapping[str, float], int | None]:
    if read.journal.steps:
        newest = read.journal.steps[-1]
        own = {name: value for name, value in newest.metrics.items() if name != MEMORY_METRIC}
        return {**own, "loss": newest.loss}, newest.step
    if read.commit is not None:
        return read.commit.metrics, read.commit.step
    return {}, None


MEMORY_METRIC = "device_memory_bytes"  # what a trainer may report of its own device


def cell_signs(
    read: RunRead, *, step: int, code: str, pace: Pace | None, left_how: str, memory_how: str
) -> tuple[Sign, ...]:
    """Return the evidence for code, commit, progress, metrics, time left and memory."""
    first, journal = log_key(run_track(read.run_id), 0), _journal_prefix(read)
    signs = [Sign(cell="code", words=code, source=first)]
    if read.problem is not None:
        signs.append(Sign(cell="verdict", words=read.problem, source=run_track(read.run_id)))
    if read.commit is not None:
        signs += _commit_signs(read.run_id, read.commit)
    signs += _progress_signs(read, step, journal)
    pace_data = {} if pace is None else {"step_s": pace.step_s, "spread_s": pace.spread_s}
    paced = first if pace is None or journal is None else journal
    signs.append(Sign(cell="time left", words=left_how, source=paced, data=pace_data))
    newest = read.journal.steps[-1:]
    is_measured = journal is not None and any(MEMORY_METRIC in line.metrics for line in newest)
    memory = journal if journal is not None and is_measured else first
    return (*signs, Sign(cell="memory", words=memory_how, source=memory))


def _journal_prefix(read: RunRead) -> str | None:
    """Return the prefix of the journal that has the newest step."""
    if read.paced is None or read.paced_launch is None:
        return None
    return journal_prefix(AttemptRef(read.run_id, read.paced), read.paced_launch, 0)


def _commit_signs(run_id: str, commit: Commit) -> tuple[Sign, Sign]:
    source = f"the ledger, checkpoints, {run_id}, {commit.manifest_sha256[:12]}"
    if commit.seq is not None:
        source = log_key(run_track(run_id), commit.seq)
    words = f"step {commit.step} of attempt {commit.attempt_id}, committed {format_time(commit.at)}"
    known = "not known, the order of samples is the script's own," if commit.epoch is None else ""
    epoch = f"{known or commit.epoch} at the commit of step {commit.step}"
    return Sign(cell="commit", words=words, source=source), Sign(
        cell="epoch", words=epoch, source=source
    )


def _progress_signs(read: RunRead, step: int, journal: str | None) -> list[Sign]:
    """Return the evidence of the newest step, and of the metrics reported with it."""
    if journal is None:
        words = f"step {step}, by its records: no journal has a step"
        return [Sign(cell="progress", words=words, source=run_track(read.run_id))]
    newest = read.journal.steps[-1]
    words = f"step {newest.step} was finished {newest.at}"
    if step > newest.step:
        words = f"{words}; records and beats know step {step}"
    elif step < newest.step:
        lost = f"by attempt {read.paced}, and lost with it"
        words = f"{words} {lost}: the newest attempt is at step {step}"
    reported = f"as reported in step {newest.step}"
    return [
        Sign(cell="progress", words=words, source=journal, data={"step": step}),
        Sign(cell="metrics", words=reported, source=journal),
    ]


# In these phases the step itself is done; in the others it is under way.
_AFTER_THE_STEP = frozenset({Phase.SAVING, Phase.EVALUATING, Phase.ENDING})


def last_step(read: RunRead, report: GangReport | None, *, is_of_newest: bool = True) -> int:
    """Return the last step that was finished, by journal, beat, commit or the record of the end.

    is_of_newest: by the newest attempt, as every page has it: what one before it finished beyond its
    checkpoint is lost.
    """
    attempt = read.tail.attempt if read.tail is not None else None
    known = [committed_step(read), read.row["final_step"] or 0]
    last = read.attempts[-1]["attempt_id"] if read.attempts else None
    newest = last if attempt is None else attempt.attempt_id
    if newest == last or not is_of_newest:
        known += [ended["last_step"] or 0 for ended in read.attempts[-1:]]
    if newest == read.paced or not is_of_newest:
        known += [step.step for step in read.journal.steps[-1:]]
    if attempt is not None and attempt.ended is not None:
        known.append(attempt.ended.last_step or 0)
    for beat in report.beats if report is not None else ():
        if beat.rank == 0:
            known.append(beat.step if beat.phase in _AFTER_THE_STEP else beat.step - 1)
    return max(known)


def committed_step(read: RunRead) -> int:
    """Return the step of the checkpoint that a restart resumes from; 0 for the beginning."""
    if read.commit is not None:
        return read.commit.step
    return int(read.row["branched_from_step"] or 0)
