"""A folder's tracks.yaml: what it declares, and every error of it with its line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.examples import saves
from tracks_dagster.projects.effects.config_file import render_config
from tracks_dagster.projects.effects.project_file import (
    find_project,
    project_of_script,
    read_project,
)
from tracks_dagster.projects.project import OwnEval, program_of_project, requirement_of
from tracks_dagster.projects.schedule import Schedule
from tracks_dagster.track.bodies import PromotionRule
from tracks_dagster.track.errors import SettingsError

LEAST = "version: 1\nname: tiny\nentry: train.py\n"
PROMOTES = "evals: {q: train.py, r: train.py}\npromotion: "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    (folder / "tracks.yaml").write_text(text)
    return folder


def refused(folder: Path, text: str) -> str:
    with pytest.raises(SettingsError) as error:
        read_project(write(folder, text))
    return str(error.value)


def test_a_file_declares_entry_keys_roles_and_cadence(folder: Path) -> None:
    text = """
config:
  lr: 3e-4
  batch_size: {default: 8, low: 1, high: 512, meaning: samples at once}
  max_iters: 1000
  betas: [0.9, 0.95]
keys: {micro_batch: batch_size, steps: max_iters}
dataset: my-text
ranks: 2
class: distributed
team: vision
checkpoint: {every_steps: 100, every: 10min, replay: 1}
retention: {keep_last: 2}
schedule: {cron: 0 3 * * MON, timezone: Europe/Berlin, on: new snapshot, only_if: snapshot differs}
"""
    project = read_project(write(folder, LEAST + text))
    assert (project.name, project.entry, project.dataset) == ("tiny", ("train.py",), "my-text")
    defaults = {name: key.default for name, key in project.keys.items()}
    assert defaults == {"lr": 3e-4, "batch_size": 8, "max_iters": 1000, "betas": [0.9, 0.95]}
    assert project.keys["batch_size"].high == 512
    assert project.roles == {"micro_batch": "batch_size", "steps": "max_iters", "lr": "lr"}
    assert (project.value("ranks"), saves(project)) == (2, (100, 600))
    assert (project.value("workload_class"), project.value("team")) == ("distributed", "vision")
    assert program_of_project(project).replay_steps == 1
    assert project.value("keep_last") == 2
    assert project.schedule == Schedule(
        cron="0 3 * * mon",
        timezone="Europe/Berlin",
        on_new_snapshot=True,
        only_if_snapshot_differs=True,
    )


def test_a_trainer_that_publishes_folders_saves_when_it_likes(folder: Path) -> None:
    for text in ("checkpoint: folder\n", "checkpoint: {kind: folder}\n"):
        project = read_project(write(folder, LEAST + text))
        assert (project.by_files, saves(project)) == (True, (None, None))
        assert program_of_project(project).by_files
    watched = read_project(write(folder, LEAST + "checkpoint: {watch: 'out/c_*.pt'}\n"))
    assert (watched.by_files, watched.watch) == (True, ("out/c_*.pt",))
    assert program_of_project(watched).watch == ("out/c_*.pt",)
    assert not read_project(write(folder, LEAST)).by_files


def test_a_file_declares_evals_and_what_a_promotion_asks(folder: Path) -> None:
    (folder / "evaluate.py").write_text("")
    text = """
dataset: my-text
evals:
  quality: evaluate.py
  speed:
    run: "./train.py {checkpoint} {data}"
    dataset: other
    every: 3
    required: true
    timeout: 2h
    device: none
promotion: {eval: quality, metric: accuracy, at_least: 0.9, better_by: 0.01, alias: best}
"""
    project = read_project(write(folder, LEAST + text))
    quality, speed = project.evals
    assert (quality.entry, quality.dataset, quality.every) == (("evaluate.py",), "my-text", None)
    assert (speed.name, speed.dataset, speed.every) == ("speed", "other", 3)
    assert speed.entry == ("./train.py", "{checkpoint}", "{data}")
    asked = [requirement_of(project, each, None, seed=0) for each in project.evals]
    assert [each.is_required for each in asked] == [True, True]  # the promotion rests on the first
    assert [each.timeout_s for each in asked] == [None, 7200.0]
    assert [each.needs_device for each in asked] == [True, False]
    assert project.promotion == PromotionRule(
        alias="best",
        suite="quality",
        metric="accuracy",
        direction="max",
        threshold=0.9,
        better_by=0.01,
    )


def test_a_scorer_follows_the_eval_that_it_is_of(folder: Path) -> None:
    def evals(of: str) -> tuple[OwnEval, ...]:
        text = f"evals:\n  {of}\n  score: {{run: './train.py {{scored}}', of: infer, required: true}}\n"
        project = read_project(write(folder, LEAST + text))
        asked = [requirement_of(project, each, None, seed=0) for each in project.evals]
        assert [(each.is_required, each.of) for each in asked] == [(True, None), (True, "infer")]
        return project.evals

    infer, score = evals("infer: {run: train.py, every: 3}")
    assert (score.every, score.needs_device, infer.needs_device) == (3, False, True)
    assert evals("infer: ./train.py")[1].version != score.version  # other files, other numbers


def test_another_text_of_an_evals_file_is_another_version(folder: Path) -> None:
    def version() -> str:
        (found,) = read_project(write(folder, LEAST + "evals: {q: train.py}\n")).evals
        return found.version

    before = version()
    assert version() == before
    (folder / "train.py").write_text("x = 1\n")
    assert version() != before


def test_what_is_wrong_with_a_file_is_refused_in_its_own_line(folder: Path) -> None:
    text = """version: 1
