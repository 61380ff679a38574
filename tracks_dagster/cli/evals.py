"""`tracks eval`, `waive` and `promote`: evals of a checkpoint, and the alias that they earn it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from tracks_dagster.attempts.effects.heartbeat import describe_age, read_heartbeat
from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.attempts.run_config import refuse_secrets
from tracks_dagster.checkpoints.retention import best_of
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    added_option,
    as_json,
    attempt_option,
    by_option,
    code_option,
    cut_off_option,
    deciding_options,
    named_checkpoint,
    open_app,
    parse_run_and_step,
    print_answer,
    print_json,
    project_of_code,
    run_argument,
)
from tracks_dagster.data.effects.snapshots import find_snapshot
from tracks_dagster.evals.effects.promoting import promote
from tracks_dagster.evals.effects.running import BroughtCode, RequestedEval, ask_for_evals, waive
from tracks_dagster.holds.effects.starts import refuse_code
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.projects.effects.project_file import read_eval_version
from tracks_dagster.projects.project import ALIAS, OwnEval, Project, requirement_of
from tracks_dagster.review.effects.bundle import check_bundle, describe_bundle, write_bundle
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import EvalRequirement
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import check_run_id
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.run_state import RunState, find_at
from tracks_dagster.track.text.redact import redact
from tracks_dagster.track.text.safe_text import check_words


@click.command("eval")
@click.argument("at", metavar="RUN@STEP")
@click.option("--suite", help="Only this suite; default: each that the run requires.")
@click.option("--seed", type=click.IntRange(min=0), help="Another seed than the required one.")
@code_option
@attempt_option
@click.option("--why", default="", help="Why, in words; it is recorded.")
@by_option
@as_json
def eval_command(
    at: str,
    suite: str | None,
    seed: int | None,
    folder: Path | None,
    attempt: int | None,
    why: str,
    by: str,
    as_json: bool,
) -> None:
    """Ask for an eval of the checkpoint RUN@STEP, or RUN's last; the daemon's run_evals runs it.

    An eval that runs already, or is done with that seed, is shown and not asked for again. With evals
    of several seeds `tracks diff` shows how much the seed alone changes. A scorer (`of:` in
    tracks.yaml) can be asked for when the eval that it is of is done. With --code the scorers of the
    project as it is now score what an eval of the run left before; no promotion rests on that.
    """
    check_words({"by": by, **({"why": why} if why else {})})
    tracks = open_app().tracks
    state, checkpoint = named_checkpoint(tracks, at, attempt)
    ref = checkpoint.ref
    brought = None if folder is None else _bring(tracks, state, folder, suite)
    asked = ask_for_evals(tracks, ref, by=by, why=why, suite=suite, seed=seed, brought=brought)
    nobody = describe_age(read_heartbeat(tracks.store), tracks.now())
    if as_json:
        print_json([to_json(each) for each in asked])
        return
    for each in asked:
        click.echo(_describe_eval(ref.run_id, each))
    for left_out in () if suite or brought else _scorers_left_out(state, asked):
        click.echo(left_out, err=True)
    if nobody is not None and any(each.ended is None for each in asked):
        click.echo(f"It waits: {nobody}.", err=True)


def _bring(tracks: Tracks, state: RunState, folder: Path, suite: str | None) -> BroughtCode:
    """Return the scorers of the project in `folder`, each of an eval that the run declared."""
    given, home = Settings.from_environment(), project_of_code(folder)
    clean = partial(redact, secrets=given.secrets)
    found = read_project_code(home, store_url=given.store_url, clean=clean)
    for remark in found.remarks:
        click.echo(remark, err=True)
    doing = f"{state.run_id} cannot be scored by the code of {home}"
    refuse_code(tracks, found.code, sha256_hex(found.archive), doing=doing)
    scorers = [e for e in found.project.evals if e.of is not None and suite in (None, e.name)]
    refuse_secrets({"evals": [" ".join(each.entry) for each in scorers]}, tracks.clean)
    return BroughtCode(
        scorers=tuple(_scorer(tracks, state, found.project, each, home) for each in scorers),
        archive=found.archive,
        code=found.code,
    )


def _scorer(
    tracks: Tracks, state: RunState, project: Project, scorer: OwnEval, home: Path
) -> EvalRequirement:
    source = next((each for each in state.declared.evals if each.suite == scorer.of), None)
    if source is None:
        has = ", ".join(each.suite for each in state.declared.evals) or "none"
        raise InvalidInput(
            f"{scorer.name} scores {scorer.of}, and {state.run_id} was declared with no such eval; it "
            f"has: {has}. --suite NAME brings one scorer alone."
        )
    snapshot = source.snapshot
    if scorer.dataset != (None if snapshot is None else snapshot.dataset):
        snapshot = None if scorer.dataset is None else find_snapshot(tracks, scorer.dataset)
    version = read_eval_version(scorer.entry, home, of=source.suite_version)
    return requirement_of(project, replace(scorer, version=version), snapshot, seed=source.seed)


def _scorers_left_out(state: RunState, asked: Sequence[RequestedEval]) -> Iterator[str]:
    suites = {each.opened.suite for each in asked}
    for each in state.declared.evals:
        if each.suite not in suites:
            yield f"{each.suite} is left out until {each.of} is done, whose files it scores."


def _describe_eval(run_id: str, asked: RequestedEval) -> str:
    opened = asked.opened
    name = f"{opened.eval_id} of {run_id}, seed {opened.seed}"
    if asked.is_new:
        shown = f"`tracks explain {run_id} --full` shows what it measures"
        return f"Asked for {name}: attempt {opened.number}; {shown}."
    if asked.ended is None:
        return f"{name} is under way: attempt {opened.number}. Nothing was written."
    metrics = ", ".join(
        f"{metric} {value:.6g}" for metric, value in sorted(asked.ended.metrics.items())
    )
    return f"{name} is done: {metrics}. Nothing was written; --seed N measures with another seed."


@click.command("waive")
@run_argument
@click.argument("suite")
@deciding_options
def waive_command(run_id: str, suite: str, why: str, by: str, as_json: bool) -> None:
    """Give the required eval SUITE of RUN up, so that the run can finish without it."""
    check_words({"why": why, "by": by})
    app = open_app()
    waived = waive(
        app.tracks,
        check_run_id(run_id),
        suite,
        by=by,
        why=why,
        governance=app.policy.contracts.governance,
    )
    print_answer(
        f"{run_id} may finish without {waived.suite}; it cannot be promoted on it.",
        {"run_id": run_id, **to_json(waived)},
        as_json=as_json,
    )


@click.command("promote")
@click.argument("target", metavar="RUN[@STEP]")
@click.option("--alias", default=ALIAS, show_default=True, help="The alias to give.")
@click.option(
    "--best",
    "is_best",
    is_flag=True,
    help="The best checkpoint by the metric of the run's retention, in the place of the final one.",
)
@click.option(
    "--bundle",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Make this folder of it too, to hand over (`tracks checkpoints export --bundle`).",
)
@added_option
@cut_off_option
@deciding_options
@click.pass_context
def promote_command(
    ctx: click.Context,
    target: str,
    alias: str,
    is_best: bool,
    bundle: Path | None,
    added: tuple[Path, ...],
    then: Callable[[Path], None] | None,
    may_be_cut_off: bool,
    why: str,
    by: str,
    as_json: bool,
) -> None:
    """Promote the final checkpoint of RUN, the newest one of STEP, or with --best the best one."""
    check_words({"alias": alias, "why": why, "by": by})
    if (added or then) and bundle is None:
        raise InvalidInput("--add and --then complete a bundle: name its folder by --bundle DIR.")
    run_id, step = parse_run_and_step(target)
    app = open_app()
    tracks = app.tracks
    if is_best and step is not None:
        raise InvalidInput(f"{target} names a step, and --best finds one; give one of them.")
    state = tracks.run(run_id)
    ref = _find_best(state) if is_best else _find_checkpoint(state, step)
    if bundle is not None:
        check_bundle(bundle, added)
    decided = promote(app, ref, alias=alias, by=by, why=why, may_be_cut_off=may_be_cut_off)
    verb = "Promoted" if decided.promoted else "Did not promote"
    sentence = f"{verb} step {ref.step} of {run_id} to {alias}: {decided.why}"
    answer = to_json(decided)
    if bundle is not None and decided.promoted:
        state = tracks.run(run_id)
        checkpoint = find_at(state, ref.step, attempt_id=ref.attempt_id)
        made = write_bundle(tracks, app.ledger, state, checkpoint, bundle, added=added, then=then)
        sentence, answer = (
            f"{sentence} {describe_bundle(made)}",
            {**answer, "bundle": to_json(made)},
        )
    print_answer(sentence, answer, as_json=as_json)
    ctx.exit(0 if decided.promoted else BAD_NEWS)


def _find_best(state: RunState) -> CheckpointRef:
    best, metric = best_of(state), state.declared.retention.metric
    if best is None:
        known = sorted({name for each in state.checkpoints for name in each.body.metrics})
        raise InvalidInput(
            f"No checkpoint of {state.run_id} has {metric}, by which its retention finds the best; "
            f"they have: {', '.join(known) or 'no metric'}. Name a step: {state.run_id}@STEP."
        )
    return best.ref


def _find_checkpoint(state: RunState, step: int | None) -> CheckpointRef:
    candidates = [ref for ref in state.resumable if step is None or ref.step == step]
    if not candidates:
        steps = ", ".join(str(ref.step) for ref in state.resumable) or "none"
        raise InvalidInput(
            f"Training run {state.run_id} has no committed checkpoint of step {step}; "
            f"it has: {steps}."
        )
    return resume_target(candidates)
