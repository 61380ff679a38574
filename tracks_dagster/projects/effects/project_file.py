"""A folder's `tracks.yaml`: the project that it trains, every problem of the file with its line.

    version: 1
    name: tiny-gpt
    entry: train.py --lr={lr}           # or: -m package.module, ./train.sh {config}
    config:                             # or a file of the folder: config.yaml, .json or .toml
      lr: 3e-4
      batch_size: {default: 8, low: 1, high: 512, meaning: samples of one forward pass}
      max_iters: 1000
    keys: {micro_batch: batch_size, steps: max_iters}
    checkpoint: {every_steps: 100, every: 10min}
    evals:
      quality: evaluate.py              # its function evaluate(checkpoint_folder, data_folder)
      speed: {run: "./speed.sh {checkpoint}", every: 3, required: true}
      rouge: {run: score.py, of: quality}  # its function evaluate(scored_folder, data_folder)
    promotion: {eval: quality, metric: accuracy, at_least: 0.9, better_by: 0.01}
    dataset: corpus
    schedule: {cron: "0 3 * * 1", timezone: Europe/Berlin, only_if: snapshot differs}

A config file may be nested: its keys are joined with dots, `model.layers`. The ranks find
it in its place with the run's own values, nested as it was; `{config}` in the entry is its path.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError, create_model

from tracks_dagster.checkpoints.retention import check_rule
from tracks_dagster.projects.effects.config_file import read_config
from tracks_dagster.projects.project import (
    ALIAS,
    CONFIG_NAME,
    EVAL_FOLDERS,
    OUR_KEYS,
    SCORER_FOLDERS,
    ConfigKey,
    OwnEval,
    Project,
    check_value,
    eval_version,
    module_of,
    names_config,
    parse_entry,
    script_of,
    step_pattern,
    unknown_placeholders,
)
from tracks_dagster.projects.project_assets import (
    ProjectAssets,
    read_aliases,
    read_group,
    read_kinds,
    read_owners,
    read_tags,
    read_upstream,
)
from tracks_dagster.projects.schedule import Schedule, check_cron
from tracks_dagster.track.bodies import (
    ComputeRequest,
    PromotionRule,
    RetentionRule,
    RunDeclared,
)
from tracks_dagster.track.declared_fields import CADENCE, KEYED, LAUNCHER, RETENTION, Kind
from tracks_dagster.track.declared_fields import Field as Row
from tracks_dagster.track.effects.settings_file import (
    LEFT_OUT,
    FileModel,
    SettingsFile,
    open_settings,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import ROLES, roles_of
from tracks_dagster.track.text import units
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import shown
from tracks_dagster.wing import launchers

FILE = "tracks.yaml"
# In a user's Dagster project a component's file may take its place: its attributes are the same keys.
COMPONENT_FILE = "defs.yaml"
COMPONENT = "tracks_dagster.components.TrainedProject"
OF_DEPLOYMENT = ("prefix", "datasets")  # attributes that are not keys of the project
VERSION = 1  # of the file's form
FOLDER = "folder"  # the kind of checkpoint of a trainer that speaks by files and exit codes
COMPONENT_CHARACTERS_MAX = 65536  # of a component's file, in which its type is looked for
_COMPONENT_LINE = re.compile(rf"^type:\s*{re.escape(COMPONENT)}\s*(?:#.*)?$", re.MULTILINE)
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,24}[a-z0-9])?")  # a run's id adds a day and 4 digits
KEYS_MAX = 256  # of a config: it is part of a record
NO_DEVICE = "none"  # of an eval
EVALS_MAX = 8  # of a project: each is a requirement in the record of a run
EVAL_S_LIMIT = 24 * 3600.0  # of one try at an eval: it takes one of the daemon's few places


def find_project(start: Path) -> Path | None:
    """Return the folder of the project that `start` lies in: itself or the nearest above; else None."""
    folder = start.absolute()
    return next((each for each in (folder, *folder.parents) if file_of(each).is_file()), None)


def file_of(folder: Path) -> Path:
    """Return the file that says what the project of a folder is, or where one would lie."""
    component = folder / COMPONENT_FILE
    is_component = not os.path.lexists(folder / FILE) and _names_component(component)
    return component if is_component else folder / FILE


def _names_component(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return _COMPONENT_LINE.search(file.read(COMPONENT_CHARACTERS_MAX)) is not None
    except (OSError, ValueError):  # none is there, or no name of one
        return False


def read_project(folder: Path) -> Project:
    """Return the project of `folder`; raises SettingsError with all that is wrong with its file."""
    path = file_of(folder)
    file = open_settings(path, "The project file")
    if path.name == COMPONENT_FILE:
        file = _attributes(file)
    project = parse_project(file, folder)
    if file.problems or project is None:
        raise file.error()
    return project


def _attributes(file: SettingsFile) -> SettingsFile:
    """Return what the attributes of a component's file say, each with its line."""
    given = file.value.get("attributes") if isinstance(file.value, Mapping) else None
    if not isinstance(given, Mapping):
        file.refuse(("attributes",), "write the keys of the project here, name: and entry: first.")
        return replace(file, value=None)
    lines = {at[1:]: line for at, line in file.lines.items() if at[:1] == ("attributes",)}
    value = {key: value for key, value in given.items() if key not in OF_DEPLOYMENT}
    return replace(file, value=value, lines=lines)


