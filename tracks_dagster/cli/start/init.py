"""`tracks init`: write the tracks.yaml of a folder, or the policy, by asking or from options."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import click
from click.core import ParameterSource

from tracks_dagster.cli.common import as_json, parse_settings, print_answer
from tracks_dagster.cli.start.init_policy import write_policy
from tracks_dagster.projects.effects.project_file import FILE, FOLDER, parse_project, slug
from tracks_dagster.projects.project import Project, parse_entry, script_of
from tracks_dagster.projects.project_text import render_project
from tracks_dagster.projects.script_config import ScriptConfig, read_script_config
from tracks_dagster.retry.policy_text import QUESTIONS
from tracks_dagster.track import names
from tracks_dagster.track.effects.settings_file import parse_settings as parse_file
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import MICRO_BATCH, ROLES, STEPS
from tracks_dagster.track.text.nearest import unknown

SCRIPT = "train.py"
# nats per byte: a model that knows nothing has ln 256 = 5.5, the starter after its 300 steps 1 to 2.
STARTER_PROMOTION: Mapping[str, Json] = {
    "eval": "quality",
    "metric": "loss",
    "at_most": 4.0,
    "better_by": 0,  # what is worse than the candidate does not take its place
}
STARTER = Path(__file__).parents[2] / "training" / "projects" / "starter.py"
CODE = (
    "*.py",
    "*/*.py",
    "*/*/*.py",
    "*.sh",
    "*.ipynb",
)  # where a folder has none, the starter helps
SCRIPTS_NAMED_MAX = 5
ENTRY_CHARACTERS = 60  # of an entry in the answer; the file has all of it
SOURCE_BYTES_MAX = 1024 * 1024
_PLAIN = re.compile(r"[\w.,:/@%+={}-]+")  # what a shell, and the file, take as it is
PACKAGE = "tracks_dagster"  # what a script that joins imports
NO_KEYS = (
    "It has no config keys: none were found. Write yours with their defaults below config:, and into "
    "the entry as `train.py --lr={lr}`; or here, --set lr=3e-4 --entry 'train.py --lr={lr}'. Only a "
    "key can be changed by --set or a retry, and is compared."
)
WANTED = {  # of the roles that a key may have, those without which a run cannot be shortened or shrunk
    STEPS: "a smoke cannot end after its 20 steps",
    MICRO_BATCH: "an out-of-memory cannot be retried with half of it",
}
EVERY_STEPS = 100  # where nobody says how often to save
EVERY = "10min"


@click.command("init")
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=".")
@click.option("--name", help="What runs are called after; default: the folder's name.")
@click.option("--entry", help="What a rank starts, with its arguments; default: train.py.")
@click.option("--config", metavar="FILE", help="Your own config file: .yaml, .json or .toml.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A config key with its default."
)
@click.option(
    "--key", "roles", multiple=True, metavar="ROLE=KEY", help="What a key means: steps=max_iters."
)
@click.option("--dataset", help="The dataset that a run gets a snapshot of.")
@click.option("--ranks", type=int, help="Processes of a run; default: 1.")
@click.option("--device", help="Class of the devices; default: cpu.")
@click.option(
    "--checkpoint-every",
    "every_steps",
    type=int,
    metavar="STEPS",
    show_default=f"{EVERY_STEPS}, or {EVERY}",
    help="Save every so many steps.",
)
@click.option(
    "--checkpoint-every-s", "every_s", type=float, metavar="SECONDS", help="And so many seconds."
)
@click.option("--python", help="The ranks' interpreter; default: the one of tracks.")
@click.option(
    "--policy",
    "is_policy",
    is_flag=True,
    help="Write the policy.yaml of TRACKS_HOME instead, from six questions.",
)
@click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="QUESTION=ANSWER",
    help=f"With --policy, one answer: to {', '.join(QUESTIONS)}.",
)
@click.option("--yes", "-y", "is_silent", is_flag=True, help="Ask nothing, take the defaults.")
@as_json
@click.pass_context
def init_command(
    ctx: click.Context,
    /,
    is_policy: bool,
    answers: tuple[str, ...],
    is_silent: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Write a tracks.yaml into DIR, this folder by default, with a comment on each key.

    On a terminal it asks for what no option gives. From a train.py it takes the config that `join`
    gets, or the arguments of its argparse parser with their defaults, and nothing that is not
    certain. A folder without any code gets a small train.py to start from. No file that is there is
    ever overwritten.

    With --policy it writes what is asked of runs (docs/policy.md), from the answers to six questions.
    """
    is_asking = sys.stdin.isatty() and not (is_silent or as_json)
    if is_policy:
        _refuse_beside_policy(ctx, given)
        write_policy(answers, is_asking=is_asking, as_json=as_json)
        return
    if answers:
        raise InvalidInput("--answer belongs to --policy; give both.")
    _write_project(_Given(**given), is_asking=is_asking, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What a person gave of a project; None and () where nothing."""

    folder: Path
    name: str | None
    entry: str | None
    config: str | None
    settings: tuple[str, ...]
    roles: tuple[str, ...]
    dataset: str | None
    ranks: int | None
    device: str | None
    every_steps: int | None
    every_s: float | None
    python: str | None


def _refuse_beside_policy(ctx: click.Context, names: Iterable[str]) -> None:
    """Raise InvalidInput for a folder or an option of a project: a policy is of a home."""
    for param in ctx.command.params:
        is_given = ctx.get_parameter_source(param.name or "") is not ParameterSource.DEFAULT
        if param.name in names and is_given:
            label = param.opts[0] if isinstance(param, click.Option) else "DIR"
            raise InvalidInput(
                f"{label} belongs to a project's tracks.yaml, and --policy writes the policy.yaml of "
                "TRACKS_HOME. Give one of them."
            )


def _write_project(given: _Given, *, is_asking: bool, as_json: bool) -> None:
    """Write the file, ask before it for what is missing, and say what was written."""
    folder = given.folder
    _check_free(folder)
    if is_asking:
        given = replace(
            given, name=given.name or _ask("Name of the project", _default_name(folder))
        )
    is_starter = given.entry is None and _has_no_code(folder)
    words = _entry(folder, given.entry, is_starter=is_starter, is_asking=is_asking)
    publishes = not is_starter and _publishes(folder, words)
    if is_asking:
        given = _with_replies(given, publishes=publishes)
    values = _values(given, words, is_starter=is_starter, publishes=publishes)
    project = _write(folder, render_project(values), is_starter=is_starter)
    written = [FILE, *([SCRIPT] if is_starter else [])]
    facts = {"folder": str(folder.absolute()), "written": written, **values}
    lines = [_describe(folder, values, is_starter=is_starter), *_missing(folder, project)]
    print_answer("\n".join(lines), facts, as_json=as_json)


def _check_free(folder: Path) -> None:
    """Raise InvalidInput where it is not a folder, or has a tracks.yaml."""
    path = folder / FILE
    if _is_there(path):
        raise InvalidInput(
            f"{path} is there already and stays as it is. Edit it, or remove it and run `tracks init` "
            "again."
        )
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; name the one of your project.")


def _with_replies(given: _Given, *, publishes: bool) -> _Given:
    """Return it with what a person at the terminal answers. publishes: as `_publishes`."""
    dataset = given.dataset or _ask("Dataset that runs get a snapshot of (none: empty)", "") or None
    ranks = given.ranks or click.prompt("Ranks, one device each", 1, type=int, err=True)
    every_steps = given.every_steps
    if every_steps is None and not publishes:
        every_steps = click.prompt("Save every so many steps", EVERY_STEPS, type=int, err=True)
    return replace(given, dataset=dataset, ranks=ranks, every_steps=every_steps)


def _values(
    given: _Given, words: tuple[str, ...], *, is_starter: bool, publishes: bool
) -> dict[str, Json]:
    """Return the file's values; words: of the entry; publishes: as `_publishes`."""
    found = _script_config(given.folder, words, is_starter=is_starter)
    settings = parse_settings(given.settings)
    if given.config is not None and settings:
        raise InvalidInput("--config and --set both give the config's keys; give one of them.")
    is_own = given.config is not None  # a config file of one's own
    has_cadence = given.every_steps is not None or given.every_s is not None
    return {
        "version": 1,
        "name": given.name or _default_name(given.folder),
        "entry": _as_text((*words, *([] if is_own else found.arguments))),
        "config": given.config if is_own else {**found.keys, **settings} or None,
        "keys": _roles(given.roles) or None,
        "dataset": given.dataset,
        "ranks": 1 if given.ranks is None else given.ranks,
        "device": given.device or "cpu",
        "checkpoint": FOLDER
        if publishes and not has_cadence
        else _cadence(given.every_steps, given.every_s),
        "evals": {"quality": SCRIPT} if is_starter else None,
        "promotion": STARTER_PROMOTION if is_starter else None,
        "python": given.python,
    }


def _publishes(folder: Path, words: tuple[str, ...]) -> bool:
    """Whether a file of the entry names the variable of a trainer that publishes its checkpoints."""
    return any(names.ENV_CHECKPOINTS in _source(folder / each) for each in words)


def _as_text(words: tuple[str, ...]) -> str:
    """Return the entry as `tracks.yaml` has it; a word with a placeholder needs no quotes."""
    return " ".join(each if _PLAIN.fullmatch(each) else shlex.quote(each) for each in words)


def _ask(question: str, default: str) -> str:
    answer: str = click.prompt(question, default, show_default=bool(default), err=True)
    return answer.strip()


def _default_name(folder: Path) -> str:
    return slug(folder.absolute().name, "my-model")


def _is_there(path: Path) -> bool:
    """Whether anything has this name, a broken link too; raises InvalidInput where nothing could."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # a name that is too long, a folder that nobody may enter
        raise InvalidInput(f"{path} cannot be a project's file ({error.strerror}).") from error
    return True


def _has_no_code(folder: Path) -> bool:
    """Whether the folder is empty as far as code goes; hidden folders, such as .venv, apart."""
    return not any(
        not any(part.startswith(".") for part in path.relative_to(folder).parts)
        for pattern in CODE
        for path in folder.glob(pattern)
    )


def _entry(
    folder: Path, given: str | None, *, is_starter: bool, is_asking: bool
) -> tuple[str, ...]:
    """Return the words of the entry; raises InvalidInput where nobody says which script it is."""
    if given is None and (is_starter or (folder / SCRIPT).is_file()):
        return (SCRIPT,)
    if given is None:
        scripts = sorted(each.name for each in folder.glob("*.py"))[:SCRIPTS_NAMED_MAX]
        if not is_asking:
            there = f"; there are: {', '.join(scripts)}" if scripts else ""
            raise InvalidInput(
                f"{folder.absolute()} has code and no {SCRIPT}: say what a rank starts, for example "
                f"--entry {scripts[0] if scripts else '-m package.module'}{there}."
            )
        given = _ask("What a rank starts", scripts[0] if len(scripts) == 1 else "")
    try:
        return parse_entry(given)
    except ValueError as error:
        raise InvalidInput(f"--entry: {error}") from error


def _script_config(folder: Path, entry: tuple[str, ...], *, is_starter: bool) -> ScriptConfig:
    """Return what the entry's script says of its config; nothing where a person wrote arguments."""
    script = script_of(entry)
    if len(entry) != 1 or script is None:
        return ScriptConfig()
    return read_script_config(_source(STARTER if is_starter else folder / script))


def _source(path: Path) -> str:
    """Return a script's text; empty where it cannot be read: the check of the entry says why."""
    try:
        with path.open("rb") as file:
            return file.read(SOURCE_BYTES_MAX).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _roles(pairs: tuple[str, ...]) -> Mapping[str, str]:
    roles = {}
    for pair in pairs:
        role, separator, key = pair.partition("=")
        if not separator or not key:
            raise InvalidInput(
                f"--key {pair!r} is not ROLE=KEY; write for example steps=max_iters."
            )
        if role not in ROLES:
            raise InvalidInput(f"--key {pair}: {unknown('role', role, ROLES)}")
        roles[role] = key
    return roles


def _cadence(every_steps: int | None, every_s: float | None) -> Mapping[str, Json]:
    """Return the file's `checkpoint`; a duration in a file has its unit."""
    if every_steps is None and every_s is None:
        return {"every_steps": EVERY_STEPS, "every": EVERY}
    given = {"every_steps": every_steps, "every": None if every_s is None else f"{every_s}s"}
    return {name: value for name, value in given.items() if value is not None}


def _write(folder: Path, text: str, *, is_starter: bool) -> Project:
    """Write the files, all of them or none, and return the project that they make; raises InvalidInput
    for text that is not a project file."""
    made: list[Path] = []
    try:
        if not folder.exists():
            folder.mkdir()
            made.append(folder)
        if is_starter:
            _write_new(folder / SCRIPT, STARTER.read_text(encoding="utf-8"))
            made.append(folder / SCRIPT)
        project = _parsed(text, folder)
        _write_new(folder / FILE, text)
        return project
    except (InvalidInput, OSError) as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            raise InvalidInput(
                f"{error.filename} cannot be written ({error.strerror}); nothing was."
            ) from error
        raise


def _write_new(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _parsed(text: str, folder: Path) -> Project:
    """Return the project; raises InvalidInput where `tracks run` would not take the text for one."""
    file = parse_file(text, FILE)
    project = parse_project(file, folder)
    if file.problems or project is None:
        listed = " ".join(problem.words for problem in sorted(file.problems))
        raise InvalidInput(f"No {FILE} was written: {listed}")
    return project


def _describe(folder: Path, values: Mapping[str, Json], *, is_starter: bool) -> str:
    config = values["config"]
    entry = shorten(str(values["entry"]), ENTRY_CHARACTERS, placeholder=" …")
    listed = ", ".join(config) if isinstance(config, Mapping) else config
    keys = f"Its config: {listed}." if config else NO_KEYS
    script = f" {SCRIPT} is an example to replace by your own." if is_starter else ""
    return (
        f"Wrote {folder / FILE}: {values['name']} starts {entry}. {keys}{script} "
        "Look at it, then `tracks run`."
    )


def _missing(folder: Path, project: Project) -> Iterator[str]:
    """Yield what a person still has to write: which keys mean what, the lines that join."""
    for role, why in WANTED.items():
        if project.keys and role not in project.roles:
            yield f"No key means {role}, so {why}: name yours in {FILE}, keys: {{{role}: KEY}}."
    script = script_of(project.entry)
    if project.by_files or script is None or script.suffix != ".py":
        return
    if PACKAGE not in _source(folder / script):
        yield f"{script} does not join an attempt yet: docs/join.md shows which lines it needs."
