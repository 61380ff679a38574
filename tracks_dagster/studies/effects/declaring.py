"""Declare a study, take it up, or raise what it may use: everything is checked before anything is
written."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import eq
from typing import Any

from tracks_dagster.attempts.effects.preparing import Prepared, prepare
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.projects.effects.project_file import NAME
from tracks_dagster.projects.project import Project
from tracks_dagster.retry.caps import check_cap
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.scheduling.policy import SWEEP
from tracks_dagster.studies.deciding import run_id_of
from tracks_dagster.studies.effects.priors import evenly, read_priors
from tracks_dagster.studies.effects.searching import search_of
from tracks_dagster.studies.effects.study_file import TRIALS_MAX, SchedulerFile, StudyFile
from tracks_dagster.studies.schedulers import PERTURB, perturbed
from tracks_dagster.studies.search import EVOLUTION, GRID, PRIORS, PRIORS_OF, START, grid_of
from tracks_dagster.studies.space import CHOICE, Param, Space, make_space
from tracks_dagster.track.addressed import write_addressed
from tracks_dagster.track.bodies import RunDeclared, StudyDeclared, StudyExtended
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, RecordTooLarge, check_all
from tracks_dagster.track.names import study_track
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.records import Draft, Json, Kind, canonical_json, sha256_hex
from tracks_dagster.track.roles import ACCUMULATION, HORIZON, SEED, STEPS, roles_of
from tracks_dagster.track.states.metric_values import direction_of
from tracks_dagster.track.states.study_state import HOUR_S, StudyState, check
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import cost_text, shown
from tracks_dagster.track.track import study_code_key

STARTS_NAMED_MAX = 5  # configs in an error
RUNGS = 4  # of halving, where nobody says which
CAPS = ("trials", "slots", "max_device_hours", "max_cost")
# What one step took of the run that took least, where any was measured.
_LEAST = """
    select min(a.gpu_seconds / a.last_step) as step_s from training_attempts a
    join training_runs r on r.run_id = a.run_id
    where r.model_family = :family and a.last_step > 0 and a.resumed_from_step is null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What a declaration is checked and recorded by. plan: what a run would declare, by all that the
    home knows; raises InvalidInput. prices: of the home, None where it has none; may raise
    SettingsError. remark: called with what a person should know of it."""

    tracks: Tracks
    ledger: Ledger
    policy: RetryPolicy
    plan: Callable[[Prepared], RunDeclared]
    prices: Callable[[], Prices | None]
    remark: Callable[[str], object] = lambda words: None


def declare_study(door: Door, asked: StudyFile, found: FoundCode, *, by: str) -> StudyState:
    """Record the study, or take up that of its name; return its state.

    One that exists goes on as it was declared, with the larger caps of `asked` where it has such.
    Raises InvalidInput with all that is wrong, also where another study has the name, or this one was
    declared otherwise; nothing is written then.
    """
    tracks, existing = door.tracks, door.tracks.find_study(asked.name)
    # It trains what it was declared with: what counted for that then counts to its end.
    passed = None if existing is None else existing.declared.run.passed_gates
    declared = plan_study(door, asked, found, by=by, passed_gates=passed)
    if existing is None:
        write_addressed(tracks.store, declared.run.trainer, found.archive)
        draft = tracks.draft(Kind.STUDY_DECLARED, declared)
        tracks.decide_study(asked.name, lambda state: draft if state is None else None)
        existing = tracks.study(asked.name)
    _check_same(door, existing.declared, declared, asked)
    caps = {name: value for name in CAPS if (value := getattr(declared, name)) is not None}
    caps["off_peak"] = declared.off_peak
    tracks.decide_study(asked.name, lambda state: _extension(tracks, state, caps, by=by))
    tracks.project(study_track(asked.name))
    return tracks.study(asked.name)


def plan_study(
    door: Door,
    asked: StudyFile,
    found: FoundCode,
    *,
    by: str,
    passed_gates: Mapping[str, str] | None = None,
) -> StudyDeclared:
    """Return what would be declared; writes nothing. Raises InvalidInput with all that is wrong.

    passed_gates: of a study that exists; None for a new one, whose gates are asked.
    """
    project = _of_trials(found.project, asked.metric)
    spaces: list[Space] = []
    check_all(
        lambda: _check_name(asked.name),
        lambda: _check_metric(asked.metric, found.project),
        lambda: spaces.append(_space(asked, project)),
        lambda: _check_repeat(asked, project),
        lambda: _check_pair(asked),
    )
    (space,) = spaces
    if passed_gates is None:
        _check_perturbed(asked.scheduler, space)
    if (
        passed_gates is None and asked.search.kind != GRID
    ):  # else it goes on as long as it finds any
        space.check_share(random.Random(asked.seed))
    search = _search(door, asked, space, project)
    budgets = _budgets(asked, project)
    code = replace(found, project=project, code_diff=None)  # the code is stored whole
    run = _run_of_trials(door, asked, code, budgets[-1], by=by, passed_gates=passed_gates)
    key = study_code_key(asked.name, sha256_hex(found.archive))
    declared = StudyDeclared(
        study=asked.name,
        run=replace(run, trainer=key, gate_key=None),
        space={name: to_json(param) for name, param in space.params.items()},
        constraints=asked.constraints,
        metric=asked.metric,
        direction=asked.direction,
        search=search,
        scheduler=_scheduler(asked.scheduler),
        budgets=budgets,
        trials=_trials(asked, space),
        seed=asked.seed,
        slots=asked.slots,
        max_device_hours=asked.max_device_hours,
        max_cost=asked.max_cost,
        repeat={} if (r := asked.repeat) is None else {"best": r.best, "seeds": r.seeds},
        off_peak=asked.off_peak,
        by=by,
    )
    if passed_gates is None:
        declared = _that_fits(door, declared)
        _remark_direction(door, asked)
    search_of(declared)  # raises where its extra is missing
    _check_below_one(door, declared, is_new=passed_gates is None)
    return declared


def _that_fits(door: Door, declared: StudyDeclared) -> StudyDeclared:
    """Return the study with as many of its priors as its record holds, with a remark; raises
    InvalidInput where it is too large without them."""
    priors = declared.search.get(PRIORS, ())
    for count in range(len(priors), min(len(priors), 1) - 1, -1):
        few = {**declared.search, PRIORS: evenly(priors, count)} if priors else declared.search
        draft = door.tracks.draft(Kind.STUDY_DECLARED, replace(declared, search=few))
        try:
            check(None, draft)
        except RecordTooLarge as error:
            sizes = {name: len(canonical_json(value)) for name, value in draft.body.items()}
            why = str(error)
            continue
        if count < len(priors):
            taken = f"{count} of {len(priors)} are taken"
            door.remark(f"search: priors: {taken}, as many as a study's record holds.")
        return replace(declared, search=few)
    largest = max(sizes, key=lambda name: sizes[name])
    raise InvalidInput(
        f"The study does not fit into one record: {why.partition(';')[0]}, of which its {largest} "
        f"takes {sizes[largest]}. Write fewer configs under start:, or fewer values in lists."
    )


def _extension(
    tracks: Tracks, study: StudyState | None, caps: Mapping[str, Any], *, by: str
) -> Draft | None:
    """Return the record of larger caps and other hours; without any, that a study goes on which had
    ended or was stopped. None where nothing follows. Raises InvalidInput for a smaller cap."""
    if study is None:
        return None
    raised = {name: value for name, value in caps.items() if value != getattr(study.declared, name)}
    lowered = [
        name
        for name in CAPS
        if name in raised and _is_less(raised[name], getattr(study.declared, name))
    ]
    if lowered:
        raise InvalidInput(
            f"The study {study.declared.study} has {_caps(study.declared, lowered)} already, "
            "and what it may use is never taken back. Give as much or more; `tracks stop` ends it."
        )
    if not raised and study.stopped is None:
        return None  # it is open, or it came to its end and nothing more is given
    why = _caps_given(raised) or "It goes on as it was declared."
    return tracks.draft(Kind.STUDY_EXTENDED, StudyExtended(by=by, why=why, **raised))


def _is_less(given: float, before: float | None) -> bool:
    return before is not None and given < before


def _caps(declared: StudyDeclared, names: list[str]) -> str:
    return ", ".join(f"{name} {getattr(declared, name)}" for name in names)


def _caps_given(raised: dict[str, Any]) -> str:
    return ", ".join(f"{name} is {value or 'not set'} now" for name, value in raised.items())


def _check_same(door: Door, before: StudyDeclared, now: StudyDeclared, asked: StudyFile) -> None:
    """Raise InvalidInput where a study of that name was declared otherwise, naming what differs; remark
    what does so where its file may well be the same."""
    names = (
        *("space", "constraints", "metric", "direction", "search", "scheduler", "budgets"),
        "repeat",
    )
    as_before, as_now = to_json(before), to_json(now)
    for each in (as_before, as_now):  # what was found then; its source may have grown
        each["search"] = {name: v for name, v in each["search"].items() if name != PRIORS}
    different = [name for name in names if as_before[name] != as_now[name]]
    different += ["seed"] if before.seed != now.seed else []
    was, is_now = before.run, now.run
    different += ["project"] if was.model_family != is_now.model_family else []
    others = {
        "class": (asked.workload_class, was.workload_class, is_now.workload_class),
        "stage": (asked.stage, was.stage, is_now.stage),
    }
    different += [name for name, (given, old, _) in others.items() if given not in (None, old)]
    has_other_code = was.trainer != is_now.trainer
    keys = [k for k in {**was.config, **asked.config} if was.config.get(k) != is_now.config.get(k)]
    if has_other_code:  # a default may be another one; of the same code it was the file
        others |= {k: (asked.config.get(k), was.config.get(k), is_now.config.get(k)) for k in keys}
        keys = [key for key in keys if key in asked.config]
    different += [f"config ({', '.join(keys)})"] if keys else []
    if different:
        raise InvalidInput(
            f"There is a study {before.study} that was declared with another {', '.join(different)}; a "
            "study is never changed, for its trials could not be compared. Give this one another name."
        )
    left = [f"{name} {shown(old)}" for name, (_, old, new) in others.items() if old != new]
    left = [*(["other code"] if has_other_code else []), *left]
    if left:
        door.remark(
            f"{before.study} was declared with {', '.join(left)}, and trains that to its end. Give the "
            "study another name to train what there is now."
        )


# --- what is checked ------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:40]!r} cannot name a study: use 1 to 26 of a-z, 0-9 and '-', '-' not at an end."
        )


def _check_metric(metric: str, project: Project) -> None:
    if not metric.isprintable():
        raise InvalidInput(f"metric: {metric[:40]!r} cannot be the name of a metric.")
    suite, separator, _ = metric.partition("/")
    if separator and suite not in (each.name for each in project.evals):
        raise InvalidInput(unknown("eval", suite, [each.name for each in project.evals]))


def _remark_direction(door: Door, asked: StudyFile) -> None:
    if "direction" not in asked.model_fields_set and direction_of(asked.metric) == "max":
        door.remark(
            f"direction: is not given, and the least {asked.metric} is best; write direction: max if "
            "the most is."
        )


def _check_repeat(asked: StudyFile, project: Project) -> None:
    if asked.repeat is None:
        return
    key = roles_of(project.roles, project.keys).get(SEED)
    if key is None:
        raise InvalidInput(
            f"repeat: no key of {project.name} has the role seed, so a repeat would be the same run. "
            "Name the key in its tracks.yaml: keys: {seed: KEY}; or leave repeat out."
        )
    if key in asked.space:
        raise InvalidInput(f"repeat: {key} is drawn from the space already; leave one of them out.")
    if asked.scheduler.kind == "pbt":
        raise InvalidInput(
            "repeat: a trial of pbt changes its config on the way and has none to repeat; leave it out."
        )


def _check_pair(asked: StudyFile) -> None:
    if (asked.search.kind, asked.scheduler.kind) == (EVOLUTION, "pbt"):
        raise InvalidInput(
            "pbt changes the configs of its trials on the way, so evolution has no parents whose value "
            "is that of their config; write search: random, or another scheduler."
        )


def _scheduler(asked: SchedulerFile) -> dict[str, Json]:
    named = {} if asked.perturb is None else {PERTURB: list(asked.perturb)}
    return {"kind": asked.kind, "eta": asked.eta, **named}


def _check_perturbed(asked: SchedulerFile, space: Space) -> None:
    """Raise InvalidInput where a key that pbt changes is not a range of the space, or it has none."""
    if asked.kind != "pbt":
        if asked.perturb is not None:
            raise InvalidInput(f"scheduler: perturb is of pbt; {asked.kind} changes no config.")
        return
    names = perturbed(space, _scheduler(asked))
    for name in names:
        if name not in space.params:
            raise InvalidInput(
                f"scheduler: perturb: {unknown('key of the space', name, list(space.params))}"
            )
        if space.params[name].kind == CHOICE:
            raise InvalidInput(
                f"scheduler: perturb: {name} is a list, which × 0.8 and × 1.2 do not change; write a "
                "range of it, or leave it out."
            )
    if not names:
        raise InvalidInput(
            "scheduler: pbt changes nothing here: the space has no range but of whole numbers, and a "
            "checkpoint of other ones may not be loaded. Name those for which it is: perturb: [KEY]; "
            "or use asha."
        )


def _of_trials(project: Project, metric: str) -> Project:
    """Return what a trial is of the project: nothing is promoted, and only the metric's eval runs."""
    wanted = {metric.partition("/")[0]}
    wanted |= {each.of for each in project.evals if each.name in wanted and each.of is not None}
    evals = (replace(e, is_required=True, every=None) for e in project.evals if e.name in wanted)
    return replace(project, promotion=None, evals=tuple(evals))


