"""`tracks drill` plays every kind of drill, in a home of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from tests.examples import example_config
from tracks_dagster.attempts.drills import KINDS, fit_drill, parse_drill
from tracks_dagster.wings.lab.edge import drill
from tracks_dagster.wings.lab.effects.rehearsals import SMALL, STEPS, Rehearsal


def test_every_kind_has_a_run_in_which_it_fires() -> None:
    assert set(drill.REHEARSALS) == set(KINDS)
    for kind, each in drill.REHEARSALS.items():
        given = {"steps": STEPS, **SMALL, **each.config}
        config = example_config(given, ranks=each.ranks)
        assert fit_drill(parse_drill(each.drill), config, {}, ranks=each.ranks).kind == kind


def test_who_needs_the_home_for_itself_is_played_last() -> None:
    chosen = drill._chosen(True, ())
    assert [each.alone for each in chosen] == sorted(each.alone for each in chosen)
    assert not drill._has_room(chosen[-1], [_under_way(chosen[0])])
    assert not drill._has_room(chosen[0], [_under_way(chosen[-1])])
    assert drill._has_room(chosen[0], [_under_way(chosen[1])])


def test_drills_never_touch_the_home_and_the_store_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_HOME", "/elsewhere")
    monkeypatch.setenv("TRACKS_STORE", "s3://elsewhere/store")
    settings = drill._embedded(tmp_path)
    assert (settings.home, settings.store_url) == (tmp_path, str(tmp_path / "store"))


def test_the_scores_of_all_fit_80_columns_and_what_is_wrong_stands_below_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [
        drill.DrillRow(
            drill=each.drill,
            run_id="drill-1",
            expected_reason=kind.reason or "–",
            found_reason=kind.reason or "–",
            expected_action=kind.action.value,
            found_action=kind.action.value,
            lost_steps=20,
            detection_s=120.5,
            decision_s=134.9,
            recovery_s=None,
            missing="it did not fire" if name == "nan" else "",
        )
        for name, each in drill.REHEARSALS.items()
        for kind in [KINDS[name]]
    ]
    drill._print_table(rows)
    _, *lines, last = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines] == list(drill.REHEARSALS)
    assert last == "nan@13: missing: it did not fire"


class EndlessRun:
    """A run that goes on and on, and a gang of it that lives."""

    ended: ClassVar[list[str]] = []

    def __init__(
        self, app: object, home: object, found: object, rehearsal: Rehearsal, shared: str
    ) -> None:
        self.rehearsal = rehearsal

    def is_over(self) -> bool:
        raise KeyboardInterrupt

    def end_gang(self) -> None:
        self.ended.append(self.rehearsal.drill)


class StoppingHome:
    """A Dagster home that says when its daemon is gone."""

    @contextmanager
    def daemon(self) -> Iterator[StoppingHome]:
        try:
            yield self
        finally:
            EndlessRun.ended.append("daemon")


def test_an_interrupted_command_ends_the_gangs_once_the_daemon_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = SimpleNamespace(tracks=None, store=SimpleNamespace(url=""), redact=str)
    monkeypatch.setattr(drill, "build", lambda settings: app)
    monkeypatch.setattr(drill, "open_dagster_home", lambda settings: StoppingHome())
    monkeypatch.setattr(drill, "ensure_snapshots", lambda app, home, families: None)
    monkeypatch.setattr(drill, "find_snapshot", lambda *_: SimpleNamespace(snapshot_id="s"))
    monkeypatch.setattr(drill, "UnderWay", EndlessRun)
    chosen = drill._chosen(False, ("nan", "spike"))
    with pytest.raises(KeyboardInterrupt):
        drill._play(drill._embedded(tmp_path), chosen)
    assert EndlessRun.ended == ["daemon", "nan@13", "spike@25"]


def _under_way(rehearsal: Rehearsal) -> drill.UnderWay:
    run = object.__new__(drill.UnderWay)
    run.rehearsal = rehearsal
    return run
