"""No input of any kind makes a command show a traceback; a failure prints the seed and the inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.fuzz import Fuzzer, report
from tests.seeds import fresh_seeds

SHORT, FULL = 60, 4_000  # inputs of one seed
INPUTS_S_MAX = 7200  # for FULL of them on a busy machine


def fuzz(seed: int, count: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    fuzzer = Fuzzer(folder, seed)
    fuzzer.run(count)
    assert not fuzzer.defects, report(fuzzer)


def test_any_input_is_answered_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz(7, SHORT, tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.timeout(INPUTS_S_MAX)
def test_thousands_of_inputs_are_answered_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [seed] = fresh_seeds(1)
    fuzz(seed, FULL, tmp_path, monkeypatch)
