"""Brings model, data and random numbers to where an attempt begins, fresh or resumed alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tracks_dagster.track.bodies import AttemptRestored
from tracks_dagster.track.errors import CheckpointMismatch
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.rehearsal import rehearse
from tracks_dagster.training.saves import random_state
from tracks_dagster.training.saves.chunk_writer import KnownChunks
from tracks_dagster.training.saves.loading import Fetched, load_into
from tracks_dagster.training.saves.restoring import find_checkpoint
from tracks_dagster.training.saves.staging import Arena
from tracks_dagster.training.saves.state_dict import Trained
from tracks_dagster.training.stepping.learning_rate import follow_config
from tracks_dagster.training.stepping.micro_batches import Batch
from tracks_dagster.training.stepping.sampling import BatchSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Where an attempt begins. step: the last one done, 0 when fresh; batches: of those after it.

    known: the chunks that its first save need not write again; progress: as it was saved, or None.
    """

    step: int
    batches: Iterator[Batch]
    known: KnownChunks
    progress: Mapping[str, Json] | None


def begin(
    launch: Launch,
    trained: Trained,
    sampler: BatchSampler,
    loader: Iterable[Batch],
    *,
    arena: Arena,
    until: int,
    one_backward: Callable[[], object] | None,
) -> Begun:
    """Restore what the attempt resumes from, or begin afresh, and append `attempt_restored`.

    Collective. The order matters: loader workers are forked first, then comes the rehearsal, then
    the state, and the random numbers last, because making an iterator draws from them (with them
    restored first no loss was equal, measured). Raises CheckpointMismatch, CheckpointCorrupt, Fenced.
    """
    found = find_checkpoint(launch, trained, arena)
    fetched = found.fetched
    step = fetched.ref.step if fetched else 0
    if fetched is not None:
        sampler.go_on_at(fetched.data)
    sampler.resume_after(step, until=until)
    batches = iter(loader)
    if one_backward is not None:
        rehearse(trained, one_backward)
    known = KnownChunks()
    if fetched is not None:
        _check_position(sampler, fetched)
        load_into(trained, fetched)
        follow_config(launch, trained, fetched)
        if fetched.ref.run_id == launch.place.run_id:  # a branch writes every chunk of its own
            known.learn_restored(fetched.ref.manifest_sha256, fetched.manifest.chunks)
        _restore_random(launch, sampler, fetched)
    _record(launch, fetched, found.fallback_why)
    return Begun(
        step=step, batches=batches, known=known, progress=fetched.progress if fetched else None
    )


def _check_position(sampler: BatchSampler, fetched: Fetched) -> None:
    ours, theirs = sampler.position(fetched.ref.step), fetched.data
    if ours != theirs:
        raise CheckpointMismatch(
            f"Step {fetched.ref.step} was saved at {theirs} and this attempt would go on at {ours}: "
            "it would train on other samples. Data, seed and global batch must stay as they were, and "
            "skip_windows up to that step."
        )


def _restore_random(launch: Launch, sampler: BatchSampler, fetched: Fetched) -> None:
    rank, step = launch.ranks.rank, fetched.ref.step
    if len(fetched.rng) == launch.ranks.world_size:
        random_state.restore(fetched.rng[rank])
    else:  # no rank's state fits another number of ranks
        random_state.seed_all(sampler.seed, rank=rank, step=step)


def _record(launch: Launch, fetched: Fetched | None, fallback_why: str | None) -> None:
    body = AttemptRestored(
        launch_id=launch.launch_id,
        step=fetched.ref.step if fetched else 0,
        checkpoint=fetched.ref if fetched else None,
        cursor=fetched.data["cursor"] if fetched else 0,
        fallback_why=fallback_why,
    )
    draft = launch.draft(Kind.ATTEMPT_RESTORED, body)

    def append() -> Json:
        launch.append(draft)
        return None

    launch.ranks.from_first(append)
