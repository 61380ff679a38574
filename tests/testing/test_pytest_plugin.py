"""What `pytest --tracks` counts, records and says; whole runs: integration/test_pytest_tracks.py."""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes import FakeObjectStore
from tracks_dagster import pytest_plugin
from tracks_dagster.attempts.effects.local.code_archive import pack_folder
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.pytest_plugin import (
    COLLECTED,
    FAILED,
    NODE_ID_CHARACTERS_MAX,
    PASSED,
    PROPERTY,
    SKIPPED,
    TESTS_MAX,
    XFAILED,
    Certifying,
    Counting,
    Ran,
    Target,
    open_target,
    selection,
)
from tracks_dagster.settings import Settings
from tracks_dagster.testing.finding import RAN
from tracks_dagster.track.bodies import CodeCertified
from tracks_dagster.track.errors import StoreUnavailable

ROOT = Path(__file__).parents[2]
PROJECT = "version: 1\nname: tiny\nentry: train.py\n"
GREEN = {"outcomes": {"a": PASSED}, "checks": Counter(check_same=1), "scope": "pytest --tracks"}


def config_of(folder: Path, *args: str, testpaths: tuple[str, ...] = (), **option: Any) -> Any:
    """Return what pytest would hand over for these arguments, its root being the folder."""
    return SimpleNamespace(
        args=list(args) or [str(folder)],
        option=SimpleNamespace(**option),
        invocation_params=SimpleNamespace(dir=folder),
        rootpath=folder,
        getini=lambda name: list(testpaths),
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a project and its tests."""
    folder = tmp_path / "project"
    (folder / "tests").mkdir(parents=True)
    (folder / "tracks.yaml").write_text(PROJECT)
    (folder / "train.py").write_text("print('trains')\n")
    (folder / "tests" / "test_model.py").write_text("def test_it(): pass\n")
    return folder


@pytest.fixture
def target(project: Path, tracks: Tracks, tmp_path: Path) -> Target:
    """The project as it is before its tests, and the tracks of the test."""
    settings = Settings(home=tmp_path, store_url="", secrets=("hunter2hunter2",))
    return Target(
        folder=project, project="tiny", code=pack_folder(project), settings=settings, tracks=tracks
    )


def collect(counting: Counting, name: str) -> None:
    """Let a test be collected."""
    item: Any = SimpleNamespace(nodeid=name)
    counting.pytest_itemcollected(item)


class Session:
    """A run of pytest as its hooks see it, without pytest. left_out: by -k, -m, a conftest."""

    def __init__(self, target: Target, *args: str, left_out: int = 0, **option: Any) -> None:
        self.exitstatus: int = pytest.ExitCode.OK
        self.counting = Counting()
        for number in range(left_out):
            collect(self.counting, f"left out {number}")
        self.certifying = Certifying(
            config_of(target.folder, *args, **option), self.counting, target
        )

    def report(self, name: str, when: str, outcome: str = PASSED, **checks: int) -> None:
        """Hand in one report."""
        report: Any = SimpleNamespace(
            nodeid=name,
            when=when,
            failed=outcome == FAILED,
            skipped=outcome in (SKIPPED, XFAILED),
            passed=outcome == PASSED,
            user_properties=[(PROPERTY, checks), ("of another plugin", 1)],
        )
        if outcome == XFAILED:
            report.wasxfail = "known"
        self.certifying.pytest_runtest_logreport(report)

    def test(self, name: str, outcome: str = PASSED, **checks: int) -> None:
        """Hand in the three reports of a test."""
        collect(self.counting, name)
        self.report(name, "setup")
        self.report(name, "call", outcome)
        self.report(name, "teardown", **checks)

    def end(self, exitstatus: int = 0) -> str:
        """End the run and return what the terminal says."""
        self.exitstatus = exitstatus
        self.certifying.pytest_sessionfinish(self, exitstatus)  # type: ignore[arg-type]
        said: list[str] = []
        self.certifying.pytest_terminal_summary(
            SimpleNamespace(  # type: ignore[arg-type]
                section=lambda *_, **__: None, write_line=lambda text, **_: said.append(text)
            )
        )
        return " ".join(said)


def certified(target: Target) -> CodeCertified:
    """Return the newest certificate of the project's code."""
    state = target.tracks.find_code(target.code.sha256)
    assert state is not None
    body: CodeCertified = state.certificates[-1].body
    return body


def test_a_green_run_leaves_a_green_certificate(target: Target) -> None:
    session = Session(target)
    session.test("tests/test_model.py::test_a", check_finite=2, check_same=1)
    session.test("tests/test_model.py::test_b[hunter2hunter2]")
    session.test("tests/test_model.py::test_c", SKIPPED)
    session.test("tests/test_model.py::test_d", XFAILED, check_tied=1)
    said = session.end()
    body = certified(target)
    assert (body.is_green, body.what, body.passed, body.failed) == (True, "tests", 2, 0)
    assert (body.project, body.scope, body.findings) == ("tiny", "pytest --tracks", ())
    code = target.code.sha256
    ended = "2 passed, 1 skipped, 1 xfailed, 3 checks ran."
    assert said == f"Certificate of tiny, code {code[:12]}: green, {ended}"
    report = json.loads(target.tracks.store.get(f"codes/{code}/reports/{body.report_sha256}"))
    assert report["counts"] == {"passed": 2, "skipped": 1, "xfailed": 1}
    assert report["checks"] == {"check_finite": 2, "check_same": 1}
    assert "hunter2" not in str(report)
    assert session.exitstatus == 0


@pytest.mark.parametrize(
    ("when", "outcomes"),
    [
        ("setup", {"setup": FAILED}),
        ("call", {"call": FAILED}),
        ("teardown", {"call": PASSED, "teardown": FAILED}),
    ],
)
def test_a_failure_makes_it_red_whenever_it_happens(
    target: Target, when: str, outcomes: dict[str, str]
) -> None:
    session = Session(target)
    session.test("good", check_finite=1)
    for each, outcome in outcomes.items():
        session.report("bad", each, outcome)
    said = session.end(1)
    body = certified(target)
    assert (body.is_green, body.passed, body.failed, body.findings) == (False, 1, 1, ("bad",))
    assert said.endswith(": red, 1 failed.")


def test_a_file_that_cannot_be_collected_is_a_failure(target: Target) -> None:
    session = Session(target)
    session.test("good", check_finite=1)
    for name, is_bad in (("tests/test_model.py", True), ("tests", False)):
        report: Any = SimpleNamespace(nodeid=name, failed=is_bad)
        session.certifying.pytest_collectreport(report)
    session.end(pytest.ExitCode.INTERRUPTED)
    assert not certified(target).is_green
    assert certified(target).findings == ("tests/test_model.py",)


def test_a_red_run_closes_the_gate_that_a_green_one_opened(target: Target) -> None:
    for outcome in (PASSED, FAILED):
        session = Session(target)
        session.test("a", outcome, check_finite=1)
        session.end(int(outcome == FAILED))
    assert not certified(target).is_green


def test_what_was_left_out_is_counted_and_no_gate_takes_it(target: Target) -> None:
    session = Session(target, left_out=3, keyword="fast")
    session.test("a", check_finite=1)
    said = session.end()
    body = certified(target)
    assert (body.is_green, body.left_out, body.scope) == (False, 3, "pytest --tracks -k 'fast'")
    assert ": not green, tests were left out (pytest --tracks -k 'fast')" in said
    assert session.exitstatus == 0


def test_a_part_named_by_its_path_counts_as_one_at_least(target: Target) -> None:
    session = Session(target, "tests/test_model.py::test_it")
    session.test("a", check_finite=1)
    session.end()
    assert certified(target).left_out == 1


def test_what_a_worker_left_out_is_counted_once(target: Target) -> None:
    session = Session(target)
    session.test("a", check_finite=1)
    session.counting.collected.clear()  # the process that certifies collects nothing
    worker = Counting()
    for name in ("a", "b", "c"):
        collect(worker, name)
    config = SimpleNamespace(workeroutput={})
    worker.pytest_sessionfinish(SimpleNamespace(config=config))  # type: ignore[arg-type]
    assert config.workeroutput == {COLLECTED: 3}
    for _ in range(2):
        session.certifying.pytest_testnodedown(config)
    session.certifying.pytest_testnodedown(object())  # one that died
    session.end()
    assert certified(target).left_out == 2


def test_a_check_in_a_test_that_is_meant_to_fail_shows_nothing(target: Target) -> None:
    session = Session(target)
    session.test("a")
    session.test("b", XFAILED, check_finite=1)
    session.end()
    assert certified(target).findings == ("no check of tracks_dagster.testing ran",)


@pytest.mark.parametrize(
    ("tries", "passed"),
    [
        (("rerun", PASSED), 1),  # of pytest-rerunfailures
        (("rerun", FAILED), 0),
        ((SKIPPED, PASSED), 1),  # of a subtest, then of its test
        ((FAILED, PASSED), 0),
    ],
)
def test_the_last_try_counts_and_a_failed_subtest(
    target: Target, tries: tuple[str, ...], passed: int
) -> None:
    session = Session(target)
    for outcome in tries:
        session.report("a", "call", outcome)
    session.report("a", "teardown", check_finite=1)
    session.end()
    assert (certified(target).passed, certified(target).failed) == (passed, 1 - passed)


def test_without_a_check_of_ours_it_is_not_green(target: Target) -> None:
    session = Session(target)
    session.test("a")
    said = session.end()
    assert certified(target).findings == ("no check of tracks_dagster.testing ran",)
    assert said.endswith("no check of tracks_dagster.testing ran; docs/testing.md shows them.")


@pytest.mark.parametrize(
    ("tests", "exitstatus", "words"),
    [
        ((), 5, "no test ran"),
        ((), 0, "no test ran"),  # --collect-only
        (("a",), 2, "the tests did not run to their end"),
        (("a",), 3, "the tests did not run to their end"),
    ],
)
def test_a_run_that_says_nothing_of_the_code_records_nothing(
    target: Target, store: FakeObjectStore, tests: tuple[str, ...], exitstatus: int, words: str
) -> None:
    session = Session(target)
    for name in tests:
        session.test(name, check_finite=1)
    assert session.end(exitstatus) == f"Nothing was recorded: {words}."
    assert list(store.list("codes/")) == []
    assert session.exitstatus == exitstatus


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "log.txt").write_text("x"), "log.txt is new"),
        (lambda folder: (folder / "train.py").unlink(), "train.py is gone"),
        (lambda folder: (folder / "train.py").write_text("x = 1\n"), "a file is another"),
    ],
)
def test_code_that_changed_while_its_tests_ran_is_not_certified(
    target: Target, store: FakeObjectStore, change: Callable[[Path], object], words: str
) -> None:
    session = Session(target)
    session.test("a", check_finite=1)
    change(target.folder)
    said = session.end()
    assert said.startswith(
        "Nothing was recorded, though no test failed: the project's code changed"
    )
    assert words in said
    assert session.exitstatus == 1
    assert list(store.list("codes/")) == []


