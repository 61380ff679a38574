"""Scripts of people's own idioms, cut in two: the end is equal, to the bit, to the undisturbed one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, IterableDataset

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tracks_dagster.track.errors import CheckpointMismatch, TrainingError
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.saves.manifest import FORMAT, FORMAT_NAMED, Manifest, read_tensors

STEPS, CUT = 7, 4


class ShuffledLoader:
    """What torchdata's StatefulDataLoader promises: a shuffle of its own, a place in it, a state."""

    def __init__(self, length: int, *, batch: int, seed: int) -> None:
        self._length, self._batch = length, batch
        self._generator = torch.Generator().manual_seed(seed)
        self._began: torch.Tensor | None = None  # the generator's state when this pass began
        self._yielded = 0
        self._resumes = False

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self._resumes:
            self._resumes = False
        else:
            self._began, self._yielded = self._generator.get_state(), 0
        assert self._began is not None
        self._generator.set_state(self._began)
        order = torch.randperm(self._length, generator=self._generator)
        for first in range(self._yielded * self._batch, self._length, self._batch):
            self._yielded += 1
            yield order[first : first + self._batch].float().unsqueeze(1) / self._length

    def state_dict(self) -> dict[str, Any]:
        return {"began": self._began, "num_yielded": self._yielded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._began, self._yielded, self._resumes = state["began"], state["num_yielded"], True


class StreamedRows(IterableDataset[torch.Tensor]):
    """What HF's IterableDataset promises: its place is in the data set, not in the loader."""

    def __init__(self) -> None:
        self.place = {"epoch": 0, "shard": 0, "row": 0}

    def set_epoch(self, epoch: int) -> None:
        self.place["epoch"] = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        for row in range(self.place["row"], 10):
            self.place["row"] = row + 1
            yield torch.full((1,), (row + 100 * self.place["epoch"]) / 1000)
        self.place["row"] = 0

    def state_dict(self) -> dict[str, int]:
        return dict(self.place)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = dict(state)


class Average:
    """An average of weights outside any module, as torch_ema and diffusers keep it."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            self.shadow[name].lerp_(parameter.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state["shadow"]


class Curriculum:
    """A state with everything that a state may hold."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self.level, self.seen = np.float32(0.0), np.zeros(3, dtype=np.uint16)
        self.history: list[tuple[int, bytes]] = []

    def advance(self, step: int) -> float:
        self.level = np.float32(self.level + self.rng.random())
        self.seen[step % 3] += 1
        self.history.append((step, bytes([step])))
        return float(self.level)

    def state_dict(self) -> dict[str, Any]:
        rng = self.rng.bit_generator.state
        return {"rng": rng, "level": self.level, "seen": self.seen, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert type(state["level"]) is np.float32
        assert state["seen"].dtype == np.uint16
        self.rng.bit_generator.state = state["rng"]
        self.level, self.seen, self.history = state["level"], state["seen"], state["history"]


def gan(a: Attempt, until: int) -> None:
    """Two models, two optimizers, a scheduler each, two kinds of average, a curriculum."""
    model, discriminator = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer_d = torch.optim.SGD(discriminator.parameters(), lr=0.1, momentum=0.9)
    scheduler_d = StepLR(optimizer_d, 2, gamma=0.5)
    averaged, average, curriculum = AveragedModel(model), Average(model), Curriculum()
    a.register(
        model=model,
        optimizer=optimizer,
        scheduler=LambdaLR(optimizer, lambda done: 1 / (1 + done)),
        discriminator=discriminator,
        optimizer_d=optimizer_d,
        scheduler_d=scheduler_d,
        averaged=averaged,
        average=average,
        curriculum=curriculum,
    )
    for step, _ in a.steps(until=until):
        noise = torch.randn(4, 2) + curriculum.advance(step)
        optimizer_d.zero_grad()
        F.softplus(discriminator(model(noise).detach())).mean().backward()
        optimizer_d.step()
        scheduler_d.step()
        optimizer.zero_grad()
        loss = F.softplus(-discriminator(model(noise))).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        averaged.update_parameters(model)
        average.update(model)
        a.report(step, loss=loss)


def own_loop(a: Attempt, until: int) -> None:
    """nanoGPT's shape: batches drawn by the script, autocast, a GradScaler, accumulation, a schedule
    by the step, an evaluation in the loop, tied weights, frozen ones, dropout."""
    data = np.arange(400, dtype=np.uint16) % 11
    embedding, body, head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
    head.weight = embedding.weight
    body.bias.requires_grad_(False)
    model = nn.Sequential(embedding, nn.Dropout(0.2), body, head)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    a.register(model=model, optimizer=optimizer, scaler=scaler)

    def losses() -> torch.Tensor:
        at = torch.randint(len(data) - 9, (4,))
        rows = torch.stack([torch.from_numpy(data[i : i + 9].astype(np.int64)) for i in at])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    for step, _ in a.steps(until=until):
        if step % 3 == 0:
            with a.evaluating(), torch.no_grad():
                model.eval()
                losses()
                model.train()
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / step
        total = torch.zeros(())
        for _ in range(2):
            loss = losses() / 2
            scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        a.report(step, loss=total)


def simple(a: Attempt, until: int, model: nn.Module, loader: Any) -> None:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    a.register(model=model, optimizer=optimizer)
    for step, batch in a.steps(loader, until=until):
        optimizer.zero_grad()
        loss = (model(batch) - batch.square()).square().mean()
        loss.backward()
        optimizer.step()
        a.report(step, loss=loss)


def compiled(a: Attempt, until: int) -> None:
    """torch.compile around the model, over a loader of the script's that has no state."""
    model: Any = torch.compile(nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1)), backend="eager")
    simple(a, until, model, iter([torch.ones(2, 1)] * 99))


