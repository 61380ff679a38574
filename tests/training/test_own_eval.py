"""A project's own eval on one checkpoint: what it gets, what it may return, what is kept of it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fakes import FakeObjectStore
from tests.training.test_export import saved
from tracks_dagster.evals.ports import EvalSpec
from tracks_dagster.projects.project import eval_version
from tracks_dagster.stores import open_store
from tracks_dagster.track.bodies import Artifact, Program, ScoredEval
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.evals import result_key
from tracks_dagster.training.projects import own_eval
from tracks_dagster.training.projects.own_eval import OwnResult, evaluate_own, read_result

EVALUATE = """
import json, torch
from pathlib import Path
from helper import double

def evaluate(checkpoint_folder, data_folder, artifacts_folder):
    weights = torch.load(checkpoint_folder / "weights.pt", weights_only=True)
    config = json.loads((checkpoint_folder / "config.json").read_text())
    assert data_folder is None and not Path("helper.py").stat().st_mode & 0o222
    (artifacts_folder / "confusion.csv").write_text("1,0")
    (artifacts_folder / "samples").mkdir()
    (artifacts_folder / "samples" / "one.txt").write_text("text")
    return {"sum": double(weights["w"].sum()) * config["lr"], "samples": 3, "seconds": {"infer": 1.5}}
"""
COMMAND = """#!/bin/sh
test -f "$1/weights.pt" && test "$2" = 0.5 || exit 3
echo working
echo row > "$3/rows.txt"
echo '{"accuracy": 0.75}'
"""


@pytest.fixture(autouse=True)
def in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As the evaluator's process: its folder, path and variables are its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("PYTHONPATH", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    yield
    for name in ("evaluate", "helper"):
        sys.modules.pop(name, None)


def run(
    store: FakeObjectStore,
    work: Path,
    entry: tuple[str, ...],
    *,
    declared_text: str | None = None,
    scored: ScoredEval | None = None,
    **files: str,
) -> OwnResult:
    """Evaluate what `spec_of` returns; the files' names are written with _ for the dot."""
    texts = {name.replace("_", "."): text for name, text in files.items()}
    spec = spec_of(store, entry, texts, declared_text=declared_text, scored=scored)
    assert spec.program is not None
    return evaluate_own(store, spec, spec.program, work=work, cache=work / "cache")


def spec_of(
    store: ObjectStore,
    entry: tuple[str, ...],
    files: Mapping[str, str],
    *,
    declared_text: str | None = None,
    scored: ScoredEval | None = None,
) -> EvalSpec:
    """Store a checkpoint with one weight, and return an eval of it by the code of these files.

    declared_text: of the eval's own file, where the run was declared with another.
    """
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    key = f"runs/r/code/{hashlib.sha256(written.getvalue()).hexdigest()}.tar"
    store.put(key, written.getvalue())
    own = next(iter(files.values()))
    return EvalSpec(
        store_url=store.url,
        run_id="r",
        checkpoint=saved(store, {"w": torch.tensor([1.0, 2.0])}),
        config={"lr": 0.5},
        family="mine",
        snapshot=None,
        suite="quality",
        suite_version=eval_version(
            entry,
            (own if declared_text is None else declared_text).encode(),
            of="" if scored is None else scored.suite_version,
        ),
        seed=0,
        result_key="runs/r/evals/quality@40/1/result.json",
        program=Program(entry=entry),
        code_key=key,
        scored=scored,
    )


def test_a_function_gets_the_checkpoint_and_its_metrics_and_files_are_kept(
    store: FakeObjectStore, tmp_path: Path
) -> None:
    helper = "def double(x):\n    return 2 * x\n"
    result = run(store, tmp_path, ("evaluate.py",), evaluate_py=EVALUATE, helper_py=helper)
    assert result.metrics == {"sum": 3.0}
    assert (result.sample_count, result.seconds["infer"]) == (3, 1.5)
    assert set(result.seconds) == {"fetch", "evaluate", "infer"}
    assert [each.name for each in result.artifacts] == ["confusion.csv", "samples/one.txt"]
    assert store.get("runs/r/evals/quality@40/1/artifacts/samples/one.txt") == b"text"


