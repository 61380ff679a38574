"""The pytest plugin: the fixture `seeded`, and `pytest --tracks`, which certifies a project's code.

A certificate says how the tests of exactly that code went; the gates of stages ask for a green one. Red
runs are recorded too, for of a code the newest counts; a part says nothing, unless a test failed.
Without `--tracks` there is only the fixture. Every pytest of an environment loads this module, so it
imports nothing heavy.
"""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import pytest

from tracks_dagster.track.errors import TracksError

if TYPE_CHECKING:
    from tracks_dagster.attempts.effects.local.code_archive import PackedCode
    from tracks_dagster.ledger.effects.tracks import Tracks
    from tracks_dagster.settings import Settings

OPTION = "--tracks"
PROPERTY = "tracks_checks"  # of a test's report: name of a check → how often it ran
COLLECTED = "tracks_collected"  # what a worker of pytest-xdist tells: how many tests there are
NO_CHECK = "no check of tracks_dagster.testing ran"
CODE_DIGITS = 12
WIDTH = 80  # of what the terminal says
TESTS_MAX = 2_000  # named in the report, and as many errors: together they stay below 4 MiB
NODE_ID_CHARACTERS_MAX = 150  # of which each may become six in JSON
PASSED, FAILED, SKIPPED, XFAILED = "passed", "failed", "skipped", "xfailed"


@pytest.fixture
def seeded() -> Iterator[int]:
    """Seed the random numbers of Python, numpy and torch for this test; yields the seed."""
    from tracks_dagster.testing.running import seeded as with_seed

    with with_seed() as seed:
        yield seed


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tracks`."""
    parser.getgroup("tracks").addoption(
        OPTION,
        action="store_true",
        help="Certify the code of the project in this folder by this run: the gates of `tracks run "
        "--stage full` ask for it.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Count and certify where `--tracks` is given; raises UsageError before any test runs."""
    if config.getoption(OPTION):
        counting = Counting()
        config.pluginmanager.register(counting)
        if not hasattr(config, "workerinput"):  # no worker of pytest-xdist
            config.pluginmanager.register(Certifying(config, counting, open_target(config)))


class Counting:
    """Counts, in each process that runs tests, the tests that there are, and the checks of each.

    What of them has no outcome in the end was left out: by -k, by a conftest, by an early end.
    """

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self._before: Counter[str] = Counter()

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Count a test before anything can leave it out."""
        self.collected.add(item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Remember what had run before this test and its fixtures."""
        self._before = _checks_ran()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Put the checks of this test into its reports, which reach the process that certifies."""
        if ran := _checks_ran() - self._before:
            item.user_properties.append((PROPERTY, dict(ran)))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that certifies how many tests this worker knows of."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[COLLECTED] = len(self.collected)


def _checks_ran() -> Counter[str]:
    """Return how often each check ran; importing them would load torch for nothing."""
    module = sys.modules.get("tracks_dagster.testing.finding")
    return Counter() if module is None else Counter(module.RAN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is certified, and where it is recorded. code: as it was before the first test."""

    folder: Path
    project: str
    code: PackedCode
    settings: Settings
    tracks: Tracks


def open_target(config: pytest.Config) -> Target:
    """Return the project of the current folder with its code; UsageError says what is missing."""
    try:
        from tracks_dagster.attempts.effects.local.code_archive import pack_folder
        from tracks_dagster.projects.effects.project_file import FILE, find_project, read_project
        from tracks_dagster.settings import Settings
        from tracks_dagster.wiring import open_tracks
    except ModuleNotFoundError as error:
        raise pytest.UsageError(
            f"{OPTION}: {sys.executable} has what a gang needs, and a certificate needs more "
            f"({error.name} is missing). Install it: {sys.executable} -m pip install "
            f"'tracks-dagster[control]'; or run the tests without {OPTION}."
        ) from error
    start = config.invocation_params.dir
    folder = find_project(start)
    if folder is None:
        raise pytest.UsageError(
            f"{OPTION}: there is no {FILE} in {start} or above it, so there is no project to certify. "
            f"`tracks init` writes one; or run the tests without {OPTION}."
        )
    try:
        settings = Settings.from_environment()
        return Target(
            folder=folder,
            project=read_project(folder).name,
            code=pack_folder(folder),
            settings=settings,
            tracks=open_tracks(settings),
        )
    except TracksError as error:
        raise pytest.UsageError(f"{OPTION}: {error}") from error


