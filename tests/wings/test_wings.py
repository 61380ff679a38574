"""What a wing adds is found by the core, which knows it by one line."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import tracks_dagster
from tests.fakes import FakeObjectStore
from tracks_dagster import __main__, wing, wiring
from tracks_dagster.cli import catalog, main
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.wing import NAMES, Command, Wing, launchers, load, wings
from tracks_dagster.wiring import Launching, build

# A wing in a folder, and what is asked of it by who knows its name alone.
PLANTED = {
    "__init__.py": """
from tracks_dagster.wing import Launcher, Wing

WING = Wing(launchers={"planted": Launcher(module="launching", runs="Start runs there.")})
""",
    "launching.py": """
from tracks_dagster.track.errors import InvalidInput


def open_launcher(settings, store, clean):
    return "the planted launcher"


def check_gang(settings, spec):
    raise InvalidInput("refused there")


def drain_grace_s(settings):
    return 7.0
""",
}
ASKED = """
import sys
from types import SimpleNamespace

import tracks_dagster.wings
from tracks_dagster import wing

tracks_dagster.wings.__path__.append(sys.argv[1])
wing.NAMES += ("planted",)

from click.testing import CliRunner
from tracks_dagster.attempts.run_config import check_compute
from tracks_dagster.cli import main
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wiring import gang_check, launchers, launching

settings = Settings.from_environment({"TRACKS_HOME": sys.argv[1]})
compute = ComputeRequest(launcher="planted", ranks=2, queue="a")
check_compute(compute)
try:
    gang_check(settings)(SimpleNamespace(compute=compute))
except InvalidInput as error:
    print(error)
print(launchers(settings, None, str)("planted"))
print(launching("planted").drain_grace_s(settings))
for command in ("run", "up"):
    print(CliRunner().invoke(main, [command, "--help"]).output)
"""


def test_a_command_of_a_wing_is_listed_behind_the_one_that_it_follows() -> None:
    command = Command(module="x", summary="Planted.", group="Woken at night", after="explain")
    listed = list(catalog([Wing(commands={"planted": command})])["Woken at night"].items())
    at = listed.index(("planted", "Planted."))
    assert [listed[at - 1][0], listed[at + 1][0]] == ["explain", "logs"]


def test_every_wing_is_in_the_list() -> None:
    folder = Path(tracks_dagster.__file__).parent / "wings"
    assert {each.parent.name for each in folder.glob("*/__init__.py")} == set(NAMES)


def test_the_core_names_no_wing_in_its_texts_either() -> None:
    folder = Path(tracks_dagster.__file__).parent
    core = (each for each in folder.rglob("*.py") if not each.is_relative_to(folder / "wings"))
    named = re.compile(rf"wings[./]({'|'.join(NAMES)})")
    assert [str(each) for each in core if named.search(each.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("name", [name for wing in wings().values() for name in wing.commands])
def test_a_command_of_a_wing_is_found(name: str) -> None:
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_a_launcher_is_one_folder_and_one_line(tmp_path: Path) -> None:
    for name, text in PLANTED.items():
        path = tmp_path / "planted" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", ASKED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, third, *rest = done.stdout.splitlines()
    assert (first, second, third) == ("refused there", "the planted launcher", "7.0")
    shown = " ".join(" ".join(rest).split())
    assert "[local|kubernetes|slurm|planted]" in shown
    assert "--planted Start runs there." in shown


def test_a_launcher_is_opened_once_by_however_many_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = list[object]()

    def open_launcher(*_: object) -> object:
        time.sleep(0.05)
        opened.append(object())
        return opened[-1]

    monkeypatch.setattr(wiring, "launching", lambda _: SimpleNamespace(open_launcher=open_launcher))
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path)})
    launcher_of = wiring.launchers(settings, FakeObjectStore(), str)
    with ThreadPoolExecutor(8) as threads:
        given = [*threads.map(lambda _: launcher_of("planted"), range(8))]
    assert len(opened) == 1
    assert all(each is opened[0] for each in given)


@pytest.mark.parametrize("name", launchers())
def test_a_launcher_has_every_function_that_the_core_asks_for(name: str) -> None:
    package, launcher = launchers()[name]
    module = load(package, launcher.module)
    asked = {each for each in vars(Launching) if not each.startswith("_")}
    assert {each for each in asked if callable(getattr(module, each, None))} == asked


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let these packages be not installed."""
    there = wing.find_spec

    def find(name: str) -> Any:
        return None if name in packages else there(name)

    monkeypatch.setattr(wing, "find_spec", find)


def test_a_command_names_the_extra_that_it_lacks_and_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without(monkeypatch, "dagster_k8s", "kubernetes")
    done = CliRunner().invoke(main, ["doctor", "--kubernetes"])
    assert done.exit_code == 2
    assert "lacks what kubernetes needs (dagster_k8s, kubernetes)" in done.stderr
    assert f"{sys.executable} -m pip install 'tracks-dagster[kubernetes]'" in done.stderr


def test_a_home_for_a_cluster_is_refused_at_its_start_where_half_the_extra_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path / "home", store_url=str(tmp_path / "store"))
    settings.home.mkdir()
    (settings.home / "kubernetes.yaml").write_text("image: train:1\n")
    without(monkeypatch, "dagster_k8s")
    with pytest.raises(SettingsError, match=r"needs \(dagster_k8s\).*tracks-dagster\[kubernetes\]"):
        build(settings)
    assert not (tmp_path / "store").exists()


def test_a_half_installed_environment_is_refused_before_a_command_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "dagster_webserver", "polars")
    monkeypatch.setattr(sys, "argv", ["tracks", "--help"])
    with pytest.raises(SystemExit, match="2"):
        __main__.main()
    assert "lacks what the command needs (dagster_webserver, polars)" in capsys.readouterr().err


def test_every_package_of_an_extra_is_looked_for() -> None:
    root = Path(tracks_dagster.__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    of_package = importlib.metadata.packages_distributions()
    asked = {each.extra: each.packages for each in wings().values() if each.extra}
    for extra, packages in {**asked, "control": __main__.CONTROL}.items():
        named = {re.split(r"[\[<>=]", line)[0] for line in extras[extra]}
        brought = {name.lower() for package in packages for name in of_package[package]}
        assert named == brought & named, extra
