"""What Dagster's UI shows of attempts, evals and promotions, as grouped, named values.

The UI keeps the order and shows the names as they are: the group is before the "/", units are in the
names. Lists become markdown, which it opens at a click; a value that is not known is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tracks_dagster.attempts.gates import skipped_words
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.facts.attempt import ATTEMPT, AttemptView
from tracks_dagster.ledger.facts.checkpoint import EVAL, EvalView
from tracks_dagster.ledger.facts.fact import Fact, Type, shown
from tracks_dagster.ledger.facts.run import PROMOTION, PromotionView
from tracks_dagster.ledger.facts.study import STUDY
from tracks_dagster.reasons.endings import Ending, ending_of
from tracks_dagster.review.effects.picture import lights_strip, pictures
from tracks_dagster.review.effects.receipts import Receipt, receipts_of
from tracks_dagster.review.effects.watching import watching
from tracks_dagster.studies.results import lineage_of
from tracks_dagster.track import names
from tracks_dagster.track.bodies import (
    EvalEnded,
    EvalOpened,
    PromotionDecided,
    RunDeclared,
    SnapshotCommitted,
)
from tracks_dagster.track.errors import StoreError, TrackBroken, TrackError, TracksError, UnknownRun
from tracks_dagster.track.names import attempt_key, run_track
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, canonical_json, format_time, sha256_hex
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.run_state import Dated, RunState
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.track.text.safe_text import bullets, table
from tracks_dagster.track.track import last_seq, log_key

REAL_DIGITS = 3  # of a number that is not an integer, after the point
NAMED_MAX = 8  # open runs of a study
DIGEST_CHARACTERS = 12  # of a digest in a table; `tracks explain` has the whole of it
_DIGEST = re.compile(r"[0-9a-f]{40,}")

Shown = Any  # a value as the UI takes it
NamedValues = Iterable[tuple[str, Shown]]


def _as_it_is(value: str) -> Shown:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """How a text is marked for the UI; by default as plain text.

    address: of the web server, empty for paths alone; board: of the board, empty where there is none.
    """

    markdown: Callable[[str], Shown] = _as_it_is
    link: Callable[[str], Shown] = _as_it_is
    path: Callable[[str], Shown] = _as_it_is
    dagster_run: Callable[[str], Shown] = _as_it_is
    address: str = ""
    board: str = ""

    @classmethod
    def by(cls, values: Any, address: str, board: str = "") -> Show:
        """Return the ways of `values`: Dagster's `MetadataValue`, which has one of each."""
        return cls(
            markdown=values.md,
            link=values.url,
            path=values.path,
            dagster_run=values.dagster_run,
            address=address,
            board=board,
        )


AS_TEXT = Show()


def attempt_metadata(
    tracks: Tracks,
    run_id: str,
    attempt_id: int,
    show: Show = AS_TEXT,
    *,
    report: str | None = None,
    cache: Path | None = None,
) -> dict[str, Shown]:
    """Return the receipt of an attempt as it is now, with its lights and the run's loss.

    Raises UnknownRun.

    report: the file that holds the run's report, if one was written; cache: of what journals hold.
    Where the track or a journal cannot be read, or not to its end, it says so, because the UI shows an
    end only once.
    """
    try:
        state, receipt = _read(tracks, run_id, attempt_id)
        lights = dict(_lights(tracks, run_id, attempt_id, show))
        curves = {
            name: show.markdown(each) for name, each in pictures(tracks, state, cache).items()
        }
    except (StoreError, TrackError) as error:
        return _unreadable(attempt_key(run_id, attempt_id), run_id, error)
    named = receipt_metadata(run_id, receipt, show, report=report)
    first = [name for name in named if name.startswith("ended/") or "/" not in name]
    return {**{name: named[name] for name in first}, **lights, **curves, **named}


def _lights(tracks: Tracks, run_id: str, attempt_id: int, show: Show) -> NamedValues:
    """Yield the three lights of an attempt that ended, as of its last line, and what they say."""
    records = tracks.records(run_track(run_id))
    lights = watching().look_back(tracks.store, records, [attempt_id], tracks.now()).get(attempt_id)
    if lights is not None:
        yield "lights/at_its_end", show.markdown(lights_strip(lights))
        for light in lights.all:
            yield f"lights/{light.question}", f"{light.colour}: {light.sentence}"


