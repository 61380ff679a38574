"""What a user installs, outside of every checkout: the wheel, built from the source distribution.

What `[control]` needs is installed out of the cache of the packages that set up this checkout; the
index is asked only for what is not there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, embedded
from tests.integration.pasting import Terminal, from_an_empty_folder

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
# A user's own package of a name that ours once had, imported by the code location.
OWN_ASSETS = "OWN = 'of the user'\n"
OWN_DEFINITIONS = """
import assets
import dagster
from tracks_dagster import definitions as tracks

assert assets.OWN == "of the user", assets

@dagster.asset
def mine() -> None: ...

defs = dagster.Definitions.merge(dagster.Definitions(assets=[mine]), tracks.defs)
"""

pytestmark = pytest.mark.timeout(4 * COMMAND_S_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """wheel: the file; bin: of the environment that has it, with `[control]`."""

    wheel: Path
    bin: Path

    def terminal(self, home: Home, folder: Path) -> Terminal:
        """Return a terminal in `folder` that finds this environment's commands, and no checkout."""
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, **home.variables, "HOME": str(folder), "PATH": path}
        environment.pop("PYTHONPATH", None)
        return Terminal(folder=folder, environment=environment)


def call(*command: str | Path, folder: Path = ROOT) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr


def from_cache(*command: str | Path, folder: Path) -> str:
    """Call uv without its index, and with it where the cache lacks a package."""
    try:
        return call(*command, "--offline", folder=folder)
    except AssertionError:
        return call(*command, folder=folder)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own."""
    folder = tmp_path_factory.mktemp("installed")
    # The source distribution first, then the wheel out of it: what one lacks, the other does.
    call(UV, "build", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, ROOT)
    [wheel], venv = list(folder.glob("*.whl")), folder / "venv"
    call(UV, "venv", "--python", sys.executable, venv)
    install = (UV, "pip", "install", "--python", venv / "bin" / "python", f"{wheel}[control]")
    from_cache(*install, "--constraints", ROOT / "constraints.txt", folder=folder)
    return Installed(wheel=wheel, bin=venv / "bin")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return embedded(tmp_path)


def test_a_wheel_and_a_source_distribution_carry_the_examples_and_one_name(
    installed: Installed,
) -> None:
    [source] = installed.wheel.parent.glob("*.tar.gz")
    with tarfile.open(source) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"README.md", "LICENSE", "docs", "tests"} <= {name.partition("/")[0] for name in names}
    carried = set(ZipFile(installed.wheel).namelist())
    listed = call("git", "ls-files", "tracks_dagster/examples").split()
    assert len(listed) > 10
    assert {*listed} <= carried & names
    assert {name.split("/")[0].split("-")[0] for name in carried} == {"tracks_dagster"}


def test_a_users_own_assets_are_found_in_a_code_location_that_merges_ours(
    installed: Installed, home: Home, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    (mine / "assets").mkdir(parents=True)
    (mine / "assets" / "__init__.py").write_text(OWN_ASSETS)
    (mine / "definitions.py").write_text(OWN_DEFINITIONS)
    terminal = installed.terminal(home, mine)
    terminal.paste("dagster definitions validate -f definitions.py")


def test_the_commands_of_readme_lead_from_an_empty_folder_to_a_model_by_the_wheel_alone(
    installed: Installed, home: Home, tmp_path: Path
) -> None:
    """Its gangs find the user's own `assets`; then a shipped example is trained."""
    terminal = installed.terminal(home, tmp_path)
    for command in from_an_empty_folder():
        terminal.paste(command)
        if command.startswith("tracks init"):
            (terminal.folder / "assets").mkdir()
            (terminal.folder / "assets" / "__init__.py").write_text(OWN_ASSETS)
            script = terminal.folder / "train.py"
            first, rest = script.read_text().split("\nimport ", 1)
            checked = "import assets\nassert assets.OWN == 'of the user', assets\nimport "
            script.write_text(f"{first}\n{checked}{rest}")
    assert (tmp_path / "handoff" / "weights.pt").exists()
    terminal.folder = tmp_path
    terminal.paste("tracks run --run-id shipped --set steps=10")
    runs = [home.app.tracks.run(run_id) for run_id in ("first", "second", "shipped")]
    assert [run.attempts[-1].reason for run in runs] == ["completed"] * 3
    assert [run.declared.model_family for run in runs] == ["my-model", "my-model", "gpt"]


def test_without_what_commands_need_each_says_what_to_install(
    installed: Installed, tmp_path: Path
) -> None:
    """The wheel alone is for the environment that a trainer runs in."""
    venv = tmp_path / "venv"
    call(UV, "venv", "--python", sys.executable, venv)
    install = (UV, "pip", "install", "--python", venv / "bin" / "python", installed.wheel)
    from_cache(*install, "--constraints", ROOT / "constraints.txt", folder=tmp_path)
    for words in ("status", "run"):
        done = subprocess.run(
            [venv / "bin" / "tracks", words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode != 0
        assert "pip install 'tracks-dagster[control]'" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("extra", ["", "[control]"])
def test_uvx_starts_the_command_out_of_the_wheel(
    installed: Installed, tmp_path: Path, extra: str
) -> None:
    constraints = ("--constraints", ROOT / "constraints.txt", "--python", sys.executable)
    command = (*constraints, "--from", f"{installed.wheel}{extra}", "tracks", "--help")
    printed = call(UV, "tool", "run", *command, folder=tmp_path)
    assert "Usage: tracks" in printed
    assert ("Declare a training run" in printed) == bool(extra)
