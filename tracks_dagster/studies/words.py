"""What happened in a study, a sentence for each record. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from tracks_dagster.studies.deciding import value_words
from tracks_dagster.studies.off_peak import off_peak, wait_words
from tracks_dagster.track.bodies import (
    StudyExtended,
    StudyFinished,
    StudyStopped,
    TrialJudged,
    TrialProposed,
    TrialStopped,
)
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.records import Json, Kind, Record
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.study_state import HOUR_S, StudyState, TrialStatus


def sentence(record: Record) -> str:
    """Return what a record of a study's track says."""
    match record.kind:
        case Kind.STUDY_DECLARED:
            body = record.body
            return f"{body['study']}: {body['trials']} trials by {body['search']['kind']} search."
        case Kind.STUDY_EXTENDED:
            extended = body_of(StudyExtended, record)
            return f"{extended.by}: {extended.why}"
        case Kind.TRIAL_PROPOSED:
            proposed = body_of(TrialProposed, record)
            source = proposed.source
            begin = "" if source is None else f", from {checkpoint_at(source)}"
            chosen = config_words(proposed.config)
            return (
                f"trial {proposed.trial} to step {proposed.steps}{begin}: {chosen}. {proposed.why}"
            )
        case Kind.TRIAL_JUDGED:
            judged = body_of(TrialJudged, record)
            shown = value_words(judged.value, judged.outcome)
            return f"trial {judged.trial}: {shown} ({judged.run_id}). {judged.why}"
        case Kind.TRIAL_STOPPED:
            stopped = body_of(TrialStopped, record)
            return f"trial {stopped.trial} is stopped: {stopped.why}."
        case Kind.STUDY_STOPPED:
            asked = body_of(StudyStopped, record)
            return f"{asked.by} stops it: {asked.why}"
        case Kind.STUDY_FINISHED:
            finished = body_of(StudyFinished, record)
            best = "no trial was measured" if finished.best is None else f"best: {finished.best}"
            return f"finished ({finished.cause.replace('_', ' ')}): {finished.why} {best}."
    return str(record.body.get("text", record.kind))


def config_words(config: Mapping[str, Json]) -> str:
    """Return a trial's config as people read it: `lr 0.0012, layers 3`."""
    shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in config.items())
    return ", ".join(shown)


def summary(study: StudyState, now: datetime, waiting: Sequence[str] = ()) -> str:
    """Return where a study is, in a sentence or two. waiting: words on trials that wait."""
    declared = study.declared
    by_status = dict.fromkeys(TrialStatus, 0)
    for trial in study.trials:
        by_status[trial.status] += 1
    counts = ", ".join(f"{count} {status}" for status, count in by_status.items() if count)
    state = (
        "open" if study.finished is None else f"finished, {study.finished.cause.replace('_', ' ')}"
    )
    hours = f"{study.device_s / HOUR_S:.3g} device-hours"
    tried = f"{len(study.trials)} of {declared.trials} trials ({counts or 'none'})"
    waits = off_peak_words(study, now)
    return " ".join(
        filter(None, [f"{declared.study} ({state}): {tried}; {hours}.", waits, *waiting])
    )


def opens(study: StudyState, now: datetime) -> datetime | None:
    """Return when an open study may start runs again; None where it may now."""
    if study.finished is not None or not study.declared.off_peak:
        return None
    return off_peak(study.declared.off_peak).opens_at(now)


def off_peak_words(study: StudyState, now: datetime) -> str:
    """Say that no run starts now, and from when on; empty where runs may."""
    return "" if study.finished is not None else wait_words(study.declared.off_peak, now)


def best_words(study: StudyState) -> str:
    """Return the best trial of a study, with what it was tried with."""
    best = study.best
    if best is None:
        return "No trial was measured yet."
    proposed, judged = next(
        (rung.proposed, rung.judged)
        for rung in reversed(best.rungs)
        if rung.judged is not None and rung.judged.value is not None
    )
    value, spread = value_words(judged.value, judged.outcome), best.mean_and_deviation
    if spread is not None:
        value = f"{spread[0]:.4g} ± {spread[1]:.2g} over {len(best.repeats) + 1} seeds"
    return (
        f"Best: trial {best.number}, {study.declared.metric} {value} at step {proposed.steps} "
        f"({proposed.run_id}): {config_words(proposed.config)}."
    )


def as_facts(study: StudyState) -> dict[str, Json]:
    """Return a study with its trials as JSON."""
    declared, best = study.declared, study.best
    return {
        "study": declared.study,
        "state": "open" if study.finished is None else "finished",
        "cause": None if study.finished is None else study.finished.cause,
        "why": None if study.finished is None else study.finished.why,
        "metric": declared.metric,
        "direction": declared.direction,
        "search": dict(declared.search),
        "scheduler": dict(declared.scheduler),
        "budgets": list(declared.budgets),
        "off_peak": declared.off_peak or None,
        "device_hours": study.device_s / HOUR_S,
        "best": None if best is None else best.number,
        "trials": [
            {
                "trial": trial.number,
                "status": trial.status.value,
                "config": dict(trial.config),
                "stopped": None if trial.stopped is None else trial.stopped.why,
                "mean_and_deviation": trial.mean_and_deviation,
                "runs": [
                    {
                        "repeat": rung.proposed.repeat,
                        "run_id": rung.proposed.run_id,
                        "steps": rung.proposed.steps,
                        "source": None
                        if rung.proposed.source is None
                        else checkpoint_at(rung.proposed.source),
                        "outcome": None if rung.judged is None else rung.judged.outcome,
                        "value": None if rung.judged is None else rung.judged.value,
                    }
                    for rung in (*trial.rungs, *trial.repeats)
                ],
            }
            for trial in study.trials
        ],
    }