def _run_of_trials(
    door: Door,
    asked: StudyFile,
    code: FoundCode,
    steps: int,
    *,
    by: str,
    passed_gates: Mapping[str, str] | None,
) -> RunDeclared:
    """Return what the longest trial, of `steps`, would be declared as; nothing is chosen in it yet."""
    key = _steps_key(code.project)
    given: dict[str, Any] = {
        "run_id": run_id_of(asked.name, 0, 0),
        "intent": f"The trials of the study {asked.name}.",
        "experiment": asked.name,
        "workload_class": asked.workload_class or _sweep(door.policy),
        **({} if asked.stage is None else {"stage": asked.stage}),
        **_retention(asked),
    }
    prepared = prepare(
        given,
        {**asked.config, key: steps},
        code,
        family=code.project.name,
        origin=None,
        policy=door.policy,
        otherwise={"owner": by},
    )
    run = door.plan(replace(prepared, passed_gates=passed_gates))
    if (cut := run.config[key]) != steps:
        raise InvalidInput(
            f"A trial of {steps} steps is more than the {cut} that the stage {run.stage} lets it "
            "have; write another stage:, or smaller budgets."
        )
    if asked.max_cost is not None:
        check_cap(asked.max_cost, door.prices(), run.compute)
    return run


def _retention(asked: StudyFile) -> dict[str, Any]:
    """Return by what a trial keeps its best checkpoint: a commit records that metric before others, of
    which it has room for a few. An eval's is recorded by the eval."""
    if "/" in asked.metric:
        return {}
    return {"metric": asked.metric, "direction": asked.direction}