def stateful_loader(a: Attempt, until: int) -> None:
    """A loader with a state, which nobody registers, over more than one pass."""
    simple(a, until, nn.Linear(1, 1), ShuffledLoader(10, batch=2, seed=3))


def streamed(a: Attempt, until: int) -> None:
    """A streaming data set with a state, registered by name, in a plain loader."""
    model, rows = nn.Linear(1, 1), StreamedRows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    a.register(model=model, optimizer=optimizer, per_rank={"rows": rows})
    for step, batch in a.steps(DataLoader(rows, batch_size=2), until=until):
        optimizer.zero_grad()
        loss = (model(batch) - 1).square().mean()
        loss.backward()
        optimizer.step()
        a.report(step, loss=loss)


class Adapted(nn.Module):
    """A large frozen base with a small adapter, whose state dict is the adapter alone, as PEFT's."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(1, 8).requires_grad_(False)
        self.adapter = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.adapter(self.base(x))
        return result

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        whole = super().state_dict(*args, **kwargs)
        return OrderedDict((n, t) for n, t in whole.items() if n.startswith("adapter"))


def lora(a: Attempt, until: int) -> None:
    """Only the adapter is trained, and only the adapter is saved."""
    simple(a, until, Adapted(), ShuffledLoader(12, batch=2, seed=1))


Script = Callable[[Attempt, int], None]


def run_of(folder: Path, store: FakeObjectStore, script: Script, *untils: int) -> TrainingRun:
    """Train attempts one after the other, each up to its step."""
    run = TrainingRun(folder, store=store, steps=STEPS, every_steps=None)
    for until in untils:
        torch.manual_seed(5)
        with run.joined() as a:
            script(a, until)
    return run


def everything(run: TrainingRun) -> tuple[Manifest, dict[str, Any]]:
    """The final checkpoint: of each member the values and every tensor's bytes."""
    ref = run.final()
    assert ref.step == STEPS
    manifest = run.manifest_of(ref)
    return manifest, {
        name: (member.values, list(_bytes(run, manifest, name)))
        for name, member in manifest.members.items()
    }


def _bytes(run: TrainingRun, manifest: Manifest, member: str) -> Iterator[tuple[str, bytes]]:
    for entry, data in read_tensors(run.store, manifest, member):
        yield entry.name, data


