"""The status of every training run, and what those that wait are waiting for.

Runs are found in the ledger; the status of each is read from its track, unless the ledger has as much
(below). What the daemon left (`heartbeat`) is for people only: nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from tracks_dagster.attempts.effects.heartbeat import (
    Heartbeat,
    describe_age,
    describe_launch,
    read_heartbeat,
)
from tracks_dagster.attempts.pace import describe_silence, last_sign_at
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.effects.starts import describe_sources
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.next_sensor import next_sensor
from tracks_dagster.review.effects.run_table import Asked, read_table
from tracks_dagster.review.run_filter import LAST, Run
from tracks_dagster.review.run_table import AT
from tracks_dagster.stores.journals import JournalTail, newest_values, read_tail
from tracks_dagster.studies.off_peak import wait_words
from tracks_dagster.track.errors import StoreError, TrackBroken, UnknownRun
from tracks_dagster.track.json_text import RECORD_BYTES_MAX
from tracks_dagster.track.names import (
    ALERT_POOL_STORM,
    TRAINER_SCRIPT,
    WATCH_ATTEMPTS,
    AttemptRef,
    attempt_key,
    eval_attempt_key,
    parse_eval_attempt_key,
    run_track,
)
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, format_time, parse_time, sha256_hex
from tracks_dagster.track.states.accounting import newest_step
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.evals import evals_for_a_person, what_evals_wait_for
from tracks_dagster.track.states.lifecycle import (
    FOR_A_PERSON,
    NOT_OBEYED,
    RunLifecycle,
    run_status,
    trial_for_a_person,
)
from tracks_dagster.track.states.run_state import AttemptState, RunState, steps_of
from tracks_dagster.track.track import log_key
from tracks_dagster.track.unforeseen import problem_of

# A run's row in the ledger answers for its track when the ledger has the track to its end and nothing
# is waited for: the run is over, waits for a person, or a gang works. To read every record of many
# long runs would take most of a minute.


def is_enough(store: ObjectStore, row: Mapping[str, Json]) -> bool:
    """Whether `row`, of `status_newest.sql`, has all that the run's track would show."""
    is_led = row["state"] != RunLifecycle.RUNNING or has_a_gang(row)
    may_need_a_sensor = NOT_OBEYED in row["state_why"]  # to carry out a stop
    return is_led and not may_need_a_sensor and _is_at_the_end(store, row)


def journal_end(store: ObjectStore, row: Mapping[str, Json]) -> JournalTail:
    """Return the newest step that the newest launch shipped, and when its newest line was written."""
    if row["launch_id"] is None:
        return JournalTail()
    return read_tail(
        store, AttemptRef(row["run_id"], row["attempt_count"]), row["launch_id"], steps_max=1
    )


def has_a_gang(row: Mapping[str, Json]) -> bool:
    """Whether the newest attempt is open and supervised, so that no sensor has to act."""
    return (
        row["attempt_count"] > 0
        and row["termination_reason"] is None
        and row["dagster_run_id"] is not None
    )


def _is_at_the_end(store: ObjectStore, row: Mapping[str, Json]) -> bool:
    """Whether the last record that was taken in is the store's last one of the track."""
    track, seq = run_track(row["run_id"]), row["head_seq"]
    if seq is None:
        return False  # the ledger has nothing of the track any more
    last = store.get(log_key(track, seq), RECORD_BYTES_MAX)
    if last is None or sha256_hex(last) != row["head_sha256"]:
        return False
    return store.get(log_key(track, seq + 1), RECORD_BYTES_MAX) is None


# How often an eval is tried, by the policy; None: without a limit. It is asked only where an eval has
# failed, for a policy takes time to load.
EvalTries = Callable[[], int | None]


def shipped_tries() -> int | None:
    """Return how often an eval is tried where no file changes the policy."""
    from tracks_dagster.retry.default_policy import DEFAULT_POLICY

    return DEFAULT_POLICY.rule(TerminationReason.EVALUATOR_ERROR).count


