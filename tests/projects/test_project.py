"""A project's config and entry: what is checked, what follows, how a command line is filled in."""

from __future__ import annotations

import pytest

from tracks_dagster.projects.project import (
    ConfigKey,
    Project,
    fill_entry,
    parse_entry,
    resolve_config,
    unknown_placeholders,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.roles import roles_of, value_of

KEYS = {
    "max_iters": ConfigKey(default=40, low=1, high=1000),
    "batch": ConfigKey(default=24),
    "micro": ConfigKey(default=5),
    "lr": ConfigKey(default=0.1, meaning="peak learning rate"),
    "optimizer": ConfigKey(default="adam", choices=("adam", "sgd")),
    "compile": ConfigKey(default=False),
    "resume_from": ConfigKey(default=None),
}
ROLES = {"steps": "max_iters", "global_batch": "batch", "micro_batch": "micro"}
PROJECT = Project(name="p", entry=("train.py",), keys=KEYS, roles=roles_of(ROLES, KEYS))


def test_a_config_is_the_defaults_what_is_given_and_the_accumulation_that_follows() -> None:
    config = resolve_config(PROJECT, {"lr": 1, "micro": 3}, ranks=2)  # 24 = 3 x 4 x 2
    assert config == {
        "max_iters": 40,
        "batch": 24,
        "micro": 3,
        "accumulation": 4,
        "lr": 1.0,
        "optimizer": "adam",
        "compile": False,
        "resume_from": None,
    }


def test_a_default_micro_batch_shrinks_to_what_divides_the_share_of_a_rank() -> None:
    config = resolve_config(PROJECT, {}, ranks=3)  # a share of 8: 5 becomes 4
    assert (config["micro"], config["accumulation"]) == (4, 2)


@pytest.mark.parametrize(
    ("given", "ranks", "words"),
    [
        ({"lrr": 1}, 1, "'lrr' is not a config key; did you mean lr?"),
        ({"lr": "fast"}, 1, "lr = 'fast' is not a number, as its default 0.1 is. It means: peak"),
        ({"max_iters": 2.5}, 1, "not a whole number"),
        ({"max_iters": True}, 1, "not a whole number"),
        ({"compile": 1}, 1, "not true or false"),
        ({"max_iters": 1001}, 1, "out of range: 1 to 1000"),
        ({"optimizer": "lion"}, 1, "use one of: adam, sgd"),
        ({"resume_from": {"a": 1}}, 1, "cannot be in a config"),
        ({"lr": float("nan")}, 1, "cannot be in a config"),
        ({"hang_s": 0.1}, 1, "out of range: 1 to 1e\\+06"),
        ({"accumulation": 2}, 1, "follows from batch, micro and the ranks"),
        ({"batch": 25}, 2, "cannot be divided among 2 ranks"),
        ({"micro": 5}, 2, "use a divisor of 12"),
        ({"micro": 0}, 2, "micro = 0 is not a number of samples"),
    ],
)
def test_a_value_that_cannot_be_is_refused_naming_the_key_and_what_is_valid(
    given: dict[str, object], ranks: int, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        resolve_config(PROJECT, given, ranks=ranks)


@pytest.mark.parametrize(
    ("default", "given", "is_taken"), [(40, 0, False), (40, -5, False), (-1, -1, True)]
)
def test_a_run_has_a_step_unless_its_projects_own_default_says_otherwise(
    default: int, given: int, is_taken: bool
) -> None:
    keys = {"steps": ConfigKey(default=default)}
    project = Project(name="p", entry=("train.py",), keys=keys, roles=roles_of({}, keys))
    if is_taken:
        assert resolve_config(project, {"steps": given}, ranks=1) == {"steps": given}
        return
    with pytest.raises(
        InvalidInput, match=f"steps = {given} is not a number of steps; use 1 or more"
    ):
        resolve_config(project, {"steps": given}, ranks=1)


def test_keys_of_ours_are_taken_by_every_project_and_in_no_config_unasked() -> None:
    bare = Project(name="p", entry=("train.py",))
    assert resolve_config(bare, {}, ranks=2) == {}
    assert resolve_config(bare, {"hang_s": 60}, ranks=2) == {"hang_s": 60.0}
    with pytest.raises(InvalidInput, match="'mine' is not a config key"):
        resolve_config(bare, {"mine": 1}, ranks=2)


def test_a_script_without_a_project_file_takes_any_key() -> None:
    script = Project(name="p", entry=("train.py",), is_open=True)
    assert resolve_config(script, {"mine": [1, 2]}, ranks=2) == {"mine": [1, 2]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.py", ("train.py",)),
        ("python train.py --lr={lr}", ("train.py", "--lr={lr}")),
        ("python3.11 -m pkg.train 'a b'", ("-m", "pkg.train", "a b")),
        ("python -u train.py", ("python", "-u", "train.py")),
        ("./train.sh {config}", ("./train.sh", "{config}")),
    ],
)
def test_an_entry_is_a_script_a_module_or_a_command(text: str, words: tuple[str, ...]) -> None:
    assert parse_entry(text) == words


@pytest.mark.parametrize("text", ["", "-m", "'", "/x/train.py", "../train.py", "./a/../../b.sh"])
def test_an_entry_that_starts_nothing_of_the_folder_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"entry is missing|not a command line|outside the project"
    ):
        parse_entry(text)


def test_placeholders_of_an_entry_are_the_configs_keys() -> None:
    entry = ("train.py", "--lr={lr}", "--json={{}}", "{config}", "--compile={compile}")
    filled = fill_entry(entry, {"lr": 3e-05, "compile": False}, config_path="/w/config.yaml")
    assert filled == ("train.py", "--lr=3e-05", "--json={}", "/w/config.yaml", "--compile=False")
    with pytest.raises(InvalidInput, match="no such key; it has: lr"):
        fill_entry(("{rate}",), {"lr": 1}, config_path="")
    typo = Project(name="p", entry=("t.py", "{lrr}", "{config}"), keys=KEYS)
    (words,) = unknown_placeholders(typo, typo.entry)
    assert "did you mean lr?" in words
    assert "{{lrr}}" in words


def test_roles_are_those_given_and_keys_of_the_same_name() -> None:
    assert roles_of({"steps": "max_iters"}, {"max_iters": 1, "learning_rate": 1}) == {
        "steps": "max_iters",
        "lr": "learning_rate",
    }
    old = {"steps": 40, "micro_batch": 4}  # a run that recorded no roles
    assert (value_of(old, {}, "steps"), value_of(old, {}, "seed")) == (40, None)
    assert value_of({"max_iters": 9}, {"steps": "max_iters"}, "steps") == 9
