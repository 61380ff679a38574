"""Throws arguments, files and environments of any kind at every subcommand, in one process.

    .venv/bin/python -m tests.cli.fuzz --count 20000 --seed 7

What a command may answer: exit code 0, 1 or 2, and words. Anything else is a defect. It starts no
process and no Dagster: where a command would, it is refused. The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import click
from click.testing import CliRunner, Result

from tests.stories import RUN_ID, Story
from tracks_dagster.cli import main
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import OrchestratorError
from tracks_dagster.wiring import build

INPUT_S_MAX = 120  # for one input, on a busy machine
HOME_INPUTS_MAX = 100  # then the home is as it was at first: what was decided in it would pile up
NASTY_SHARE = 0.15  # of the values
ENVIRONMENT_SHARE = 0.1  # of the inputs, with settings of any kind
ENDLESS = {"--follow"}  # ends when a person says so

TARGETS = (
    *(RUN_ID, f"{RUN_ID}/a02", f"{RUN_ID}@30", f"{RUN_ID}@40", f"checkpoint:{RUN_ID}@30"),
    *(
        f"run:{RUN_ID}",
        f"attempt:{RUN_ID}/a01",
        "node:node-1",
        "code:c0ffee",
        "aws-docs",
        "local/cpu",
    ),
    *(
        "heldout-loss",
        "best",
        "ann",
        "loss",
        "7d",
        "24h",
        "1",
        "2",
        "40",
        "0.5",
        "memory",
        "preempt@3",
    ),
    *("gpt", "tabular", "lr=0.1", "steps=20", "snapshot:aws-docs@", "gpu_oom", "kubernetes"),
)
QUERIES = (
    "select 1",
    "select count(*) from training_attempts",
    "select * from training_runs",
    "select date 'infinity'",
    "select timestamp '-infinity', interval '1 year', 1e308 * 10, 'nan'::double",
    "select [1, 2], {'a': 1}, map {'k': 1}, '\\x00'::blob, uuid(), 2::hugeint ** 126",
    "select * from notes where text = '",
    "with a as (select 1) select * from a, a b, a c",
    "select repeat('x', 100000)",
    "select " + "(" * 400 + "1" + ")" * 400,
    "select time '25:00:00'",
    "values (1), (null)",
)
NASTY = (
    *(
        "",
        " ",
        "-",
        "--",
        "=",
        "a=",
        "=b",
        "/",
        "@",
        ":",
        "..",
        "../..",
        "~",
        "~nouser/x",
        "%s",
        "{}",
        "\n",
    ),
    *("\udcff", "caf\udce9", "select '\udcff'", "é", "🚀", "\u202e", "\x1b[2J", "٣", "²", "１"),
    *(
        "0",
        "-1",
        "9" * 18,
        "9" * 30,
        "9" * 5000,
        "1e999",
        "-inf",
        "nan",
        "0x10",
        "1_000",
        "null",
        "true",
    ),
    *("x" * 300, "x" * 5000, "[" * 3000, "a=" + "[" * 100_000, "a=" + '{"a":' * 50_000, '"' * 99),
    *(
        "2026-01-31",
        "0001-01-01",
        "9999-12-31",
        "99999999d",
        "0s",
        "run:",
        "snapshot:a@b@c",
        "a/b/c/d",
    ),
)
FILES: Mapping[str, bytes] = {
    "empty": b"",
    "bytes": bytes(range(256)) * 4,
    "nested.yaml": b"[" * 20_000,
    "maps.yaml": b"{a: " * 5_000,
    "policy.yaml": b"version: 1\nreasons:\n  preempted: {max: 1}\n",
    "list.json": b"[1, 2]",
    "case.jsonl": b'{"case": 1}\n[]\n{"lines": [1]}\n' + b"[" * 30_000 + b"\n",
    "text.txt": "größer\n".encode() * 40,
    "latin1.txt": b"caf\xe9\n" * 40,
    "table.csv": b"month,day\n1,x\n",
    "ok.py": b"import os\n",
    "deep.py": b"x = " + b"(" * 5_000 + b")" * 5_000,
    "minus.py": b"x = " + b"-" * 200_000 + b"1",
    "attributes.py": b"a" + b".a" * 100_000,
    "nul.py": b"a = 1\0",
}
VARIABLES = (
    *("TRACKS_STORE", "TRACKS_HOME", "TRACKS_POSTGRES_URL", "TRACKS_POLICY", "TRACKS_RULES"),
    *("TRACKS_PRICES", "TRACKS_NOTIFY", "TRACKS_KUBERNETES", "TRACKS_UI_URL"),
)
PLACES = (
    *(
        "~nouser/x",
        "s3://",
        "s3://b/p?q",
        "ftp://x",
        "file:///no/such",
        "file://",
        "/dev/null",
        "/proc/1/x",
    ),
    *(
        "postgresql://nobody@127.0.0.1:1/x",
        "postgresql://",
        "postgresql://h:x/y",
        "http://[",
        "relative",
    ),
)


@dataclass
class Defect:
    """An input that was answered by something else than words."""

    arguments: list[str]
    environment: Mapping[str, str]
    found: str


@dataclass
class Fuzzer:
    """A home with a whole story in it, and inputs of one seed."""

    folder: Path
    seed: int
    defects: list[Defect] = field(default_factory=list)
    exits: dict[int, int] = field(default_factory=dict)
    slow: list[list[str]] = field(default_factory=list)  # a long simulation is not a defect

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.home = self.folder / "home"
        self.files = self.folder / "files"
        self.files.mkdir()
        for name, data in FILES.items():
            (self.files / name).write_bytes(data)
        with _settings({"TRACKS_HOME": str(self.folder / "pristine")}):
            app = build(Settings.from_environment())
            Story(app.store).whole()
            app.projector.scan()
        self.leaves = list(_leaves((), main))

    def run(self, count: int) -> None:
        """Throw `count` inputs; what went wrong is in `defects`."""
        for number in range(count):
            if number % HOME_INPUTS_MAX == 0:
                shutil.rmtree(self.home, ignore_errors=True)
                shutil.copytree(self.folder / "pristine", self.home)
            path, command = self.rng.choice(self.leaves)
            arguments = [*path, *self._arguments(command)]
            environment = self._environment()
            result = _called(arguments, {"TRACKS_HOME": str(self.home), **environment})
            self.exits[result.exit_code] = self.exits.get(result.exit_code, 0) + 1
            if isinstance(result.exception, TimeoutError) and arguments[:1] == ["simulate"]:
                self.slow.append(arguments)
                continue
            found = _defect_of(result)
            if found is not None:
                self.defects.append(Defect(arguments, environment, found))
                print(f"seed {self.seed}, input {number}: {found[-300:]}", file=sys.stderr)

    def _environment(self) -> dict[str, str]:
        if self.rng.random() >= ENVIRONMENT_SHARE:
            return {}
        value = self.rng.choice((*PLACES, *(str(self.files / name) for name in FILES)))
        return {self.rng.choice(VARIABLES): value}

    def _arguments(self, command: click.Command) -> list[str]:
        """Return arguments as the command wants them, most of the time."""
        given: list[str] = []
        for param in command.params:
            if isinstance(param, click.Argument):
                given += self._values(param) if self.rng.random() < 0.95 else []
            elif isinstance(param, click.Option) and not ENDLESS & set(param.opts):
                if not param.required and self.rng.random() < 0.75:
                    continue
                name = self.rng.choice(param.opts + param.secondary_opts)
                given += [name] if param.is_flag else [name, *self._values(param)]
        if self.rng.random() < 0.05:
            given.insert(self.rng.randrange(len(given) + 1), self.rng.choice(NASTY))
        return given

    def _values(self, param: click.Parameter) -> list[str]:
        count = param.nargs if param.nargs > 0 else self.rng.choice((1, 1, 1, 2))
        return [self._value(param) for _ in range(count)]

    def _value(self, param: click.Parameter) -> str:
        if self.rng.random() < NASTY_SHARE:
            return self.rng.choice(NASTY)
        if self.rng.random() < 0.7 and (fitting := _FITTING.get(param.name or "")):
            return self.rng.choice(fitting)
        if isinstance(param.type, click.Choice):
            return str(self.rng.choice(list(param.type.choices)))
        if param.name == "query" and self.rng.random() < 0.9:
            return self.rng.choice(QUERIES)
        if isinstance(param.type, click.Path | click.File) or param.name in (
            "trainer",
            "data",
            "html",
        ):
            where = self.folder if self.rng.random() < 0.2 else self.files
            return str(where / self.rng.choice((*FILES, "no-such", "new")))
        return self.rng.choice(TARGETS)


_FITTING: Mapping[str, tuple[str, ...]] = {  # name of a parameter → values that most often fit
    "run_id": (RUN_ID,),
    "target": (RUN_ID, f"{RUN_ID}/a02", f"{RUN_ID}@30"),
    "thing": (f"checkpoint:{RUN_ID}@30", f"run:{RUN_ID}", f"attempt:{RUN_ID}/a01", "node:node-1"),
    "dataset": ("aws-docs", "aws-docs-heldout"),
    "last": ("7d", "24h", "9000d"),
    "seed": ("1", "7"),
    "archive": ("no-such",),
}


def _leaves(
    path: tuple[str, ...], group: click.Group
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from _leaves((*path, name), command)
        else:
            yield (*path, name), command


def _called(arguments: list[str], environment: Mapping[str, str]) -> Result:
    def late(*_: object) -> None:
        raise TimeoutError(f"no answer within {INPUT_S_MAX} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(INPUT_S_MAX)
    try:
        with _settings(environment), _starting_nothing():
            return CliRunner().invoke(main, arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _defect_of(result: Result) -> str | None:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return "".join(traceback.format_exception(result.exception)[-12:])
    if result.exit_code not in (0, 1, 2):
        return f"exit code {result.exit_code}: {result.output[-500:]}"
    return result.output[-2000:] if "Traceback (most recent" in result.stderr else None


@contextmanager
def _settings(given: Mapping[str, str]) -> Iterator[None]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRACKS_")}
    with mock.patch.dict(os.environ, {**kept, **given}, clear=True):
        yield


@contextmanager
def _starting_nothing() -> Iterator[None]:
    def refused(*_: Any, **__: Any) -> None:
        raise OrchestratorError("The fuzzer starts nothing.")

    with (
        mock.patch("tracks_dagster.home.dagster_home.DagsterHome.__init__", refused),
        mock.patch("tracks_dagster.wings.kubernetes.edge.launching.open_home", refused),
        mock.patch("tracks_dagster.wings.lab.edge.conform.conform", refused),
        mock.patch("tracks_dagster.wings.watch.board.effects.serving.listen", refused),
        mock.patch("tracks_dagster.wings.watch.board.effects.serving.serve_on_demand", refused),
        mock.patch("time.sleep", return_value=None),
    ):
        yield


def report(fuzzer: Fuzzer) -> str:
    """Return the defects in words, one of each place in the code first."""
    lines = [
        f"seed {fuzzer.seed}: {len(fuzzer.defects)} defects, exit codes {fuzzer.exits}, "
        f"slow {fuzzer.slow}"
    ]
    for each in fuzzer.defects:
        shown = [argument[:200] for argument in each.arguments]
        lines.append(f"\n{shown!r} {dict(each.environment)!r}\n{each.found[-1500:]}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6))
    parser.add_argument("--count", type=int, default=1000)
    asked = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tracks-fuzz-") as place:
        os.chdir(place)
        fuzzing = Fuzzer(Path(place), asked.seed)
        fuzzing.run(asked.count)
    print(report(fuzzing).encode(errors="backslashreplace").decode())
    print(
        f"{asked.count} inputs, {len(fuzzing.leaves)} subcommands, {time.monotonic() - began_s:.0f} s"
    )
    sys.exit(bool(fuzzing.defects))