def parse_project(file: SettingsFile, folder: Path) -> Project | None:
    """Return the project; what is wrong is collected in the file. None where nothing can be read."""
    if _is_newer(file):
        return None
    found = file.read(ProjectFile)
    if found is None:
        return None
    keys = _config(found.config, file, folder)
    config_name = found.config if isinstance(found.config, str) else None
    if config_name is None and names_config(found.entry):
        config_name = CONFIG_NAME
    saves = {} if found.checkpoint is None else found.checkpoint.given()
    project = Project(
        name=found.name,
        entry=found.entry,
        keys=keys,
        roles=_roles(found.keys, keys, file),
        config_name=config_name,
        dataset=found.dataset,
        values={
            **_plain_values(found),
            **_cadence(saves, file),
            **_retention(found.given().get("retention"), file),
        },
        by_files="kind" in saves or "watch" in saves,
        watch=saves.get("watch", ()),
        replay_steps=saves.get("replay", 0),
        python=_python(found.python, folder, file),
        evals=_evals(found, folder, file),
        promotion=_promotion(found, file),
        schedule=_schedule(found.schedule, found.dataset, file),
        assets=_assets(found, file),
    )
    entry = project.entry
    for words in (*_entry_problems(entry, folder), *unknown_placeholders(project, entry)):
        file.refuse(("entry",), words)
    for each in project.evals:
        problems = _entry_problems(each.entry, folder)
        folders = EVAL_FOLDERS if each.of is None else SCORER_FOLDERS
        for words in (*problems, *unknown_placeholders(project, each.entry, folders)):
            file.refuse(("evals", each.name), words)
    return project


def project_of_script(script: Path) -> Project:
    """Return the project that one script is without a project file; raises InvalidInput."""
    return Project(name=slug(script.stem, "script"), entry=(script.name,), is_open=True)