RUNS_MAX = 200
LINES_MAX = 100  # of a journal, for what a run that trains reported last
_NOT_ARCHIVED = "archived_at is null"  # in status_newest.sql: which runs are meant without a filter

_BROKEN = "Its track is broken: `tracks fsck` says what is wrong and what to do."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run. state: a `RunLifecycle`, waiting also where `waiting_for` is set.

    workload_class: None where none was named. branched_from: as RUN@STEP. step: `newest_step`; loss: of
    the newest step of its newest attempt; steps: how many it is to run, None where nobody knows.
    silence: a sentence where its open attempt has shown no sign of life for long. open_alerts: a count.
    quarantined: a sentence for each source in quarantine that something of it descends from; of one
    named run only.
    """

    run_id: str
    state: str
    why: str
    waiting_for: str | None
    model_family: str
    workload_class: str | None
    declared_at: str
    branched_from: str | None
    attempt_id: int | None
    reason: str | None
    step: int | None
    steps: int | None
    loss: float | None
    promoted_to: str | None
    silence: str | None
    open_alerts: int = 0
    quarantined: tuple[str, ...] = ()


def read_status(
    tracks: Tracks,
    ledger: Ledger,
    *,
    run_id: str | None = None,
    where: str = "",
    tries: EvalTries = shipped_tries,
) -> list[RunLine]:
    """Return one line for `run_id`, or for each of the newest runs, newest first.

    where: a filter of `run_table`, by what the ledger has of a run: one that waits for a daemon runs
    there. Raises UnknownRun for a run id that no track has, InvalidInput for a filter that cannot be.
    """
    heartbeat = read_heartbeat(tracks.store)
    if run_id is not None:
        cursor = ledger.cursor(run_track(run_id))  # before the track, which grows
        state = tracks.run(run_id)
        line = run_line(tracks, state, heartbeat, tries)
        if cursor is not None and state.head.seq < cursor.seq:
            line = replace(line, why=f"{_BROKEN} As far as it can be read: {line.why}")
        return [replace(line, quarantined=describe_sources(Holds(tracks), state))]
    run_ids = None
    if where:
        asked = Asked(where=where, limit=RUNS_MAX, names=("run",))
        run_ids = [run.name for run in read_table(ledger, asked, now=tracks.now()).rows]
    return [_any_line(tracks, row, heartbeat, tries) for row in _newest(ledger, run_ids)]


def waiting_studies(tracks: Tracks, ledger: Ledger) -> list[str]:
    """Say of each open study until when no run of it starts, and which of its trials wait for a person,
    where that is so; oldest first."""
    rows = ledger.query(
        "select study, off_peak from studies where state = 'open' order by declared_at, study"
    )
    waiting = ledger.query(
        "select t.study, t.run_id from trials t join training_runs r on r.run_id = t.run_id "
        "where t.judged_at is null and r.state = 'waiting' order by t.trial, t.rung"
    )
    trials: dict[str, list[str]] = {}
    for row in waiting:
        trials.setdefault(row["study"], []).append(row["run_id"])
    now = tracks.now()
    waits = {
        row["study"]: [
            wait_words(row["off_peak"] or "", now),
            *trials_for_a_person(tracks, trials.get(row["study"], ())),
        ]
        for row in rows
    }
    return [f"{study}: {words}" for study, each in waits.items() for words in each if words]


def trials_for_a_person(tracks: Tracks, run_ids: Iterable[str]) -> list[str]:
    """Say which of these runs of trials wait for a person, and for what. A broken one is left out."""
    found = []
    for run_id in run_ids:
        with suppress(TrackBroken):
            state = tracks.find_run(run_id)
            found.append(None if state is None else trial_for_a_person(state))
    return [words for words in found if words is not None]


def as_they_are_now(
    tracks: Tracks, ledger: Ledger, runs: Sequence[Run], tries: EvalTries = shipped_tries
) -> tuple[Run, ...]:
    """Return the runs of a table as they are now: one that runs by the ledger may wait, and one that
    trains is further than its record. Of the first RUNS_MAX of those; of none where the store is away.
    """
    found = {run.name: run for run in runs if run.values.get("state") == RunLifecycle.RUNNING}
    with suppress(StoreError):
        heartbeat = read_heartbeat(tracks.store)
        for row in _newest(ledger, list(found)[:RUNS_MAX]):
            recorded = found[row["run_id"]].values
            now = _now(tracks, row, recorded, heartbeat, tries)
            found[row["run_id"]] = Run(values={**recorded, **now})
    return tuple(found.get(run.name, run) for run in runs)


def _now(
    tracks: Tracks,
    row: Mapping[str, Json],
    recorded: Mapping[str, Json],
    heartbeat: Heartbeat | None,
    tries: EvalTries,
) -> dict[str, Json]:
    """Return what is otherwise with a run now. Whatever goes wrong with it, as its own page says, it is
    shown as recorded, and no other run suffers."""
    try:
        found = dict(_reported(tracks.store, row, recorded))
        if (
            not is_enough(tracks.store, row)
            and _any_line(tracks, row, heartbeat, tries).state == RunLifecycle.WAITING
        ):
            found["state"] = RunLifecycle.WAITING.value
    except StoreError:
        raise
    except Exception:  # noqa: BLE001 - of that run alone
        return {}
    return found


def _reported(
    store: ObjectStore, row: Mapping[str, Json], recorded: Mapping[str, Json]
) -> Iterator[tuple[str, Json]]:
    """Yield what an open attempt has reported since its record, as a table has it: the newest value of
    each metric with its step, and the newest step."""
    if row["launch_id"] is None or row["termination_reason"] is not None:
        return
    ref = AttemptRef(row["run_id"], row["attempt_count"])
    found = newest_values(store, ref, row["launch_id"], lines_max=LINES_MAX)
    for name, (value, step) in found.items():
        if step >= (recorded.get(f"{AT}{name}") or 0):
            yield from ((f"{LAST}{name}", value), (f"{AT}{name}", step))
    if found:
        newest = max(step for _, step in found.values())
        yield "step", max(newest, recorded.get("step") or 0)


def _newest(ledger: Ledger, run_ids: Sequence[str] | None) -> list[dict[str, Json]]:
    """Return the rows of `status_newest.sql`: of these runs, at most RUNS_MAX; None: of the newest."""
    sql = Path(__file__).with_name("sql").joinpath("status_newest.sql").read_text(encoding="utf-8")
    found = {f"r{n}": run_id for n, run_id in enumerate(run_ids or ())}
    if run_ids is not None:
        if not found:
            return []
        sql = sql.replace(_NOT_ARCHIVED, f"run_id in ({', '.join(f':{place}' for place in found)})")
    return ledger.query(sql, {"runs_max": RUNS_MAX, **found})


def _any_line(
    tracks: Tracks, row: Mapping[str, Json], heartbeat: Heartbeat | None, tries: EvalTries
) -> RunLine:
    """Return a run's status, whatever goes wrong with it: that is in its line, and in no other's."""
    try:
        return _known_line(tracks, row) or _read_line(tracks, row, heartbeat, tries)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - of that run alone
        why = f"{problem_of(error)} The ledger says: {row['state_why']}"
        return _line_of(row, JournalTail(), why=why)


def _read_line(
    tracks: Tracks, row: Mapping[str, Json], heartbeat: Heartbeat | None, tries: EvalTries
) -> RunLine:
    """Return a run's status by its track. A broken track hides no other run."""
    with suppress(TrackBroken, UnknownRun):
        state = tracks.run(row["run_id"])
        if row["head_seq"] is None or state.head.seq >= row["head_seq"]:
            return run_line(tracks, state, heartbeat, tries)
    return _line_of(row, JournalTail(), why=f"{_BROKEN} The ledger says: {row['state_why']}")


