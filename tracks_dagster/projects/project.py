"""What a project is: its entry, its config's keys and what they mean. Pure.

`effects.project_file` reads one from a folder's `tracks.yaml`. A config is flat: scalars and lists of
scalars by key; `resolve_config` is the only way to one, so that every config in a track was checked.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from tracks_dagster.projects.project_assets import ProjectAssets
from tracks_dagster.projects.schedule import Schedule
from tracks_dagster.track.bodies import EvalRequirement, Program, PromotionRule, SnapshotRef
from tracks_dagster.track.declared_fields import DEFAULTS
from tracks_dagster.track.errors import InvalidInput, check_all
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.track.roles import (
    ACCUMULATION,
    ALLOCATOR,
    DIVERGENCE_STEPS,
    DIVERGENCE_Z,
    EXPANDABLE_SEGMENTS,
    GLOBAL_BATCH,
    HANG_FACTOR,
    HANG_S_MIN,
    MICRO_BATCH,
    SPIKE_Z,
    START_S_MAX,
    STEPS,
    Roles,
    roles_of,
)
from tracks_dagster.track.samples import SKIP_WINDOWS, check_windows
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.safe_text import WORDS_CHARACTERS_MAX

ALIAS = "candidate"  # that a promotion gives, where nobody names one
CONFIG = "config"  # in an entry, `{config}`: the path of a file with the whole config
# In an eval's command: the folders of the checkpoint, of its data and for the files that it leaves.
EVAL_FOLDERS = ("checkpoint", "data", "artifacts")
# In a scorer's, the folder of the files that it scores takes the place of the checkpoint's.
SCORER_FOLDERS = ("scored", "data", "artifacts")
CONFIG_NAME = (
    "tracks-config.yaml"  # that file, where the project's keys come from no file of its own
)
ITEMS_MAX = 256  # of a list in a config, which is part of a record
VERSION_DIGITS = 12  # of an eval's digest
STEP_MARK = "{step}"  # in a pattern of files that are watched
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_INTERPRETERS = re.compile(r"python(?:3(?:\.\d+)?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key of a config. Its values have the default's type; None as default takes any type.

    low, high: both ends are valid. choices: the only valid values, where there are any.
    """

    default: Json
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[Json, ...] = ()
    meaning: str = ""

    def check(self, name: str, value: Json) -> Json:
        """Return the value for a config; raises InvalidInput naming what is valid."""
        means = f" It means: {self.meaning}." if self.meaning else ""
        kind, value = type(self.default), check_value(name, value)
        if kind is float and type(value) is int:
            value = float(value)
        if self.default is not None and type(value) is not kind:
            raise InvalidInput(
                f"{name} = {value!r} is not {_KINDS[kind]}, as its default {self.default!r} is.{means}"
            )
        if self.choices and value not in self.choices:
            listed = ", ".join(map(str, self.choices))
            raise InvalidInput(f"{name} = {value!r} is not a choice; use one of: {listed}.{means}")
        if isinstance(value, int | float) and not self.low <= value <= self.high:
            raise InvalidInput(
                f"{name} = {value!r} is out of range: {self.low:g} to {self.high:g}.{means}"
            )
        return value


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
}


def check_value(name: str, value: Json) -> Json:
    """Return `value` if a config can hold it; raises InvalidInput."""
    if isinstance(value, list | tuple) and len(value) <= ITEMS_MAX:
        return [check_value(name, item) for item in value]
    is_text = isinstance(value, str) and len(value) <= WORDS_CHARACTERS_MAX
    is_number = isinstance(value, int | float) and abs(value) <= sys.float_info.max
    if not (is_text or is_number or value is None):
        raise InvalidInput(
            f"{name} = {_brief(value)} cannot be in a config; use short text, a number, true, false, "
            "null or a list of these."
        )
    return value


def _brief(value: object) -> str:
    is_long = isinstance(value, int) and abs(value) > sys.float_info.max
    return "a number of more than 300 digits" if is_long else repr(value)


