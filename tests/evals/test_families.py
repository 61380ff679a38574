"""Runs of an older version's model family: what takes the place of code that nobody stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.examples import example
from tests.fakes import FakeObjectStore
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.evals.effects.families import measured_by_example
from tracks_dagster.evals.ports import EvalSpec
from tracks_dagster.track.bodies import CodeVersion, SnapshotRef
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.track import code_key
from tracks_dagster.training import evaluate

FOUND = FoundCode(
    project=example("gpt"),
    archive=b"a tar",
    folder="/examples/gpt",
    code=CodeVersion(git_commit=None, branch=None, dirty=None, package_version="0"),
    code_diff=None,
)
SPEC = EvalSpec(
    store_url="/a/store",
    run_id="r-1",
    checkpoint=CheckpointRef("r-1", 1, 40, "runs/r-1/attempts/1/l/step-40/", "0" * 64),
    config={},
    family="gpt",
    snapshot=SnapshotRef(dataset="aws-docs-heldout", snapshot_id="0" * 64),
    suite="heldout-loss",
    suite_version="1",
    seed=0,
    result_key="runs/r-1/evals/heldout-loss@40/1/result.json",
)


def find(name: str) -> FoundCode | None:
    return FOUND if name == "gpt" else None


def test_the_eval_of_a_family_is_that_of_its_example(store: FakeObjectStore) -> None:
    asked = measured_by_example(store, find, SPEC)
    [own] = example("gpt").evals
    assert asked.program is not None
    assert (asked.program.entry, asked.suite_version) == (("evaluate.py",), own.version)
    assert asked.code_key == code_key("r-1", sha256_hex(b"a tar"))
    assert store.objects[asked.code_key] == b"a tar"
    assert measured_by_example(store, find, asked) == asked


def test_the_eval_of_what_other_code_wrote_is_that_codes_as_of_any_run(
    store: FakeObjectStore,
) -> None:
    brought = code_key("r-1", sha256_hex(b"a tar of a user"))
    asked = measured_by_example(store, find, replace(SPEC, code_key=brought))
    assert asked.program is not None
    assert asked.code_key == brought
    assert store.objects == {}


@pytest.mark.parametrize("changes", [{"family": "reasoning"}, {"suite": "other"}])
def test_an_eval_that_no_example_measures_is_refused_in_words(
    changes: dict[str, str], store: FakeObjectStore, tmp_path: Path
) -> None:
    asked = replace(SPEC, **changes)  # type: ignore[arg-type]
    assert measured_by_example(store, find, asked) == asked
    with pytest.raises(InvalidInput, match=f"`tracks waive r-1 {asked.suite}` lets it go"):
        evaluate._evaluate(store, asked, tmp_path)
    assert store.objects == {}