def _known_line(tracks: Tracks, row: Mapping[str, Json]) -> RunLine | None:
    """Return a run's status by its row of `status_newest.sql`; None where its track is needed."""
    if not is_enough(tracks.store, row):
        return None
    tail = journal_end(tracks.store, row)
    if not tail.steps and row["attempt_count"] > 0:
        return None  # an attempt before it may have run steps
    silence = (
        describe_silence(row["run_id"], tail.last_line_at, tracks.now())
        if has_a_gang(row)
        else None
    )
    return replace(_line_of(row, tail, why=row["state_why"]), silence=silence)


def _line_of(row: Mapping[str, Json], tail: JournalTail, *, why: str) -> RunLine:
    """Return a run's status by its row of `status_newest.sql` and the end of its journal."""
    newest, source = tail.steps[-1] if tail.steps else None, row["branched_from_run_id"]
    step = row["recorded_step"]
    # After the end its record counts.
    if newest is not None and row["termination_reason"] is None:
        step = max(newest.step, step or 0)
    return RunLine(
        run_id=row["run_id"],
        state=row["state"],
        why=why,
        waiting_for=None,
        model_family=row["model_family"],
        workload_class=row["workload_class"],
        declared_at=format_time(row["declared_at"]),
        branched_from=None if source is None else f"{source}@{row['branched_from_step']}",
        attempt_id=row["attempt_count"] or None,
        reason=row["termination_reason"],
        step=step,
        steps=row["max_steps"],
        loss=newest.loss if newest else None,
        promoted_to=row["promoted_to"],
        silence=None,
        open_alerts=row["open_alerts"],
    )