# What the product reads from any run's config. A project need not declare them, and no config holds
# one that nobody gave.
OUR_KEYS: Mapping[str, ConfigKey] = {
    "spike_z": ConfigKey(
        default=SPIKE_Z, low=0.0, high=1e6, meaning="modified z-score of a loss spike; 0: off"
    ),
    "divergence_z": ConfigKey(
        default=DIVERGENCE_Z, low=0.0, high=1e6, meaning="and of a diverging loss; 0: off"
    ),
    "divergence_steps": ConfigKey(
        default=DIVERGENCE_STEPS, low=1, high=1_000_000, meaning="so many in a row end the attempt"
    ),
    "hang_s": ConfigKey(
        default=HANG_S_MIN, low=1.0, high=1e6, meaning="seconds without a step before it is a hang"
    ),
    "hang_factor": ConfigKey(
        default=HANG_FACTOR, low=1.0, high=1e6, meaning="and times the 99th percentile of a step"
    ),
    "start_s": ConfigKey(
        default=START_S_MAX, low=1.0, high=1e6, meaning="seconds to start, to restore, for step 1"
    ),
    ALLOCATOR: ConfigKey(
        default="default",
        choices=("default", EXPANDABLE_SEGMENTS),
        meaning="how PyTorch's CUDA allocator takes device memory",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEval:
    """An eval of a project. entry: one file, whose function `evaluate` measures, or a command.

    version: digest of its entry and its own file. dataset: None where it reads no data of ours.
    every, is_required, timeout_s, needs_device, of: as of `EvalRequirement`. python: None for the
    project's.
    """

    name: str
    entry: tuple[str, ...]
    version: str
    dataset: str | None = None
    every: int | None = None
    is_required: bool = False
    python: str | None = None
    timeout_s: float | None = None
    needs_device: bool = True
    of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What a folder trains. entry: words as its file has them, with placeholders.

    keys: of its config, with their defaults. is_open: it takes other keys too, as a script without a
    project file does. roles: role → key. config_name: of the file that `{config}` stands for; its
    suffix is its format; None where nothing reads one. dataset: None where a run reads its data by
    itself. values: what its file says of a run's declaration, by the fields of `track.declared_fields`.
    python: the interpreter, an absolute path or a name; None for the one of `tracks`. by_files,
    replay_steps, watch: as in `Program`. schedule: None where only people start runs. assets: how it
    shows in Dagster.
    """

    name: str
    entry: tuple[str, ...]
    keys: Mapping[str, ConfigKey] = field(default_factory=dict)
    is_open: bool = False
    roles: Roles = field(default_factory=dict)
    config_name: str | None = None
    dataset: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    python: str | None = None
    by_files: bool = False
    replay_steps: int = 0
    watch: tuple[str, ...] = ()
    evals: tuple[OwnEval, ...] = ()
    promotion: PromotionRule | None = None
    schedule: Schedule | None = None
    assets: ProjectAssets = field(default_factory=ProjectAssets)

    def value(self, name: str) -> Any:
        """Return the value that its runs have of a field where nobody gives another."""
        return self.values.get(name, DEFAULTS[name])


def program_of_project(project: Project) -> Program:
    """Return what a run of the project starts."""
    return Program(
        entry=project.entry,
        config_name=project.config_name,
        python=project.python,
        by_files=project.by_files,
        replay_steps=project.replay_steps,
        watch=project.watch,
        takes_any_key=project.is_open,
    )


def requirement_of(
    project: Project, each: OwnEval, snapshot: SnapshotRef | None, *, seed: int
) -> EvalRequirement:
    """Return what a run of the project declares of one eval; the promotion's is always required, and
    what a required scorer is of."""
    rule = project.promotion
    needed = {each.name, *(other.name for other in project.evals if other.of == each.name)}
    return EvalRequirement(
        suite=each.name,
        suite_version=each.version,
        snapshot=snapshot,
        seed=seed,
        program=Program(
            entry=each.entry,
            config_name=project.config_name or (CONFIG_NAME if names_config(each.entry) else None),
            python=each.python or project.python,
        ),
        every=each.every,
        is_required=(rule is not None and rule.suite in needed)
        or any(other.is_required for other in project.evals if other.name in needed),
        timeout_s=each.timeout_s,
        needs_device=each.needs_device,
        of=each.of,
    )


def eval_version(entry: Sequence[str], content: bytes, *, of: str = "") -> str:
    """Return the version of an eval: a digest of its words and of its own file, b"" without one.

    of: the version of the eval that a scorer is of, whose files are other ones when it changes.
    """
    return sha256_hex(canonical_json(list(entry)) + content + of.encode())[:VERSION_DIGITS]


def has_function(entry: Sequence[str]) -> bool:
    """Whether an eval's entry is one file, whose function is called; else it is a command."""
    return len(entry) == 1 and entry[0].endswith(".py")


def resolve_config(project: Project, given: Mapping[str, Json], *, ranks: int) -> dict[str, Json]:
    """Return the whole config: the project's defaults, what was given, and what follows from both.

    Raises InvalidInput for an unknown key, a value of another type or out of range, for less than one
    step, and for a global batch that the ranks and the micro-batch do not divide.
    """
    roles = roles_of(project.roles, {**project.keys, **given})
    total, micro = roles.get(GLOBAL_BATCH), roles.get(MICRO_BATCH)
    follows = roles.get(ACCUMULATION, ACCUMULATION)
    if total is not None and micro is not None and follows in given:
        raise InvalidInput(
            f"{follows} follows from {total}, {micro} and the ranks: change {micro}."
        )
    config: dict[str, Json] = {name: key.default for name, key in project.keys.items()}
    checks = (partial(_take, config, project, name, value) for name, value in given.items())
    check_all(*checks)
    _check_steps(project, config, roles.get(STEPS))
    if total is None or micro is None:
        return config
    config[micro] = _micro_batch(config, total, micro, ranks=ranks, is_given=micro in given)
    config[follows] = config[total] // ranks // config[micro]
    return config


def known_values(project: Project, config: Mapping[str, Json]) -> dict[str, Json]:
    """Return what of another code's config has a key here: all of it where any key may be given."""
    known = {*project.keys, *OUR_KEYS, SKIP_WINDOWS}
    return {key: value for key, value in config.items() if project.is_open or key in known}


def _take(config: dict[str, Json], project: Project, name: str, value: Json) -> None:
    config[name] = _checked(project, name, value)


def _checked(project: Project, name: str, value: Json) -> Json:
    key = project.keys.get(name) or OUR_KEYS.get(name)
    if key is not None:
        return key.check(name, value)
    if name == SKIP_WINDOWS:
        return check_windows(value)
    if not project.is_open:
        known = dict.fromkeys([*project.keys, *OUR_KEYS, SKIP_WINDOWS])
        words = unknown("config key", name, list(known))
        raise InvalidInput(f"{project.name}: {words}")
    return check_value(name, value)


def _check_steps(project: Project, config: Mapping[str, Json], key: str | None) -> None:
    """Raise InvalidInput where a run would have no step; of a project whose own default is none, as of
    one that stops by something else, anything is taken."""
    value = None if key is None else config.get(key)
    own = project.keys.get(key or "")
    counts = own is not None and isinstance(own.default, int) and own.default >= 1
    if counts and isinstance(value, int) and value < 1:
        raise InvalidInput(f"{key} = {value} is not a number of steps; use 1 or more.")


def _micro_batch(
    config: Mapping[str, Json], total_key: str, micro_key: str, *, ranks: int, is_given: bool
) -> int:
    """Return a micro-batch that divides a rank's share of the global batch.

    24 samples a step on 2 ranks in micro-batches of 4: accumulation 3. A default micro-batch (never
    one that was given) shrinks to the largest that fits.
    """
    total, micro = _size(config, total_key), _size(config, micro_key)
    if total % ranks:
        raise InvalidInput(
            f"A global batch ({total_key}) of {total} cannot be divided among {ranks} ranks; use a "
            f"multiple of {ranks}."
        )
    share = total // ranks
    if not is_given:
        micro = max(size for size in range(1, min(micro, share) + 1) if not share % size)
    if share % micro:
        raise InvalidInput(
            f"A rank's share of {share} samples cannot be divided into micro-batches ({micro_key}) of "
            f"{micro}; use a divisor of {share}."
        )
    return micro


def _size(config: Mapping[str, Json], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise InvalidInput(f"{key} = {value!r} is not a number of samples; use 1 or more.")
    return value


def parse_entry(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the words of an entry: a script, `-m package.module`, or a command, with arguments.

    A `python` in front of the first two is left out: which interpreter runs them, `python:` says.
    Raises ValueError in words.
    """
    try:
        words = tuple(shlex.split(given) if isinstance(given, str) else given)
    except ValueError as error:
        raise ValueError(f"{given!r} is not a command line: {error}.") from error
    if len(words) > 1 and _INTERPRETERS.fullmatch(words[0]) and _is_python(words[1:]):
        words = words[1:]
    if not words or not words[0] or (words[0] == "-m" and len(words) < 2):
        raise ValueError(
            "an entry is missing; write for example train.py, -m package.module or ./train.sh."
        )
    path = script_of(words)
    if path is not None and (path.is_absolute() or ".." in path.parts):
        raise ValueError(f"{path} lies outside the project; only what is in its folder is stored.")
    return words


def script_of(entry: Sequence[str]) -> PurePosixPath | None:
    """Return the file of the project that an entry starts, None for a module or a program."""
    first = PurePosixPath(entry[0])
    is_own = first.suffix == ".py" or entry[0].startswith("./") or ".." in first.parts
    return first if is_own else None


def module_of(entry: Sequence[str]) -> str | None:
    """Return the module that an entry starts with `-m`, None for anything else."""
    return entry[1] if entry[0] == "-m" else None


def _is_python(words: Sequence[str]) -> bool:
    return words[0] == "-m" or words[0].endswith(".py")


def step_pattern(text: str) -> re.Pattern[str]:
    """Return what the paths of a watched pattern match, the step's number as the group `step`.

    Raises ValueError in words.
    """
    marks = text.count(STEP_MARK) or text.count("*")
    if text.count(STEP_MARK) > 1 or marks != 1:
        raise ValueError(
            f"{text!r} does not say where the step's number is: write one star for it, ckpt_*.pt, or "
            "{step}, run-*/ckpt_{step}.pt."
        )
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "**" in text:
        raise ValueError(f"{text!r} is not a path below the folder that the trainer runs in.")
    star = STEP_MARK if STEP_MARK in text else "*"
    parts = [re.escape(part).replace(r"\*", "[^/]*") for part in text.split(star)]
    return re.compile(r"(?P<step>\d{1,12})".join(parts))


def unknown_placeholders(
    project: Project, entry: Sequence[str], others: Sequence[str] = ()
) -> Iterator[str]:
    """Yield what is wrong with each placeholder of `entry` that is not a key of the config, nor of
    `others`."""
    known = [CONFIG, *others, *project.keys]
    for word in entry:
        for match in _PLACEHOLDER.finditer(word):
            key = match[1]
            if key is None or key in known or project.is_open:
                continue
            yield (
                f"{{{key}}}: {unknown('config key', key, known)} "
                f"Write {{{{{key}}}}} for the braces themselves."
            )


def names_config(entry: Sequence[str]) -> bool:
    """Whether an entry names the file with the whole config."""
    return any(match[1] == CONFIG for word in entry for match in _PLACEHOLDER.finditer(word))


def fill_entry(
    entry: Sequence[str], config: Mapping[str, Json], *, config_path: str
) -> tuple[str, ...]:
    """Return the words of a command line: each `{key}` is the key's value, as Python writes it.

    `("train.py", "--lr={lr}")` with lr 0.1 is `("train.py", "--lr=0.1")`; `{{` is one brace. Raises
    InvalidInput for a key that the config lacks.
    """

    def value(match: re.Match[str]) -> str:
        key = match[1]
        if key is None:
            return match[0][0]
        if key == CONFIG:
            return config_path
        if key not in config:
            raise InvalidInput(
                f"The entry names {{{key}}}, and the config has no such key; it has: "
                f"{', '.join(sorted(config)) or 'none'}."
            )
        return str(config[key])

    return tuple(_PLACEHOLDER.sub(value, word) for word in entry)