name: tiny
entry: trian.py --lr={lrr}
config:
  lr: {low: 3}
  b: {default: 9, high: 3}
  hang_s: soon
  nested: {a: 1}
keys: {micro_batch: batch_size}
checkpoint: {every: 10}
python: no/such/python
retries: 3
"""
    said = refused(folder, text).splitlines()[1:]
    expected = {
        "line 3: entry: there is no trian.py": "file",
        "line 3: entry: {lrr}: 'lrr' is not a config key; did you mean lr?": "placeholder",
        "line 5: config.lr: default is missing": "default",
        "line 6: config.b: b = 9 is out of range": "range",
        "line 7: config.hang_s: hang_s = 'soon' is not a number": "ours",
        "line 8: config.nested": "nested",
        "line 9: keys.micro_batch: 'batch_size' is not a config key": "role",
        "line 10: checkpoint.every: 10 has no unit": "unit",
        "line 11: python: there is no interpreter": "python",
        "line 12: retries: 'retries' is not a key": "unknown",
    }
    for start in expected:
        assert any(line.strip().startswith(start) for line in said), (start, said)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 2\nname: [x]\n", "version 2, and this tracks-dagster reads version 1; update"),
        ("version: one\n" + LEAST[11:], "'one' is not a version"),
        ("version: 1\nname: tiny\n", "entry is missing: write what a rank starts"),
        ("version: 1\nentry: train.py\n", "name is missing"),
        ("name: Tiny Model\nentry: train.py\n", "cannot name a project"),
        ("name: tiny\nentry: ../train.py\n", "outside the project"),
        ("name: tiny\nentry: -m pkg.train\n", "there is no module pkg.train"),
        (LEAST + "config: 3\n", "3 is not a config"),
        (LEAST + "upstream: dbt\n", "'dbt' is not a list"),
        (LEAST + "upstream: [a//b]\n", "is not a key of an asset"),
        (LEAST + "upstream: [tiny/model]\n", "line 4: upstream: tiny/model is made of the project"),
        (LEAST + "aliases: [Best]\n", "'Best' is not an alias"),
        (LEAST + "owners: [ann]\n", "'ann' is not an owner; write team:NAME"),
        (LEAST + "tags: {a: [b]}\n", "is not a tag"),
        (LEAST + "kinds: [a, b, c, d]\n", "there are 4 kinds; Dagster shows 3"),
        (LEAST + "group: a-b\n", "'a-b' is not a group"),
        (LEAST + "config: config.ini\n", "is not a config file; it ends in .json"),
        (LEAST + "config: absent.yaml\n", "absent.yaml cannot be read"),
        (LEAST + "config: ../x.json\n", "outside the project"),
        (LEAST + "ranks: 0\n", "0 is not a number of ranks"),
        (
            LEAST + "launcher: kubernets\n",
            "line 4: launcher: 'kubernets' is not a launcher; did you mean kubernetes?",
        ),
        (LEAST + "retention: {keep_last: 0}\n", "retention"),
        (LEAST + "checkpoint: {kind: file}\n", "not a kind of checkpoint"),
        (LEAST + "checkpoint: {kind: folder, every_steps: 9}\n", "saves when it likes"),
        (LEAST + "checkpoint: {kind: folder, replay: 1}\n", "saves when it likes"),
        (LEAST + "checkpoint: {replay: -1}\n", "checkpoint.replay: -1 is not a count"),
        (LEAST + "checkpoint: {watch: 'c_*.pt', replay: 1}\n", "saves when it likes"),
        (LEAST + "checkpoint: {watch: ckpt.pt}\n", "does not say where the step's number is"),
        (LEAST + "checkpoint: {watch: [a_*.pt, 'b_*_*']}\n", "'b_*_*' does not say where"),
        (LEAST + "checkpoint: {watch: ../c_*.pt}\n", "is not a path below the folder"),
        (LEAST + "checkpoint: {watch: 3}\n", "3 names no files"),
        (LEAST + "evals: {q: no.py}\n", "evals.q: there is no no.py"),
        (LEAST + "evals: {q: [./train.py, '{x}']}\n", "{x}: 'x' is not a config key"),
        (LEAST + "evals: {Q_1: train.py}\n", "cannot name an eval"),
        (LEAST + "evals: {q: {every: 3}}\n", "run is missing: write what measures"),
        (
            LEAST + "evals: {q: train.py, s: {run: train.py, of: p}}\n",
            "evals.s.of: 'p' is not an eval; there are: q.",
        ),
        (
            LEAST + "evals: {q: train.py, s: {run: train.py, of: s}}\n",
            "evals.s.of: s cannot score its own files; write the eval that leaves them: q.",
        ),
        (
            LEAST + "evals: {a: {run: train.py, of: b}, b: {run: train.py, of: a}}\n",
            "evals.a.of: b is a scorer itself, of a; write an eval of a checkpoint: there is none.",
        ),
        (
            LEAST + "evals: {q: train.py, s: {run: train.py, of: q, every: 2}}\n",
            "evals.s.of: it is due whenever q has completed",
        ),
        (
            LEAST + "evals: {q: train.py, s: {run: './train.py {checkpoint}', of: q}}\n",
            "{checkpoint}: 'checkpoint' is not a config key",
        ),
        (LEAST + "evals: {q: {run: train.py, every: 0}}\n", "evals.q.every"),
        (LEAST + "evals: {q: {run: train.py, required: often}}\n", "neither true nor false"),
        (
            LEAST + "evals: {q: {run: train.py, timeout: 25h}}\n",
            "not a limit of an eval; write 1s to",
        ),
        (
            LEAST + "evals: {q: {run: train.py, device: cpu}}\n",
            "'cpu' is not a device of an eval; wr",
        ),
        (LEAST + "evals: {q: {run: train.py, python: a/b}}\n", "evals.q.python: there is no int"),
        (LEAST + PROMOTES + "{metric: f1, at_least: 1}\n", "it names no eval; write one of evals:"),
        (LEAST + PROMOTES + "{eval: s, metric: f1, at_least: 1}\n", "'s' is not an eval"),
        (LEAST + PROMOTES + "{eval: q, metric: f1}\n", "needs one of at_least and at_most"),
        (LEAST + PROMOTES + "{eval: q, metric: f1, at_least: 1, at_most: 2}\n", "needs one of"),
        (LEAST + PROMOTES + "{eval: q, metric: f1, at_least: .nan}\n", "is not a number"),
        (LEAST + PROMOTES + "{eval: q, metric: f1, at_least: 1, better_by: -1}\n", "less than"),
        (LEAST + PROMOTES + "{eval: q, at_least: 1}\n", "metric is missing"),
        (LEAST + "schedule: {timezone: UTC}\n", "schedule: it never comes"),
        (LEAST + "schedule: {cron: 0 25 * * *}\n", "schedule.cron: '0 25 * * *' is not a cron"),
        (LEAST + "schedule: {cron: 5}\n", "schedule.cron: 5 is not a cron"),
        (LEAST + "schedule: {cron: 0 3 * * 1, timezone: Europe}\n", "'Europe' is not a time zone"),
        (
            LEAST + "dataset: d\nschedule: {on: push}\n",
            "'push' is not an event; there are: new snapshot",
        ),
        (LEAST + "schedule: {on: new snapshot}\n", "schedule: it asks for snapshots; name their"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_is_valid(folder: Path, text: str, words: str) -> None:
    (folder / "pkg").mkdir()
    assert words in refused(folder, text)


@pytest.mark.parametrize("name", ["config.yaml", "config.json", "config.toml"])
def test_a_config_file_is_read_flat_and_given_to_the_entry_nested_again(
    folder: Path, name: str
) -> None:
    config = {"model": {"layers": 2, "tied": True}, "lr": 0.1, "words": ["a", 'b"\n']}
    (folder / name).write_text(
        render_config(
            {"model.layers": 2, "model.tied": True} | {key: config[key] for key in ("lr", "words")},
            name,
        )
    )
    project = read_project(write(folder, f"{LEAST}config: {name}\n"))
    defaults = {key: each.default for key, each in project.keys.items()}
    assert defaults == {"model.layers": 2, "model.tied": True, "lr": 0.1, "words": ["a", 'b"\n']}
    parse = {".yaml": yaml.safe_load, ".json": json.loads, ".toml": tomllib.loads}
    assert project.config_name == name
    text = render_config({**defaults, "model.layers": 3}, name)
    assert parse[Path(name).suffix](text) == {**config, "model": {"layers": 3, "tied": True}}


def test_a_project_is_the_nearest_folder_above(folder: Path) -> None:
    assert find_project(folder) is None
    write(folder, LEAST)
    (folder / "src" / "deep").mkdir(parents=True)
    assert find_project(folder / "src" / "deep") == folder


def test_a_script_alone_is_a_project_of_its_own_name(tmp_path: Path) -> None:
    project = project_of_script(tmp_path / "Train_My GPT!.py")
    assert (project.name, project.entry, project.keys) == (
        "train-my-gpt",
        ("Train_My GPT!.py",),
        {},
    )
    assert project.is_open
