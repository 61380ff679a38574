"""Evaluates one checkpoint: `python -m tracks_dagster.training.evaluate SPEC.json`.

A process of its own, apart from training: it reads the checkpoint and the eval snapshot from the
store, verified, and puts what it measured at the spec's `result_key`. It appends no record but the
claim of a drill; whoever started it does. Exit code 1 with a traceback on stderr when it fails.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from tracks_dagster.data.families import find_family
from tracks_dagster.data.ports import EvalSpec
from tracks_dagster.stores import open_store
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import TRAINER_FAMILY
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
from tracks_dagster.training.saves import random_state
from tracks_dagster.training.saves.loading import load_weights
from tracks_dagster.training.software import describe_code


def main(path: Path) -> None:
    """Evaluate what the spec at `path` names."""
    torch.use_deterministic_algorithms(True)
    environment = read_environment(os.environ)
    torch.set_num_threads(environment.threads)
    spec = from_json(EvalSpec, json.loads(path.read_text(encoding="utf-8")))
    store = open_store(spec.store_url, probe=False)
    # Before anything that can fail: from here on this is an attempt at the eval, and is counted.
    store.put(started_key(spec.result_key), canonical_json({"at": format_time(datetime.now(UTC))}))
    play_evaluator_crash(store, spec)
    result = evaluate(store, spec, device_of(environment))
    store.put(spec.result_key, canonical_json(result))


def evaluate(store: ObjectStore, spec: EvalSpec, device: torch.device) -> dict[str, Json]:
    """Return metrics, sample count, environment and times of one eval.

    The same spec on the same software gives the same metrics. Raises InvalidInput for a suite that
    the family does not have, CheckpointCorrupt, DataRejected.
    """
    started_at = format_time(datetime.now(UTC))
    _check_suite(spec)
    random_state.seed_all(spec.seed, rank=0)
    family = family_code(spec.family)
    table = load_snapshot(store, spec.snapshot)
    model = family.build(spec.config, table).to(device)
    load_weights(model, store, spec.checkpoint)
    model.eval()
    measured = family.evaluate(model, spec.config, table, spec.seed)
    environment = {**describe_software(), **describe_code(TRAINER_FAMILY)}
    return {
        "metrics": dict(measured.metrics),
        "sample_count": measured.sample_count,
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