def _read(tracks: Tracks, run_id: str, attempt_id: int) -> tuple[RunState, Receipt]:
    """Return the run and the receipt. Raises TrackBroken when the attempt's records may lie behind a
    lost one."""
    state = tracks.find_run(run_id)
    receipts = receipts_of(tracks.store, state).receipts if state is not None else ()
    receipt = next((each for each in receipts if each.attempt.attempt_id == attempt_id), None)
    if state is not None and receipt is not None and not receipt.attempt.is_open:
        return state, receipt
    track, next_seq = run_track(run_id), state.head.seq + 1 if state is not None else 0
    missing = log_key(track, next_seq)
    is_lost = last_seq(tracks.store, track) > next_seq
    if (
        is_lost and tracks.store.get(missing, 0) is None
    ):  # a record that came meanwhile is not a loss
        raise TrackBroken(f"The record {missing} is lost, and later ones are there: `tracks fsck`.")
    if state is None or receipt is None:
        raise UnknownRun(f"{run_id} has no attempt {attempt_id}.")
    return state, receipt


def receipt_metadata(
    run_id: str, receipt: Receipt, show: Show = AS_TEXT, *, report: str | None = None
) -> dict[str, Shown]:
    """Return what is recorded of one attempt: why it ended first, where it ran last.

    Kept and lost steps are not among it: what a later attempt resumes from decides them, and an event
    in Dagster's log is never corrected. `tracks explain` shows them.
    """
    facts = {each.ui: _shown(each, receipt.view, show) for each in ATTEMPT if each.ui}
    beside: dict[str, NamedValues] = {
        "ended": _ended(receipt),
        "look_up": _look_up(run_id, receipt, show, report),
        "cost": _cost(receipt),
        "steps": _steps(receipt),
        "decided": _decided(receipt),
        "data": _data(receipt),
        "where": _where(receipt, show),
        "config": (),
    }
    key = attempt_key(run_id, receipt.attempt.attempt_id)
    named: dict[str, Shown] = {"attempt": key, "training_run_id": run_id}
    for group, values in beside.items():
        named |= {name: value for name, value in facts.items() if name.startswith(f"{group}/")}
        named |= {f"{group}/{name}": value for name, value in values}
    named = {**named, **facts}  # those of a group of their own come last
    return {name: value for name, value in named.items() if value is not None}


def _shown(fact: Fact[AttemptView], view: AttemptView, show: Show) -> Shown | None:
    """Return a fact as the UI shows it; None where it is not known, or empty."""
    value = fact.of(view) if fact.is_recorded(view) else None
    if value is None or value in ("", (), []):
        return None
    match fact.type:
        case Type.MAPPING:
            return show.markdown(_settings(value))
        case Type.LINES:
            return show.markdown(bullets(value))
        case Type.ROWS:
            rows = ([str(cell) for cell in row.values()] for row in value)
            return show.markdown(table(list(value[0]), rows))
        case Type.NAMES:
            return ", ".join(value)
        case Type.REAL:
            return round(value, REAL_DIGITS)
        case Type.TIME:
            return format_time(value)
        case _:
            return value


def _unreadable(key: str, run_id: str, error: TracksError) -> dict[str, Shown]:
    return {
        "attempt": key,
        "training_run_id": run_id,
        "receipt": f"It could not be read when the attempt ended: {error}",
        "look_up/everything": f"tracks explain {key} --full",
    }


def ending_tags(reason: TerminationReason) -> Mapping[str, str]:
    """Return the tags by which the UI's list of runs finds attempts that ended like this one."""
    return {
        names.TAG_REASON: reason.value,
        names.TAG_ENDING: ending_of(reason).value,
    }


def runs_address(tag: str, value: str, address: str = "") -> str:
    """Return the page of the UI that lists the Dagster runs with this tag."""
    return f"{address.rstrip('/')}/runs?q[0]={quote(f'tag:{tag}={value}', safe='')}"


def _ended(receipt: Receipt) -> NamedValues:
    reason = receipt.attempt.reason
    if reason is None:
        yield "how", "It has not ended."
    else:
        yield "kind", f"{ending_of(reason)}: {ending_of(reason).sentence}"