def _steps_key(project: Project) -> str:
    key = roles_of(project.roles, project.keys).get(STEPS)
    if key is None:
        raise InvalidInput(
            f"No key of {project.name} has the role steps, so nobody can give a trial so many of them. "
            "Name the key in its tracks.yaml: keys: {steps: KEY}."
        )
    return key


def _space(asked: StudyFile, project: Project) -> Space:
    """Return the space, every value of which the project's config takes."""
    roles = roles_of(project.roles, project.keys)
    ours = {roles.get(role) for role in (STEPS, HORIZON, ACCUMULATION)} - {None}
    problems = [words for each in asked.space.items() for words in _misfits(*each, project, ours)]
    if problems:
        raise InvalidInput("\n".join(problems))
    fixed = {name: key.default for name, key in project.keys.items()} | {**asked.config}
    fixed[_steps_key(project)] = _budgets(asked, project)[-1]  # as each proposal has it
    space = make_space(asked.space, asked.constraints, fixed)
    problems = list(_contradictions(asked, space))
    if problems:
        raise InvalidInput("\n".join(problems))
    if asked.search.kind != GRID:
        space.draw(random.Random(asked.seed))  # raises where no config meets the constraints
    return space


def _contradictions(asked: StudyFile, space: Space) -> Iterator[str]:
    """Yield what a space asks for and can never have."""
    for name, param in space.params.items():
        if name in asked.config:
            yield f"space: {name} is drawn from the space and fixed by config: too; leave one out."
        for index, value in enumerate(param.values):
            if value in param.values[:index]:
                yield f"space: {name} has {shown(value)} twice; write each value once."
        for key, values in param.when.items():
            other = space.params.get(key)
            takes = partial(eq, space.fixed[key]) if other is None else other.takes
            if not any(map(takes, values)):
                when = " or ".join(map(shown, values))
                yield f"space: {name} is drawn only where {key} is {when}, which it never is."
    for constraint in asked.constraints:
        for name in space.not_numbers(constraint):
            yield (
                f"The constraint {constraint!r} computes with {name}, which is not always a "
                "number; compare it alone, such as optimizer == 'sgd'."
            )