def slug(text: str, otherwise: str) -> str:
    """Return a project's name made of `text`, `otherwise` where nothing of it can be in one."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:26].strip("-") or otherwise


def _is_newer(file: SettingsFile) -> bool:
    version = file.value.get("version") if isinstance(file.value, Mapping) else None
    if type(version) is int and version > VERSION:
        file.refuse(
            ("version",),
            f"the file has version {version}, and this tracks-dagster reads version {VERSION}; "
            "update tracks-dagster.",
        )
        return True
    return False


# --- its config -----------------------------------------------------------------------------------


def _config(given: Any, file: SettingsFile, folder: Path) -> dict[str, ConfigKey]:
    """Return the keys; problems are collected."""
    if given is None:
        return {}
    if isinstance(given, str):
        try:
            found = read_config(folder, given)
        except ValueError as error:
            file.refuse(("config",), str(error))
            return {}
        return _few({name: ConfigKey(default=value) for name, value in found.items()}, file)
    keys = {}
    for name, value in given.items():
        try:
            keys[name] = _key(name, value, file)
        except (ValueError, InvalidInput) as error:
            file.refuse(("config", name), str(error))
    return _few(keys, file)


def _few(keys: dict[str, ConfigKey], file: SettingsFile) -> dict[str, ConfigKey]:
    if len(keys) > KEYS_MAX:
        file.refuse(("config",), f"it has {len(keys)} keys; at most {KEYS_MAX} fit a record.")
    return keys


def _key(name: str, value: Json, file: SettingsFile) -> ConfigKey:
    """Return the key that is written as its default, or as a mapping with one."""
    if not isinstance(value, Mapping):
        return _fitting(name, ConfigKey(default=check_value(name, value)))
    try:
        found = _KeyFile.model_validate(value)
    except ValidationError as error:
        for each in error.errors():
            file.refuse(("config", name, *each["loc"]), each["msg"])
        return ConfigKey(default=None)
    key = ConfigKey(default=check_value(name, found.default), **_without_default(found))
    return _fitting(name, key)


def _fitting(name: str, key: ConfigKey) -> ConfigKey:
    """Return the key if its own default is valid, by its own rules and by ours for a key of ours."""
    if key.default is not None:
        key.check(name, key.default)
        if (ours := OUR_KEYS.get(name)) is not None:
            return replace(ours, default=ours.check(name, key.default))
    return key


def _without_default(found: _KeyFile) -> dict[str, Any]:
    return {name: value for name, value in found.given().items() if name != "default"}


# --- the rest of the file -------------------------------------------------------------------------


def _roles(
    given: Mapping[str, str], keys: Mapping[str, ConfigKey], file: SettingsFile
) -> dict[str, str]:
    for role, key in given.items():
        if key not in keys:
            file.refuse(("keys", role), unknown("config key", key, list(keys)))
    return roles_of(given, keys)


def _plain_values(found: FileModel) -> dict[str, Any]:
    """Return the values of the keys that are fields of a declaration as they are."""
    given = found.given()
    return {row.name: given[row.name] for row in KEYED if given.get(row.name) is not None}


def _cadence(saves: Mapping[str, Any], file: SettingsFile) -> dict[str, Any]:
    """Return when a run saves: never by our wish where the trainer publishes folders by itself."""
    if "kind" in saves or "watch" in saves:
        if len(saves) > 1:
            words = "such a trainer saves when it likes: leave the rest out."
            file.refuse(("checkpoint",), words)
    elif not any(each.recorded in saves for each in CADENCE):
        return {}
    return {each.name: saves.get(each.recorded) for each in CADENCE}


def _retention(given: FileModel | None, file: SettingsFile) -> dict[str, Any]:
    found = {} if given is None else given.given()
    try:
        check_rule(RetentionRule(**found))
    except InvalidInput as error:
        file.refuse(("retention",), str(error))
    return found


def _evals(found: _OwnKeys, folder: Path, file: SettingsFile) -> tuple[OwnEval, ...]:
    if len(found.evals) > EVALS_MAX:
        file.refuse(("evals",), f"there are {len(found.evals)} evals; at most {EVALS_MAX}.")
    for name, each in found.evals.items():
        for words in _scorer_problems(name, each, found.evals):
            file.refuse(("evals", name, "of"), words)
    return tuple(
        _own_eval(name, each, found, folder, file=file) for name, each in found.evals.items()
    )


def _own_eval(
    name: str, given: _Eval, found: _OwnKeys, folder: Path, *, file: SettingsFile
) -> OwnEval:
    """Return an eval; a scorer is as often due as the eval that it is of, and needs no device."""
    source = found.evals.get(given.of or "")
    of = "" if source is None else read_eval_version(source.run, folder)
    return OwnEval(
        name=name,
        entry=given.run,
        version=read_eval_version(given.run, folder, of=of),
        dataset=given.dataset or found.dataset,
        every=given.every if source is None else source.every,
        is_required=given.required,
        python=_python(given.python, folder, file, at=("evals", name, "python")),
        timeout_s=given.timeout_s,
        needs_device=given.device is None and given.of is None,
        of=given.of,
    )


def _scorer_problems(name: str, given: _Eval, evals: Mapping[str, _Eval]) -> Iterator[str]:
    """Yield why an eval cannot score the files of the one that it is of."""
    source = evals.get(given.of or "")
    others = [other for other, each in evals.items() if other != name and each.of is None]
    if given.of is None:
        return
    if given.of == name:
        yield f"{name} cannot score its own files; write the eval that leaves them: {_listed(others)}."
    elif source is None:
        yield unknown("eval", given.of, others)
    elif source.of is not None:
        yield (
            f"{given.of} is a scorer itself, of {source.of}; write an eval of a checkpoint: "
            f"{_listed(others)}."
        )
    if given.every is not None:
        yield f"it is due whenever {given.of} has completed: leave every: out, or write it there."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "there is none"


def read_eval_version(entry: Sequence[str], folder: Path, *, of: str = "") -> str:
    """Return the version of an eval whose own file is in `folder`. of: as of `eval_version`."""
    script = script_of(entry)
    try:
        content = b"" if script is None else (folder / script).read_bytes()
    except OSError:  # reported as an entry that is not there
        content = b""
    return eval_version(entry, content, of=of)


def _promotion(found: _OwnKeys, file: SettingsFile) -> PromotionRule | None:
    given = found.promotion
    if given is None:
        return None
    suite = given.eval if given.eval is not None else next(iter(found.evals), "")
    if given.eval is None and len(found.evals) != 1:
        file.refuse(
            ("promotion",), "it names no eval; write one of evals:, for example eval: quality."
        )
    elif suite not in found.evals:
        file.refuse(("promotion", "eval"), unknown("eval", suite, list(found.evals)))
    bounds = {"max": given.at_least, "min": given.at_most}
    there = {side: bound for side, bound in bounds.items() if bound is not None}
    if len(there) != 1:
        file.refuse(
            ("promotion",),
            f"{given.metric} needs one of at_least and at_most, the worst that is promoted.",
        )
        return None
    ((direction, threshold),) = there.items()
    return PromotionRule(
        alias=given.alias,
        suite=suite,
        metric=given.metric,
        direction=direction,
        threshold=threshold,
        better_by=given.better_by,
    )


def _assets(found: _OwnKeys, file: SettingsFile) -> ProjectAssets:
    own = [each for each in found.upstream if each.split("/")[-2:-1] == [found.name]]
    if own:
        file.refuse(("upstream",), f"{own[0]} is made of the project itself; leave it out.")
    return ProjectAssets(
        upstream=found.upstream,
        aliases=found.aliases,
        owners=found.owners,
        tags=found.tags,
        kinds=found.kinds,
        group=found.group,
    )


def _python(
    given: str | None, folder: Path, file: SettingsFile, *, at: tuple[str, ...] = ("python",)
) -> str | None:
    """Return the interpreter as a path, where it is written as one: relative to the folder."""
    if given is None or "/" not in given:
        return given
    path = (folder / Path(given).expanduser()).absolute()  # a venv's python is a link: not resolved
    if not path.is_file():
        file.refuse(at, f"there is no interpreter {path}.")
    return str(path)


def _schedule(given: _Schedule | None, dataset: str | None, file: SettingsFile) -> Schedule | None:
    if given is None:
        return None
    schedule = Schedule(**given.given())
    if schedule.cron is None and not schedule.on_new_snapshot:
        file.refuse(("schedule",), "it never comes; write cron:, on: new snapshot, or both.")
    if dataset is None and (schedule.on_new_snapshot or schedule.only_if_snapshot_differs):
        file.refuse(("schedule",), "it asks for snapshots; name their dataset, dataset: NAME.")
    return schedule


def _entry_problems(entry: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield why an entry cannot be started: its file is not there."""
    script, module = script_of(entry), module_of(entry)
    if script is not None and not (folder / script).is_file():
        yield f"there is no {script} in {folder}."
    if module is not None and _is_missing(folder, module):
        yield f"there is no module {module} in {folder}."


