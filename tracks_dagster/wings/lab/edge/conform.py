"""`tracks conform`: interrupt a trainer at many steps, resume it, and name what it does not restore."""

from __future__ import annotations

import json
import platform
import shlex
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

import click

from tracks_dagster.attempts.effects.local.project_code import (
    project_folder,
    read_project_code,
    read_script_code,
)
from tracks_dagster.attempts.effects.preparing import Prepared
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.attempts.run_config import check_ranks
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, parse_settings, print_json, text_width
from tracks_dagster.data.effects.datasets.catalog import DATASETS
from tracks_dagster.data.effects.snapshots import make_snapshot
from tracks_dagster.projects.effects.certificates import certify
from tracks_dagster.projects.effects.registered import DEFAULT_PROJECT, find_registered
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.settings import Settings, person
from tracks_dagster.track.bodies import CONFORM
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import dataset_track
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.roles import LOADER_WORKERS, STEPS, key_of, value_of
from tracks_dagster.track.text.redact import redact
from tracks_dagster.training.projects.code import is_python
from tracks_dagster.wings.lab.conformance.effects.conforming import (
    Plan,
    Trials,
    conform,
    prepared_of,
)
from tracks_dagster.wings.lab.conformance.report import Conformance, Judged
from tracks_dagster.wiring import App, build

STEPS_DEFAULT, STEPS_MIN = 12, 6
TIME_LIMIT_S = 600.0
WORKERS = (0, 2)
TOLERANCE_MAX = 0.1
ENDS = (signal.SIGTERM, signal.SIGHUP)
DATA_BYTES_MAX = 2 * 1024**3  # of a dataset that the trials' home gets a copy of


@click.command("conform")
@click.argument("project", metavar="[PROJECT]", required=False)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change the config.")
@click.option(
    "--steps", type=int, default=STEPS_DEFAULT, show_default=True, help="Steps of each run."
)
@click.option("--ranks", type=int, help="Try so many ranks beside one; default: the project's.")
@click.option(
    "--tolerance",
    type=float,
    default=0.0,
    help="Take numbers as the same within this share; default: to the bit.",
)
@click.option(
    "--time-limit",
    type=float,
    default=TIME_LIMIT_S,
    show_default=True,
    metavar="SECONDS",
    help="Start no trial after that, and end the one that runs.",
)
@as_json
@click.pass_context
def conform_command(
    ctx: click.Context,
    project: str | None,
    settings: tuple[str, ...],
    steps: int,
    ranks: int | None,
    tolerance: float,
    time_limit: float,
    as_json: bool,
) -> None:
    """Certify a trainer: interrupt it at many steps, resume it, and compare.

    PROJECT is a project's folder, its name, or one script; default: the folder you are in. It is
    trained undisturbed, then with SIGTERM and SIGKILL at several steps and during a save, resumed in
    new processes, on one rank and on its own number, and without and with loader workers where its
    config has such a key. Samples, losses, learning rates and checkpoints are compared.

    All of it runs on this machine, in a folder of its own. The report is kept in TRACKS_HOME/conform,
    and a certificate of this code is recorded. Exit code 1 where something was found.
    """
    if steps < STEPS_MIN:
        raise InvalidInput(f"--steps {steps} is too few to interrupt; use {STEPS_MIN} or more.")
    if not 0.0 <= tolerance <= TOLERANCE_MAX:
        raise InvalidInput(
            f"--tolerance {tolerance:g} would let everything pass; use 0 (to the bit) to "
            f"{TOLERANCE_MAX:g}."
        )
    if not time_limit > 0:
        raise InvalidInput(f"--time-limit {time_limit:g} is not a time; use more than 0.")
    if ranks is not None:
        check_ranks(ranks)
    given = Settings.from_environment()
    found = _find(given, project)
    prepared = prepared_of(found, parse_settings(settings), steps=steps, owner=person())
    plan = _plan(prepared, ranks, tolerance=tolerance, time_limit_s=time_limit)
    home = build(given)  # first: where nothing can be recorded, nothing is tried
    with (
        _ended_by_signals(),
        tempfile.TemporaryDirectory(prefix="tracks-conform-", ignore_cleanup_errors=True) as folder,
    ):
        app = build(_scratch(given, Path(folder)))
        _bring_data(home, app, found.project.dataset)
        trials = Trials(
            world=app.world(DEFAULT_POLICY),
            home=app.settings.home,
            prepared=prepared,
        )
        done = conform(
            trials,
            plan,
            project=found.project.name,
            code_sha256=sha256_hex(found.archive),
            progress=_show,
        )
    asked = [f"--set={each}" for each in settings]
    asked += [f"--tolerance={tolerance:g}"] if tolerance else []
    path = _keep(home, done, shlex.join(["tracks", "conform", f"--steps={steps}", *asked]))
    if as_json:
        print_json({**done.to_json(), "report": str(path)})
    else:
        click.echo()
        for line in done.lines(text_width()):
            click.echo(line)
        click.echo(f"\nReport: {path}")
    ctx.exit(0 if done.is_green else BAD_NEWS)


