"""What a person does about a refused retry: one sentence a reason, and how the run goes on."""

from __future__ import annotations

from tracks_dagster.core.reasons import TerminationReason
from tracks_dagster.core.run_state import AttemptState, RunState

_R = TerminationReason

_ADVICE: dict[TerminationReason, str] = {
    _R.CODE_ERROR: "Correct the training code.",
    _R.CONFIG_ERROR: "Correct the configuration (with `--set KEY=VALUE`).",
    _R.DEPENDENCY_MISMATCH: "Install the library, or the version of it, that the run needs.",
    _R.PERMISSION_DENIED: "Grant the permission, or renew the credential, that was refused.",
    _R.BAD_INPUT_DATA: "Look at the rows that it names, and commit a snapshot without them.",
    _R.GPU_OOM: "Use a smaller model or context, or more ranks, in a new run.",
    _R.HOST_OOM: "Give the attempt more host memory, or fewer loader workers.",
    _R.SHM_EXHAUSTED: "Give the attempt more shared memory, or fewer loader workers.",
    _R.DISK_FULL: "Free space where the attempt writes: checkpoints, journals, temporary files.",
    _R.CHECKPOINT_WRITE_FAILED: "See that the object store has space and accepts writes.",
    _R.CHECKPOINT_CORRUPT: "See `tracks checkpoints list {run_id}` for one that can be read.",
    _R.NAN_LOSS: "Lower the learning rate, or look at the data of the steps around the first NaN.",
    _R.LOSS_DIVERGENCE: "Lower the learning rate, or look at the data of the steps before it.",
    _R.SCHEDULING_TIMEOUT: "Ask for devices that the cluster has, or wait until some are free.",
    _R.IMAGE_PULL: "See that the image exists and that its registry lets the cluster in.",
    _R.BUDGET_EXHAUSTED: "Decide whether the run is worth more device-hours.",
    _R.UNKNOWN: "Read how each rank ended in `tracks explain {run_id}`; the evidence says no more.",
}
_ANYTHING = "Read what the attempts have in common in `tracks explain {run_id}`."


def what_to_do(state: RunState, failed: AttemptState) -> str:
    """Return what to change after `failed`, and the command that goes on."""
    reason = failed.reason or _R.UNKNOWN
    root = _last_line(failed.ended.root_message if failed.ended else "")
    end = "" if root.endswith((".", "!", "?", "…")) else "."
    met = f"It ended with: {root}{end} " if root else ""
    if reason is _R.CODE_ERROR and state.declared.trainer != "family":
        return (
            f"{met}Correct the script and declare a new run with it (`tracks run --trainer FILE`): "
            "this run keeps the script that it was declared with."
        )
    go_on = f'Then `tracks retry {state.run_id} --why "…"` goes on.'
    advice = _ADVICE.get(reason, _ANYTHING).replace("{run_id}", state.run_id)
    return f"{met}{advice} {go_on}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
