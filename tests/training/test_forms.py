"""What can be trained and saved can be restored, or is refused by name before it costs a step."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.fakes import FakeObjectStore
from tests.training.checkpoints import read, ref_of, write
from tests.training.gangs import TrainingRun
from tracks_dagster.track.errors import CheckpointMismatch, TrainingError
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.saves.loading import load_into, load_own_into
from tracks_dagster.training.saves.plain_state import put_together, take_apart
from tracks_dagster.training.saves.state_dict import check_state, collect
from tracks_dagster.training.saves.trained import Trained


class Holder(nn.Module):
    """A weight, and a buffer of any kind."""

    def __init__(self, held: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("held", held)


class Coded(torch.Tensor):
    """A wrapper subclass: numbers as codes of 8 bits with a scale for all."""

    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, offset: int) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, offset: int) -> None:
        self.codes, self.scale, self.offset = codes, scale, offset

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], [self.offset, torch.float32]

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> Coded:
        return cls(parts["codes"], parts["scale"], context[0])

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].codes, args[0].scale, args[0].offset)
        if function is torch.ops.aten._to_copy.default:
            return cls(args[0].codes.clone(), args[0].scale.clone(), args[0].offset)
        raise NotImplementedError(str(function))


def coded(value: int) -> Coded:
    return Coded(torch.full((2,), value, dtype=torch.int8), torch.tensor(0.5 * value), 3)


def trained(held: torch.Tensor) -> Trained:
    model = Holder(held)
    return Trained(model=model, optimizer=torch.optim.SGD([model.weight], lr=0.1))


HELD: dict[str, tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]] = {
    # Each: what is saved, and what the same script builds again, with other numbers.
    "coo": (lambda: torch.eye(3).to_sparse() * 2, lambda: torch.eye(3).to_sparse()),
    "coo-more": (lambda: torch.ones(3, 3).to_sparse(), lambda: torch.eye(3).to_sparse()),
    "hybrid": (
        lambda: torch.ones(3, 2).to_sparse(1),
        lambda: torch.zeros(3, 2).to_sparse(1),
    ),
    "csr": (lambda: torch.ones(3, 3).to_sparse_csr(), lambda: torch.eye(3).to_sparse_csr()),
    "csc": (lambda: torch.ones(3, 3).to_sparse_csc(), lambda: torch.eye(3).to_sparse_csc()),
    "bsr": (lambda: torch.ones(4, 4).to_sparse_bsr(2), lambda: torch.eye(4).to_sparse_bsr(2)),
    "expanded": (
        lambda: torch.arange(3.0).expand(4, 3),
        lambda: torch.zeros(3).expand(4, 3),
    ),
    "one-for-all": (lambda: torch.tensor(7.0).expand(5), lambda: torch.tensor(0.0).expand(5)),
    "transposed": (lambda: torch.arange(6.0).reshape(2, 3).t(), lambda: torch.zeros(2, 3).t()),
    "strided": (lambda: torch.arange(6.0)[::2], lambda: torch.zeros(6)[::2]),
    "windows": (
        lambda: torch.arange(4.0).as_strided((3, 2), (1, 1)),
        lambda: torch.zeros(4).as_strided((3, 2), (1, 1)),
    ),
    "empty": (lambda: torch.zeros(0, 3), lambda: torch.zeros(0, 3)),
    "complex": (lambda: torch.ones(2, dtype=torch.complex64) * 1j, lambda: torch.zeros(2) * 1j),
    "conjugated": (
        lambda: (torch.ones(2, dtype=torch.complex64) * 1j).conj(),
        lambda: (torch.zeros(2) * 1j).conj(),
    ),
    "bool": (lambda: torch.tensor([True, False]), lambda: torch.tensor([False, False])),
    "float8": (
        lambda: torch.ones(4).to(torch.float8_e4m3fn),
        lambda: torch.zeros(4).to(torch.float8_e4m3fn),
    ),
    "uint16": (
        lambda: torch.tensor([65535], dtype=torch.uint16),
        lambda: torch.tensor([0], dtype=torch.uint16),
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kind", HELD)
def test_a_buffer_of_any_kind_comes_back(store: FakeObjectStore, kind: str) -> None:
    saved, fresh = (trained(make()) for make in HELD[kind])
    for each in (saved, fresh):
        check_state(each, has_trained=False)
    ref = ref_of(write(store, saved))
    load_into(fresh, read(store, ref, fresh))
    held, back = saved.model.held, fresh.model.held
    assert isinstance(held, torch.Tensor)
    assert isinstance(back, torch.Tensor)
    assert (back.layout, back.dtype, back.shape) == (held.layout, held.dtype, held.shape)
    dense = [each.to_dense() if each.layout is not torch.strided else each for each in (held, back)]
    assert torch.equal(dense[0].to(torch.complex64), dense[1].to(torch.complex64))
    assert collect(fresh).tensors.keys() == collect(saved).tensors.keys()


def test_a_wrapper_subclass_comes_back_in_a_buffer_and_in_a_state(store: FakeObjectStore) -> None:
    saved, fresh = trained(coded(4)), trained(coded(1))
    saved.optimizer.state[saved.model.weight]["moment"] = coded(6)
    load_into(fresh, read(store, ref_of(write(store, saved)), fresh))
    assert (fresh.model.held.codes.tolist(), float(fresh.model.held.scale)) == ([4, 4], 2.0)
    moment = fresh.optimizer.state[fresh.model.weight]["moment"]
    assert isinstance(moment, Coded)
    assert (moment.codes.tolist(), float(moment.scale), moment.offset) == ([6, 6], 3.0, 3)


def test_a_plain_tensor_is_not_restored_into_another_kind(store: FakeObjectStore) -> None:
    saved, fresh = trained(torch.eye(2)), trained(torch.eye(2).to_sparse())
    ref = ref_of(write(store, saved))
    with pytest.raises(
        CheckpointMismatch, match=r"model\.held of step \d+ is plain in the checkpoint"
    ):
        read(store, ref, fresh)


@pytest.mark.filterwarnings("ignore")  # torch's own, of prototypes
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "is quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "is nested"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "is nested",
        ),
        (lambda: torch.ones(2, device="meta"), "on the device meta"),
    ],
    ids=["quantized", "nested", "jagged", "meta"],
)
def test_what_cannot_be_restored_is_refused_when_it_is_registered(
    tmp_path: Path, make: Callable[[], torch.Tensor], why: str
) -> None:
    run = TrainingRun(tmp_path, steps=2)
    with run.joined() as a:
        model = Holder(make())
        optimizer = torch.optim.SGD([model.weight], lr=0.1)
        with pytest.raises(TrainingError, match=rf"Cannot save model\.held: it .*{why}|{why}"):
            a.register(model=model, optimizer=optimizer)


def test_what_the_first_step_makes_is_refused_after_it(tmp_path: Path) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["hidden"] = {1, 2}

    run = TrainingRun(tmp_path, steps=9, every_steps=8)
    model = nn.Linear(1, 1)
    says = pytest.raises(
        TrainingError, match=r"Cannot save optimizer\.state\.weight\.hidden: a set"
    )
    with says, run.joined() as a:
        loop(a, model, Odd(model.parameters(), lr=0.1))
    assert run.steps(1) == {}


def loop(
    a: Attempt, model: nn.Module, optimizer: torch.optim.Optimizer, until: int = 4
) -> list[float]:
    a.register(model=model, optimizer=optimizer)
    data = TensorDataset(torch.linspace(-1, 1, 100).unsqueeze(1))
    loader = DataLoader(data, batch_sampler=a.sampler(100, seed=5))
    losses = []
    for step, (batch,) in a.steps(loader, until=until):
        optimizer.zero_grad()
        loss = (model(batch) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        a.report(step, loss=loss)
    return losses


def lazy() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(1))


def test_lazily_shaped_modules_get_their_shape_from_the_checkpoint(tmp_path: Path) -> None:
    calm, cut = TrainingRun(tmp_path / "calm", steps=6), TrainingRun(tmp_path / "cut", steps=6)
    with calm.joined() as a:
        model = lazy()
        expected = loop(a, model, torch.optim.Adam(model.parameters()), until=6)
    with cut.joined() as a:
        model = lazy()
        loop(a, model, torch.optim.Adam(model.parameters()), until=3)
    with cut.joined() as a:
        model = lazy()
        assert loop(a, model, torch.optim.Adam(model.parameters()), until=6) == expected[3:]


def test_a_lazy_part_that_no_batch_reaches_is_named_after_the_first_step(tmp_path: Path) -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.left = nn.Linear(1, 1), nn.LazyLinear(1)

        def forward(self, x: torch.Tensor) -> Any:
            return self.used(x)

    run = TrainingRun(tmp_path, steps=4)
    says = pytest.raises(TrainingError, match=r"model\.left\.weight: it has no shape yet")
    with says, run.joined() as a:
        model = Unused()
        loop(a, model, torch.optim.SGD(model.used.parameters(), lr=0.1))


def test_what_is_infinite_on_purpose_and_not_trained_is_saved(tmp_path: Path) -> None:
    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(1, 1)
            self.mask = nn.Parameter(torch.full((3, 3), -torch.inf).triu(1), requires_grad=False)

    run = TrainingRun(tmp_path, steps=4)
    with run.joined() as a:
        model = Masked()
        loop(a, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [c.ref.step for c in run.state.checkpoints] == [4]


class Row(NamedTuple):
    """What a replay buffer has of a step."""

    state: np.ndarray[Any, Any]
    action: int


class Kind(IntEnum):
    """A number with a name."""

    ONE = 1


@pytest.mark.parametrize(
    "state", [Kind.ONE, np.str_("a"), np.ma.masked_array([1, 2], [0, 1]), np.longdouble(1)]
)
def test_what_would_come_back_as_something_else_is_refused(state: Any) -> None:
    with pytest.raises(TrainingError, match=r"Cannot save s\.0: a \w+ would come back"):
        take_apart([state], name="s")


def test_named_tuples_and_mappings_come_back_as_what_they_were() -> None:
    state = {
        "rows": deque(Row(np.full(2, i), i) for i in range(100)),
        "few": [Row(np.ones(1), 1)],
        "counts": defaultdict(int, {"a": 1}),
        "ordered": OrderedDict(b=1, a=2),
    }
    values, tensors = take_apart(state, name="s", stacks=True)
    back = put_together(values, tensors)
    assert len(tensors) == 2  # all states, and that of the one row
    assert [type(back["rows"][5]), back["rows"][5].action] == [Row, 5]
    assert back["few"][0].state.tolist() == [1]
    assert back["counts"]["new"] == 0
    assert type(back["ordered"]) is OrderedDict


@pytest.mark.parametrize(
    "state",
    [
        deque([1, 2, 3], maxlen=5),
        deque(range(100), maxlen=200),
        Counter({"a": 2, "b": 3}),
        {"dtype": torch.bfloat16, "device": torch.device("cpu")},
        [(np.full(3, float(i)), i, 0.5 * i, True, None, f"s{i}") for i in range(100)],
        [{"obs": np.full((2, 2), i, np.float32), "done": np.bool_(i % 2)} for i in range(100)],
        [np.arange(i % 7, dtype=np.int64) for i in range(100)],
        {i: np.full(2, float(i)) for i in range(100)},
        deque((torch.full((2,), float(i)), np.float32(i)) for i in range(100)),
        [[float("nan"), float("inf")] for _ in range(100)],
        [1, "a", None] * 40,
        [np.zeros(2), np.zeros(2, np.int32)] * 40,
        list(range(-(2**70), -(2**70) + 100)),
    ],
    ids=lambda state: type(state).__name__,
)
def test_a_state_comes_back_as_it_was(state: Any) -> None:
    values, tensors = take_apart(state, name="s", stacks=True)
    back = put_together(values, tensors)
    assert type(back) is type(state)
    assert getattr(back, "maxlen", None) == getattr(state, "maxlen", None)
    assert repr(back) == repr(state)


def test_a_buffer_of_transitions_is_few_tensors_and_its_rows_are_its_own(
    store: FakeObjectStore,
) -> None:
    class Replay:
        def __init__(self, count: int) -> None:
            self.rows = deque(
                (
                    (np.full(4, i, np.float32), i % 3, float(i), np.zeros(4, np.float32))
                    for i in range(count)
                ),
                maxlen=50_000,
            )

        def state_dict(self) -> dict[str, Any]:
            return {"rows": self.rows}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.rows = state["rows"]

    def of(count: int) -> Trained:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Trained(model=model, optimizer=optimizer, named={"replay": Replay(count)})

    saved, fresh = of(24_000), of(0)
    ref = ref_of(write(store, saved))
    manifest = read(store, ref, fresh).manifest
    assert len(manifest.members["replay"].tensors) == 3
    assert len(manifest.to_bytes()) < 200_000  # 24 000 small numbers of actions among them
    load_own_into(fresh, read(store, ref, fresh))
    rows = fresh.states["replay"].rows  # type: ignore[attr-defined]
    assert (len(rows), rows.maxlen) == (24_000, 50_000)
    rows[0][0][:] = 9
    assert rows[1][0].tolist() == [1, 1, 1, 1]


def test_compiled_blocks_have_the_names_of_the_model_without_them(store: FakeObjectStore) -> None:
    def built(compiles: bool) -> Trained:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        if compiles:
            model[0] = torch.compile(model[0], backend="eager")  # type: ignore[call-overload]
        optimizer = torch.optim.Adam(model.parameters())
        model[1](torch.ones(3, 2)).sum().backward()
        optimizer.step()
        return Trained(model=model, optimizer=optimizer)

    saved, plain = built(True), built(False)
    ref = ref_of(write(store, saved))
    fetched = read(store, ref, plain)
    names = [entry.name for entry in fetched.manifest.members["model"].tensors]
    assert names == ["0.bias", "0.weight", "1.bias", "1.weight"]
    load_into(plain, fetched)
    again = built(True)
    load_into(again, read(store, ref, again))


def test_what_a_part_does_at_a_load_is_done(store: FakeObjectStore) -> None:
    class Derived(nn.Linear):
        def __init__(self) -> None:
            super().__init__(1, 1)
            self.doubled = 0.0
            self.register_load_state_dict_post_hook(lambda part, keys: part.derive())

        def derive(self) -> None:
            self.doubled = 2 * self.bias.item()

    def of(bias: float) -> Trained:
        model = Derived()
        nn.init.constant_(model.bias, bias)
        return Trained(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    fresh = of(1.0)
    load_into(fresh, read(store, ref_of(write(store, of(4.0))), fresh))
    assert fresh.model.doubled == 8.0


def test_a_buffer_that_its_part_lets_grow_comes_back_as_large(store: FakeObjectStore) -> None:
    class Range(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("seen", torch.arange(float(size)))

        def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
            self.seen.resize_(state[f"{prefix}seen"].shape)
            super()._load_from_state_dict(state, prefix, *rest)

    def of(size: int) -> Trained:
        model = Range(size)
        return Trained(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    fresh = of(0)
    load_into(fresh, read(store, ref_of(write(store, of(8))), fresh))
    assert fresh.model.seen.tolist() == list(range(8))


def test_a_buffer_that_the_loop_let_grow_comes_back_as_large(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=6)
    sizes = []
    for until in (3, 6):
        with run.joined() as a:
            model = Holder(torch.zeros(0, 2))
            optimizer = torch.optim.SGD([model.weight], lr=0.1)
            a.register(model=model, optimizer=optimizer)
            for step, _ in a.steps(until=until):
                optimizer.step()
                model.held = torch.cat([model.held, torch.full((1, 2), float(step))])
                a.report(step, loss=1.0)
            sizes.append(model.held[:, 0].tolist())
    assert sizes == [[1, 2, 3], [1, 2, 3, 4, 5, 6]]


def test_a_buffer_that_is_built_in_another_shape_is_refused(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=6)

    def train(a: Attempt, size: int, until: int) -> None:
        model = Holder(torch.zeros(size))
        a.register(model=model, optimizer=torch.optim.SGD([model.weight], lr=0.1))
        for step, _ in a.steps(until=until):
            a.report(step, loss=1.0)

    with run.joined() as a:
        train(a, 2, 3)
    says = pytest.raises(CheckpointMismatch, match=r"Tensor model\.held of step 3 does not fit")
    with says, run.joined() as a:
        train(a, 3, 6)