def _is_missing(folder: Path, module: str) -> bool:
    """Whether the folder has the module's package but not the module; one of elsewhere may be there."""
    top, *_ = module.split(".")
    for root in (folder, folder / "src"):
        path = root.joinpath(*module.split("."))
        if path.with_suffix(".py").is_file() or (path / "__main__.py").is_file():
            return False
    return any((root / top).is_dir() for root in (folder, folder / "src"))


def _version(value: object) -> int:
    if value != VERSION or type(value) is not int:
        raise ValueError(f"{shown(value)} is not a version of a project file; write {VERSION}.")
    return VERSION


def _name(what: str) -> PlainValidator:
    """Return what reads a name that keys in the store are made of."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not NAME.fullmatch(value):
            raise ValueError(
                f"{shown(value)} cannot name {what}: use 1 to 26 of a-z, 0-9 and '-', '-' not at an "
                "end."
            )
        return value

    return PlainValidator(read)


def _entry(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return parse_entry(value)
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not an entry; write for example train.py --lr={{lr}}.")
    return parse_entry(value)


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{shown(value)} is not a number.")
    return float(value)


def _not_negative(value: object) -> float:
    if _finite(value) < 0:
        raise ValueError(f"{shown(value)} is less than nothing; write 0 or more.")
    return _finite(value)


def _truth(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{shown(value)} is neither true nor false.")
    return value


def _no_device(value: object) -> str:
    if value != NO_DEVICE:
        raise ValueError(
            f"{shown(value)} is not a device of an eval; write {NO_DEVICE} where it needs none, and "
            "leave it out where it does: it is given one."
        )
    return NO_DEVICE


def _at_least_one(what: str) -> Callable[[object], int]:
    def read(value: object) -> int:
        if type(value) is not int or value < 1:
            raise ValueError(f"{shown(value)} is not a number of {what}; write 1 or more.")
        return value

    return read


def _keys_or_file(value: object) -> Any:
    if not isinstance(value, str | Mapping):
        raise ValueError(
            f"{shown(value)} is not a config; write keys with their values, or the name of a file."
        )
    return value


def _checkpoint(value: object) -> object:
    """Return `folder` as the mapping that it is short for."""
    return {"kind": FOLDER} if value == FOLDER else value


def _cron(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a cron; write five fields in quotes.")
    return check_cron(value)


def _timezone(value: object) -> str:
    return units.time_zone(value).key


def _patterns(value: Any) -> tuple[str, ...]:
    """Return the patterns of a trainer's own checkpoints: one text, or a list of them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise ValueError(f"{units.shown(value)} names no files; write for example ckpt_*.pt.")
    for each in texts:
        step_pattern(each)
    return tuple(texts)