@pytest.mark.parametrize(
    ("script", "cut_at", "named"),
    [
        (
            gan,
            CUT,
            {
                "discriminator": "module",
                "optimizer_d": "optimizer",
                "scheduler_d": "state",
                "averaged": "module",
                "average": "state",
                "curriculum": "state",
            },
        ),
        (own_loop, CUT, {}),
        (compiled, CUT, {}),
        (stateful_loader, CUT, {"loader": "state"}),
        (stateful_loader, 5, {"loader": "state"}),  # where a pass over the data ends
        (streamed, CUT, {"rows": "state"}),
        (streamed, 5, {"rows": "state"}),
        (lora, CUT, {"loader": "state"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_cut_in_two_changes_no_bit(
    script: Script, cut_at: int, named: dict[str, str], tmp_path: Path
) -> None:
    calm = run_of(tmp_path / "calm", FakeObjectStore(), script, STEPS)
    cut = run_of(tmp_path / "cut", FakeObjectStore(), script, cut_at, STEPS)
    losses = {step: line["loss"] for step, line in calm.steps(1).items()}
    assert {s: line["loss"] for s, line in cut.steps(2).items()} == {
        step: losses[step] for step in range(cut_at + 1, STEPS + 1)
    }
    manifest, expected = everything(calm)
    _, found = everything(cut)
    assert found.keys() == expected.keys()
    for name in sorted(expected):
        assert found[name] == expected[name], name
    assert {n: m.kind for n, m in manifest.members.items() if n in named} == named
    assert manifest.format == (FORMAT_NAMED if named else FORMAT)


def test_a_compiled_model_is_saved_by_the_names_it_has_uncompiled(tmp_path: Path) -> None:
    run = run_of(tmp_path, FakeObjectStore(), compiled, CUT, STEPS)
    assert [e.name for e in run.manifest_of(run.final()).members["model"].tensors] == [
        *("0.bias", "0.weight", "1.bias", "1.weight")
    ]


def test_tied_weights_are_tied_after_a_resume(tmp_path: Path) -> None:
    run = run_of(tmp_path, FakeObjectStore(), own_loop, CUT, STEPS)
    weights = run.weights_of(run.final())
    assert torch.equal(weights["0.weight"], weights["3.weight"])


def test_the_commit_says_what_the_loader_says_of_itself(tmp_path: Path) -> None:
    run = run_of(tmp_path, FakeObjectStore(), stateful_loader, CUT, STEPS)
    first, last = (checkpoint.body for checkpoint in run.state.checkpoints)
    assert (first.cursor, first.epoch, first.data_state) == (None, 0, "num_yielded=4")
    # 7 steps of 2 samples: five of the first pass over 10, two of the second
    assert (last.cursor, last.epoch, last.data_state) == (None, 1, "num_yielded=2")
    assert [attempt.restored.cursor for attempt in run.state.attempts if attempt.restored] == [
        None,
        None,
    ]
    line = run.steps(2)[STEPS]
    assert (line["cursor_to"], line["indices_sha256"]) == (None, None)


def test_a_loader_without_a_state_says_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, FakeObjectStore(), own_loop, CUT)
    assert [(c.body.cursor, c.body.data_state) for c in run.state.checkpoints] == [(None, None)]


def with_sampler(a: Attempt, until: int) -> None:
    """The order of samples is ours."""
    a.sampler(100, seed=5, global_batch=4)
    own_loop(a, until)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (with_sampler, own_loop, "in the order of a.sampler and this attempt has an order of the"),
        (own_loop, with_sampler, "in an order of the script's own and this attempt has the order"),
        (gan, lora, "Only the checkpoint of step 4 has average; register what was"),
        (own_loop, stateful_loader, "Only this trainer of step 4 has loader; register what was"),
    ],
)
def test_what_cannot_continue_is_refused(
    before: Script, after: Script, words: str, tmp_path: Path
) -> None:
    run = run_of(tmp_path, FakeObjectStore(), before, CUT)
    with pytest.raises(CheckpointMismatch, match=words), run.joined() as a:
        after(a, STEPS)


MODEL = nn.Linear(1, 1)
ADAM = torch.optim.Adam(MODEL.parameters())


@pytest.mark.parametrize(
    ("registered", "words"),
    [
        ({"ema": object()}, "ema is a object; a.register takes a torch.nn.Module, an Optimizer"),
        ({"per_rank": {"twin": nn.Linear(1, 1)}}, "in per_rank; all ranks share it"),
        ({"rng": Curriculum()}, "Cannot register 'rng': use a name"),
        ({"a.b": Curriculum()}, "Cannot register 'a.b': use a name"),
        ({"weight": Curriculum()}, "'weight': it is a name of the model's own parts"),
        ({"twice": Curriculum(), "per_rank": {"twice": Curriculum()}}, "a name in per_rank too"),
        ({"optimizer_d": torch.optim.Adam([torch.zeros(3)])}, "Register every module that is"),
    ],
)
def test_what_cannot_be_registered_is_named(
    registered: dict[str, Any], words: str, tmp_path: Path
) -> None:
    run = TrainingRun(tmp_path, store=FakeObjectStore())
    with pytest.raises(TrainingError, match=words), run.joined() as a:
        a.register(**{"model": MODEL, "optimizer": ADAM, **registered})


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ([(1, 1)], "Step 1 was reported twice"),
        ([(1,), (1,)], "Step 1 was reported twice"),
        ([(1,), (3,)], "Step 3 was reported out of order: step 2 is the one that runs"),
    ],
)
def test_a_step_out_of_order_or_twice_is_refused(
    reports: list[tuple[int, ...]], words: str, tmp_path: Path
) -> None:
    run = TrainingRun(tmp_path, store=FakeObjectStore())
    with pytest.raises(TrainingError, match=words), run.joined() as a:
        report_all(a, reports)


def report_all(a: Attempt, reports: list[tuple[int, ...]]) -> None:
    """Report these steps in the first turns of a loop."""
    a.register(model=MODEL, optimizer=ADAM)
    for _, reported in zip(a.steps(until=STEPS), reports, strict=False):
        for step in reported:
            a.report(step, loss=1.0)


def test_a_data_set_whose_workers_have_copies_is_refused(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, store=FakeObjectStore())
    with run.joined() as a:
        rows = StreamedRows()
        a.register(model=MODEL, optimizer=ADAM, per_rank={"rows": rows})
        steps = a.steps(DataLoader(rows, num_workers=2), until=STEPS)
        with pytest.raises(TrainingError, match="rows is read by 2 loader workers"):
            next(steps)


def test_a_generator_that_ends_early_says_what_can_be_gone_through_again(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, store=FakeObjectStore())
    with pytest.raises(TrainingError, match="ended before step 3 of 7"), run.joined() as a:
        simple(a, STEPS, nn.Linear(1, 1), iter([torch.ones(2, 1)] * 2))