def run_line(
    tracks: Tracks,
    state: RunState,
    heartbeat: Heartbeat | None,
    tries: EvalTries = shipped_tries,
) -> RunLine:
    """Return the status of one run."""
    status = run_status(state)
    waiting = waiting_for(state, heartbeat, tracks.now(), tries)
    attempt, source = state.last_attempt, state.declared.branched_from
    tail = JournalTail() if attempt is None else _tail(tracks.store, state, attempt)
    newest = tail.steps[-1] if tail.steps else None
    last_at = last_sign_at(attempt, tail.last_line_at) if attempt and attempt.is_open else None
    promoted = [p.body.alias for p in state.promotions if p.body.promoted]
    return RunLine(
        run_id=state.run_id,
        state=status.state if waiting is None else RunLifecycle.WAITING.value,
        why=status.why,
        waiting_for=waiting,
        model_family=state.declared.model_family,
        workload_class=state.declared.workload_class,
        declared_at=format_time(state.declared_at),
        branched_from=checkpoint_at(source) if source is not None else None,
        attempt_id=attempt.attempt_id if attempt else None,
        reason=attempt.reason.value if attempt and attempt.reason else None,
        step=newest_step(state, {attempt.attempt_id: newest.step} if attempt and newest else None),
        steps=steps_of(state),
        loss=newest.loss if newest else None,
        promoted_to=promoted[-1] if promoted else None,
        silence=describe_silence(state.run_id, last_at, tracks.now()),
        open_alerts=len(state.open_alerts),
    )


def waits_for_a_person(state: RunState, tries: EvalTries) -> str | None:
    """Say what a person has to do about evals of a run that has all its steps; None where all of them
    may come by themselves, or a stop lets them go."""
    is_stopped = any(stop.body.mode == "stop" for stop in state.stops)
    if state.finished is not None or is_stopped:
        return None
    if not what_evals_wait_for(state, attempts_max=None):
        return None
    words = evals_for_a_person(state, attempts_max=tries() if state.evals else None)
    return f"{FOR_A_PERSON}{'; '.join(words)}" if words else None