def _misfits(name: str, param: Param, project: Project, ours: set[str | None]) -> Iterator[str]:
    if name in ours:
        yield f"space: {name} is what the study itself sets for each trial; leave it out."
        return
    key = project.keys.get(name)
    if key is None:
        if not project.is_open:
            yield f"space: {unknown('config key', name, list(project.keys))}"
        return
    whole = param.kind == "int"
    ends = [int(e) if whole else e for e in (param.low, param.high)]
    for value in param.values if param.kind == CHOICE else ends:
        try:
            key.check(name, value)
        except InvalidInput as error:
            yield f"space: {error}"


def _budgets(asked: StudyFile, project: Project) -> tuple[int, ...]:
    """Return after how many steps a trial is judged: as given, else by the project's own steps."""
    scheduler = asked.scheduler
    if scheduler.budgets is not None:
        if scheduler.kind == "fifo" and len(scheduler.budgets) > 1:
            raise InvalidInput("fifo trains every trial to its end; give it one budget, or none.")
        return tuple(each * asked.steps_per_epoch for each in scheduler.budgets)
    key = _steps_key(project)
    whole = asked.config.get(key, project.keys[key].default)
    return _shares(scheduler, int(whole))


def _search(door: Door, asked: StudyFile, space: Space, project: Project) -> dict[str, Json]:
    search = {name: value for name, value in asked.search.given().items() if value is not None}
    names = search.pop(PRIORS, None)
    existing = door.tracks.find_study(asked.name)
    before = {} if existing is None else existing.declared.search
    start = asked.search.start or ()
    if before.get(START) != to_json(start):  # else it was taken as it is, and goes on
        _check_start(start, space, project, asked.trials)
    if not names:
        return search
    if before.get(PRIORS_OF) == to_json(names):  # taken up, whatever became of where they came from
        return {**search, PRIORS_OF: names, PRIORS: before[PRIORS]}
    found = read_priors(
        door.tracks,
        names,
        space,
        kind=asked.search.kind,
        metric=asked.metric,
        direction=asked.direction,
        remark=door.remark,
    )
    return {**search, PRIORS_OF: names, PRIORS: found}