def test_a_store_that_fails_makes_the_run_fail_and_says_so(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(target)
    session.test("a", check_finite=1)

    def refuse(*_: object) -> None:
        raise StoreUnavailable("The store s3://bucket cannot be reached.")

    monkeypatch.setattr(target.tracks.store, "put", refuse)
    said = session.end()
    assert said == (
        "Nothing was recorded, though no test failed: The store s3://bucket cannot be reached."
    )
    assert session.exitstatus == 1


SELECTIONS: list[tuple[tuple[str, ...], dict[str, Any], str, bool]] = [
    ((), {}, "pytest --tracks", False),
    ((".",), {}, "pytest --tracks", False),
    (("..",), {}, "pytest --tracks", False),
    (
        (),
        {"keyword": "a or b", "markexpr": "not slow"},
        "pytest --tracks -k 'a or b' -m 'not slow'",
        False,
    ),
    (("tests/test_model.py",), {}, "pytest --tracks tests/test_model.py", True),
    (("tests",), {}, "pytest --tracks tests", True),
    (("tests",), {"testpaths": ("tests",)}, "pytest --tracks", False),
    (("tests",), {"testpaths": ("test*", "more")}, "pytest --tracks", False),
    (("src",), {"testpaths": ("tests",)}, "pytest --tracks src", True),
    ((), {"testpaths": ("../elsewhere",)}, "pytest --tracks", False),
    ((), {"deselect": ["a::b"]}, "pytest --tracks --deselect a::b", True),
    ((), {"ignore": ["tests/gpu"]}, "pytest --tracks --ignore tests/gpu", True),
    ((), {"lf": True, "ignore_glob": None}, "pytest --tracks --lf", True),
    ((), {"inifilename": "ci.ini"}, "pytest --tracks -c ci.ini", False),
    (
        (),
        {"override_ini": ["testpaths=tests/fast", "addopts="]},
        "pytest --tracks -o testpaths=tests/fast",
        True,
    ),
]


@pytest.mark.parametrize(("args", "given", "scope", "is_part"), SELECTIONS)
def test_the_selection_is_named_and_known_to_be_one(
    project: Path, args: tuple[str, ...], given: dict[str, Any], scope: str, is_part: bool
) -> None:
    (project.parent / "elsewhere").mkdir()
    assert selection(config_of(project, *args, **given), project) == (scope, is_part)


def test_tests_of_a_folder_below_are_a_part(project: Path) -> None:
    config = config_of(project)
    config.args, config.invocation_params.dir = [str(project / "tests")], project / "tests"
    assert selection(config, project)[1]


def test_the_report_is_bounded() -> None:
    names = {
        f"{number}{'é' * 2 * NODE_ID_CHARACTERS_MAX}": PASSED for number in range(2 * TESTS_MAX)
    }
    report = Ran(outcomes=names, errors=list(names), checks=Counter(check_same=1)).report()
    assert len(report) < 4 * 1024 * 1024
    assert json.loads(report)["counts"] == {"passed": 2 * TESTS_MAX}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"outcomes": {"a": PASSED, "b": FAILED}, "left_out": 1}, "1 failed."),
        ({"errors": ["a.py", "b.py"]}, "2 failed."),
        ({"left_out": 1}, "tests were left out (pytest --tracks)."),
        ({"outcomes": {"a": SKIPPED}}, "no test passed."),
        ({"checks": Counter()}, "no check of tracks_dagster.testing ran"),
    ],
)
def test_why_it_is_not_green(changed: dict[str, Any], words: str) -> None:
    why = Ran(**{**GREEN, **changed}).why_not_green()
    assert why.startswith(words)
    assert bool(why) == bool(words)


