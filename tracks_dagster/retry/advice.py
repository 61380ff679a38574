"""What a person does about a refused retry: what to change, and the command that goes on with it.

Every command can be given as it stands, but for what nobody else can know: `…`, KEY=VALUE, SIZE,
CLASS, FILE.py and SNAPSHOT. A test runs each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tracks_dagster.retry.remediation import LEARNING_RATES
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import AttemptState, RunState, trainer_of

_R = TerminationReason
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Advice:
    """words: what to do first, as a sentence or more; options: of the `tracks retry` that goes on."""

    words: str
    options: str = ""


_Case = Callable[[RunState, AttemptState], Advice]


def what_to_do(state: RunState, failed: AttemptState) -> str:
    """Return what to change after `failed`, and the command that goes on."""
    reason = failed.reason or _R.UNKNOWN
    root = _last_line(failed.ended.root_message if failed.ended else "")
    end = "" if root.endswith((".", "!", "?", "…")) else "."
    met = f"It ended with: {root}{end} " if root else ""
    found = ADVICE.get(reason, _ANYTHING)
    advice = found if isinstance(found, Advice) else found(state, failed)
    words = advice.words.replace("{run_id}", state.run_id)
    return f"{met}{words} Then `{retry_command(state.run_id, advice.options)}` goes on."


def retry_command(run_id: str, options: str = "") -> str:
    """Return the `tracks retry` that opens the next attempt of a run."""
    return " ".join(filter(None, (f'tracks retry {run_id} --why "…"', options)))


def _code_error(state: RunState, failed: AttemptState) -> Advice:
    if trainer_of(state, failed) == "family":
        return Advice("Correct the training code.")
    return Advice("Correct the script.", "--trainer FILE.py")


def _gpu_oom(state: RunState, failed: AttemptState) -> Advice:
    smaller = _smaller_micro_batch(failed)
    if smaller is not None:
        return Advice("Use a smaller micro-batch; the global batch stays.", smaller)
    if failed.opened.compute.launcher != LOCAL:
        return Advice("Ask for a device with more memory.", "--device-class CLASS")
    return Advice(
        "Free memory on the device: the micro-batch cannot be smaller. A smaller model or context is "
        "a run of its own."
    )


def _host_oom(state: RunState, failed: AttemptState) -> Advice:
    fewer = _fewer_workers(failed)
    has = failed.opened.compute.memory_bytes
    if failed.opened.compute.launcher != LOCAL:
        more = "--memory SIZE" if has is None else f"--memory {2 * has // MIB}MiB"
        return Advice(
            "Give each pod more host memory" + (" and fewer loader workers." if fewer else "."),
            " ".join(filter(None, (more, fewer))),
        )
    if fewer:
        return Advice("Use fewer loader workers, or free memory on the machine.", fewer)
    smaller = _smaller_micro_batch(failed)
    if smaller is not None:
        return Advice("Free memory on the machine, or use a smaller micro-batch.", smaller)
    return Advice("Free memory on the machine.")


def _shm_exhausted(state: RunState, failed: AttemptState) -> Advice:
    is_local = failed.opened.compute.launcher == LOCAL
    where = "the machine (/dev/shm)" if is_local else "pods (`shared_memory`, cluster's settings)"
    fewer = _fewer_workers(failed)
    words = f"Give {where} more shared memory" + (
        ", or use fewer loader workers." if fewer else "."
    )
    return Advice(words, fewer)


def _numbers(state: RunState, failed: AttemptState) -> Advice:
    config = failed.opened.config
    key = next((each for each in LEARNING_RATES if type(config.get(each)) in (int, float)), None)
    words = "Lower the learning rate, or look at the data of the steps before it went wrong."
    return Advice(words, "--set KEY=VALUE" if key is None else f"--set {key}={config[key] / 2:g}")


def _scheduling_timeout(state: RunState, failed: AttemptState) -> Advice:
    if failed.opened.compute.launcher == LOCAL:
        return Advice("Wait until devices are free.")
    other = retry_command(state.run_id, "--device-class CLASS")
    return Advice(f"Wait until devices are free, or ask for others: `{other}`.")


def _fewer_workers(failed: AttemptState) -> str:
    workers = failed.opened.config.get("loader_workers")
    if type(workers) is not int or workers < 1:
        return ""
    return f"--set loader_workers={workers // 2}"


def _smaller_micro_batch(failed: AttemptState) -> str | None:
    """Return the option that about halves the micro-batch; None where it cannot be smaller."""
    config: dict[str, Json] = dict(failed.opened.config)
    micro_batch, accumulation = config.get("micro_batch"), config.get("accumulation")
    if type(micro_batch) is not int or type(accumulation) is not int or micro_batch < 2:
        return None
    share = micro_batch * accumulation
    half = next(size for size in range(micro_batch // 2, 0, -1) if share % size == 0)
    return f"--set micro_batch={half}"


_ANYTHING = Advice("Read what the attempts have in common in `tracks explain {run_id}`.")

ADVICE: dict[TerminationReason, Advice | _Case] = {
    _R.CODE_ERROR: _code_error,
    _R.CONFIG_ERROR: Advice("Correct the configuration.", "--set KEY=VALUE"),
    _R.DEPENDENCY_MISMATCH: Advice(
        "Install the library, or the version of it, that the run needs."
    ),
    _R.PERMISSION_DENIED: Advice(
        "Grant the permission, or renew the credential, that was refused."
    ),
    _R.BAD_INPUT_DATA: Advice(
        "Look at the rows that it names, and make a snapshot without them.", "--snapshot SNAPSHOT"
    ),
    _R.GPU_OOM: _gpu_oom,
    _R.HOST_OOM: _host_oom,
    _R.SHM_EXHAUSTED: _shm_exhausted,
    _R.DISK_FULL: Advice(
        "Free space where the attempt writes: checkpoints, journals, temporary files."
    ),
    _R.CHECKPOINT_WRITE_FAILED: Advice("See that the object store has space and accepts writes."),
    _R.CHECKPOINT_CORRUPT: Advice(
        "See `tracks checkpoints list {run_id}` for one that can be read."
    ),
    _R.NAN_LOSS: _numbers,
    _R.LOSS_DIVERGENCE: _numbers,
    _R.SCHEDULING_TIMEOUT: _scheduling_timeout,
    _R.IMAGE_PULL: Advice("See that the image exists and that its registry lets the cluster in."),
    _R.BUDGET_EXHAUSTED: Advice("Decide whether the run is worth more device-hours."),
    _R.UNKNOWN: Advice(
        "Read how each rank ended in `tracks explain {run_id}`; the evidence says no more."
    ),
}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
