"""The Dockerfile, as far as it can be tried without an engine: its steps, its folder, its user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.worker_jobs import RUN_AS
from tracks_dagster.attempts.effects.local.checkout import BUILT_FROM

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
STEP_S_MAX = 120.0
SECRET = re.compile(r"password|token|secret|credential|access_key", re.IGNORECASE)


def instructions() -> list[tuple[str, str]]:
    """Return (word, rest) of every instruction, comments left out and continued lines joined."""
    lines = [line for line in TEXT.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "\\\n", "\n".join(lines)).replace("\\\n", " ")
    found = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(word, rest) for word, rest in found]


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, its FROM first."""
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def copied() -> set[str]:
    """Return what is copied from the checkout."""
    rests = [rest for word, rest in instructions() if word == "COPY"]
    given = [rest.split() for rest in rests if not rest.startswith("--from=")]
    return {source for each in given for source in each[:-1]}


def step(beginning: str) -> str:
    """Return the one RUN of the build that holds these words."""
    (found,) = [rest for word, rest in stages()[0] if word == "RUN" and beginning in rest]
    return found


def packages() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        each.rstrip("*") for each in project["tool"]["setuptools"]["packages"]["find"]["include"]
    }


@pytest.fixture(name="app")
def _app(tmp_path: Path) -> Path:
    """A folder with what the image's /app has, and nothing else."""
    folder = tmp_path / "app"
    folder.mkdir()
    for name in copied():
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


def test_every_package_is_copied_and_the_build_sees_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert lines[0] == "*"
    assert {line.removeprefix("!") for line in lines[1:] if line.startswith("!")} == copied()
    assert packages() < copied()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    others = {"constraints.txt", "docs/runbooks", "pyproject.toml", "workspace.yaml"}
    others |= {"assets", "resources", "sensors"}  # of this repository's own deployment
    others |= {*project["license-files"]}  # a build refuses a name that matches nothing
    assert copied() - packages() == others


@pytest.mark.parametrize(
    ("variant", "wheel"), [("cpu", "torch=={}+cpu"), ("cuda", "torch=={}")], ids=["cpu", "cuda"]
)
def test_a_variant_chooses_its_build_of_the_tested_torch(variant: str, wheel: str) -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"^torch==(\S+)$", pins, re.MULTILINE)
    assert shell(choice() + '; printf %s "$torch"', VARIANT=variant).stdout == wheel.format(version)


def test_a_variant_that_there_is_not_stops_the_build() -> None:
    done = shell(choice(), VARIANT="tpu")
    assert done.returncode == 2
    assert done.stderr == "VARIANT is tpu; there are cpu and cuda.\n"


def test_the_packages_are_those_that_the_project_names_at_the_tested_versions() -> None:
    (command,) = re.findall(r"-c '([^']*)' > requirements\.txt", step("tomllib"))
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["control"], *extras["kubernetes"], *extras["gpu"]]
    assert done.stdout.splitlines() == wanted
    assert "--constraint constraints.txt" in step("tomllib")


def test_the_user_is_a_number_that_is_not_root_and_that_gangs_run_as() -> None:
    users = [rest for word, rest in stages()[-1] if word == "USER"]
    assert users == [f"{RUN_AS}:{RUN_AS}"]
    assert RUN_AS > 0


def test_names_are_found_in_app_before_every_installed_package() -> None:
    last = dict(stages()[-1])
    assert last["WORKDIR"] == "/app"
    assert {"PYTHONPATH=/app", "PATH=/opt/venv/bin:$PATH"} <= {*last["ENV"].split()}


def test_what_it_was_built_from_stands_where_the_records_look() -> None:
    assert f'"$GIT_COMMIT" > {BUILT_FROM}' in step("--editable")


def test_no_secret_and_no_host_stands_in_it() -> None:
    assert "://" not in TEXT
    assert not SECRET.search(TEXT)
    arguments = {rest for word, rest in stages()[0] if word == "ARG"}
    assert {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"} <= arguments  # without a default
    # An index may be given with a password: nothing of it is left in the image that is pushed.
    assert [rest for word, rest in stages()[-1] if word == "ARG"] == []


def test_the_folder_alone_is_the_application(app: Path, tmp_path: Path) -> None:
    code = (
        "import assets, resources, sensors, tracks_dagster.definitions as last\n"
        "from tracks_dagster.settings import find_root\n"
        "print(assets.__file__, resources.__file__, sensors.__file__, last.__file__, find_root())"
    )
    found = python(app, tmp_path, "-c", code).split()
    assert [Path(each).relative_to(app).parts[0] for each in found[:-1]] == [
        "assets",
        "resources",
        "sensors",
        "tracks_dagster",
    ]
    assert Path(found[-1]) == app


def test_the_command_works_in_that_folder_and_a_pod_of_a_gang_has_its_module(
    app: Path, tmp_path: Path
) -> None:
    code = (
        "import importlib.util, tracks_dagster.cli as cli\n"
        "assert importlib.util.find_spec('tracks_dagster.training.pod')\n"
        "cli.main(['--help'])"
    )
    assert "doctor" in python(app, tmp_path, "-c", code)


def choice() -> str:
    """Return the shell's words that choose the wheel of torch."""
    (found,) = re.findall(r"case .* esac", step("esac"))
    return str(found)


def shell(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=STEP_S_MAX,
        check=False,
    )


def python(app: Path, cwd: Path, *arguments: str) -> str:
    """Run Python as in the image: `app` goes before every installed package."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(app), *_beside()])},
        capture_output=True,
        text=True,
        timeout=STEP_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _beside() -> list[str]:
    """Return the folders of packages that are on this PYTHONPATH, without any checkout."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [each for each in given if each and not (Path(each) / "workspace.yaml").exists()]