def _look_up(run_id: str, receipt: Receipt, show: Show, report: str | None) -> NamedValues:
    attempt = receipt.attempt
    key = attempt_key(run_id, attempt.attempt_id)
    yield "everything", f"tracks explain {key} --full"
    yield "evidence_in_full", f"tracks explain {key} --evidence" if attempt.ended else None
    yield "report", show.path(report) if report is not None else f"tracks report {run_id}"
    yield "live", show.link(f"{show.board}/runs/{run_id}") if show.board else None
    yield "where_it_comes_from", f"tracks lineage attempt:{key}"
    committed = receipt.last_committed_step
    thing = f"attempt:{key}" if committed is None else f"checkpoint:{run_id}@{committed}"
    yield "what_rests_on_it", f"tracks blast {thing}"
    if attempt.claims:
        yield "dagster_run", show.dagster_run(attempt.claims[-1].body.dagster_run_id)
    if attempt.reason is not None:
        of_reason = runs_address(names.TAG_REASON, attempt.reason.value, show.address)
        yield f"all_{attempt.reason}", show.link(of_reason)
        failures = runs_address(names.TAG_ENDING, Ending.FAILURE.value, show.address)
        yield "all_failures", show.link(failures)


def _cost(receipt: Receipt) -> NamedValues:
    if receipt.attempt.ended is not None:
        yield "steps_after_the_last_commit", _uncommitted(receipt)
        yield "saves_failed", len(receipt.failed_saves) or None


def _uncommitted(receipt: Receipt) -> int:
    """Return how many of its steps no checkpoint of its own holds."""
    committed = receipt.last_committed_step
    return receipt.account.last - (receipt.account.resume if committed is None else committed)


def _steps(receipt: Receipt) -> NamedValues:
    source = receipt.attempt.resumed_from
    yield "resumed_from", checkpoint_at(source) if source else "afresh"
    yield "last_committed_step", receipt.last_committed_step
    yield "continuity", receipt.continuity.sentence if receipt.continuity else None


def _decided(receipt: Receipt) -> NamedValues:
    changes = receipt.attempt.opened.remediation
    if changes:
        short = ", ".join(f"{each.key} {each.before} → {each.after}" for each in changes)
        yield "changes_in_short", short


def _data(receipt: Receipt) -> NamedValues:
    ended = receipt.attempt.ended
    if ended is not None and ended.cursor_from is not None and ended.cursor_to is not None:
        yield "samples", f"{ended.cursor_from} to {ended.cursor_to}"


def _where(receipt: Receipt, show: Show) -> NamedValues:
    placed = receipt.attempt.placed
    yield "ranks", receipt.attempt.opened.compute.ranks
    if placed is not None:
        rows = [(str(r.rank), r.node, r.device, r.accelerator, r.pod or "–") for r in placed.ranks]
        columns = ("rank", "node", "device", "accelerator", "pod")
        yield "placement", show.markdown(table(columns, rows))


def _settings(values: Mapping[str, Any]) -> str:
    return table(
        ("name", "value"), [(name, _short(value)) for name, value in sorted(values.items())]
    )


def _short(value: Any) -> str:
    """Return a value as text; of a digest its beginning: a long word makes the whole page too wide."""
    text = str(value)
    return f"{text[:DIGEST_CHARACTERS]}…" if _DIGEST.fullmatch(text) else text


def run_metadata(declared: RunDeclared) -> dict[str, Json]:
    """Return what Dagster's UI shows of a run that was declared; what is not known is left out."""
    snapshot = declared.snapshot
    found = {
        "run_id": declared.run_id,
        "project": declared.model_family,
        "intent": declared.intent,
        "owner": declared.owner,
        "stage": declared.stage,
        "skipped_gates": None if declared.skipped is None else skipped_words(declared.skipped),
        "workload_class": declared.workload_class,
        "on_call": declared.on_call,
        "experiment": declared.experiment,
        "baseline": declared.baseline,
        "dataset": "no snapshot was named" if snapshot is None else snapshot.dataset,
        "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
        "git_commit": declared.code.git_commit,
        "config": dict(declared.config),
        "look_up/what_became_of_it": f"tracks explain {declared.run_id}",
    }
    return {name: value for name, value in found.items() if value is not None}