_Count = Annotated[int, PlainValidator(units.count)]
_Seconds = Annotated[float, PlainValidator(units.duration_s)]
_Word = Annotated[str, PlainValidator(units.name)]
_Number = Annotated[float, PlainValidator(lambda value: float(value))]
_Role = Annotated[str, PlainValidator(units.one_of("role", {role: role for role in ROLES}))]


def _positive(value: object) -> int:
    if units.count(value) < 1:
        raise ValueError(f"{shown(value)} is not a number of steps; write 1 or more.")
    return units.count(value)


def _eval_s(value: object) -> float:
    seconds = units.duration_s(value)
    if not 1 <= seconds <= EVAL_S_LIMIT:
        raise ValueError(f"{shown(value)} is not a limit of an eval; write 1s to 24h.")
    return seconds


class _KeyFile(FileModel):
    example = "{default: 8, low: 1, high: 512}"
    default: Any = Field(description="the value where nobody gives another")
    low: _Number = LEFT_OUT
    high: _Number = LEFT_OUT
    choices: tuple[Any, ...] = LEFT_OUT
    meaning: _Word = LEFT_OUT


class _Checkpoint(FileModel):
    example = "{every_steps: 100, every: 10min}"
    every_steps: Annotated[int, PlainValidator(_positive)] = LEFT_OUT
    every_s: _Seconds = LEFT_OUT
    kind: Annotated[str, PlainValidator(units.one_of("kind of checkpoint", {FOLDER: FOLDER}))] = (
        LEFT_OUT
    )
    replay: _Count = LEFT_OUT
    watch: Annotated[tuple[str, ...], PlainValidator(_patterns)] = LEFT_OUT


def _keys_of(rows: Iterable[Row]) -> dict[str, Any]:
    """Return the fields of a model for these rows; what a launcher needs cannot be null."""
    return {
        row.name: (
            _read_as(row) if row.of is not RunDeclared else _read_as(row) | None,
            Field(LEFT_OUT, alias=row.key),
        )
        for row in rows
    }


def _read_as(row: Row) -> Any:
    """Return how a key of a row is read: a time with its unit, a count of what a launcher starts."""
    if row is LAUNCHER:
        known = {name: name for name in (LOCAL, *launchers())}
        return Annotated[str, PlainValidator(units.one_of("launcher", known))]
    if row.name.endswith("_s"):
        return _Seconds
    if row.of is ComputeRequest and row.kind is Kind.COUNT:
        return Annotated[int, PlainValidator(_at_least_one(row.name))]
    read: dict[Kind, Any] = {
        Kind.TEXT: _Word,
        Kind.NAME: _Word,
        Kind.COUNT: _Count,
        Kind.NUMBER: _Number,
        Kind.LABELS: Annotated[Mapping[str, str], PlainValidator(_words_by_name)],
    }
    return read[row.kind]


