"""The main job (`./run`): a GPT on real text through a preemption and an OOM, to a promoted checkpoint.

Everything is the real thing: real data, the real daemon and its sensors, real processes that are
killed. Only the two faults are played, as drills. It ends by itself and leaves nothing running; each
call is a run of its own.
"""

from __future__ import annotations

import sys
from functools import partial

import click

from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.attempts.effects.preparing import prepare
from tracks_dagster.attempts.effects.runs import declare, new_run_id
from tracks_dagster.cli import BAD_NEWS, fail
from tracks_dagster.cli.common import text_width
from tracks_dagster.cli.explain import write_report_now
from tracks_dagster.cli.start.driving import drive
from tracks_dagster.cli.start.run import WAIT_S, print_attempts, problem_of
from tracks_dagster.cli.start.snapshots import ensure_snapshots
from tracks_dagster.cli.terminal import visible_output
from tracks_dagster.data.effects.datasets.catalog import DATASETS
from tracks_dagster.projects.effects.registered import DEFAULT_PROJECT
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.review.effects.explain.run import ExplainContext, explain_attempt
from tracks_dagster.review.effects.outcome import read_outcome
from tracks_dagster.review.explain.summary import attempt_summary
from tracks_dagster.settings import Settings, person
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.text.redact import redact
from tracks_dagster.training.saves.manifest import weights_sha256
from tracks_dagster.wiring import App, build, new_uid, open_dagster_home, utc_now

STEPS = 120
CHECKPOINT_EVERY_STEPS = 20
DRILLS = (
    "preempt@47,grace=0",  # after the checkpoint of step 40: steps 41 to 47 are lost
    "gpu_oom@90",  # after the checkpoint of step 80: steps 81 to 89 are lost
)

STORY = f"""\
The main job: a small GPT learns English from the documentation of AWS's services, on this machine.
After step 47 its machine is taken away without warning, and in step 90 its device runs out of memory.
The preemption is a drill: a disruption condition as a control plane leaves it, then SIGKILL.
The OOM is a drill too: torch.OutOfMemoryError is raised while the micro-batch is above half of what
the run began with; on a CPU build that is how it is played.
The sensors retry both within their budgets. {STEPS} steps, a checkpoint every \
{CHECKPOINT_EVERY_STEPS}.
"""


def main() -> None:
    """Run the main job and exit with 0 when the run succeeded."""
    try:
        with visible_output():
            sys.exit(run_main_job())
    except TracksError as error:
        sys.exit(fail(error))
    except KeyboardInterrupt:
        sys.exit(BAD_NEWS)


def run_main_job() -> int:
    """Run the whole story; return the exit code."""
    settings = Settings.from_environment()
    clean = partial(redact, secrets=settings.secrets)
    found = read_project_code(
        settings.examples / DEFAULT_PROJECT, store_url=settings.store_url, clean=clean
    )
    name = found.project.name
    prepared = prepare(
        {
            "run_id": new_run_id(name, day=utc_now().strftime("%Y%m%d"), new_uid=new_uid),
            "intent": "The main job: survive a preemption and an OOM, and be promoted.",
            "owner": (by := person()),
            "checkpoint_every_steps": CHECKPOINT_EVERY_STEPS,
            "drills": DRILLS,
        },
        {"steps": STEPS},
        found,
        family=name,
        origin=None,
        policy=DEFAULT_POLICY,
        otherwise={},
    )
    run_id = prepared.run_id
    click.echo(STORY)
    app, home = build(settings), open_dagster_home(settings)
    with home.daemon():  # it starts while the snapshots are made
        ensure_snapshots(app, home, list(DATASETS))
        declare(app.tracks, prepared)
        followed = drive(app, home, run_id, wait_s=WAIT_S, by=by)
    outcome = read_outcome(app.tracks, run_id, weights_sha256, by=by)
    _print_outcome(app, {**outcome, "state": followed.state})
    is_good = followed.state == RunLifecycle.SUCCEEDED and not problem_of(outcome)
    return 0 if is_good else BAD_NEWS


def _print_outcome(app: App, outcome: Json) -> None:
    """Print the attempts, why the one that ran out of memory ended, and where the report is."""
    run_id = outcome["run_id"]
    click.echo()
    print_attempts(outcome)
    for attempt in outcome["attempts"]:
        if attempt["termination_reason"] == TerminationReason.GPU_OOM:
            attempt_id = attempt["attempt_id"]
            click.echo(f"\n$ tracks explain {attempt_key(run_id, attempt_id)}")
            explain_context = ExplainContext(rules=app.usable_rules()[0])
            attempt = explain_attempt(app.tracks, run_id, attempt_id, explain_context)
            click.echo(attempt_summary(attempt, width=text_width()))
    promotion = outcome["promotion"]
    promoted = f", promoted to {promotion['alias']!r}" if promotion else ""
    click.echo(f"\n{run_id}: {outcome['state']}{promoted}")
    if (problem := problem_of(outcome)) is not None:
        click.echo(f"The final checkpoint cannot be used: {problem}")
    click.echo(f"Report: {write_report_now(app, run_id)}")
    click.echo("To look around: ./run ui")


if __name__ == "__main__":
    main()
