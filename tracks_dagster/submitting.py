"""Submit a run or a study: from a project and what somebody gives to what is declared, no further.

What `tracks submit`, `tracks tune` and the client share. A run that exists is the same run where the
same is asked for, so that a caller whose answer was lost may ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tracks_dagster.attempts.effects.branches import Origin, find_origin
from tracks_dagster.attempts.effects.local.checkout import read_code_version
from tracks_dagster.attempts.effects.local.git_source import PREFIX, fetched, parse_git_source
from tracks_dagster.attempts.effects.local.project_code import (
    project_folder,
    read_project_code,
    read_script_code,
)
from tracks_dagster.attempts.effects.preparing import Prepared, prepare
from tracks_dagster.attempts.effects.redeclared import check_as_declared
from tracks_dagster.attempts.effects.runs import check_prepared, new_run_id
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.attempts.run_config import check_is_on_cluster
from tracks_dagster.home.stored_projects import code_of, find_project
from tracks_dagster.retry.submission import NO_INTENT
from tracks_dagster.settings import load_prices
from tracks_dagster.studies.effects.declaring import Door, declare_study
from tracks_dagster.studies.effects.study_file import StudyFile
from tracks_dagster.track.declared_fields import CADENCE, DEFAULTS, NAMES, PLACE, RETENTION
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import LOCAL, check_run_id
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.wiring import App

KEY_DIGITS = 12  # of a run id that follows from a key
STEPS, SECONDS = (each.name for each in CADENCE)
BY_POLICY = frozenset({"max_cost", *(each.name for each in RETENTION)})
_COMPARED = NAMES - BY_POLICY  # the policy may have changed since


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The run that was asked for. is_new: this call declared it."""

    run_id: str
    is_new: bool


def submit(
    app: App,
    project: str | Path | None,
    fields: Mapping[str, Any],
    *,
    config: Mapping[str, Json],
    by: str,
    key: str | None = None,
    branch_from: str | None = None,
    branch_from_attempt: int | None = None,
    remark: Callable[[str], object],
) -> Submitted:
    """Declare a run and open its first attempt; the daemon of the store does the rest.

    project: a folder with a tracks.yaml, a script, or the name of a project that was added; None for a
    branch with the code that its source stored. fields: of `track.declared_fields`, by name. key:
    what asks, from which the id follows where none is given: the same asks for the same run.
    branch_from: RUN@STEP. remark: called with what a person should know of the code. Idempotent with a
    `run_id` or a key. Raises InvalidInput, for a run of that id that is another too.
    """
    for name in fields:
        if name not in NAMES:
            raise InvalidInput(
                f"{unknown('field of a run', name, sorted(NAMES))} See docs/client.md."
            )
    if branch_from is None and branch_from_attempt is not None:
        raise InvalidInput(
            "branch_from_attempt says whose checkpoint branch_from means; give both."
        )
    origin = None
    if branch_from is not None:
        origin = find_origin(
            app.tracks,
            branch_from,
            run_id=fields.get("run_id"),
            attempt_id=branch_from_attempt,
        )
    launcher = fields.get("launcher")
    found = find_code(app, project, origin, launcher=launcher)
    by_project = LOCAL if found is None else found.project.value("launcher")
    of_cluster = [each.name for each in PLACE if each.name in fields]
    check_is_on_cluster(launcher or by_project, of_cluster)
    for words in () if found is None else found.remarks:
        remark(words)
    family = found.project.name if found is not None else origin.family if origin else ""
    run_id = check_run_id(fields.get("run_id") or _new_id(app, family, key))
    existing = app.tracks.find_run(run_id)
    policy = app.policy if existing is None else app.usable_policy()[0]
    prepared = prepare(
        {**fields, "run_id": run_id},
        config,
        # The code that a branch inherits has its source's version, but for this package's.
        read_code_version(app.settings.root) if found is None else found,
        family=family,
        origin=origin,
        policy=policy,
        otherwise={
            "intent": f"A run of {family}; {NO_INTENT}.",
            "owner": by,
            STEPS: None if SECONDS in fields else DEFAULTS[STEPS],
        },
    )
    if existing is not None:
        _check_is_same(existing, prepared, fields)
    app.declare(prepared, policy)
    _check_is_same(app.tracks.run(run_id), prepared, fields)  # somebody may have been faster
    return Submitted(run_id=run_id, is_new=existing is None)


def _new_id(app: App, family: str, key: str | None) -> str:
    if key is not None:
        return f"{family}-{sha256_hex(key.encode())[:KEY_DIGITS]}"
    return new_run_id(family, day=f"{app.now():%Y%m%d}", new_uid=app.new_uid)


def tune(
    app: App,
    found: FoundCode,
    asked: StudyFile,
    *,
    by: str,
    remark: Callable[[str], object],
) -> StudyState:
    """Declare a study over the project that was found, or take up that of its name; the daemon of the
    store does the rest. Raises as `declare_study`."""
    policy = app.policy
    plan = partial(app.plan, policy=policy)
    door = Door(
        tracks=app.tracks,
        ledger=app.ledger,
        policy=policy,
        plan=plan,
        prices=partial(load_prices, app.settings),
        remark=remark,
    )
    return declare_study(door, asked, found, by=by)


def find_code(
    app: App, project: str | Path | None, origin: Origin | None, *, launcher: str | None
) -> FoundCode | None:
    """Return the code that is submitted; None for what the source of a branch stored.

    A text is a name, unless it has a slash, is ".", ends in .py or begins with git+. Raises
    InvalidInput.
    """
    read = partial(read_project_code, store_url=app.store.url, clean=app.redact, launcher=launcher)
    if project is None and origin is None:
        raise InvalidInput(
            "No project is named; give its folder, a script, or the name of one that was added "
            "(`tracks projects list`)."
        )
    if project is None:
        is_of_family = origin is not None and origin.is_of_family
        return read(app.settings.examples / origin.family) if origin and is_of_family else None
    if isinstance(project, str) and project.startswith(PREFIX):
        source = parse_git_source(project)
        with fetched(source) as folder:
            return replace(read(folder), folder=source.place)
    path = Path(project)
    if path.suffix == ".py":
        script = read_script_code(path, clean=app.redact)
        return script if origin is None else script.called(origin.family)
    if isinstance(project, Path) or "/" in project or project in (".", ".."):
        here = project_folder(path)
        assert here is not None, "one that was named is there, or refused"
        return read(here)
    settings = app.settings
    return code_of(
        app.tracks,
        find_project(app.tracks, settings.home, settings.examples, project),
        launcher=launcher,
    )


def _check_is_same(state: RunState, prepared: Prepared, fields: Mapping[str, Any]) -> None:
    """Raise InvalidInput where the run of that id is not what is asked for: what was left out counts
    as asked for too."""
    whole = replace(prepared, uncut=check_prepared(prepared))
    check_as_declared(state, whole, {*_COMPARED, *fields, "archive", "branched_from"})