def _check_start(
    start: Sequence[Mapping[str, Json]], space: Space, project: Project, trials: int | None
) -> None:
    """Raise InvalidInput with all that is wrong with the first configs that could not be trials.

    trials: how many are tried, None for all that there are.
    """
    found: list[str] = []
    if trials is not None and len(start) > trials:
        found.append(
            f"search: start: has {len(start)} configs, of which {trials} would be tried; raise trials, "
            "or leave some out."
        )
    for number, config in enumerate(start, 1):
        problems = list(space.misfits(config)) or list(_refused(config, project))
        if not problems and config in start[: number - 1]:
            problems = [f"It is config {start.index(config) + 1} again; leave one out."]
        if problems:
            found.append(f"search: start: config {number} of {len(start)}: {' '.join(problems)}")
    if len(found) > STARTS_NAMED_MAX:
        found[STARTS_NAMED_MAX:] = [f"And {len(found) - STARTS_NAMED_MAX} more configs of start."]
    if found:
        raise InvalidInput("\n".join(found))


def _refused(config: Mapping[str, Json], project: Project) -> Iterator[str]:
    """Yield why a run of the project would not take a value that the space has: 2.0 as an int."""
    for name, value in config.items():
        try:
            _ = project.keys[name].check(name, value) if name in project.keys else None
        except InvalidInput as error:
            yield str(error)


