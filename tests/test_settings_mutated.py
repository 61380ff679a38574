"""Whatever a person writes into a settings file, it is taken, or refused with its path and lines."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tracks_dagster.settings import (
    Settings,
    load_policy,
    load_prices,
    read_rules,
)
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.wings.kubernetes.edge.launching import load_cluster
from tracks_dagster.wings.watch.edge.notify_settings import load_notify
from tracks_dagster.wings.watch.edge.tracker_settings import load_trackers

FILES, FILES_FULL = 60, 1_500

POLICY = """
reasons:
  node_failure: {count: 8, window: 7d, backoff: 30s, backoff_max: 20min, refund: 50%}
  hang: {other_node_from: none, fingerprint_limited: false, counts_as: unknown, remedy: resume}
  image_pull: {time: 3h}
  nan_loss: {window: 500 steps, refund_past_onset: true}
limits: {fingerprint_limit: 4, device_time_floor: 2h, memory_growth: 1.5, never_started_backoff: 5s}
storm: {ends: 20, runs: 4, window: 10min, share: 10%, pause: 1min, pause_max: 5min}
nodes: {reasons: [node_failure, hang], at_once: [hang], strikes: 3, window: 14d, quarantine: 6h}
environment: {torch: 2, cuda: any, nccl: exact}
other_pools: {spot: on-demand}
submission: {required_fields: [owner, on_call], required_parameters: {any: [lr], sweep: [warmup]}}
scheduling: {order: fair, classes: {nightly: {priority: 5, queue: 8h}}, teams: {nlp: {devices: 4}}}
tracking: {required_artifacts: [checkpoint, logs], media_items: 9, media_size: 1GiB}
monitoring: {required_signals: [loss], notify_stages: [full]}
cost: {max_cost: 200}
tuning: {trials: 60, devices_per_team: 4}
promotion: {seeds: 2, only_valid: true}
retention: {keep_last: 3, keep_best: 1, delete_after: 7d}
governance: {may_promote: [owner, leads], may_waive: none, teams: {leads: [ada]}}
"""
CLUSTER = """
image: registry.example.com:5000/team/train:1
namespace: training
image_pull_secrets: [registry]
environment: {NCCL_DEBUG: INFO, OMP_NUM_THREADS: "4"}
environment_from: [{secretRef: {name: object-store}}, {configMapRef: {name: a, optional: true}}]
volumes: [{name: store, persistentVolumeClaim: {claimName: store}}]
volume_mounts: [{name: store, mountPath: /store}, {name: scratch, mountPath: /s, readOnly: true}]
pod_template:
  metadata: {annotations: {team: a}}
  spec:
    volumes: [{name: scratch, emptyDir: {}}]
    containers: [{name: trainer, env: [{name: A, value: b}]}]
