"""Promotions: by the run's own rule once its evals are done, or by a person.

What a promotion needs is the rule of `evals.promotion`. By policy a refusal is a record too, so
that a run shows why it was not promoted. A person gets an error at once, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tracks_dagster.evals.effects.running import HasPolicy
from tracks_dagster.evals.promotion import (
    against_by_study,
    decide_promotion,
    newest_completed,
    objections,
    over_seeds,
    promotion_is_on_hold,
    propose,
    propose_without_rule,
    value_of_holder,
)
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.ledger.deciding import Append
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.contracts import check_may, refused
from tracks_dagster.retry.effects.due import runs_with_evals, runs_with_promotion_on_hold
from tracks_dagster.track import names
from tracks_dagster.track.bodies import PromotionDecided, PromotionRule, SnapshotRef
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Draft, Json, Kind
from tracks_dagster.track.roles import (
    ACCUMULATION,
    ACTIVATION_CHECKPOINTING,
    LOADER_WORKERS,
    MICRO_BATCH,
    SEED,
    Roles,
    key_of,
    value_of,
)
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.evals import final_checkpoint, promotion_is_due
from tracks_dagster.track.states.run_state import RunState, stored_code_sha256, trainer_of
from tracks_dagster.track.states.stop_cause import check_not_cut_off
from tracks_dagster.track.states.study_state import StudyState, Trial
from tracks_dagster.track.states.validity import why_invalid
from tracks_dagster.track.text.units import counted

STEPS_NAMED_MAX = 5  # that have an eval, the last ones
SEEDS_LOOKED_AT_MAX = 200  # newest runs of the same code, among which other seeds are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotions:
    """The decider that applies a run's own rule to its final checkpoint, once its evals are settled.

    Exactly one decision a checkpoint, no matter who else decides at the same time; one more once a
    quarantine that stopped it is released, also of a run that is finished.
    """

    name: str = names.RUN_EVALS

    def due(self, world: HasPolicy) -> list[str]:
        """Return the runs that have or owe evals, then those whose refusal may be decided again."""
        ledger, now = world.ledger, world.tracks.now()
        return [*runs_with_evals(ledger), *runs_with_promotion_on_hold(ledger, now)]

    def decide(self, state: RunState, world: HasPolicy) -> Append | None:
        """Return the promotion or its refusal; None when that is not due."""
        rule, final = state.declared.promotion, final_checkpoint(state)
        if rule is None or final is None:
            return None
        was_on_hold = promotion_is_on_hold(state)
        if not was_on_hold and not promotion_is_due(state):
            return None
        proposed = propose(state, final, rule, decided_by=self.name)
        proposed = _beside_holder(world, state, proposed)
        hold = Holds(world.tracks).on_checkpoint(final, state, snapshot=proposed.snapshot)
        if was_on_hold and hold is not None:
            return None
        why, against = "The run's own rule:", hold.sentence if hold is not None else None
        decided = decide_promotion(
            state,
            proposed,
            why=why,
            hold=against,
            by_policy=_against_by_policy(world, state, proposed, by=state.declared.owner),
        )
        return Append(
            draft=world.tracks.draft(Kind.PROMOTION_DECIDED, decided),
            what="promoted" if decided.promoted else "not promoted",
            why=decided.why,
        )


_HOLDER = """
    select p.run_id, p.manifest_sha256
    from promotions p join training_runs r on r.run_id = p.run_id
    where p.promoted and p.alias = :alias and r.model_family = :project
    order by p.decided_at desc, p.run_id limit 1
"""


def find_holder(ledger: Ledger, project: str, alias: str) -> tuple[str, str] | None:
    """Return (run_id, manifest sha256) of what a project's alias was given to last, or None."""
    rows = ledger.query(_HOLDER, {"alias": alias, "project": project})
    return (rows[0]["run_id"], rows[0]["manifest_sha256"]) if rows else None


def _beside_holder(
    world: HasPolicy, state: RunState, proposed: PromotionDecided
) -> PromotionDecided:
    """Return the proposal with the project's checkpoint that has the alias, and what that measured."""
    newest = find_holder(world.ledger, state.declared.model_family, proposed.alias)
    if newest is None or newest[1] == proposed.checkpoint.manifest_sha256:
        return proposed
    holder = world.tracks.run(newest[0])
    found = holder.checkpoint(newest[1])
    if found is None:
        return proposed
    value = value_of_holder(holder, found.ref, proposed)
    return replace(proposed, holder=found.ref, holder_value=value)


