"""Evaluates one checkpoint: `python -m tracks_dagster.training.evaluate SPEC.json`.

A process of its own, apart from training: it reads the checkpoint and the eval snapshot from the
store, verified, and puts what it measured at the spec's `result_key`. It appends no record but the
claim of a drill; the one who started it does. Exit code 1 with a traceback on stderr when it fails.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from tracks_dagster.evals.ports import EvalSpec
from tracks_dagster.projects.project import has_function
from tracks_dagster.stores import open_store
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import ENV_CACHE
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, canonical_json, format_time
from tracks_dagster.track.states.evals import started_key
from tracks_dagster.training.drills import play_evaluator_crash
from tracks_dagster.training.environment import (
    describe_software,
    digest_of,
    read_environment,
)
from tracks_dagster.training.projects.own_eval import evaluate_own
from tracks_dagster.training.saves import random_state
from tracks_dagster.training.signals.device_watch import MemoryWatch
from tracks_dagster.training.software import describe_code, platform_name


def main(path: Path) -> None:
    """Evaluate what the spec at `path` names; folders of a project's own eval lie beside it."""
    environment = read_environment(os.environ)
    spec = from_json(EvalSpec, parse_json(path.read_text(encoding="utf-8")))
    store = open_store(spec.store_url, probe=False)
    # Before anything that can fail: from here on this is an attempt at the eval, and is counted.
    store.put(started_key(spec.result_key), canonical_json({"at": format_time(datetime.now(UTC))}))
    play_evaluator_crash(store, spec)
    torch.set_num_threads(environment.threads)
    store.put(spec.result_key, canonical_json(_evaluate(store, spec, path.parent)))


def _evaluate(store: ObjectStore, spec: EvalSpec, work: Path) -> dict[str, Json]:
    """Return what a project's eval measured. A command's libraries are not known here."""
    if spec.program is None or spec.code_key is None:
        raise InvalidInput(
            f"{spec.suite} of {spec.family} was an eval of an older version, and no example that ships "
            f"measures it; `tracks waive {spec.run_id} {spec.suite}` lets it go."
        )
    started_at = format_time(datetime.now(UTC))
    random_state.seed_all(spec.seed, rank=0)
    cache = Path(os.environ.get(ENV_CACHE) or work / "cache")
    memory = MemoryWatch(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    entry = spec.program.entry
    result = evaluate_own(store, spec, spec.program, work=work, cache=cache)
    environment = {
        **(describe_software() if has_function(entry) else {"platform": platform_name()}),
        "eval": " ".join(entry),
        **describe_code(spec.code_key),
    }
    return {
        **result.to_json(),
        "memory": to_json(memory.peak()) if has_function(entry) else None,
        "environment": environment,
        "environment_sha256": digest_of(environment),
        "started_at": started_at,
        "finished_at": format_time(datetime.now(UTC)),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