def test_the_checks_of_a_test_and_its_fixtures_are_in_its_reports() -> None:
    counting = Counting()
    item: Any = SimpleNamespace(user_properties=[])
    counting.pytest_runtest_setup()
    RAN["check_same"] += 2
    counting.pytest_runtest_teardown(item)
    assert item.user_properties == [(PROPERTY, {"check_same": 2})]
    counting.pytest_runtest_setup()
    counting.pytest_runtest_teardown(item)
    assert len(item.user_properties) == 1
    RAN["check_same"] -= 2


def test_a_folder_without_a_project_is_refused_before_a_test_runs(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match=r"no tracks\.yaml in .* `tracks init` writes one"):
        open_target(config_of(tmp_path))


def test_a_project_file_that_is_wrong_is_refused(project: Path) -> None:
    (project / "tracks.yaml").write_text("version: 1\n")
    with pytest.raises(pytest.UsageError, match=r"--tracks: .*tracks\.yaml"):
        open_target(config_of(project))


def test_a_home_that_cannot_be_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.parent / "file").write_text("")
    monkeypatch.setenv("TRACKS_HOME", str(project.parent / "file"))
    with pytest.raises(pytest.UsageError, match=r"--tracks: .*file"):
        open_target(config_of(project))


def test_an_environment_for_gangs_alone_says_what_to_install(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tracks_dagster.wiring", None)
    with pytest.raises(pytest.UsageError, match=r"pip install 'tracks-dagster\[control\]'"):
        open_target(config_of(project))


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    points = tomllib.loads(text)["project"]["entry-points"]["pytest11"]
    assert points == {"tracks": pytest_plugin.__name__}