job_kind: JobSet
shared_memory: 8GiB
termination_grace: 3min
device_classes: {a100: {resource: nvidia.com/gpu, node_selector: {gpu: a100}}}
node_selector: {example.com/pool: train}
tolerations: [{key: spot, value: "yes", effect: NoExecute, tolerationSeconds: 30}]
taint_quarantined_nodes: true
run_worker: {resources: {requests: {cpu: 250m}}, env_vars: ["A=b"]}
"""
RULES = """
- {name: lustre, reason: storage_io, pattern: "LustreError.{0,80}evicted"}
- {name: gone, reason: storage_io, pattern: mount gone, confidence: 0.7, where: log}
"""
PRICES = """
currency: USD
per_device_hour: {NVIDIA H100 80GB HBM3: 2.49, cpu: 0.04}
"""

NOTIFY = """
notify:
- {name: oncall, to: "https://hooks.example.com/x", severity: red, rule: [save_failed, "no_*"]}
- {name: nlp, to: "mailto:nlp@example.com", team: nlp, also: [refused, finished]}
- {name: pager, to: "command:/usr/local/bin/page --urgent"}
mail: {server: localhost, sender: tracks@example.com, port: 25, tls: none, user: a, password: b}
"""
TRACKERS = """
- {tensorboard: /data/tensorboard, projects: [gpt, words]}
- {mlflow: "http://ann:secret@mlflow:5000", experiment: team-nlp}
- {wandb: /data/wandb}
"""

KINDS: Mapping[str, tuple[str, str, Callable[[Settings], object]]] = {
    "policy": (POLICY, "policy_file", load_policy),
    "cluster": (CLUSTER, "TRACKS_KUBERNETES", load_cluster),
    "rules": (RULES, "rules_file", read_rules),
    "prices": (PRICES, "prices_file", load_prices),
    "notify": (NOTIFY, "TRACKS_NOTIFY", load_notify),
    "trackers": (TRACKERS, "TRACKS_TRACKERS", load_trackers),
}
VALUES: tuple[Any, ...] = (
    *(-1, -2.5, 0, 3, 10**17, 10**30, 0.5, 1e300, True, False, None, "", " ", "x", "no", "none"),
    *("24", "-1h", "99999d", "0h", "5 steps", "150%", "a b", "é" * 300, "x" * 3000, "{words}"),
    *([], {}, [1], {"a": 1}, [[1]], [{"a": [1]}], "[key]", "a\nb", "TRACKS_X"),
)
KEYS = ("zz", "", "a b", "[key]", "name", "API_TOKEN", "q" * 2000)
PIECES = ("\0", "\t", "{", "]", ":", "&a ", "*a ", "!x ", "- ", "? ", "'", '"', "#", "\ufeff")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("policy.yaml", "policy"),
        ("kubernetes.yaml", "cluster"),
        ("prices.yaml", "prices"),
        ("notify.yaml", "notify"),
        ("trackers.yaml", "trackers"),
    ],
)
def test_a_link_to_nothing_is_a_broken_file_and_not_none(
    name: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / name).symlink_to(tmp_path / "gone")
    with pytest.raises(SettingsError, match=rf"{name} cannot be read \(No such file"):
        KINDS[kind][2](Settings(home=tmp_path, store_url=str(tmp_path)))


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_is_more_than_refused(kind: str, tmp_path: Path) -> None:
    _check(kind, FILES, 20261122, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_none_of_thousands_of_files_is_more_than_refused(kind: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"\nseed of {kind}: {seed}")
    _check(kind, FILES_FULL, seed, tmp_path)


def _check(kind: str, count: int, seed: int, folder: Path) -> None:
    good, field, load = KINDS[kind]
    path = folder / f"{kind}.yaml"
    given: dict[str, Any] = {"files": {field: path}} if field.isupper() else {field: path}
    settings = Settings(home=folder, store_url=str(folder), **given)
    path.write_text(good)
    assert load(settings)
    rng = random.Random(f"{seed} {kind}")
    for _ in range(count):
        text = _text(rng, good)
        path.write_bytes(text.encode())
        try:
            load(settings)
        except SettingsError as error:
            head, *lines = str(error).splitlines()
            assert str(path) in head
            last_line = max(map(int, re.findall(r"line (\d+): ", str(error))), default=0)
            assert lines
            assert 1 <= last_line <= len(text.splitlines()) + 1, text
        except Exception as error:
            raise AssertionError(f"seed {seed}, {text!r}") from error


def _text(rng: random.Random, good: str) -> str:
    """Return a file with 1 to 4 things changed in it, or a piece of it, or a stray character."""
    value = yaml.safe_load(good)
    for _ in range(rng.randint(1, 4)):
        _change(rng, value)
    flow = rng.choice([False, None])
    text = yaml.safe_dump(value, sort_keys=False, default_flow_style=flow, allow_unicode=True)
    place = rng.randrange(len(text))
    if rng.random() < 0.1:
        return text[:place] + rng.choice(PIECES) + text[place:]
    return text[:place] if rng.random() < 0.03 else text


def _change(rng: random.Random, value: Any) -> None:
    """Drop a key, misspell it, add one, or give a value of another kind."""
    parents = [parent for parent in _nested(value) if parent]
    if not parents:
        return
    parent = rng.choice(parents)
    what = rng.choice(["drop", "value", "value", "list", "key", "misspelt"])
    place = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
    if what == "drop":
        del parent[place]
    elif what == "list":
        parent[place] = [parent[place]]
    elif what == "value" or isinstance(parent, list):
        parent[place] = copy.deepcopy(rng.choice(VALUES))
    elif what == "key":
        parent[rng.choice(KEYS)] = copy.deepcopy(rng.choice(VALUES))
    else:
        at = rng.randrange(len(place) + 1)
        parent[place[:at] + rng.choice(["", "x", place[:1]]) + place[at + 1 :]] = parent.pop(place)


def _nested(value: Any) -> Iterator[Any]:
    """Yield every mapping and list."""
    if isinstance(value, dict | list):
        yield value
        for below in value.values() if isinstance(value, dict) else value:
            yield from _nested(below)
