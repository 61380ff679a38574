"""A small run for each kind of drill, in which it fires, and the declaration of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracks_dagster.attempts.effects.preparing import prepare
from tracks_dagster.attempts.effects.runs import declare
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.evals.effects.running import waive
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.records import Json

STEPS = 30
SMALL: Mapping[str, Json] = {
    "global_batch": 4,
    "micro_batch": 2,
    "context": 32,
    "d_model": 16,
}
HANG_S = 5.0
# Their steps take long enough for a fault from outside while training runs.
_SLOW: Mapping[str, Json] = {"steps": 300, "global_batch": 48, "context": 64, "d_model": 64}
# And these train until the watch over health, which looks every half minute, has found them.
_WATCHED: Mapping[str, Json] = {**_SLOW, "steps": 5000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One drill as it is played. own_data: it may quarantine its snapshot, so it has one alone; alone:
    it needs the home for itself; is_watched: it ends nothing, and is stopped once it is alerted."""

    drill: str
    ranks: int = 1
    own_data: bool = False
    alone: bool = False
    is_watched: bool = False
    config: Mapping[str, Json] = field(default_factory=dict)


REHEARSALS: Mapping[str, Rehearsal] = {
    "preempt": Rehearsal(drill="preempt@13,grace=0"),
    "sigkill": Rehearsal(drill="sigkill@13"),
    "gpu_oom": Rehearsal(drill="gpu_oom@13"),
    # Fewer loader workers are the cure here: a local launcher has no memory request to raise.
    "host_oom": Rehearsal(drill="host_oom@13", config={"loader_workers": 2}),
    "nan": Rehearsal(drill="nan@13"),
    "spike": Rehearsal(drill="spike@25"),
    "hang": Rehearsal(drill="hang@13,rank=1", ranks=2, config={"hang_s": HANG_S}),
    "bad_batch": Rehearsal(drill="bad_batch@13", own_data=True),
    "bad_snapshot": Rehearsal(drill="bad_snapshot@0", own_data=True),
    "disk_full": Rehearsal(drill="disk_full@13"),
    "storage_error": Rehearsal(drill="storage_error@13"),
    "rank_crash": Rehearsal(drill="rank_crash@13", ranks=2),
    "evaluator_crash": Rehearsal(drill=f"evaluator_crash@{STEPS}"),
    "corrupt_checkpoint": Rehearsal(drill="corrupt_checkpoint@13"),
    "kill_run_worker": Rehearsal(drill="kill_run_worker@20", config=_SLOW),
    "slow": Rehearsal(drill="slow@60,rank=1,factor=3", ranks=2, is_watched=True, config=_WATCHED),
    "data_slow": Rehearsal(
        drill="data_slow@60,rank=1,factor=3", ranks=2, is_watched=True, config=_WATCHED
    ),
    "flat_validation": Rehearsal(
        drill="flat_validation@60", is_watched=True, config={**_WATCHED, "validate_every": 20}
    ),
    # Ten minutes of it are an alert.
    "idle_device": Rehearsal(
        drill="idle_device@13", is_watched=True, config={**_WATCHED, "steps": 50_000}
    ),
    "code_error": Rehearsal(drill="code_error@13"),
    "kill_daemon": Rehearsal(drill="kill_daemon@20", alone=True, config=_SLOW),
}
# That a home may play beside its own work: none needs data or the home for itself.
BESIDE_WORK = tuple(k for k, each in REHEARSALS.items() if not (each.own_data or each.alone))


def rehearsal_id(drill_kind: str, uid: str) -> str:
    """Return the id of the run that plays a drill."""
    return f"drill-{drill_kind.replace('_', '-')}-{uid[:4]}"


def declare_rehearsal(
    tracks: Tracks,
    found: FoundCode,
    rehearsal: Rehearsal,
    *,
    run_id: str,
    snapshot_id: str,
    owner: str,
) -> None:
    """Declare the run of `found` that plays the drill; raises as `declare`."""
    prepared = prepare(
        {
            "run_id": run_id,
            "intent": f"Play {rehearsal.drill} and see what comes of it.",
            "owner": owner,
            "snapshot_id": snapshot_id,
            "ranks": rehearsal.ranks,
            "checkpoint_every_steps": 5,
            "drills": (rehearsal.drill,),
        },
        {"steps": STEPS, **SMALL, **rehearsal.config},
        found,
        family=found.project.name,
        origin=None,
        policy=DEFAULT_POLICY,
        otherwise={},
    )
    declare(tracks, prepared)
    if not rehearsal.drill.startswith("evaluator_crash"):
        why = "The drill ends with the training; its eval would show nothing."
        for each in found.project.evals:
            waive(tracks, run_id, each.name, by=owner, why=why)
