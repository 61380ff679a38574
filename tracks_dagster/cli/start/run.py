"""`tracks run`: declare a training run, or take one up, and follow it to its end."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from tracks_dagster.attempts.effects.branches import Origin, find_origin
from tracks_dagster.attempts.effects.local.checkout import read_code_version
from tracks_dagster.attempts.effects.local.project_code import (
    project_folder,
    read_project_code,
    read_script_code,
)
from tracks_dagster.attempts.effects.preparing import Prepared, prepare
from tracks_dagster.attempts.effects.redeclared import check_as_declared, has_other_code
from tracks_dagster.attempts.effects.runs import (
    ask_expectation,
    check_prepared,
    check_queue,
    first_gang,
    new_run_id,
)
from tracks_dagster.attempts.effects.stage_verdicts import JudgeStages
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, parse_settings, print_json_line, print_table
from tracks_dagster.cli.declared_options import check_place, declared_options
from tracks_dagster.cli.start.driving import continue_hint, drive, take_up
from tracks_dagster.cli.start.snapshots import (
    check_source,
    datasets_of,
    ensure_snapshot_of,
    ensure_snapshots,
)
from tracks_dagster.cli.terminal import RECORDED
from tracks_dagster.data.effects.datasets.catalog import DATASETS
from tracks_dagster.home.home_folder import check_home
from tracks_dagster.ledger.effects.deciding import settle
from tracks_dagster.projects.effects.registered import DEFAULT_PROJECT
from tracks_dagster.projects.project import Project
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.stages import CANARY, SMOKE
from tracks_dagster.retry.submission import NO_INTENT
from tracks_dagster.review.effects.outcome import read_outcome
from tracks_dagster.settings import (
    Settings,
    load_policy,
    person,
    usable_policy,
)
from tracks_dagster.track.bodies import RunDeclared
from tracks_dagster.track.declared_fields import DEFAULTS, FIELDS
from tracks_dagster.track.errors import InvalidInput, NothingYet, StoreMissing
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import SEED, STEPS, roles_of
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.redact import redact
from tracks_dagster.track.text.units import counted
from tracks_dagster.training.saves.manifest import weights_sha256
from tracks_dagster.wiring import (
    App,
    build,
    gang_check,
    new_uid,
    open_dagster_home,
    utc_now,
)

WAIT_S = 600.0
STEPS_FIELD = "checkpoint_every_steps"
EXAMPLE = '--intent "Does a wider model learn faster?"'
_TITLES = ("attempt", "ended as", "from", "to", "kept", "lost", "device s", "continuity")
_NUMBERS = frozenset({"from", "to", "kept", "lost", "device s"})


@click.command("run")
@click.option(
    "--project",
    "folder",
    type=click.Path(path_type=Path),
    show_default=f"the one you are in, else examples/{DEFAULT_PROJECT}",
    help="Folder of the project, with its tracks.yaml.",
)
@click.option(
    "--from",
    "branch_at",
    metavar="RUN@STEP",
    help="Branch from that checkpoint; options that are not given are inherited.",
)
@click.option(
    "--from-attempt",
    type=int,
    help="Attempt of that checkpoint; default: the newest that has STEP.",
)
@click.option("--steps", type=int, help="Optimizer steps in total, including those before --from.")
@click.option("--seed", type=int, help="Seed of weights, order and dropout.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change the config.")
@click.option("--data", type=click.Path(path_type=Path), help="Make the snapshot of this source.")
@click.option("--trainer", type=click.Path(path_type=Path), help="One script of your own, alone.")
@click.option(
    "--eval",
    "evals",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE.py",
    help="Evaluate with this file too: its evaluate(checkpoint_folder, data_folder).",
)
@click.option(
    "--wait-s",
    type=float,
    default=WAIT_S,
    show_default=True,
    help="Give up after so many seconds without a change.",
)
@declared_options(
    FIELDS,
    intent={
        "help": "Purpose of the run, in a sentence; a project, a drill or an existing run needs none."
    },
    run_id={"help": "Declare it under this id, or resume the run with this id."},
    owner={"default": person, "show_default": "your user name"},
    checkpoint_every_steps={
        "show_default": "as the project's file says, else "
        f"{DEFAULTS[STEPS_FIELD]}, or off with --checkpoint-every-s"
    },
)
@as_json
@click.pass_context
def run_command(
    ctx: click.Context,
    /,
    folder: Path | None,
    trainer: Path | None,
    evals: tuple[Path, ...],
    branch_at: str | None,
    from_attempt: int | None,
    data: Path | None,
    settings: tuple[str, ...],
    steps: int | None,
    seed: int | None,
    wait_s: float,
    as_json: bool,
    asked: dict[str, Any],
) -> None:
    """Declare a training run and follow it to its end, headless.

    In a folder with a tracks.yaml it is a run of that project: its files are stored with the run, and
    what its file says of config, ranks, checkpoints and retention holds where you give nothing else.
    Outside of a project it is one of examples/gpt.

    With --from it is a branch: it inherits what you do not give from the run and the attempt that
    wrote the checkpoint, whatever the defaults; its code too, unless you are in that project's folder.
    Owner and drills are always the ones here.

    Makes the snapshots of data that ship when there are none. Uses the daemon of TRACKS_HOME when one
    runs, else starts one and stops it at the end. Ctrl-C saves, ends the gang and prints how to resume;
    a second one ends everything at once.

    With --on kubernetes the gang's pods run on the cluster that TRACKS_KUBERNETES describes
    (`tracks doctor --kubernetes` lists what is missing there); the daemon stays here.
    """
    if wait_s <= 0:
        raise InvalidInput(f"--wait-s {wait_s:g} is not a time to wait; use more than 0.")
    if data is not None and "snapshot_id" in asked:
        raise InvalidInput("--data and --snapshot both name the data; give one of them.")
    given = Settings.from_environment()
    origin = _origin(given, branch_at, asked.get("run_id"), from_attempt)
    place = asked.get("launcher")
    found = _found_code(given, folder, trainer, origin, evals=evals, launcher=place)
    existing = _find_run(given, asked["run_id"]) if "run_id" in asked else None
    policy = _policy(given, is_new=existing is None)
    prepared = prepare(
        asked,
        _config(settings, found, {STEPS: steps, SEED: seed}),
        # The code that a branch inherits has its source's version, but for this package's.
        read_code_version(given.root) if found is None else found,
        family=_family(found, origin),
        origin=origin,
        policy=policy,
        otherwise=_otherwise(asked, found, origin, existing),
        is_limited="stage" not in ctx.params,  # `tracks smoke` and `tracks canary` have their own
    )
    sources = {"branched_from": branch_at, "archive": trainer, "snapshot_id": data}
    chosen = {*asked, *(name for name, value in sources.items() if value is not None)}
    prepared = _checked(given, prepared, policy, data, existing, chosen=chosen)
    result = _followed(given, prepared, data, wait_s=wait_s)
    print_outcome(result, as_json=as_json)
    is_good = result["state"] == RunLifecycle.SUCCEEDED and not problem_of(result)
    ctx.exit(0 if is_good and result.get("stage_passed", True) else BAD_NEWS)


def _of_stage(stage: str, summary: str) -> click.Command:
    """Return `tracks run` with the limits of a stage."""

    def run(**options: Any) -> Any:
        return cast(Any, run_command.callback)(stage=stage, **options)

    params = [each for each in run_command.params if each.name != "stage"]
    limits = (
        f"Its limits are those of the stage {stage} in policy.yaml, whatever the profile (`tracks "
        "policy` shows them). Nothing of it is promoted. Its options are those of `tracks run`."
    )
    return click.Command(stage, params=params, callback=run, help=f"{summary}\n\n{limits}")


smoke_command = _of_stage(
    SMOKE, "Run a few steps of a project: does it start, learn, save and evaluate at all?"
)
canary_command = _of_stage(
    CANARY,
    "Run a project on its real data and config for a while: does its loss fall?",
)


def _found_code(
    given: Settings,
    folder: Path | None,
    trainer: Path | None,
    origin: Origin | None,
    *,
    evals: tuple[Path, ...],
    launcher: str | None,
) -> FoundCode | None:
    """Return the code of `_read_code`, and print its remarks.

    Raises InvalidInput or SettingsError.
    """
    found = _read_code(given, folder, trainer, origin, evals=evals, launcher=launcher)
    if evals and found is None:
        raise InvalidInput(
            "--eval measures the code that it lies beside, and a branch takes its source's; run it in "
            "the project's folder, or with --trainer FILE.py."
        )
    for remark in () if found is None else found.remarks:
        click.echo(remark, err=True)
    return found


def _read_code(
    given: Settings,
    folder: Path | None,
    trainer: Path | None,
    origin: Origin | None,
    *,
    evals: tuple[Path, ...],
    launcher: str | None,
) -> FoundCode | None:
    """Return the code of the script or the folder, of an example where there is neither; None for what
    `origin` stored."""
    if folder is not None and trainer is not None:
        raise InvalidInput("--project and --trainer each name what to train; give one of them.")
    clean = partial(redact, secrets=given.secrets)
    if trainer is not None:
        found = read_script_code(trainer, clean=clean, evals=evals)
        return found if origin is None else found.called(origin.family)
    read = partial(
        read_project_code,
        store_url=given.store_url,
        clean=clean,
        evals=evals,
        launcher=launcher,
    )
    home = project_folder(folder)
    if origin is None:
        return read(home or given.examples / DEFAULT_PROJECT)
    if home is not None:
        own: FoundCode = read(home)
        if folder is not None or origin.family == own.project.name:
            return own
    return read(given.examples / origin.family) if origin.is_of_family else None


def _family(found: FoundCode | None, origin: Origin | None) -> str:
    """Return the name of the project whose run it is."""
    if found is not None:
        return found.project.name
    return DEFAULT_PROJECT if origin is None else origin.family


def _otherwise(
    asked: Mapping[str, Any],
    found: FoundCode | None,
    origin: Origin | None,
    existing: RunState | None,
) -> dict[str, Any]:
    """Return what the command gives by itself where nothing else does."""
    family = _family(found, origin)
    day = utc_now().strftime("%Y%m%d")
    return {
        "run_id": new_run_id(family, day=day, new_uid=new_uid),
        "intent": _intent(existing, asked, project=None if found is None else family),
        "owner": person(),
        STEPS_FIELD: None if "checkpoint_every_s" in asked else DEFAULTS[STEPS_FIELD],
    }


def _followed(
    given: Settings, prepared: Prepared, data: Path | None, *, wait_s: float
) -> dict[str, Json]:
    """Declare the run, or take it up, and follow it; return its outcome with the state it ended in."""
    body, run_id, by = prepared.body, prepared.run_id, prepared.body.owner
    app, home = build(given), open_dagster_home(given)
    before = take_up(app, run_id, by=by, intent=body.intent)
    if before is None:
        if body.folder is not None:
            click.echo(f"Project {body.model_family}: the code of {body.folder}", err=True)
        _tell_of_namesake(app, body)
        ensure_snapshots(app, home, datasets_of(prepared.project))
        if data is not None and prepared.snapshot_id is not None:
            ensure_snapshot_of(app, home, _dataset(prepared.project), data, prepared.snapshot_id)
    elif has_other_code(before, prepared):
        click.echo(
            f"{run_id} runs the code that it was declared with, and {body.folder} has other "
            f'code now: `tracks retry {run_id} --code --why "…"` takes that.',
            err=True,
        )
    # Of a run that exists, only what a killed command left undone.
    with continue_hint(run_id):
        policy = _policy(given, is_new=before is None)
        app.declare(prepared, policy)
        shown = before.head.seq + 1 if before is not None else 0
        followed = drive(app, home, run_id, wait_s=wait_s, by=by, shown=shown)
        settle(app.world(policy), JudgeStages(), run_id)
        read = read_outcome(app.tracks, run_id, weights_sha256, by=by)
    judged = app.tracks.run(run_id).judged
    if judged is not None:
        verdict = judged.body
        read |= {
            "stage": verdict.stage,
            "stage_passed": verdict.passed,
            "stage_why": verdict.why,
        }
    return {**read, "state": followed.state}


def _tell_of_namesake(app: App, declared: RunDeclared) -> None:
    """Say it, at the first run from this folder, where another one has a project of that name."""
    rows = app.ledger.query(
        "select project_folder, max(run_id) as run_id from training_runs where model_family = :name "
        "and project_folder is not null group by project_folder order by max(declared_at) desc",
        {"name": declared.model_family},
    )
    if declared.folder in (None, *(row["project_folder"] for row in rows)) or not rows:
        return
    click.echo(
        f"Another folder has a project {declared.model_family} too: {rows[0]['run_id']} is of "
        f"{rows[0]['project_folder']}, this run of {declared.folder}. They are listed, compared and "
        "promoted under one name; give one of them another (name: in its tracks.yaml) unless they "
        "are the same.",
        err=True,
    )


def problem_of(result: Json) -> str | None:
    """Return what keeps the final weights of an outcome from being read, in words, or None."""
    final = result["final"]
    return None if final is None else final["problem"]


def _origin(
    given: Settings, branch_at: str | None, run_id: str | None, attempt_id: int | None
) -> Origin | None:
    """Return what `--from` offers, and say how training was cut off there; writes nothing.

    Raises UnknownRun, NothingYet or InvalidInput.
    """
    if branch_at is None:
        if attempt_id is not None:
            raise InvalidInput(
                "--from-attempt says whose checkpoint --from means; give --from too."
            )
        return None
    tracks = open_tracks_to_read(given)
    origin = find_origin(tracks, branch_at, run_id=run_id, attempt_id=attempt_id)
    if origin.cut_off is not None:
        click.echo(f"{checkpoint_at(origin.ref)}: {origin.cut_off}", err=True)
    return origin


def _checked(
    given: Settings,
    prepared: Prepared,
    policy: RetryPolicy,
    data: Path | None,
    existing: RunState | None,
    *,
    chosen: Collection[str],
) -> Prepared:
    """Check all that needs no home, so that bad input leaves nothing behind.

    Returns it with the snapshot that `data` gives. chosen: names of the fields that a person gave.
    Raises InvalidInput or DataRejected.
    """
    body = prepared.body
    _tell_of_limits(prepared)
    check_place(body.compute.launcher, chosen)
    check_prepared(prepared)
    if existing is None:
        check_queue(body, policy.scheduling)  # a run that exists goes on whatever there is now
        prepared = _with_expectation(given, prepared)
    gang_check(given)(first_gang(body, given.store_url, policy.scheduling))
    check_home(given.home)
    if data is not None:
        frozen = check_source(_dataset(prepared.project), data)
        prepared = replace(prepared, snapshot_id=frozen)
    if existing is not None:
        check_as_declared(existing, prepared, chosen)
    home_is_empty = not given.home.exists() and "://" not in given.store_url
    if data is None and prepared.snapshot_id is not None and home_is_empty:
        raise InvalidInput(
            f"There is no snapshot {prepared.snapshot_id!r}: {given.home} is empty. Leave --snapshot "
            "out, and those of data that ship are made."
        )
    return prepared


def _tell_of_limits(prepared: Prepared) -> None:
    """Say where the steps of a run are cut to those of its stage, or cannot be."""
    project, limits = prepared.project, prepared.limits
    stage, config = prepared.body.stage, prepared.body.config
    if limits is None or limits.steps is None:
        return
    key = roles_of(project.roles, {**project.keys, **config}).get(STEPS)
    if key is None:
        click.echo(
            f"No key of {project.name} has the role steps, so a {stage} cannot be cut to "
            f"{limits.steps} of them, and one that is ended by its time shows nothing. Name the key in "
            "its tracks.yaml: keys: {steps: KEY}.",
            err=True,
        )
    elif config != prepared.uncut:
        click.echo(f"{key} {config[key]}: as many as a {stage} has", err=True)


def _with_expectation(given: Settings, prepared: Prepared) -> Prepared:
    """Return it with what a person at a terminal expects of the run, where that has to be asked."""
    body = prepared.body
    if body.branched_from is None or body.expect is not None or not sys.stdin.isatty():
        return prepared  # without a person `declare` refuses it
    question = ask_expectation(open_tracks_to_read(given), prepared)
    if question is None:
        return prepared
    click.echo(question, err=True)
    expect = click.prompt("You expect", type=RECORDED, err=True)
    return replace(prepared, body=replace(body, expect=expect))


def _policy(given: Settings, *, is_new: bool) -> RetryPolicy:
    """Return the policy; a new run has to meet it, so for one a broken file raises SettingsError."""
    return load_policy(given) if is_new else usable_policy(given)[0]


def _dataset(project: Project) -> str:
    """Return the dataset that `--data` makes a snapshot of; raises InvalidInput for one of its own."""
    if project.dataset is None or project.dataset not in DATASETS:
        raise InvalidInput(
            f"--data makes snapshots of {', '.join(DATASETS)}, and {project.name} trains on "
            f"{project.dataset or 'no dataset'}; `tracks snapshots add` freezes data of your own."
        )
    return project.dataset


def _config(
    settings: tuple[str, ...], found: FoundCode | None, named: Mapping[str, int | None]
) -> dict[str, Json]:
    """Return the config overrides of `--set` and of the options that are called as their role is."""
    roles = {} if found is None else found.project.roles
    own = [f"{roles.get(role, role)}={value}" for role, value in named.items() if value is not None]
    return parse_settings((*settings, *own))


def print_outcome(result: dict[str, Json], *, as_json: bool) -> None:
    """Print how a run went."""
    if as_json:
        print_json_line(result)
        return
    click.echo(f"{result['run_id']}: {result['state']}")
    print_attempts(result)
    if "stage_passed" in result:
        verdict = "passed" if result["stage_passed"] else "did not pass"
        click.echo(f"As a {result['stage']} it {verdict}: {result['stage_why']}.")
    if (problem := problem_of(result)) is not None:
        click.echo(
            f"The final checkpoint, step {result['final']['step']}, cannot be used: {problem}"
        )


def _intent(existing: RunState | None, asked: Mapping[str, Any], *, project: str | None) -> str:
    """Return the intent that was given; else that of the run there is, what a drill is for, or that it
    is a run of that project.

    Raises InvalidInput where a run would be declared that says nothing.
    """
    if "intent" in asked:
        return str(asked["intent"])
    if existing is not None:
        return existing.declared.intent
    if drills := asked.get("drills"):
        return f"Play the drill {', '.join(drills)}."
    if project is not None:
        return f"A run of {project}; {NO_INTENT}."
    raise InvalidInput(
        f"--intent is missing: say in a sentence what the run is for, for example {EXAMPLE}. It "
        "stands in the record, and `tracks search` finds it."
    )


def _find_run(given: Settings, run_id: str) -> RunState | None:
    try:
        return open_tracks_to_read(given).find_run(run_id)
    except (NothingYet, StoreMissing):
        return None


def print_attempts(outcome: Json) -> None:
    """Print the attempts of an outcome (`review.effects.outcome`), a row each."""
    rows = map(_cells, outcome["attempts"])
    print_table(_TITLES, rows, right=_NUMBERS, whole={"ended as"})


def _cells(attempt: Json) -> tuple[str, ...]:
    return (
        str(attempt["attempt_id"]),
        attempt["termination_reason"] or "open",
        str(attempt["resumed_from_step"] or 0),
        _or_dash(attempt["last_step"]),
        str(attempt["kept_steps"]),
        str(attempt["lost_steps"]),
        "–" if attempt["gpu_seconds"] is None else f"{attempt['gpu_seconds']:.1f}",
        _continuity(attempt["continuity"]),
    )


def _continuity(found: Json) -> str:
    if found is None:
        return "–"
    if found["agree"] is None:
        return f"not compared: {found['reason']}"
    more = ", with other code" if found["other_code"] else ""
    if found["agree"]:
        return f"same losses over {counted(found['steps_compared'], 'step')}{more}"
    return f"differs from step {found['first_difference']} on{more}"


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)
