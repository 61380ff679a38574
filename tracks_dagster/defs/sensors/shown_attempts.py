"""What Dagster is shown of attempts that `watch_attempts` closed, or that no Dagster run watches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetMaterialization,
    MetadataValue,
    SensorEvaluationContext,
)

from tracks_dagster.attempts.effects.gang_watch import LeftGangs
from tracks_dagster.checkpoints.effects.checkpoint_reports import checkpoint_report
from tracks_dagster.clean_errors import clean_text
from tracks_dagster.defs.site import asset_key
from tracks_dagster.ledger.effects.ticks import (
    AT_ONCE_MAX,
    UPKEEP_S_MAX,
    Tick,
    TimeSlice,
    take_batch,
    take_turns,
)
from tracks_dagster.ledger.facts.checkpoint import partition_key
from tracks_dagster.reasons.endings import ending_check
from tracks_dagster.review.effects.metadata import (
    Show,
    attempt_metadata,
    ending_tags,
    final_version,
)
from tracks_dagster.settings import find_board_url
from tracks_dagster.track import names
from tracks_dagster.track.names import Prefix, attempt_key, checkpoint_key
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.end_words import end_sentence
from tracks_dagster.track.states.evals import HAS_ALL_STEPS
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wiring import App

Event = AssetMaterialization | AssetCheckEvaluation

LATE_AFTER = timedelta(minutes=5)  # of an end; until then its Dagster run may still show it
LATE_MAX = 20  # attempts in one tick: Dagster's storage takes 10 to 40 events a second
LATE_EVENTS_MAX = 50  # of one of them; the others at the next look
CLOSED_MAX = 50  # attempts that were closed, in one tick
GROWN_MAX = 50  # checkpoints in one tick, of attempts that train
_ENDED = (
    "select run_id, attempt_id, termination_reason from training_attempts where ended_at < :before"
)
_COMMITS = "select run_id, attempt_id, step from checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What Dagster is shown of attempts that were closed: the partitions first, then their events."""

    partitions: Sequence[AddDynamicPartitionsRequest]
    events: Sequence[Event]


def show_closed(
    context: SensorEvaluationContext,
    app: App,
    closed: Sequence[tuple[str, AttemptState]],
    left: LeftGangs,
) -> Shown:
    """Return what Dagster lacks of attempts that were closed, and tag the Dagster runs that they had:
    CLOSED_MAX in a tick, for UPKEEP_S_MAX, and the others of `left` at the next ones.

    Trouble with one of them is logged, and an hour later it is tried again.
    """
    prefix, unshown = app.settings.prefix, left.unshown
    has = context.instance.has_dynamic_partition

    def lacks(asset: str, key: str) -> bool:
        return asset != names.CHECKPOINT_PARTITIONS or not has(prefix.name(asset), key)

    def show(key: str) -> Tick[Sequence[Event]]:
        run_id, attempt = unshown.pop(key)
        _tag_runs(context, attempt)
        own = list(_events(app, app.tracks.run(run_id), attempt, lacks))
        own += _check(prefix, names.ATTEMPT_PARTITIONS, run_id, attempt)
        return Tick(done=(own,))

    unshown.update(
        {attempt_key(run_id, each.attempt_id): (run_id, each) for run_id, each in closed}
    )
    time_slice = TimeSlice(seconds_max=UPKEEP_S_MAX, at_once=AT_ONCE_MAX)
    found = take_turns([*islice(unshown, CLOSED_MAX)], show, time_slice)
    for problem in found.problems:
        context.log.warning(app.redact(f"an end is not shown yet: {problem}"))
    events = [event for own in found.done for event in own]
    return Shown(partitions=partitions_for(prefix, events), events=events)


def partitions_for(prefix: Prefix, events: Sequence[Event]) -> list[AddDynamicPartitionsRequest]:
    """Return the request for the partitions that events of checkpoints need."""
    checkpoints = asset_key(prefix, names.CHECKPOINT_PARTITIONS)
    made = (each for each in events if each.asset_key == checkpoints)
    keys = [each.partition for each in made if each.partition is not None]
    return [AddDynamicPartitionsRequest(prefix.name(names.CHECKPOINT_PARTITIONS), keys)]


def show_grown(context: SensorEvaluationContext, app: App, left: LeftGangs) -> list[Event]:
    """Return what Dagster lacks of checkpoints of attempts whose Dagster run let go: GROWN_MAX a tick.

    Trouble with one of them is logged, and the next tick tries again.
    """
    prefix, events = app.settings.prefix, list[Event]()
    partitions = prefix.name(names.CHECKPOINT_PARTITIONS)
    for key, watch in left.watches.items():
        try:
            state = app.tracks.run(watch.ref.run_id)
            if state.head.seq == left.shown_seq.get(key):
                continue
            known = frozenset(context.instance.get_dynamic_partitions(partitions))
            made = _commits(prefix, state, watch.ref.attempt_id, partial(_is_not_among, known))
            events += islice(made, GROWN_MAX - len(events))
        except Exception as error:  # noqa: BLE001 - of that run alone
            context.log.warning(app.redact(f"{key} is not shown yet: {problem_of(error)}"))
            continue
        if len(events) == GROWN_MAX:
            break
        left.shown_seq[key] = state.head.seq
    return events


def _is_not_among(known: frozenset[str], key: str) -> bool:
    return key not in known