def test_a_command_prints_its_metrics_in_its_last_line(
    store: FakeObjectStore, tmp_path: Path
) -> None:
    entry = ("./score.sh", "{checkpoint}", "{lr}", "{artifacts}")
    result = run(store, tmp_path, entry, score_sh=COMMAND)
    assert result.metrics == {"accuracy": 0.75}
    assert [each.name for each in result.artifacts] == ["rows.txt"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 4", "quality of step 40: ./score.sh ended with 4"),
        ("echo done", "is not a JSON object of metrics: 'done'"),
        ("true", "is not a JSON object of metrics: ''"),
        ("echo '[1]'", "returned [1] and no metrics by name"),
        ("kill -9 $$", "was ended by signal 9"),
    ],
)
def test_a_command_without_metrics_is_refused_in_words(
    store: FakeObjectStore, tmp_path: Path, script: str, said: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        run(store, tmp_path, ("./score.sh",), score_sh=f"#!/bin/sh\n{script}\n")
    assert said in str(error.value)


def test_an_eval_that_a_retry_changed_is_not_run_as_the_declared_one(
    store: FakeObjectStore, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=r"evaluate.py in the code of attempt 3 is version"):
        run(store, tmp_path, ("evaluate.py",), declared_text="other", evaluate_py=EVALUATE)


SCORER = """
def evaluate(scored_folder, data_folder):
    assert not (scored_folder / "weights.pt").exists()
    return {"rows": len((scored_folder / "samples/one.txt").read_text())}
"""
LEFT = "runs/r/evals/infer@40/2/artifacts"


def left(store: FakeObjectStore, message: str = "", **files: str) -> ScoredEval:
    """The second attempt at an eval `infer`, which left these files."""
    artifacts = []
    for name, text in files.items():
        store.put(f"{LEFT}/{name}", text.encode())
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        artifacts.append(Artifact(name=name, size_bytes=len(text), sha256=sha256))
    return ScoredEval(
        eval_id="infer@40",
        number=2,
        suite_version="1",
        snapshot=None,
        artifacts=tuple(artifacts),
        message=message,
    )


def test_a_scorer_gets_the_files_that_another_eval_left_and_no_checkpoint(
    store: FakeObjectStore, tmp_path: Path
) -> None:
    scored = left(store, **{"samples/one.txt": "text"})
    result = run(store, tmp_path / "a", ("evaluate.py",), scored=scored, evaluate_py=SCORER)
    assert result.metrics == {"rows": 4.0}
    entry = ("./score.sh", "{scored}/samples/one.txt", "{lr}")
    script = '#!/bin/sh\ntest "$2" = 0.5 && echo "{\\"size\\": $(wc -c < "$1")}"\n'
    result = run(store, tmp_path / "b", entry, scored=scored, score_sh=script)
    assert result.metrics == {"size": 4.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"artifacts": ()}, "infer@40, attempt 2, which quality scores, left no artifacts"),
        ({"message": "1 files that it left were not kept"}, "has not all of its files: 1 files"),
        ({"number": 3}, "cannot be scored: runs/r/evals/infer@40/3/artifacts/a is missing"),
        (
            {"artifacts": (Artifact(name="a", size_bytes=4, sha256="0" * 64),)},
            f"cannot be scored: {LEFT}/a has sha256",
        ),
        (
            {"artifacts": (Artifact(name="../../a", size_bytes=4, sha256="0" * 64),)},
            "has a file '../../a' outside of its folder",
        ),
    ],
)
def test_a_scorer_scores_all_the_files_as_they_were_left_or_none(
    store: FakeObjectStore, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    scored = replace(left(store, a="text"), **change)
    with pytest.raises(InvalidInput) as error:
        run(store, tmp_path, ("evaluate.py",), scored=scored, evaluate_py=SCORER)
    assert words in str(error.value)


def test_a_file_without_the_function_is_refused(store: FakeObjectStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no function evaluate\(checkpoint_folder, data_f"):
        run(store, tmp_path, ("evaluate.py",), evaluate_py="x = 1\n")


def test_files_beyond_the_bound_are_left_out_and_named(
    store: FakeObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_eval, "ARTIFACT_BYTES_MAX", 10)
    script = (
        '#!/bin/sh\necho 12345678 > "$1/a"\necho 12345678 > "$1/b"\nln -s /etc/passwd "$1/c"\n'
        "echo '{\"x\": 1}'\n"
    )
    result = run(store, tmp_path, ("./score.sh", "{artifacts}"), score_sh=script)
    assert [each.name for each in result.artifacts] == ["a"]
    assert result.left_out.startswith("1 files that it left were not kept, 'b' first")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "quality returned None and no metrics by name"),
        ({}, "quality returned no metric"),
        ({"samples": 3}, "quality returned no metric"),
        ({"loss": math.nan}, "quality measured loss = nan, which is not a finite number"),
        ({"loss": np.float32("inf")}, "loss = inf, which is not a finite number"),
        ({"loss": torch.tensor(math.nan)}, "loss = nan"),
        ({"loss": "0.5"}, "loss = '0.5', which is not a number"),
        ({"loss": True}, "loss = True, which is not a number"),
        ({"loss": torch.ones(2)}, "which is not a number"),
        ({"loss": None}, "loss = None, which is not a number"),
        ({"a b": 1.0}, "named a metric 'a b'"),
        ({7: 1.0}, "named a metric 7"),
        ({"loss": 1.0, "samples": 0}, "measured 0 samples"),
        ({"loss": 1.0, "seconds": {"wait": 1}}, "name some of: load, infer, score"),
        ({"loss": 1.0, "seconds": {"load": math.nan}}, "seconds of load = nan"),
    ],
)
def test_what_is_not_a_measurement_is_refused_in_words(found: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read_result(found, "quality")
    assert said in str(error.value)


def test_numbers_of_any_library_are_metrics() -> None:
    found = {"a": np.float64(0.5), "b": torch.tensor(2), "c": 3}
    assert read_result(found, "quality").metrics == {"a": 0.5, "b": 2.0, "c": 3.0}


INFER = """
def evaluate(checkpoint_folder, data_folder, artifacts_folder):
    import torch
    weights = torch.load(checkpoint_folder / "weights.pt", weights_only=True)
    (artifacts_folder / "answers.txt").write_text(str(weights["w"].sum().item()))
    return {"answers": 1}
"""
SCORE = """
def evaluate(scored_folder, data_folder):
    return {"answer": float((scored_folder / "answers.txt").read_text())}
"""


def test_the_evaluators_command_scores_what_another_one_left_after_the_checkpoint_is_gone(
    tmp_path: Path,
) -> None:
    store = open_store(f"file://{tmp_path / 'store'}")

    def evaluate(text: str, suite: str, scored: ScoredEval | None = None) -> dict[str, Any]:
        spec = spec_of(store, ("evaluate.py",), {"evaluate.py": text}, scored=scored)
        spec = replace(spec, suite=suite, result_key=result_key("r", f"{suite}@40", 1))
        if scored is not None:
            saved_at = list(store.list(spec.checkpoint.object_prefix))
            assert saved_at
            for key in saved_at:
                store.delete(key)
        path = tmp_path / suite / "spec.json"
        path.parent.mkdir()
        path.write_text(json.dumps(to_json(spec)))
        command = [sys.executable, "-m", "tracks_dagster.training.evaluate", str(path)]
        subprocess.run(command, check=True, timeout=240)
        found: dict[str, Any] = json.loads(store.get(spec.result_key) or b"")
        return found

    [artifact] = evaluate(INFER, "infer")["artifacts"]
    scored = ScoredEval(
        eval_id="infer@40",
        number=1,
        suite_version="1",
        snapshot=None,
        artifacts=(from_json(Artifact, artifact),),
    )
    assert evaluate(SCORE, "score", scored)["metrics"] == {"answer": 3.0}
