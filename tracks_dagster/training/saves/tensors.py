"""Checkpoints of what a script registered: copied by each rank, stored, and put into one manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from tracks_dagster.track.errors import TrainingError
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.saves import random_state
from tracks_dagster.training.saves.built import evaluating_parts, frozen_names
from tracks_dagster.training.saves.chunk_writer import KnownChunks
from tracks_dagster.training.saves.forms import is_plain
from tracks_dagster.training.saves.manifest import Chunk, clean_name
from tracks_dagster.training.saves.saving import StagedSave
from tracks_dagster.training.saves.staging import Arena, Staged, Staging
from tracks_dagster.training.saves.state_dict import collect
from tracks_dagster.training.saves.storage_writer import (
    CheckpointStorageWriter,
    Moment,
    SavePlanning,
    WrittenCheckpoint,
    is_finite,
    results_from_json,
    results_to_json,
)
from tracks_dagster.training.saves.trained import Trained, named_parameters


class TensorStager:
    """Implements `saving.Stager`: tensors are copied, and may change as soon as that is done."""

    def __init__(
        self,
        launch: Launch,
        trained: Trained,
        known: KnownChunks,
        arena: Arena,
        *,
        built: Mapping[str, Json],
        saving: Callable[[], None] = lambda: None,
    ) -> None:
        """built: as `built.Built.values`; saving: called as a save begins."""
        self._saving = saving
        self._launch = launch
        self._built = built
        self._trained = trained
        self._known = known
        self._staging = Staging(arena)
        self._parameters = frozenset(self._parameter_names())
        saved = {
            m: {clean_name(n) for n in each.state_dict()} for m, each in trained.modules.items()
        }
        self._forms = {
            f"{member}.{name}": (each.shape, each.dtype)
            for member, module in trained.modules.items()
            for name, each in named_parameters(module)
            if is_plain(each) and name in saved[member]
        }
        self._never_finite = frozenset(_never_finite(trained))
        self._planning = SavePlanning(launch.ranks, self._parameters, frozenset(trained.modules))

    def _parameter_names(self) -> list[str]:
        return [
            f"{member}.{name}"
            for member, module in self._trained.modules.items()
            for name, _ in named_parameters(module)
        ]

    def stage(self, moment: Moment) -> StagedSave:
        """Copy the state."""
        self._saving()
        state = collect(self._trained, rank=self._launch.ranks.rank)
        self._check_structure(state.tensors)
        planned = self._planning.plan(state.tensors)
        began = {
            "built": self._built,
            "frozen": frozen_names(self._trained),
            "modes": evaluating_parts(self._trained),
        }
        writer = CheckpointStorageWriter(
            self._launch.store,
            replace(
                moment,
                values=state.values,
                kinds=self._trained.kinds,
                progress={**moment.progress, **began},
            ),
            staging=self._staging,
            known=self._known,
            parameters=self._parameters - self._never_finite,
        )
        rng = random_state.capture()
        staged = writer.stage(planned.plan, planned.planner)
        shared = (*self._trained.states, *self._trained.optimizers, "scheduler", "scaler")
        save = TensorSave(
            writer,
            staged,
            planned.metadata,
            TensorPart(rng=rng, own=state.own),
            shared={n: state.values[n] for n in shared if self._launch.ranks.world_size > 1},
        )
        return StagedSave(writer=save, total_bytes=planned.total_bytes)

    def _check_structure(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise TrainingError where the loop has changed which parameters there are: a resume builds
        what was built at first."""
        own = {
            name: (tensors[name].shape, tensors[name].dtype)
            for name in self._forms
            if name in tensors
        }
        new = [name for name in self._parameter_names() if name not in self._parameters]
        other = [name for name, form in self._forms.items() if own.get(name, form) != form]
        gone = [name for name in self._forms if name not in tensors]
        if changed := sorted({*new, *other, *gone}):
            raise TrainingError(
                f"{changed[0]} is not as it was built: the loop has added, taken away or reshaped "
                "parameters, and a resume would build the first ones again. Build the model whole "
                "before a.register, or end the run and begin one from its weights."
            )


def _never_finite(trained: Trained) -> Iterator[str]:
    """Yield the parameters that are not trained and hold NaN or infinity on purpose, as a mask does."""
    for member, module in trained.modules.items():
        for name, parameter in named_parameters(module):
            if parameter.requires_grad or not is_plain(parameter):
                continue
            own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            if not is_finite(own.detach()):
                yield f"{member}.{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """What one rank tells of its part. results: where its tensors lie.

    own: values of the states of which every rank has its own; shared_sha256: of those that must be the
    same on all ranks.
    """

    rng: Json
    own: Mapping[str, Json]
    shared_sha256: Mapping[str, str] = field(default_factory=dict)
    results: Sequence[WriteResult] = ()


class TensorSave:
    """Implements `committing.SaveWriter` for staged tensors."""

    def __init__(
        self,
        writer: CheckpointStorageWriter,
        staged: Staged,
        metadata: Metadata,
        part: TensorPart,
        *,
        shared: Mapping[str, Json],
    ) -> None:
        self._shared = shared
        self._writer = writer
        self._staged = staged
        self._metadata = metadata
        self._part = part

    @property
    def moment(self) -> Moment:
        """What is saved."""
        return self._writer.moment

    @property
    def chunks(self) -> Sequence[Chunk]:
        """The chunks of this rank's part."""
        return self._writer.chunks

    @property
    def written_bytes(self) -> int:
        """How many bytes of it are new."""
        return self._writer.written_bytes

    def store(self) -> TensorPart:
        """Store this rank's tensors. Raises StoreError and NonFinite."""
        digests = {n: sha256_hex(canonical_json(values)) for n, values in self._shared.items()}
        results = self._writer.store(self._staged)
        return replace(self._part, results=results, shared_sha256=digests)

    def encode(self, part: TensorPart) -> Json:
        """Return a part as JSON."""
        return [part.rng, part.own, part.shared_sha256, results_to_json(part.results)]

    def decode(self, stored: Json) -> TensorPart:
        """Return the part that another rank encoded."""
        rng, own, shared_sha256, results = stored
        return TensorPart(
            rng=rng, own=own, shared_sha256=shared_sha256, results=results_from_json(results)
        )

    def finish(self, parts: Sequence[TensorPart]) -> WrittenCheckpoint:
        """Store the manifest of all ranks' parts.

        Raises StoreError, and TrainingError for a state that is one for all ranks and differs.
        """
        _check_alike(parts)
        own = {name: [part.own[name] for part in parts] for name in self._part.own}
        self._writer.moment = replace(self.moment, rng=[part.rng for part in parts], own=own)
        return self._writer.write_manifest(self._metadata, [list(part.results) for part in parts])


def _check_alike(parts: Sequence[TensorPart]) -> None:
    """Raise TrainingError naming a state that is one for all ranks and another on some."""
    for name, sha256 in parts[0].shared_sha256.items():
        for rank, part in enumerate(parts):
            if part.shared_sha256.get(name) != sha256:
                raise TrainingError(
                    f"The {name} of rank {rank} is not that of rank 0, and one is saved for all ranks; "
                    f"{_cure(name)}"
                )


def _cure(name: str) -> str:
    if name in ("scheduler", "scaler") or name.startswith("optimizer"):
        return (
            "its numbers have to be equal on all ranks: step a schedule that follows a metric with the "
            "mean over the ranks, and set rates alike."
        )
    return f"register it as a.register(…, per_rank={{'{name}': …}})."
