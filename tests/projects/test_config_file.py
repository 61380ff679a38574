"""A config file of somebody else's project is read in no time, whatever it holds."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tracks_dagster.projects.effects.config_file import CONFIG_BYTES_MAX, read_config
from tracks_dagster.track.effects.settings_file import open_settings
from tracks_dagster.track.errors import SettingsError

LETTERS = "abcdefghij"


def grown(first: str, line: str) -> str:
    """Return YAML in which each line has the one before it nine times."""
    pairs = itertools.pairwise(LETTERS)
    return f"a: &a {first}\n" + "".join(line.format(name=b, of=a) for a, b in pairs)


IN_LIST = "{name}: &{name} [" + ", ".join(["*{of}"] * 9) + "]\n"
IN_MAP = "{name}: &{name} {{" + ", ".join(f"k{n}: *{{of}}" for n in range(9)) + "}}\n"
MERGED = "{name}: &{name} {{<<: [" + ", ".join(["*{of}"] * 9) + "]}}\n"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        *(grown("[1]", IN_LIST), grown("{x: 1}", IN_MAP), grown("{x: 1}", MERGED)),
        *("a: &a [*a]", "a: &a {b: *a}"),
    ],
)
def test_aliases_that_make_too_much_of_a_file_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "conf.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"aliases \(\*\) it has more than"):
        read_config(tmp_path, "conf.yaml")


def test_ordinary_aliases_and_merges_are_followed(tmp_path: Path) -> None:
    text = "base: &base {lr: 0.1, wd: 0}\nbig: {<<: *base, lr: 0.2}\nlrs: &l [1, 2]\nmore: *l\n"
    (tmp_path / "conf.yaml").write_text(text)
    found = read_config(tmp_path, "conf.yaml")
    assert (found["big.lr"], found["big.wd"], found["more"]) == (0.2, 0, [1, 2])


@pytest.mark.parametrize("number", ["0x" + "f" * 2000, "9:" + "59:" * 1000 + "1"])
def test_a_number_that_is_larger_than_any_is_refused(tmp_path: Path, number: str) -> None:
    (tmp_path / "conf.yaml").write_text(f"x: {number}\n")
    with pytest.raises(ValueError, match=r"conf\.yaml: x = "):
        read_config(tmp_path, "conf.yaml")


@pytest.mark.timeout(20)
def test_a_pipe_and_a_file_that_is_too_large_are_not_a_config(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ValueError, match=r"pipe\.yaml is not a file"):
        read_config(tmp_path, "pipe.yaml")
    with pytest.raises(SettingsError, match=r"pipe\.yaml is not a file"):
        open_settings(tmp_path / "pipe.yaml", "The project file")
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(1000 * CONFIG_BYTES_MAX)
    with pytest.raises(ValueError, match="it is not a config"):
        read_config(tmp_path, "large.yaml")