@dataclass(slots=True)
class Ran:
    """What became of the tests. outcomes: by node id; checks: by name; errors: of collecting."""

    outcomes: dict[str, str] = field(default_factory=dict)
    checks: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    left_out: int = 0
    scope: str = ""

    def count(self, outcome: str) -> int:
        """Return how many tests ended so."""
        return sum(each == outcome for each in self.outcomes.values())

    @property
    def failed(self) -> list[str]:
        """What failed, by node id: tests, and files that could not be collected."""
        return [*self.errors, *(name for name, each in self.outcomes.items() if each == FAILED)]

    def findings(self) -> list[str]:
        """Return what the certificate names: all that failed, or that no check of ours ran."""
        return self.failed or ([] if self.checks else [NO_CHECK])

    def why_not_green(self) -> str:
        """Return why the certificate opens no gate, "" where it does."""
        if self.failed:
            return f"{len(self.failed)} failed."
        if self.left_out:
            return (
                f"tests were left out ({self.scope}). Run all of them: pytest {OPTION}, with their "
                "folders in testpaths."
            )
        if not self.count(PASSED):
            return "no test passed."
        return "" if self.checks else f"{NO_CHECK}; docs/testing.md shows them."

    def report(self) -> str:
        """Return all of it as JSON, bounded."""
        tests = list(self.outcomes.items())[:TESTS_MAX]
        torch = sys.modules.get("torch")
        return json.dumps(
            {
                "form": 1,
                "command": self.scope,
                "python": platform.python_version(),
                "pytest": pytest.__version__,
                "torch": None if torch is None else str(torch.__version__),
                "counts": dict(Counter(self.outcomes.values())),
                "left_out": self.left_out,
                "checks": dict(self.checks),
                "errors": [each[:NODE_ID_CHARACTERS_MAX] for each in self.errors[:TESTS_MAX]],
                "tests": [[name[:NODE_ID_CHARACTERS_MAX], outcome] for name, outcome in tests],
            }
        )


class Certifying:
    """Gathers the reports of all tests and records the certificate at their end."""

    def __init__(self, config: pytest.Config, counting: Counting, target: Target) -> None:
        scope, chooses_paths = selection(config, target.folder)
        self._counting, self._target, self._of_workers = counting, target, 0
        self._chooses_paths, self._outcome, self._is_good = chooses_paths, "", False
        self._ran = Ran(scope=scope)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be collected."""
        if report.failed:
            self._ran.errors.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended; a failure of its setup or teardown is one of it.

        A try that is repeated, and a subtest, are reported as well: what failed stays so.
        """
        outcomes, name = self._ran.outcomes, report.nodeid
        if report.failed:
            outcomes[name] = FAILED
        elif report.skipped and outcomes.get(name) != FAILED:
            outcomes[name] = XFAILED if hasattr(report, "wasxfail") else SKIPPED
        elif report.passed and report.when == "call" and outcomes.get(name) != FAILED:
            outcomes[name] = PASSED
        # A check in a test that is meant to fail has shown nothing.
        if report.when == "teardown" and outcomes.get(name) == PASSED:
            for name, value in report.user_properties:
                if name == PROPERTY and isinstance(value, dict):
                    self._ran.checks.update(value)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take in how many tests a worker of pytest-xdist knows of; each of them collects all."""
        output = getattr(node, "workeroutput", {})
        self._of_workers = max(self._of_workers, output.get(COLLECTED, 0))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Record the certificate; where that fails, the run fails too, and says why."""
        there = max(len(self._counting.collected), self._of_workers)
        left_out = max(0, there - len(self._ran.outcomes))
        self._ran.left_out = left_out or int(self._chooses_paths)
        try:
            self._outcome = self._record(exitstatus)
        except TracksError as error:
            tests = "" if self._ran.failed else ", though no test failed"
            self._outcome = f"Nothing was recorded{tests}: {error}"
            if exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was recorded, or why nothing was."""
        terminalreporter.section("tracks", sep="-")
        for line in wrap(self._outcome, WIDTH, break_long_words=False, break_on_hyphens=False):
            terminalreporter.write_line(line, green=self._is_good, yellow=not self._is_good)

    def _record(self, exitstatus: int) -> str:
        """Record the certificate and return what is said of it; raises TracksError."""
        from tracks_dagster.attempts.effects.local.code_archive import pack_folder
        from tracks_dagster.projects.effects.certificates import certify
        from tracks_dagster.settings import person
        from tracks_dagster.track.bodies import TESTS
        from tracks_dagster.track.text.redact import redact

        ran, target = self._ran, self._target
        # pytest calls it an interruption when files cannot be collected; that is a failure of the code.
        is_whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not ran.errors and not (is_whole and ran.outcomes):
            how = "no test ran" if not ran.outcomes else "the tests did not run to their end"
            return f"Nothing was recorded: {how}."
        after = pack_folder(target.folder)
        if after.sha256 != target.code.sha256:
            raise CodeChanged(_how_it_changed(target.code, after))
        certify(
            target.tracks,
            what=TESTS,
            code_sha256=after.sha256,
            project=target.project,
            passed=ran.count(PASSED),
            failed=len(ran.failed),
            left_out=ran.left_out,
            findings=ran.findings(),
            scope=ran.scope,
            report=redact(ran.report(), target.settings.secrets).encode(),
            by=person(),
            where=platform.node(),
        )
        why_not = ran.why_not_green()
        self._is_good = not why_not
        state = "green" if not why_not else "red" if ran.failed else "not green"
        ended = [f"{n} {each}" for each in (PASSED, SKIPPED, XFAILED) if (n := ran.count(each))]
        counts = f"{', '.join(ended)}, {ran.checks.total()} checks ran."
        return (
            f"Certificate of {target.project}, code {after.sha256[:CODE_DIGITS]}: {state}, "
            f"{why_not or counts}"
        )


class CodeChanged(TracksError):
    """The project's code is not the code that the tests began with."""