def waiting_for(
    state: RunState,
    heartbeat: Heartbeat | None,
    now: datetime,
    tries: EvalTries = shipped_tries,
) -> str | None:
    """Say what a run waits for that is late or will not come by itself: a launch that failed, a daemon,
    a sensor that is off, evals that failed as often as they are tried.

    None while a gang works, and when it is a person's turn (refused, drained) or nobody's (finished).
    """
    if state.declared.trainer == TRAINER_SCRIPT:
        return None  # it trains outside of attempts: no daemon belongs to its folder
    sensor = next_sensor(state) or _sensor_of_stop(state)
    if sensor is None or run_status(state).state != RunLifecycle.RUNNING:
        return None
    if (words := waits_for_a_person(state, tries)) is not None:
        return words
    launches = heartbeat.launches if heartbeat is not None else ()
    own = [each for each in launches if each.key in _awaited(state)]
    late = [*(_of_eval(each.key, describe_launch(each, now)) for each in own)]
    late.append(describe_age(heartbeat, now))
    if any(late):
        return f"waiting: {'; '.join(filter(None, late))}"
    if heartbeat is not None and heartbeat.sensors.get(sensor) is False:
        return f"waiting: sensor {sensor} is off"
    return _storm(state, now)


def _of_eval(key: str, words: str | None) -> str | None:
    """Return what is to say of a launch, with the eval that is to be launched before it."""
    found = parse_eval_attempt_key(key)
    return words if words is None or found is None else f"eval {found[1]}: {words}"


def _sensor_of_stop(state: RunState) -> str | None:
    """Return the sensor without which a stop is not carried out where the supervisor is gone."""
    attempt = state.open_attempt
    return None if attempt is None or state.stop_for(attempt) is None else WATCH_ATTEMPTS


def waits_for_devices(state: RunState, heartbeat: Heartbeat | None, now: datetime) -> str | None:
    """Say what a run waits for in the queue of this machine's devices, which a daemon keeps; None where
    it does not wait there, or no daemon ticks."""
    if heartbeat is None or not heartbeat.ticks(now):
        return None
    keys = _awaited(state)
    waits = (each for each in heartbeat.launches if each.waits and each.key in keys)
    return next((_of_eval(each.key, each.why) for each in waits), None)


def reads_what_waits(
    tracks: Tracks, tries: EvalTries = shipped_tries
) -> Callable[[RunState], str | None]:
    """Return `waiting_for` by what the daemon has left now."""
    heartbeat = read_heartbeat(tracks.store)
    return partial(waiting_for, heartbeat=heartbeat, now=tracks.now(), tries=tries)


def _awaited(state: RunState) -> set[str]:
    """Return the keys of what a Dagster run has to come for: the open attempt, and open evals."""
    attempt = state.open_attempt
    keys = {attempt_key(state.run_id, attempt.attempt_id)} if attempt is not None else set()
    asked = (e.opened for e in state.evals if e.ended is None)
    return keys | {eval_attempt_key(state.run_id, o.eval_id, o.number) for o in asked}


def _storm(state: RunState, now: datetime) -> str | None:
    """Say that a storm in its pool puts off the next attempt, as the newest alert says."""
    attempt = state.last_attempt
    since = attempt.ended_seq if attempt is not None else None
    if since is None:
        return None
    storms = [a.body for a in state.alerts if a.seq > since and a.body.rule == ALERT_POOL_STORM]
    if not storms or now >= parse_time(storms[-1].data["latest_at"]):
        return None
    pool, latest = storms[-1].data["pool"], storms[-1].data["latest_at"]
    return f"waiting: a storm in pool {pool} pauses its retries, until {latest} at the latest"


def _tail(store: ObjectStore, state: RunState, attempt: AttemptState) -> JournalTail:
    if attempt.placed is None:
        return JournalTail()
    launch_id = attempt.placed.launch_id
    return read_tail(store, state.ref(attempt), launch_id, steps_max=1)