def eval_metadata(opened: EvalOpened, ended: EvalEnded) -> dict[str, Json]:
    """Return what one attempt at an eval measured, on exactly what."""
    run_id = opened.checkpoint.run_id
    return {
        **shown(EVAL, EvalView(run_id=run_id, opened=opened, ended=ended)),
        "look_up/where_it_comes_from": f"tracks lineage eval:{run_id}/{opened.eval_id}",
        **{f"metrics/{name}": value for name, value in sorted(ended.metrics.items())},
    }


def final_version(state: RunState, attempt_id: int) -> str | None:
    """Return the version of what the attempt made: the manifest of its newest commit."""
    commits = [c.ref.manifest_sha256 for c in state.checkpoints if c.ref.attempt_id == attempt_id]
    return commits[-1] if commits else None


def promotion_metadata(run_id: str, made: Dated[PromotionDecided]) -> dict[str, Json]:
    """Return what a promotion, or its refusal, rests on."""
    decided = made.body
    return {
        **shown(PROMOTION, PromotionView(run_id=run_id, body=decided, seq=made.seq, at=made.at)),
        "look_up/where_it_comes_from": f"tracks lineage promotion:{run_id}/{decided.alias}",
        **{f"metrics/{name}": value for name, value in sorted(decided.metrics.items())},
    }


def study_metadata(study: StudyState) -> dict[str, Json]:
    """Return what a study has come to: its best trial, where that is from, how it is found again."""
    name, best = study.declared.study, study.best
    found = {**shown(STUDY, study), "trials_by_state": _by_state(study)}
    if study.finished is not None:
        found["why"] = study.finished.why
    if study.open_rungs:
        runs = [rung.proposed.run_id for rung in study.open_rungs]
        more = f" and {len(runs) - NAMED_MAX} more" if len(runs) > NAMED_MAX else ""
        found["open_runs"] = ", ".join(runs[:NAMED_MAX]) + more
    newest = next(iter(lineage_of(study)), None)
    ref = None if newest is None or newest.judged is None else newest.judged.checkpoint
    if best is not None and ref is not None:
        found |= {f"config/{key}": value for key, value in sorted(best.config.items())}
        found |= {
            "manifest_sha256": ref.manifest_sha256,
            "step": ref.step,
            "attempt": ref.attempt_id,
        }
        found["look_up/where_it_comes_from"] = f"tracks lineage {checkpoint_at(ref)}"
    return {**found, "look_up/trials": f"tracks studies {name}"}


def study_lineage(study: StudyState) -> str:
    """Return the runs that the best trial rests on as a markdown table, its own first."""
    rows = [
        (
            rung.proposed.run_id,
            f"{rung.proposed.steps}",
            "step 0" if rung.proposed.source is None else checkpoint_at(rung.proposed.source),
            "" if rung.judged is None or rung.judged.value is None else f"{rung.judged.value:.6g}",
        )
        for rung in lineage_of(study)
    ]
    return table(("run", "to step", "from", study.declared.metric), rows) if rows else ""


def _by_state(study: StudyState) -> str:
    counts: dict[str, int] = {}
    for trial in study.trials:
        counts[trial.status.value] = counts.get(trial.status.value, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def files_metadata(body: SnapshotCommitted) -> dict[str, Json]:
    """Return what Dagster's UI shows of a snapshot of files."""
    return {
        "snapshot_id": body.snapshot_id,
        "file_count": body.file_count,
        "total_bytes": body.total_bytes,
        "source": body.source,
        "bytes_lie": body.in_place or "in the store",
        "logical_sha256": body.logical_sha256,
        "manifest_key": body.manifest_key,
        "checks": list(body.checks),
        "look_up/what_rests_on_it": (
            f"tracks blast snapshot:{body.dataset}@{body.snapshot_id[:12]}"
        ),
    }


def result_sha256(ended: EvalEnded) -> str:
    """Return the version of what was measured: the same metrics have the same."""
    measured = {"metrics": dict(ended.metrics), "sample_count": ended.sample_count}
    return sha256_hex(canonical_json(measured))