def _against_by_policy(
    world: HasPolicy, state: RunState, proposed: PromotionDecided, *, by: str
) -> list[str]:
    """Return what the policy has against a promotion; by: the person who asks, or whose rule it is."""
    contracts, owner = world.policy.contracts, state.declared.owner
    found = []
    try:
        doing = f"{by} may not promote {state.run_id}"
        check_may(contracts.governance, "may_promote", doing, by, owner)
    except InvalidInput as error:
        found.append(str(error))
    if contracts.promotion.only_valid and (missing := why_invalid(state)) is not None:
        found.append(str(refused("promotion.only_valid", f"the run is not valid: {missing}.")))
    asked = contracts.promotion.seeds
    if asked and proposed.threshold is None:
        words = f"{state.run_id} was declared without a threshold that other seeds could meet."
        found.append(str(refused("promotion.seeds", f"{words} {_NAME_ONE}")))
    elif asked and not objections(state, proposed):
        seeds = _other_seeds(world, state, proposed)
        if len(seeds) < asked:
            found.append(str(refused("promotion.seeds", _describe_seeds(state, asked, seeds))))
    return found


def _describe_seeds(state: RunState, asked: int, seeds: Mapping[str, str]) -> str:
    declared = state.declared
    if key_of(declared.config, declared.roles, SEED) is None:
        return (
            f"{state.run_id} has no key for its seed, so no other seed can be tried. Name it under "
            "keys: in its tracks.yaml, seed: KEY; the runs after that have one."
        )
    there = f", it has {', '.join(seeds)}" if seeds else ""
    return (
        f"{counted(asked, 'other seed')} of the same code, config and data must meet the threshold "
        f"too{there}. `tracks run --seed N` trains one; then promote this again."
    )


_NAME_ONE = (
    "Name an eval, a metric and at_least or at_most under promotion: in the project's tracks.yaml; the "
    "runs after that have one."
)
_SAME_CODE = """
    select r.run_id, a.config_json from training_runs r
    join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
    where r.model_family = :project and r.run_id <> :run_id and coalesce(a.code_sha256, '') = :code
    order by r.declared_at desc, r.run_id limit :runs_max
"""


def _other_seeds(world: HasPolicy, state: RunState, proposed: PromotionDecided) -> dict[str, str]:
    """Return seed → run of the runs that differ by their seed alone and meet the same threshold."""
    last, own = state.last_attempt, _recipe(state)
    if last is None or own.seed is None:
        return {}
    rows = world.ledger.query(
        _SAME_CODE,
        {
            "project": state.declared.model_family,
            "run_id": state.run_id,
            "code": stored_code_sha256(trainer_of(state, last)) or "",
            "runs_max": SEEDS_LOOKED_AT_MAX,
        },
    )
    found: dict[str, str] = {}
    for row in rows:
        if _settings(parse_json(row["config_json"]), state.declared.roles) != own.settings:
            continue
        other = world.tracks.run(row["run_id"])
        its = _recipe(other)
        if its.seed is None or its.seed in (own.seed, *found):
            continue
        if replace(its, seed=own.seed) == own and _meets(other, proposed):
            found[its.seed] = row["run_id"]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """What a result is of, by the run's newest attempt: a person may have changed what was declared.

    seed: None where there is none, or attempts had several.
    """

    seed: str | None
    settings: Mapping[str, Json]
    snapshot: SnapshotRef | None
    branched_from: CheckpointRef | None


def _recipe(state: RunState) -> _Recipe:
    declared, last = state.declared, state.last_attempt
    newest = declared if last is None else last.opened
    configs = [declared.config, *(each.opened.config for each in state.attempts)]
    seeds = {value_of(config, declared.roles, SEED) for config in configs}
    seed = seeds.pop() if len(seeds) == 1 else None
    return _Recipe(
        seed=None if seed is None else str(seed),
        settings=_settings(newest.config, declared.roles),
        snapshot=newest.snapshot,
        branched_from=declared.branched_from,
    )


# What a retry may change of a config so that the same computation fits, and the seed.
_LEFT_OUT = (SEED, MICRO_BATCH, ACCUMULATION, LOADER_WORKERS, ACTIVATION_CHECKPOINTING)


def _settings(config: Mapping[str, Json], roles: Roles) -> dict[str, Json]:
    """Return what is compared of a config; of the batch of a rank only its size, not its division."""
    left_out = {key_of(config, roles, role) for role in _LEFT_OUT}
    micro, times = (value_of(config, roles, role) for role in (MICRO_BATCH, ACCUMULATION))
    whole = micro * times if isinstance(micro, int) and isinstance(times, int) else [micro, times]
    return {**{key: v for key, v in config.items() if key not in left_out}, "": whole}