def _shares(scheduler: SchedulerFile, whole: int) -> tuple[int, ...]:
    match scheduler.kind:
        case "fifo":
            return (whole,)
        case "halving" | "asha":
            shares = (max(1, whole // scheduler.eta**n) for n in range(RUNGS - 1, -1, -1))
            return tuple(dict.fromkeys(shares))
    raise InvalidInput(
        f"{scheduler.kind} needs budgets: at which steps a trial is judged, such as budgets: "
        f"[{max(1, whole // 5)}, {whole}]."
    )


def _trials(asked: StudyFile, space: Space) -> int:
    if asked.search.kind == GRID:
        size = len(grid_of(space, asked.search.start or ()))
        if size > TRIALS_MAX:
            raise InvalidInput(f"The grid has {size} configs; a study has at most {TRIALS_MAX}.")
        return size if asked.trials is None else min(size, asked.trials)
    if asked.trials is None:
        raise InvalidInput(
            f"trials is missing: how many configs a {asked.search.kind} search tries."
        )
    return asked.trials


def _sweep(policy: RetryPolicy) -> str | None:
    return SWEEP if SWEEP in policy.scheduling.classes else None


def _check_below_one(door: Door, declared: StudyDeclared, *, is_new: bool) -> None:
    """Raise InvalidInput for a cap below one trial, by the fastest run of the project so far; remark
    where there was none."""
    hours, money = declared.max_device_hours, declared.max_cost
    caps = {"max_device_hours": hours, "max_cost": money}
    given = [f"{name} {value:g}" for name, value in caps.items() if value is not None]
    if not given:
        return
    compute, steps, family = declared.run.compute, declared.budgets[0], declared.run.model_family
    [row] = door.ledger.query(_LEAST, {"family": family})
    if (step_s := row["step_s"]) is None:
        if is_new:
            door.remark(
                f"How long a trial takes is not known yet, for no run of {family} was measured, so "
                f"{' and '.join(given)} may be less than one takes."
            )
        return
    least = step_s * steps / HOUR_S
    prices = None if money is None else door.prices()
    kind = compute.device_class
    price = None if prices is None else prices.of(kind, kind, pool=pool_of(compute))
    below = [f"max_device_hours {hours:g}"] if hours is not None and hours < least else []
    below += [f"max_cost {money:g}"] if money and price and money < least * price else []
    if below:
        cost = f", which cost {cost_text(least * price)}" if money and price else ""
        raise InvalidInput(
            f"{' and '.join(below)} is less than one trial of {steps} steps takes: the fastest run of "
            f"{family} took {step_s:.3g} device-seconds a step, so {least:.2g} hours{cost}."
        )
