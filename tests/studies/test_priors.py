"""What earlier searches found becomes part of a study, and its sampler begins with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeObjectStore
from tests.studies.played import Played, make_study, play
from tests.studies.test_samplers import PARAMS, bowl, of
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.studies.effects.foreign_trials import optuna_studies
from tracks_dagster.studies.effects.priors import PRIORS_MAX, read_priors
from tracks_dagster.studies.effects.searching import search_of
from tracks_dagster.studies.space import Param, make_space
from tracks_dagster.track.bodies import StudyDeclared
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.records import Json

SPACE = make_space(PARAMS)


def read(tracks: Tracks, *names: str, **changes: Any) -> list[dict[str, Json]]:
    given = {"kind": "tpe", "metric": "loss", "direction": "min", "remark": print, **changes}
    return [dict(each) for each in read_priors(tracks, names, given.pop("space", SPACE), **given)]


@pytest.fixture
def earlier(tracks: Tracks, store: FakeObjectStore) -> Played:
    """A study of 100 random trials in the store."""
    played = play(make_study(study="old", params=PARAMS, trials=100), bowl)
    played.write_to(store)
    return played


def test_the_trials_of_a_study_are_taken_evenly_from_the_best_to_the_worst(
    tracks: Tracks, earlier: Played
) -> None:
    priors = read(tracks, "old")
    values = [each["value"] for each in priors]
    losses = sorted(bowl(each.config, 9) for each in earlier.state.trials)
    assert len(priors) == PRIORS_MAX
    assert values == sorted(values)
    assert (values[0], values[-1]) == (losses[0], losses[-1])
    assert all(bowl(each["config"], 9) == each["value"] for each in priors)


def test_a_sampler_begins_with_them_and_proposes_the_same_again(
    tracks: Tracks, earlier: Played
) -> None:
    pytest.importorskip("optuna")
    search = {"kind": "tpe", "startup": 12, "priors": read(tracks, "old")}

    def losses(study: StudyDeclared) -> list[float]:
        played = Played(study, bowl, search_of(study))
        played.play()
        return [bowl(each.config, 9) for each in played.state.trials]

    with_priors = losses(of("tpe", search=search, trials=12, slots=1))
    assert with_priors == losses(of("tpe", search=search, trials=12, slots=1))
    assert sum(with_priors) < 0.7 * sum(losses(of("tpe", trials=12, slots=1)))


def test_what_lies_outside_of_the_space_is_left_out_with_the_count(
    tracks: Tracks, tmp_path: Path
) -> None:
    good = {"lr": 0.01, "layers": 3, "optimizer": "adam"}
    bad: list[dict[str, Json]] = [
        {**good, "lr": 1.0},
        {**good, "layers": 2.5},
        {**good, "layers": True},
        {**good, "optimizer": "lion"},
        {**good, "momentum": 0.5},  # adam has none
        {**good, "optimizer": "sgd"},  # and sgd needs one
        {"lr": 0.01},
    ]
    path = tmp_path / "trials.jsonl"
    path.write_text("".join(f"{json.dumps({'config': c, 'value': 1})}\n" for c in [good, *bad]))
    remarks: list[str] = []
    assert read(tracks, str(path), remark=remarks.append) == [{"config": good, "value": 1.0}]
    assert remarks == [
        f"search: priors: 7 of the 8 trials of {path} that have a value lie outside of the space, and "
        "are left out."
    ]
    path.write_text("".join(f"{json.dumps({'config': c, 'value': 1})}\n" for c in bad))
    with pytest.raises(
        InvalidInput, match=r"none of the 7 trials .* lies in the space: each of lr"
    ):
        read(tracks, str(path))


@pytest.mark.parametrize("line", ["{", "1", "[]", '{"config": 1, "value": 1}', '{"config": {}}'])
def test_a_line_that_is_not_a_trial_is_named(tracks: Tracks, tmp_path: Path, line: str) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(InvalidInput, match=r"line 2 of .*trials\.jsonl is not a trial; write"):
        read(tracks, str(path))


def test_a_study_of_optuna_is_read_and_never_written(tracks: Tracks, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = tmp_path / "old.db"
    space = make_space({"lr": Param(kind="loguniform", low=1e-4, high=1e-1)})
    for name in ("a", "b"):
        made = optuna.create_study(study_name=name, storage=f"sqlite:///{path}")
        made.optimize(lambda trial: trial.suggest_float("lr", 1e-3, 1e-2, log=True), n_trials=3)
    before = path.read_bytes()
    priors = read(tracks, f"{path}#a", space=space)
    assert [each["value"] for each in priors] == sorted(each["config"]["lr"] for each in priors)
    assert len(priors) == 3
    with pytest.raises(
        InvalidInput, match=r"name a study of .*old\.db: .*#NAME; there are: a, b\."
    ):
        read(tracks, str(path), space=space)
    with pytest.raises(InvalidInput, match=r"is to be min, and this study max"):
        read(tracks, f"{path}#a", space=space, direction="max")
    assert path.read_bytes() == before
    odd = tmp_path / "50%25 of {a}?"
    odd.mkdir()
    path.rename(odd / "old.db")
    assert optuna_studies(odd / "old.db")[0] == ["a", "b"]
    (tmp_path / "empty.db").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"empty\.db cannot be read by Optuna"):
        read(tracks, str(tmp_path / "empty.db"), space=space)
    assert (tmp_path / "empty.db").read_bytes() == b""


def raytune(folder: Path) -> Path:
    """Make what Ray Tune leaves of a grid: `config` and a line a report, in a folder a trial."""
    trials = {
        "a": (0.01, [0.1, 0.05, 0.03]),
        "b": (0.02, [0.2, 0.1, 0.06]),
        "early": (0.04, [0.4, 0.2]),  # stopped by a scheduler: not comparable
        "nan": (0.09, [math.nan]),
    }
    for name, (lr, losses) in trials.items():
        config = {"lr": lr, "layers": 3, "optimizer": "adam", "momentum": 0.5, "workers": 8}
        trial = folder / f"train_{name}"
        trial.mkdir(parents=True)
        (trial / "params.json").write_text(json.dumps(config))
        lines = [
            json.dumps({"loss": v, "training_iteration": n, "done": False, "config": config})
            for n, v in enumerate(losses, 1)
        ]
        (trial / "result.json").write_text("\n".join([*lines, '{"loss": 0.0, "trai']))
    return folder


def test_the_trials_of_ray_tune_that_came_furthest_are_taken_with_the_keys_of_the_space(
    tracks: Tracks, tmp_path: Path
) -> None:
    folder = f"{raytune(tmp_path / 'grid')}/"
    config = {
        "layers": 3,
        "optimizer": "adam",
    }  # adam has no momentum, and workers are not searched
    assert read(tracks, folder) == [
        {"config": {"lr": lr, **config}, "value": value}
        for lr, value in ((0.01, 0.03), (0.02, 0.06))
    ]
    assert read(tracks, f"{folder}#loss", metric="quality/loss") == read(tracks, folder)
    with pytest.raises(
        InvalidInput, match=r"no trial of .*grid/ reported score, but config, done,"
    ):
        read(tracks, folder, metric="score")
    with pytest.raises(InvalidInput, match=r"has no trial of Ray Tune's"):
        read(tracks, f"{tmp_path}/")
    (tmp_path / "grid" / "train_a" / "params.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"params\.json cannot be read"):
        read(tracks, folder)


def test_a_trial_of_ray_tune_with_long_reports_is_read_to_its_end(
    tracks: Tracks, tmp_path: Path
) -> None:
    trial = tmp_path / "rllib" / "train_a"
    trial.mkdir(parents=True)
    config = {"lr": 0.01, "layers": 3, "optimizer": "adam"}
    (trial / "params.json").write_text(json.dumps(config))
    with (trial / "result.json").open("w") as file:
        for n in range(1, 13):  # a report of RLlib has its config and timers, 20 kB; 12 MiB in all
            report = {"loss": 1 / n, "training_iteration": n, "config": "x" * (2**20 - 100)}
            file.write(f"{json.dumps(report)}\n")
    assert read(tracks, f"{tmp_path / 'rllib'}/") == [{"config": config, "value": 1 / 12}]


def test_what_cannot_be_a_prior_is_refused(tracks: Tracks, earlier: Played, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"random learns nothing from trials"):
        read(tracks, "old", kind="random")
    with pytest.raises(
        InvalidInput, match=r"old is of loss \(min\), and this one of accuracy \(max\)"
    ):
        read(tracks, "old", metric="accuracy", direction="max")
    with pytest.raises(UnknownRun, match="none-such"):
        read(tracks, "none-such")
    with pytest.raises(InvalidInput, match=r"there is no file|cannot be read"):
        read(tracks, str(tmp_path / "none.jsonl"))
