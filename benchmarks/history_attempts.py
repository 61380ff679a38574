"""The bodies of a generated run's attempts, as JSON, with the evidence of their ends.

Every body is made of its dataclass, so that it has all fields of today; what millions of records share
is turned into JSON once.
"""

from __future__ import annotations

from functools import cache

from benchmarks.history_bodies import (
    ENVIRONMENT,
    ENVIRONMENT_SHA256,
    GLOBAL_BATCH,
    Body,
    at,
    config_of,
    loss_at,
    snapshot_ref,
    trained_on,
)
from benchmarks.history_ends import evidence_json, verdict_on
from benchmarks.history_plan import RESTORED_S, AttemptPlan, RunPlan, checkpoint_ref, launch_id
from tracks_dagster.reasons.classify import CLASSIFIER_VERSION
from tracks_dagster.reasons.fingerprints import fingerprint
from tracks_dagster.track.bodies import (
    AttemptEnded,
    AttemptOpened,
    AttemptPlaced,
    AttemptRestored,
    CheckpointCommitted,
    ComputeRequest,
    ConfigChange,
    Debit,
    RankPlace,
    TimeSpent,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef

POLICY = "1"
IMAGE = "registry.example/train@sha256:" + "5" * 64
STEPPING, READING, EVALUATING = 0.88, 0.05, 0.02  # of the seconds between two commits
SAVING_S = 0.25  # of each commit
HUNG_S = 600.0  # from a hang's last step to its end, at most half of the time since its last commit


def opened(run: RunPlan, attempt: AttemptPlan, spec: Body, before: AttemptPlan | None) -> Body:
    """Return the body of `attempt_opened`; spec: that of `run_declared`, before: the attempt before."""
    resume = resumed_from(run, attempt)
    changes = _remediation(attempt, before)
    body = _opened_template(before.end if before else None)
    config = config_of(run, spec["config"]["steps"], attempt.micro_batch)
    return {
        **body,
        "decision": _decision(attempt, before, resume),
        "config": config,
        "compute": spec["compute"],
        "snapshot": spec["snapshot"],
        "resume": to_json(resume) if resume else None,
        "remediation": changes,
    }


def resumed_from(run: RunPlan, attempt: AttemptPlan) -> CheckpointRef | None:
    """Return the checkpoint that an attempt begins from."""
    if attempt.resume is None:
        return run.branched_from
    return checkpoint_ref(run.run_id, run.index, *attempt.resume)


def placed(run: RunPlan, attempt: AttemptPlan) -> Body:
    """Return the body of `attempt_placed`."""
    body = _placed_template(run.pool, attempt.node, run.ranks)
    return {**body, "launch_id": launch_id(run.index, attempt.attempt_id)}


def restored(run: RunPlan, attempt: AttemptPlan) -> Body:
    """Return the body of `attempt_restored`."""
    source = resumed_from(run, attempt)
    step = source.step if source else 0
    return to_json(
        AttemptRestored(
            launch_id=launch_id(run.index, attempt.attempt_id),
            step=step,
            checkpoint=source,
            cursor=step * GLOBAL_BATCH,
        )
    )


def committed(run: RunPlan, attempt: AttemptPlan, step: int) -> Body:
    """Return the body of `checkpoint_committed`."""
    ref = checkpoint_ref(run.run_id, run.index, attempt.attempt_id, step)
    is_final = attempt.end == "completed" and step == attempt.steps[-1]
    place = attempt.steps.index(step) + 1
    return {
        **_COMMITTED,
        "launch_id": launch_id(run.index, attempt.attempt_id),
        "ref": {
            "run_id": ref.run_id,
            "attempt_id": ref.attempt_id,
            "step": step,
            "object_prefix": ref.object_prefix,
            "manifest_sha256": ref.manifest_sha256,
        },
        "cursor": step * GLOBAL_BATCH,
        "trigger": "final" if is_final else "interval",
        "blocking_s": SAVING_S + step % 7 / 100,
        "metrics": {"loss": loss_at(step)},
        "spent": _spent(place * attempt.between_commits_s, place),
    }


def ended(run: RunPlan, attempt: AttemptPlan, node: str, evidence: bytes) -> Body:
    """Return the body of `attempt_ended`; evidence: the stored bytes that it rests on."""
    assert attempt.end is not None, "the attempt is open"
    verdict = verdict_on(attempt.when, attempt.end)
    sha256 = sha256_hex(evidence)
    source = resumed_from(run, attempt)
    config = {"micro_batch": attempt.micro_batch, "run": run.run_id}
    reason = TerminationReason(verdict.reason)
    trained_s = last_stepped_s(attempt) - attempt.placed_s - RESTORED_S
    return {
        **_ended_template(attempt.when, attempt.end),
        "evidence_key": evidence_key(run, attempt, sha256),
        "evidence_sha256": sha256,
        "device_seconds": round(run.ranks * (attempt.ended_s - attempt.placed_s), 3),
        "started_at": at(run, attempt.placed_s),
        "finished_at": at(run, attempt.ended_s),
        "last_step": attempt.last_step or None,
        "last_stepped_at": at(run, last_stepped_s(attempt)) if attempt.last_step else None,
        "spent": _spent(trained_s, len(attempt.steps)) if attempt.last_step else None,
        "fingerprint": fingerprint(reason, verdict.root_message, config, trained_on(run), (node,)),
        "cursor_from": (source.step if source else 0) * GLOBAL_BATCH,
        "cursor_to": attempt.last_step * GLOBAL_BATCH,
        "onset_step": attempt.last_step if attempt.end == "nan_loss" else None,
        "blamed_node": node,
    }


def last_stepped_s(attempt: AttemptPlan) -> float:
    """Return when an ended attempt made its last step, in seconds since the run was declared."""
    hung_s = min(HUNG_S, attempt.between_commits_s / 2) if attempt.end == "hang" else 0.0
    return attempt.ended_s - hung_s


def _spent(seconds: float, saves: int) -> Body:
    """Return what a launch had spent so many seconds after its restore; a little is nobody's."""
    spent = TimeSpent(
        steps_s=STEPPING * seconds,
        data_s=READING * seconds,
        saving_s=SAVING_S * saves,
        eval_s=EVALUATING * seconds,
    )
    return to_json(spent)


def evidence_of(run: RunPlan, attempt: AttemptPlan, node: str) -> bytes:
    """Return the stored evidence of an attempt's end."""
    assert attempt.end is not None, "the attempt is open"
    known = {
        "run_id": run.run_id,
        "attempt_id": attempt.attempt_id,
        "launch_id": launch_id(run.index, attempt.attempt_id),
        "started_at": at(run, attempt.placed_s),
        "finished_at": at(run, attempt.ended_s),
        "last_step": attempt.last_step or None,
    }
    return canonical_json(evidence_json(attempt.when, attempt.end, known, node=node))


def evidence_key(run: RunPlan, attempt: AttemptPlan, sha256: str) -> str:
    """Return where the evidence of an attempt's end lies."""
    return f"runs/{run.run_id}/attempts/{attempt.attempt_id}/evidence/{sha256}.json"


def node_name(run: RunPlan, attempt: AttemptPlan) -> str:
    """Return the node that rank 0 of an attempt ran on."""
    return f"{run.pool}-{attempt.node:03d}"


def _decision(
    attempt: AttemptPlan, before: AttemptPlan | None, resume: CheckpointRef | None
) -> str:
    begins = f"step {resume.step} of attempt {resume.attempt_id}" if resume else "the beginning"
    if before is None:
        return f"The first attempt begins from {begins}."
    return f"Attempt {before.attempt_id} ended as {before.end}; retry from {begins}."


def _remediation(attempt: AttemptPlan, before: AttemptPlan | None) -> list[Json]:
    if before is None or before.micro_batch == attempt.micro_batch:
        return []
    change = ConfigChange(
        key="micro_batch",
        before=before.micro_batch,
        after=attempt.micro_batch,
        why="Half the activations at once; the global batch stays.",
    )
    return [to_json(change)]


@cache
def _opened_template(end_before: str | None) -> Body:
    reason = end_before or ""
    debit = Debit(reason=reason, amount=1.0, fingerprint=None, why=f"A retry after {reason}.")
    return to_json(
        AttemptOpened(
            cause="first" if end_before is None else "retry",
            decided_by="launch_attempts" if end_before is None else "retry_infrastructure",
            decision="",
            config={},
            compute=ComputeRequest(),
            snapshot=snapshot_ref("", 0),
            resume=None,
            debit=None if end_before is None else debit,
            policy_version=POLICY,
        )
    )


@cache
def _placed_template(pool: str, node: int, ranks: int) -> Body:
    name = f"{pool}-{node:03d}"
    places = tuple(
        RankPlace(
            rank=rank,
            node=name,
            pid=4000 + rank,
            pid_started=1_700_000_000.25,
            boot_id=sha256_hex(f"boot {name}".encode())[:32],
            device=f"GPU-{sha256_hex(name.encode())[:12]}-{rank}",
            accelerator="NVIDIA H100",
        )
        for rank in range(ranks)
    )
    return to_json(
        AttemptPlaced(
            launch_id="",
            world_size=ranks,
            ranks=places,
            image=IMAGE,
            environment=ENVIRONMENT,
            environment_sha256=ENVIRONMENT_SHA256,
        )
    )


@cache
def _ended_template(when: str, end: str) -> Body:
    verdict = verdict_on(when, end)
    return to_json(
        AttemptEnded(
            reason=verdict.reason,
            confidence=verdict.confidence,
            rule=verdict.rule,
            lines=verdict.lines,
            classifier_version=CLASSIFIER_VERSION,
            evidence_key="",
            evidence_sha256="",
            device_seconds=0.0,
            accelerator="NVIDIA H100",
            started_at=None,
            finished_at=None,
            last_step=None,
            first_line_ran=True,
            root_message=verdict.root_message,
            fingerprint="",
            closed_by="supervisor",
        )
    )


_COMMITTED = to_json(
    CheckpointCommitted(
        launch_id="",
        ref=CheckpointRef("", 0, 0, "", ""),
        cursor=0,
        epoch=0,
        trigger="",
        total_bytes=3_000_000_000,
        written_bytes=3_000_000_000,
        blocking_s=0.0,
    )
)