_NO_STEPS = (
    "no key of its config says how many steps it trains, so --steps changed nothing: name one in "
    "tracks.yaml (keys: {steps: NAME}), make it smaller by --set"
)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this as Ctrl-C does: gangs are killed, and the folder is removed.

    A second one changes nothing. One that is ignored already, as below nohup, stays so.
    """

    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        came.append(number)
        raise SystemExit(128 + number)  # as shells have it

    ours = [each for each in ENDS if signal.getsignal(each) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if came:
            name = signal.Signals(came[0]).name
            click.echo(f"Ended by {name}: what was tried so far is not recorded.", err=True)


def _find(given: Settings, project: str | None) -> FoundCode:
    """Return the code of a folder, a script, a project by name, or of the folder of the caller."""
    clean = partial(redact, secrets=given.secrets)
    place = None if project is None else Path(project)
    if place is not None and place.suffix == ".py":
        return read_script_code(place, clean=clean)
    if place is not None and not place.exists():
        place = find_registered(given.home, given.examples, str(project)).folder
    folder = project_folder(place) or given.examples / DEFAULT_PROJECT
    return read_project_code(folder, store_url=given.store_url, clean=clean)


def _plan(prepared: Prepared, ranks: int | None, *, tolerance: float, time_limit_s: float) -> Plan:
    project = prepared.project
    keys = {name: key.default for name, key in project.keys.items()}
    has_workers = key_of(keys, project.roles, LOADER_WORKERS) is not None
    steps = value_of(prepared.body.config, project.roles, STEPS)
    has_steps = key_of(keys, project.roles, STEPS) is not None
    return Plan(
        ranks=tuple(dict.fromkeys((1, project.value("ranks") if ranks is None else ranks))),
        workers=WORKERS if has_workers else (None,),
        has_faults=not project.by_files or is_python(project.entry),
        tolerance=tolerance,
        time_limit_s=time_limit_s,
        steps=steps if isinstance(steps, int) else None,
        shorter="give fewer --steps" if has_steps else _NO_STEPS,
    )


def _scratch(given: Settings, folder: Path) -> Settings:
    """Return the settings of a home of its own, whatever the environment has."""
    own = Settings.from_environment({"TRACKS_HOME": str(folder / "home")})
    return replace(own, secrets=given.secrets, sockets=folder / "warm", visible=given.visible)


def _bring_data(home: App, app: App, dataset: str | None) -> None:
    """Copy the dataset's snapshots into the trials' home; make those that ship where there are none.

    Raises InvalidInput for a dataset without a snapshot, and for one that is too large.
    """
    if dataset is None:
        return
    total = 0
    for key in home.store.list(f"{dataset_track(dataset)}/"):
        data = home.store.get(key) or b""
        total += len(data)
        if total > DATA_BYTES_MAX:
            raise InvalidInput(
                f"{dataset} has more than {DATA_BYTES_MAX} bytes, which would be copied; name a "
                "smaller dataset in tracks.yaml for this."
            )
        app.store.create(key, data)
    if total:
        return
    if dataset not in DATASETS:
        raise InvalidInput(
            f"There is no snapshot of {dataset}; `tracks snapshots add {dataset} PATH` freezes one."
        )
    make_snapshot(app.tracks, app.datasets, dataset)


def _show(judged: Judged, number: int, planned: int) -> None:
    """Print one trial as it ends."""
    names = ", ".join(each.name for each in judged.findings) or "no finding"
    seen = judged.seen
    click.echo(f"{number}/{planned} {seen.trial}: {names} ({seen.seconds:.1f} s)", err=True)


def _keep(app: App, done: Conformance, scope: str) -> Path:
    """Write the report's two files, and record the certificate; return the text's path.

    scope: what was asked for.
    """
    report = json.dumps(done.to_json(), indent=2).encode()
    record = certify(
        app.tracks,
        what=CONFORM,
        code_sha256=done.code_sha256,
        project=done.project,
        passed=done.passed,
        failed=done.failed,
        left_out=len(done.left_out),
        findings=tuple(done.findings),
        scope=scope,
        report=report,
        by=person(),
        where=platform.node(),
    )
    folder = app.settings.home / "conform"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{done.project}-{record.seq:04d}-{done.code_sha256[:12]}.txt"
    path.write_text("\n".join(done.lines()) + "\n", encoding="utf-8")
    path.with_suffix(".json").write_bytes(report)
    return path