def _how_it_changed(before: PackedCode, after: PackedCode) -> str:
    new = sorted(set(after.names) - set(before.names))
    gone = sorted(set(before.names) - set(after.names))
    what = f"{new[0]} is new" if new else f"{gone[0]} is gone" if gone else "a file is another"
    return (
        f"the project's code changed while its tests ran: {what}. Let .gitignore leave out what tests "
        "write (in a folder of git's), or let them write elsewhere, and run them again."
    )


def selection(config: pytest.Config, folder: Path) -> tuple[str, bool]:
    """Return the command as far as it selects tests, and whether it names only a part of the project's.

    What -k and -m leave out is counted where it happens; what is not collected cannot be. An ini file
    of its own (-c) says itself which tests are all.
    """
    option = config.option
    words = [
        f"{flag} {value!r}" for flag, name in _EXPRESSIONS if (value := getattr(option, name, ""))
    ]
    if getattr(option, "inifilename", None):
        words.append(f"-c {option.inifilename}")
    parts = [
        f"{flag} {each}" for flag, name in _PLACES for each in getattr(option, name, None) or ()
    ]
    parts += [
        f"-o {each}"
        for each in getattr(option, "override_ini", None) or ()
        if each.partition("=")[0].strip() in _COLLECTING
    ]
    parts += [flag for flag, name in _BY_LAST_RUN if getattr(option, name, False)]
    if not _are_all(config, folder):
        parts = [*map(str, config.args), *parts]
    return " ".join(("pytest", OPTION, *words, *parts)), bool(parts)


_EXPRESSIONS = (("-k", "keyword"), ("-m", "markexpr"))
_PLACES = (("--deselect", "deselect"), ("--ignore", "ignore"), ("--ignore-glob", "ignore_glob"))
_BY_LAST_RUN = (("--lf", "lf"), ("--sw", "stepwise"))
_COLLECTING = ("testpaths", "python_files", "python_classes", "python_functions", "norecursedirs")


def _are_all(config: pytest.Config, folder: Path) -> bool:
    """Whether the paths of this run hold all of testpaths that lie in the project, or the project."""
    if any("::" in each for each in config.args):
        return False
    start, folder = config.invocation_params.dir, folder.resolve()
    given = [(start / each).resolve() for each in config.args]
    named = [
        each.resolve() for path in config.getini("testpaths") for each in config.rootpath.glob(path)
    ]
    wanted = [each for each in named if each.is_relative_to(folder)] or [folder]
    return all(any(each.is_relative_to(path) for path in given) for each in wanted)
