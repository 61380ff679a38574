"""Which fields of records hold words, and are cleaned of secrets; the others name something."""

from __future__ import annotations

import dataclasses
import typing

from tracks_dagster.track import bodies
from tracks_dagster.track.text.redact import redact, redact_words

# Whoever adds a field of text decides: words that people and programs say belong into `bodies.WORDS`.
NAMES = {
    *("accelerator", "after", "alias", "alert", "before", "blamed_node", "boot_id", "branch"),
    *("cause", "chunks", "chunks_key", "classifier_version", "config", "dagster_run_id"),
    *("data", "dataset", "device", "device_class", "diff_sha256", "direction", "environment"),
    *("environment_sha256", "eval_id", "evidence_key", "evidence_sha256", "excluded_nodes"),
    *("fingerprint", "finished_at", "git_commit", "host", "how", "image", "key", "kind"),
    *("last_stepped_at", "launch_id", "launcher", "limit", "logical_sha256", "manifest_key"),
    *("manifest_sha256", "metric", "metrics", "mode", "model_family", "node"),
    *("node_selector", "object_prefix", "package_version", "pin", "places_sha256", "pod"),
    *("pod_nodes", "policy_version", "pool", "priority_class", "queue", "reason", "rule"),
    *(
        "run_id",
        "sample_order",
        "snapshot_id",
        "source",
        "stage",
        "started_at",
        "stop_cause",
        "struck_at",
    ),
    *("suite", "suite_version", "tolerations", "topology_key", "trainer", "trigger", "until_at"),
}


def test_every_field_of_text_is_either_words_or_a_name() -> None:
    kinds = [
        k for k in vars(bodies).values() if isinstance(k, type) and dataclasses.is_dataclass(k)
    ]
    found = {
        field.name
        for kind in kinds
        for field in dataclasses.fields(kind)
        if _may_hold_text(typing.get_type_hints(kind)[field.name])
    }
    assert found - NAMES == bodies.WORDS & found
    assert not NAMES & bodies.WORDS


def test_words_are_cleaned_however_deep_and_names_stay() -> None:
    token = "sk-ABCDEFGH12345678abcd"
    body = {
        "run_id": token,
        "why": f"with {token}",
        "avoided_nodes": {"n1": f"for {token}"},
        "remediation": [{"key": token, "why": token}],
    }
    assert redact_words(body, bodies.WORDS, redact) == {
        "run_id": token,
        "why": "with [hidden]",
        "avoided_nodes": {"n1": "for [hidden]"},
        "remediation": [{"key": token, "why": "[hidden]"}],
    }


def _may_hold_text(hint: object) -> bool:
    if hint is str or hint is typing.Any:
        return True
    return any(_may_hold_text(argument) for argument in typing.get_args(hint))
