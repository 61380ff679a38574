"""Evaluates one checkpoint: `python -m tracks_dagster.training.evaluate SPEC.json`.

A process of its own, apart from training: it reads the checkpoint and the eval snapshot from the
store, verified, and puts what it measured at the spec's `result_key`. It appends no record but the
claim of a drill; whoever started it does. Exit code 1 with a traceback on stderr when it fails.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from tracks_dagster.data.families import find_family
from tracks_dagster.data.ports import EvalSpec
from tracks_dagster.data.project import has_function
from tracks_dagster.stores import open_store
from tracks_dagster.track.bodies import Program
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import ENV_CACHE, TRAINER_FAMILY
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, canonical_json, format_time
from tracks_dagster.track.states.evals import started_key
from tracks_dagster.training.data import load_snapshot
from tracks_dagster.training.drills import play_evaluator_crash
from tracks_dagster.training.environment import (
    describe_software,
    device_of,
    digest_of,
    read_environment,
)
from tracks_dagster.training.families import family_code
from tracks_dagster.training.projects.own_eval import evaluate_own
from tracks_dagster.training.saves import random_state
from tracks_dagster.training.saves.loading import load_weights
from tracks_dagster.training.software import describe_code, platform_name


def main(path: Path) -> None:
    """Evaluate what the spec at `path` names; folders of a project's own eval lie beside it."""
    environment = read_environment(os.environ)
    spec = from_json(EvalSpec, json.loads(path.read_text(encoding="utf-8")))
    store = open_store(spec.store_url, probe=False)
    # Before anything that can fail: from here on this is an attempt at the eval, and is counted.
    store.put(started_key(spec.result_key), canonical_json({"at": format_time(datetime.now(UTC))}))
    play_evaluator_crash(store, spec)
    torch.set_num_threads(environment.threads)
    if spec.program is not None:
        result = _evaluate_own(store, spec, spec.program, path.parent)
    else:
        torch.use_deterministic_algorithms(True)
        result = evaluate(store, spec, device_of(environment))
    store.put(spec.result_key, canonical_json(result))


def _evaluate_own(
    store: ObjectStore, spec: EvalSpec, program: Program, work: Path
) -> dict[str, Json]:
    """Return what a project's own eval measured. A command's libraries are not known here."""
    started_at = format_time(datetime.now(UTC))
    random_state.seed_all(spec.seed, rank=0)
    cache = Path(os.environ.get(ENV_CACHE) or work / "cache")
    result = evaluate_own(store, spec, program, work=work, cache=cache)
    environment = {
        **(describe_software() if has_function(program.entry) else {"platform": platform_name()}),
        "eval": " ".join(program.entry),
        **describe_code(spec.code_key or TRAINER_FAMILY),
    }
    return {
        **result.to_json(),
        "environment": environment,
        "environment_sha256": digest_of(environment),
        "started_at": started_at,
        "finished_at": format_time(datetime.now(UTC)),
    }


def evaluate(store: ObjectStore, spec: EvalSpec, device: torch.device) -> dict[str, Json]:
    """Return metrics, sample count, environment and times of one eval.

    The same spec on the same software gives the same metrics. Raises InvalidInput for a suite that
    the family does not have, CheckpointCorrupt, DataRejected.
    """
    started_at = format_time(datetime.now(UTC))
    _check_suite(spec)
    if spec.snapshot is None:
        raise InvalidInput(f"{spec.suite} of {spec.family} needs a snapshot, and none was named.")
    began = time.monotonic()
    random_state.seed_all(spec.seed, rank=0)
    family = family_code(spec.family)
    table = load_snapshot(store, spec.snapshot)
    model = family.build(spec.config, table).to(device)
    load_weights(model, store, spec.checkpoint)
    model.eval()
    loaded = time.monotonic()
    measured = family.evaluate(model, spec.config, table, spec.seed)
    environment = {**describe_software(), **describe_code(TRAINER_FAMILY)}
    return {
        "metrics": dict(measured.metrics),
        "sample_count": measured.sample_count,
        "seconds": {"fetch": loaded - began, "evaluate": time.monotonic() - loaded},
        "environment": environment,
        "environment_sha256": digest_of(environment),
        "started_at": started_at,
        "finished_at": format_time(datetime.now(UTC)),
    }


def _check_suite(spec: EvalSpec) -> None:
    family = find_family(spec.family)
    known = (family.suite, family.suite_version)
    if (spec.suite, spec.suite_version) != known:
        raise InvalidInput(
            f"{spec.family} has no eval suite {spec.suite!r} of version {spec.suite_version!r}; "
            f"this version of the code measures {known[0]!r}, version {known[1]!r}."
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