def _meets(other: RunState, proposed: PromotionDecided) -> bool:
    """Whether another run's final checkpoint, measured in the same way, meets the threshold."""
    final = final_checkpoint(other)
    if final is None or proposed.threshold is None:
        return False
    rule = PromotionRule(
        alias=proposed.alias,
        suite=proposed.suite,
        metric=proposed.metric,
        direction=proposed.direction,
        threshold=proposed.threshold,
    )
    its = propose(other, final, rule, decided_by=proposed.decided_by)
    is_measured_alike = (its.suite_version, its.snapshot, its.seed) == (
        proposed.suite_version,
        proposed.snapshot,
        proposed.seed,
    )
    return is_measured_alike and not objections(other, its)


def promote(
    world: HasPolicy,
    checkpoint: CheckpointRef,
    *,
    alias: str,
    by: str,
    why: str,
    may_be_cut_off: bool = False,
) -> PromotionDecided:
    """Record that a person gives `alias` to `checkpoint`, on its newest completed eval.

    The run's own rule names suite, metric and threshold; whether it is better than what has the alias
    is the person's to judge, and so is all of a run that was declared without a rule. may_be_cut_off:
    also where training was cut off.

    Raises UnknownRun, and InvalidInput naming everything against it, with nothing written.
    """
    if not why.strip():
        raise InvalidInput("A promotion needs a reason; say why in a sentence.")

    tracks = world.tracks

    def choose(state: RunState | None) -> Draft | None:
        if state is None:
            return None
        if not may_be_cut_off:
            doing = f"promote step {checkpoint.step} of {state.run_id} to {alias!r}"
            check_not_cut_off(state, checkpoint, doing)
        decided = _by_person(world, state, checkpoint, alias=alias.strip(), by=by, why=why.strip())
        return tracks.draft(Kind.PROMOTION_DECIDED, decided)

    record = tracks.decide_run(checkpoint.run_id, choose)
    if record is None:
        raise UnknownRun(f"There is no training run {checkpoint.run_id!r}.")
    return from_json(PromotionDecided, record.body)


def _by_person(
    world: HasPolicy, state: RunState, checkpoint: CheckpointRef, *, alias: str, by: str, why: str
) -> PromotionDecided:
    rule = state.declared.promotion
    if rule is None:
        proposed = propose_without_rule(state, checkpoint, alias, decided_by=by)
    else:
        rule = replace(rule, alias=alias, better_by=None)
        proposed = propose(state, checkpoint, rule, decided_by=by)
    proposed = _beside_holder(world, state, proposed)
    hold = Holds(world.tracks).on_checkpoint(checkpoint, state, snapshot=proposed.snapshot)
    against = hold.sentence if hold is not None else None
    by_policy = _against_by_policy(world, state, proposed, by=by)
    found = _study_of(world, state)
    if found is not None:
        by_policy += against_by_study(*found)
        why = f"{why} {over_seeds(*found)}".rstrip()
    decided = decide_promotion(state, proposed, why=why, hold=against, by_policy=by_policy)
    if not decided.promoted:
        raise InvalidInput(
            f"Cannot promote step {checkpoint.step} of {state.run_id} to {alias!r}: {decided.why}. "
            f"{_describe_completed_evals(state, decided)}Nothing was written."
        )
    return decided


def _study_of(world: HasPolicy, state: RunState) -> tuple[StudyState, Trial] | None:
    """Return the study that a run is a trial of, and the trial; None for any other run."""
    name = state.declared.experiment
    study = None if name is None else world.tracks.find_study(name)
    trial = None if study is None else study.trial_of(state.run_id)
    return None if study is None or trial is None else (study, trial)


def _describe_completed_evals(state: RunState, refused: PromotionDecided) -> str:
    """Return what to do about an eval that is missing, with a space after it."""
    if refused.eval_id or refused.threshold is None:
        return ""
    done = [ref for ref in state.resumable if newest_completed(state, refused.suite, ref)]
    steps = sorted({ref.step for ref in done})[-STEPS_NAMED_MAX:]
    there = ", ".join(f"{state.run_id}@{step}" for step in steps) or "no checkpoint yet"
    return (
        "The run's evals run by themselves on its final checkpoint, once it has all its steps; "
        f"`tracks eval {state.run_id}@{refused.checkpoint.step}` asks for one of this checkpoint. "
        f"{refused.suite} is completed on: {there}. "
    )