def _words_by_name(value: object) -> dict[str, str]:
    """Return a mapping of words, each written as such or as a whole number."""
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{units.shown(value)} is not a mapping; write for example {{time_limit: 24h}}."
        )
    for name, each in value.items():
        if not isinstance(name, str) or type(each) not in (str, int):
            raise ValueError(
                f"{units.shown(name)}: {units.shown(each)} is not a word; put it in quotes."
            )
    return {name: str(each) for name, each in value.items()}


class _Eval(FileModel):
    """An eval, written as its file or command, or as a mapping with that and more."""

    example = "{run: evaluate.py, every: 3}"
    run: Annotated[tuple[str, ...], PlainValidator(_entry)] = Field(
        description="write what measures, for example run: evaluate.py"
    )
    dataset: _Word | None = None
    every: Annotated[int, PlainValidator(_positive)] | None = None
    required: Annotated[bool, PlainValidator(_truth)] = False
    python: _Word | None = None
    timeout_s: Annotated[float, PlainValidator(_eval_s)] | None = None
    device: Annotated[str, PlainValidator(_no_device)] | None = None
    of: _Word | None = None


class _Promotion(FileModel):
    example = "{eval: quality, metric: accuracy, at_least: 0.9}"
    eval: _Word | None = None
    metric: _Word = Field(description="write what decides, for example metric: accuracy")
    at_least: Annotated[float, PlainValidator(_finite)] | None = None
    at_most: Annotated[float, PlainValidator(_finite)] | None = None
    better_by: Annotated[float, PlainValidator(_not_negative)] | None = None
    alias: Annotated[str, _name("an alias")] = ALIAS


def _short_eval(value: object) -> object:
    """Return `quality: evaluate.py` as what it is short for."""
    return {"run": value} if isinstance(value, str | list) else value


class _Schedule(FileModel):
    example = 'cron: "0 3 * * 1" and only_if: snapshot differs'
    cron: Annotated[str, PlainValidator(_cron)] = LEFT_OUT
    timezone: Annotated[str, PlainValidator(_timezone)] = LEFT_OUT
    on_new_snapshot: Annotated[
        bool, PlainValidator(units.one_of("event", {"new snapshot": True}))
    ] = Field(LEFT_OUT, alias="on")
    only_if_snapshot_differs: Annotated[
        bool, PlainValidator(units.one_of("condition", {"snapshot differs": True}))
    ] = Field(LEFT_OUT, alias="only_if")


class _OwnKeys(FileModel):
    example = "name: my-model and entry: train.py"
    version: Annotated[int, PlainValidator(_version)] = VERSION
    name: Annotated[str, _name("a project")] = Field(
        description="write what runs are called after, for example name: my-model"
    )
    entry: Annotated[tuple[str, ...], PlainValidator(_entry)] = Field(
        description="write what a rank starts, for example entry: train.py"
    )
    config: Annotated[Any, PlainValidator(_keys_or_file)] = None
    dataset: _Word | None = None
    checkpoint: Annotated[_Checkpoint | None, BeforeValidator(_checkpoint)] = None
    keys: Mapping[_Role, _Word] = {}
    python: _Word | None = None
    evals: Mapping[
        Annotated[str, _name("an eval")], Annotated[_Eval, BeforeValidator(_short_eval)]
    ] = {}
    promotion: _Promotion | None = None
    schedule: _Schedule | None = None
    study: Any = None  # `tracks tune` reads it
    upstream: Annotated[tuple[str, ...], PlainValidator(read_upstream)] = ()
    aliases: Annotated[tuple[str, ...], PlainValidator(read_aliases)] = ()
    owners: Annotated[tuple[str, ...], PlainValidator(read_owners)] = ()
    tags: Annotated[Mapping[str, str], PlainValidator(read_tags)] = {}
    kinds: Annotated[tuple[str, ...], PlainValidator(read_kinds)] = ()
    group: Annotated[str | None, PlainValidator(read_group)] = None


# Beside them the keys of `track.declared_fields`.
_Retention = create_model("_Retention", __base__=FileModel, **_keys_of(RETENTION))
_OTHERS: dict[str, Any] = {"retention": (_Retention | None, None), **_keys_of(KEYED)}
ProjectFile = create_model("ProjectFile", __base__=_OwnKeys, **_OTHERS)