def _commits(
    prefix: Prefix, state: RunState, attempt_id: int, lacks: Callable[[str], bool]
) -> Iterator[Event]:
    """Yield the checkpoints of an attempt that Dagster lacks."""
    checkpoints = asset_key(prefix, names.CHECKPOINT_PARTITIONS)
    for commit in state.checkpoints:
        if commit.ref.attempt_id == attempt_id and lacks(partition_key(commit.ref)):
            yield AssetMaterialization(
                asset_key=checkpoints, **checkpoint_report(state, commit).event
            )


def _events(
    app: App, state: RunState, attempt: AttemptState, lacks: Callable[[str, str], bool]
) -> Iterator[Event]:
    """Yield what Dagster shows of an attempt that ended, and nobody has shown: its Dagster run died.

    lacks: whether Dagster has no such partition of that asset.
    """
    key, prefix = attempt_key(state.run_id, attempt.attempt_id), app.settings.prefix
    yield from _commits(
        prefix, state, attempt.attempt_id, partial(lacks, names.CHECKPOINT_PARTITIONS)
    )
    is_made = attempt.reason in HAS_ALL_STEPS and lacks(names.ATTEMPT_PARTITIONS, key)
    is_receipt_due = lacks(names.RECEIPTS, key)
    if not is_made and not is_receipt_due:
        return
    show = Show.by(MetadataValue, app.settings.ui_url, find_board_url(app.settings))
    metadata = attempt_metadata(
        app.tracks, state.run_id, attempt.attempt_id, show, cache=app.settings.cache
    )
    if is_receipt_due:
        yield AssetMaterialization(
            asset_key=asset_key(prefix, names.RECEIPTS),
            partition=key,
            metadata=metadata,
            tags=prefix.receipt_tags,
        )
        yield from _check(prefix, names.RECEIPTS, state.run_id, attempt)
    if is_made:
        version = final_version(state, attempt.attempt_id)
        yield AssetMaterialization(
            asset_key=asset_key(prefix, names.ATTEMPT_PARTITIONS),
            partition=key,
            metadata=metadata,
            tags={} if version is None else {names.TAG_DATA_VERSION: version},
        )


def _check(
    prefix: Prefix, asset: str, run_id: str, attempt: AttemptState
) -> Iterator[AssetCheckEvaluation]:
    """Tell a failure from an interruption, as a Dagster run that sees the end does.

    Once only: Dagster's storage refuses a second evaluation of a partition outside of its runs.
    """
    if attempt.reason is not None:
        check = ending_check(attempt.reason, end_sentence(attempt))
        yield AssetCheckEvaluation(
            asset_key=asset_key(prefix, asset),
            check_name=names.ENDED_AS_MEANT,
            partition=attempt_key(run_id, attempt.attempt_id),
            passed=check.passed,
            severity=AssetCheckSeverity.ERROR if check.is_failure else AssetCheckSeverity.WARN,
            description=check.words,
            metadata={},
        )


def show_late(
    context: SensorEvaluationContext, app: App, after: str | None
) -> Tick[Sequence[Event]]:
    """Show what Dagster lacks of attempts that ended: their Dagster run died, was of a version that
    showed less, or its storage took nothing then."""
    prefix = app.settings.prefix
    shown = {
        asset: context.instance.get_materialized_partitions(asset_key(prefix, asset))
        for asset in (names.CHECKPOINT_PARTITIONS, names.ATTEMPT_PARTITIONS, names.RECEIPTS)
    }
    rows = app.ledger.query(_ENDED, {"before": format_time(app.now() - LATE_AFTER)})
    ended = {attempt_key(row["run_id"], row["attempt_id"]): row for row in rows}
    due = {key for key in ended if key not in shown[names.RECEIPTS]}
    due |= {
        key
        for key, row in ended.items()
        if row["termination_reason"] in HAS_ALL_STEPS and key not in shown[names.ATTEMPT_PARTITIONS]
    }
    due |= {
        attempt_key(row["run_id"], row["attempt_id"])
        for row in app.ledger.query(_COMMITS)
        if checkpoint_key(**row) not in shown[names.CHECKPOINT_PARTITIONS]
    }
    keys = context.instance.get_dynamic_partitions(prefix.name(names.ATTEMPT_PARTITIONS))
    late = [key for key in keys if key in ended and key in due]

    def lacks(asset: str, key: str) -> bool:
        return key not in shown[asset]

    def look(key: str) -> Tick[Sequence[Event]]:
        state = app.tracks.run(ended[key]["run_id"])
        attempt = state.attempt(ended[key]["attempt_id"])
        if attempt is None or attempt.is_open:
            return Tick()
        return Tick(done=(tuple(islice(_events(app, state, attempt, lacks), LATE_EVENTS_MAX)),))

    found = take_batch(late, look, after=after, count_max=LATE_MAX)
    is_cut = any(len(events) == LATE_EVENTS_MAX for events in found.done)
    return replace(found, is_done=found.is_done and not is_cut)


def _tag_runs(context: SensorEvaluationContext, attempt: AttemptState) -> None:
    """Let the list of runs find the dead Dagster run by how its attempt ended."""
    if attempt.reason is None or not attempt.claims:
        return
    dagster_run_id = attempt.claims[-1].body.dagster_run_id
    try:
        if context.instance.has_run(dagster_run_id):
            context.instance.add_run_tags(dagster_run_id, ending_tags(attempt.reason))
    except Exception as error:  # noqa: BLE001  # a locked database: the end itself is still shown
        context.log.warning(clean_text(f"{dagster_run_id} is not tagged: {error}"))
