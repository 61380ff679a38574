"""What `pip install tracks-dagster` brings is enough for a gang, and nothing of the extras is in it.

The environment is made of links to the packages that are installed here: it needs no index, and the
base's own dependencies are followed as pip would.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.training.gangs import TrainingRun
from tracks_dagster.track.records import Kind

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RUN_S_MAX = 240.0  # of what takes five seconds on an idle machine
# Adapters import the framework that they are for.
IMPORT_ALL = """
import pkgutil, importlib, tracks_dagster.training as training, tracks_dagster.testing as testing
names = [
    each.name
    for package in (training, testing)
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]
for name in names:
    if ".adapters." not in name:
        importlib.import_module(name)
print(len(names))
"""


def needed(requirements: list[str]) -> Iterator[str]:
    """Yield the names of all distributions that pip would install for these."""
    seen: set[str] = set()
    left = [Requirement(each) for each in requirements]
    while left:
        found = left.pop()
        if found.name in seen or (found.marker and not found.marker.evaluate({"extra": ""})):
            continue
        seen.add(found.name)
        try:
            left += [Requirement(each) for each in distribution(found.name).requires or []]
        except PackageNotFoundError:
            continue  # a CPU build of torch names CUDA's packages anyway
        yield found.name


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with the base alone."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in needed(PROJECT["dependencies"]):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(installed.locate_file(top))))
    (packages / "tracks_dagster").symlink_to(ROOT / "tracks_dagster")
    version = distribution("tracks-dagster").version
    about = packages / f"tracks_dagster-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: tracks-dagster\nVersion: {version}\n")
    return str(folder / "bin" / "python")


def run(python: str, *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    """Run that interpreter without what PYTHONPATH would add."""
    return subprocess.run(
        [python, "-I", *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
        **more,  # type: ignore[call-overload]
    )


def test_the_base_is_small_and_the_extras_are_apart() -> None:
    base = set(needed(PROJECT["dependencies"]))
    extras = PROJECT["optional-dependencies"]
    control = {Requirement(each).name for each in extras["control"]}
    assert base & control <= {"jinja2"}  # torch itself brings it
    assert not base & {"botocore", "dagster-shared", "pandas", "psycopg2", "requests", "yaml"}
    assert set(extras["s3"]) < set(extras["control"])


def test_a_rank_trains_and_commits_with_the_base_alone(python: str, tmp_path: Path) -> None:
    training = TrainingRun(tmp_path, steps=3)
    work = tmp_path / "work"
    work.mkdir()
    environment = training.environment(training.open(), work)
    script = tmp_path / "train.py"
    script.write_text((ROOT / "tracks_dagster/training/projects/starter.py").read_text())
    done = run(python, str(script), env={**environment, "RANK": "0", "LOCAL_RANK": "0"})
    assert done.returncode == 0, done.stderr
    assert training.final().step == 3
    assert training.records(Kind.ATTEMPT_PLACED)


def test_all_that_runs_in_a_gang_can_be_imported_with_the_base_alone(python: str) -> None:
    done = run(python, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-m", "tracks_dagster", "status"), "-m pip install 'tracks-dagster[control]'"),
        (
            ("-c", "from tracks_dagster.stores import open_store; open_store('s3://bucket')"),
            "-m pip install 'tracks-dagster[s3]'",
        ),
    ],
)
def test_what_the_base_has_not_is_named_with_how_to_install_it(
    python: str, arguments: tuple[str, ...], words: str
) -> None:
    done = run(python, *arguments)
    assert done.returncode != 0
    assert words in done.stderr.strip().splitlines()[-1]


def test_the_command_is_whole_where_control_is_installed() -> None:
    done = run(sys.executable, "-m", "tracks_dagster", "--version")
    assert done.stdout.startswith("tracks ")
