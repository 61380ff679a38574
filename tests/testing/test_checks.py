"""What each check takes and says beyond the matrix: its options, its limits, what it leaves behind."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.testing.models import Attention, B, D, Gpt, Lstm, Mlp, T, V, numbers, tokens
from tracks_dagster import testing
from tracks_dagster.testing import CannotCheck, Finding
from tracks_dagster.testing.finding import RAN, WIDTH
from tracks_dagster.testing.running import seeded

LINES_MAX = 10  # of one finding
LENGTHS = itertools.count(2)  # of data that get longer at each reading
(X,) = numbers(B, 6)("cpu")
(IDS,) = tokens("cpu")


class Forward(nn.Module):
    """A module with one weight and a forward pass of the test's own."""

    def __init__(self, forward: Callable[[nn.Parameter, Any], Any], *size: int) -> None:
        super().__init__()
        self.weight, self._forward = nn.Parameter(torch.full(size or (6, 6), 0.5)), forward

    def forward(self, *x: Any, **named: Any) -> Any:
        return self._forward(self.weight, *x, **named)


class Wrapped(nn.Module):
    """A module that another one calls, as DistributedDataParallel does with a compiled one."""

    def __init__(self, module: nn.ModuleDict) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module["_orig_mod"](x)


class Constant(nn.Module):
    """Adds a tensor that .to(device) does not move."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.constant = nn.Linear(6, 6), torch.ones(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.constant


def sum_of(model: nn.Module, x: Any = X) -> Callable[[], torch.Tensor]:
    return lambda: model(x).sum()


def found(check: Callable[..., None], *given: Any, **options: Any) -> str:
    with pytest.raises(Finding) as raised:
        check(*given, **options)
    return str(raised.value)


def refused(check: Callable[..., None], *given: Any, **options: Any) -> str:
    with pytest.raises(CannotCheck) as raised:
        check(*given, **options)
    return str(raised.value)


FINDINGS = [
    pytest.param(
        lambda: testing.check_shapes(Mlp(), X, takes="B F", gives="B F"),
        "output has the shape (3, 5): dimension 1 (F) should be 6",
        id="a size",
    ),
    pytest.param(
        lambda: testing.check_shapes(Mlp(), X, takes="B F", gives="B T C"),
        "output has the shape (3, 5), where 'B T C' has 3 dimensions",
        id="a number of dimensions",
    ),
    pytest.param(
        lambda: testing.check_shapes(
            lambda x: {"a": (x, x.sum())}, X, takes="B F", gives={"a": ("B F", "", "B")}
        ),
        "output['a'] has no 2: it is tuple.",
        id="an output that is not there",
    ),
    pytest.param(
        lambda: testing.check_shapes(lambda x: 1.0, X, takes="B F", gives=""),
        "output is float, where a tensor '' should be.",
        id="an output that is no tensor",
    ),
    pytest.param(
        lambda: testing.check_finite(Mlp(), X.clone().index_fill(0, torch.tensor(1), torch.nan)),
        "inputs (3, 6): 6 NaN and 0 infinities of 18",
        id="NaN in the data",
    ),
    pytest.param(
        lambda: testing.check_finite(Forward(lambda w, x: (x - x).log() @ w), X),
        "(x - x).log() @ w",
        id="the line of the first NaN",
    ),
    pytest.param(
        lambda: testing.check_finite(Forward(lambda w, x: x @ (w - w).square().sqrt()), X),
        "gradient of weight (6, 6): 36 NaN and 0 infinities of 36",
        id="a gradient",
    ),
    pytest.param(
        lambda: testing.check_dtypes(Mlp().half(), X.half()),
        "inputs (3, 6) is float16",
        id="a model and its inputs in half precision",
    ),
    pytest.param(
        lambda: testing.check_dtypes(Mlp(), X, at_least=torch.float64),
        "first.weight (16, 6) is float32",
        id="a narrower type than asked for",
    ),
    pytest.param(
        lambda: testing.check_on_device(Constant().to("meta"), X.to("meta")),
        "self.layer(x) + self.constant: an argument of torch.Tensor.add, (6), is on cpu",
        id="a constant that is no buffer",
    ),
    pytest.param(
        lambda: testing.check_on_device(
            Forward(lambda w, x: x @ w + torch.arange(6)).to("meta"), X.to("meta")
        ),
        "the result of torch.arange, (6), is on cpu",
        id="a tensor made without device=",
    ),
    pytest.param(
        lambda: testing.check_every_parameter_learns(Forward(lambda w, x: x), X),
        "weight (6, 6): has no gradient",
        id="a weight that is not used",
    ),
    pytest.param(
        lambda: testing.check_every_parameter_learns(Mlp(), X, frozen=["first.*"]),
        "first.weight (16, 6): named in frozen=, and its gradient is up to",
        id="a frozen one that learns",
    ),
    pytest.param(
        lambda: testing.check_every_parameter_learns(
            Forward(lambda w, x: x @ w.sub(0.5).sqrt()), X
        ),
        "weight (6, 6): its gradient is ",
        id="a gradient that is not finite",
    ),
    pytest.param(
        lambda: testing.check_loss_hears_the_output(m := Mlp(), lambda: m(X).sum().item()),
        "loss() returned float",
        id="a loss that is a number of Python",
    ),
    pytest.param(
        lambda: testing.check_loss_hears_the_output(m := Mlp(), lambda: m(X).sum().detach()),
        "requires_grad is False",
        id="a loss that is detached itself",
    ),
    pytest.param(
        lambda: testing.check_loss_hears_the_output(m := Mlp(), lambda: m(X)[0].sum()),
        "output (3, 5): its gradient is 0 for 2 of 3 samples: [1, 2]",
        id="a loss of one sample",
    ),
    pytest.param(
        lambda: testing.check_loss_hears_the_output(
            m := Forward(lambda w, x: (x @ w, x + w.sum())), lambda: m(X)[0].sum()
        ),
        "output[1] (3, 6): no path leads from the loss to it",
        id="one output of two",
    ),
    pytest.param(
        lambda: testing.check_overfits_one_batch(
            m := Mlp(), lambda: F.cross_entropy(m(X * 0), torch.arange(3)), steps=20
        ),
        "(steps 1, 7, 14, 20)",
        id="targets that the inputs say nothing of",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(lambda x: x.softmax(0), X),
        "(2 of 3 change)",
        id="a function that normalises over samples",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(lambda x: x + x.round().sum(), X),
        "output: sample ",
        id="samples that mix by a step without a gradient",
    ),
    pytest.param(
        lambda: testing.check_positions(
            nn.Sequential(nn.Embedding(V, D), Attention(reach=-1)), IDS
        ),
        "position 0 does not change with input position [0]",
        id="a mask that hides the position itself",
    ),
    pytest.param(
        lambda: testing.check_positions(Lstm(), IDS, sees="all"),
        "position 0 does not change with input position [1, 2, 3, 4, 5, 6, 7]",
        id="one direction where both were meant",
    ),
    pytest.param(
        lambda: testing.check_positions(lambda x: x.softmax(1), numbers(B, T)("cpu")[0]),
        "position 0 changes by",
        id="a softmax over positions",
    ),
    pytest.param(
        lambda: testing.check_same(lambda x: x, lambda x: x.T, X),
        "output (3, 6): b has the shape (6, 3)",
        id="another shape",
    ),
    pytest.param(
        lambda: testing.check_same(Mlp(), Mlp(), X, names=("one rank", "two ranks")),
        "tensors differ between one rank and two ranks",
        id="two models",
    ),
    pytest.param(
        lambda: testing.check_deterministic(
            lambda: iter([{"text": random.SystemRandom().random()}])
        ),
        "batch 1['text']: '0.",
        id="a value that is no tensor",
    ),
    pytest.param(
        lambda: testing.check_deterministic(lambda: [1] * next(LENGTHS)),
        "is there in one of the two only",
        id="batches of other lengths",
    ),
]


@pytest.mark.parametrize(("ask", "words"), FINDINGS)
def test_a_finding_says_where_and_how_much(ask: Callable[[], None], words: str) -> None:
    torch.manual_seed(0)
    finding = found(ask)
    assert words in finding
    assert len(finding.splitlines()) <= LINES_MAX


NOTHING_WRONG = [
    pytest.param(
        lambda: testing.check_shapes(
            lambda x, lengths: (x, {"sum": x.sum()}, "text"),
            {"x": X, "lengths": torch.ones(B)},
            takes={"x": "B 6", "lengths": "B"},
            gives=("_ 6", {"sum": ""}, None),
        ),
        id="names, numbers, any size, what is not looked at",
    ),
    pytest.param(
        lambda: testing.check_finite(
            lambda x: x.masked_fill(x > 0, -torch.inf).softmax(1), X - X.amax(1, keepdim=True) - 1
        ),
        id="infinities on the way that a softmax takes",
    ),
    pytest.param(
        lambda: testing.check_dtypes(Mlp().bfloat16(), X.bfloat16(), at_least=torch.bfloat16),
        id="a model that is meant to be narrow",
    ),
    pytest.param(
        lambda: testing.check_on_device(
            Forward(lambda w, x, lengths: x @ w).to("meta"),
            {"x": X.to("meta"), "lengths": torch.ones(B)},
            on_cpu=["inputs['lengths']"],
        ),
        id="lengths that belong on the CPU",
    ),
    pytest.param(
        lambda: testing.check_on_device(
            Forward(lambda w, x: x @ w * torch.tensor(2.0)).to("meta"), X.to("meta")
        ),
        id="a single number",
    ),
    pytest.param(
        lambda: testing.check_every_parameter_learns(nn.Embedding(V, 4, sparse=True), IDS),
        id="sparse gradients",
    ),
    pytest.param(
        lambda: testing.check_loss_hears_the_output(
            m := Forward(lambda w, x: (x @ w, x + w.sum())),
            lambda: m(X)[0].sum(),
            unheard=["output[1]"],
        ),
        id="an output that is named as unheard",
    ),
    pytest.param(
        lambda: testing.check_loss_hears_the_output(
            m := Forward(lambda w, x: (y := x @ w, y.square().sum())), lambda: m(X)[1]
        ),
        id="a model that returns its loss beside the logits",
    ),
    pytest.param(
        lambda: testing.check_overfits_one_batch(
            m := Forward(lambda w, x: (x @ w, x + w.sum())), lambda: m(X)[0].square().sum()
        ),
        id="a loss of one output of two",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(nn.BatchNorm1d(6).eval(), X),
        id="BatchNorm that does not train",
    ),
    pytest.param(
        lambda: testing.check_positions(lambda x: x.cumsum(0), numbers(T, B, 2)("cpu")[0], dim=0),
        id="positions in dimension 0",
    ),
    pytest.param(
        lambda: testing.check_positions(
            Lstm(), torch.randint(V, (2, 40), generator=torch.Generator().manual_seed(1))
        ),
        id="more positions than are probed",
    ),
    pytest.param(
        lambda: testing.check_same(lambda x: x, lambda x: x.double() * 1.001, X, rtol=0.01),
        id="a tolerance, and another dtype",
    ),
    pytest.param(
        lambda: testing.check_same(m := Mlp(), Wrapped(nn.ModuleDict({"_orig_mod": m})), X),
        id="a module in a wrapper",
    ),
    pytest.param(
        lambda: testing.check_same(nn.Dropout(0.5), nn.Dropout(0.5), X), id="dropout, seeded alike"
    ),
    pytest.param(
        lambda: testing.check_deterministic(
            lambda: (np.random.rand(3), {"x": torch.rand(2), "name": random.choice("abc")})
        ),
        id="numpy, torch and Python, seeded",
    ),
]


@pytest.mark.parametrize("ask", NOTHING_WRONG)
def test_nothing_is_found_where_all_is_as_meant(ask: Callable[[], None]) -> None:
    torch.manual_seed(0)
    ask()


REFUSALS = [
    (
        testing.check_shapes,
        (Mlp(), X),
        {"takes": "B T F", "gives": "B C"},
        "give inputs as `takes`",
    ),
    (testing.check_shapes, (Mlp(), X), {"takes": ("B",), "gives": ""}, "inputs is one tensor"),
    (testing.check_shapes, (Mlp(), (X,)), {"takes": "B F", "gives": ""}, "inputs is tuple"),
    (testing.check_shapes, (Mlp(), X[:, :3]), {"takes": "B F", "gives": ""}, "are both 3"),
    (testing.check_on_device, (lambda: 1, ()), {}, "Neither model nor inputs"),
    (testing.check_every_parameter_learns, (Mlp(), X), {"frozen": ["frist.*"]}, "'frist.*'"),
    (testing.check_loss_hears_the_output, (Mlp(), lambda: X.sum()), {}, "did not call the model"),
    (
        testing.check_overfits_one_batch,
        ((m := Mlp()), lambda: -m(X).square().sum()),
        {},
        "first loss",
    ),
    (testing.check_overfits_one_batch, (nn.ReLU(), lambda: X.sum()), {}, "is frozen"),
    (testing.check_tied, (Gpt(), "embedding.weight", "lm_head.weight"), {}, "'lm_head.weight'"),
    (testing.check_samples_do_not_mix, (Mlp(), X[:1]), {}, "has one sample"),
    (
        testing.check_samples_do_not_mix,
        (Mlp(), X[:1].expand(2, 6)),
        {},
        "samples of the batch equal",
    ),
    (testing.check_samples_do_not_mix, (lambda x: x.sum(), X), {}, "(it returned output ())"),
    (testing.check_positions, (Gpt(), IDS), {"sees": "earlier"}, "none of 'causal', 'all'"),
    (
        testing.check_positions,
        (Gpt(), IDS),
        {"sees": torch.ones(3, 3)},
        "should be (8, 8) or (3, 8, 8)",
    ),
    (testing.check_positions, (Gpt(), IDS * 0), {}, "All ids of the inputs are the same"),
    (testing.check_positions, (lambda x: x / 0 * 0, X), {}, "see check_finite"),
    (testing.check_positions, (Mlp(), X[:, 0]), {}, "has no dimension 1"),
    (testing.check_same, (lambda: {"a": X}, lambda: {"b": X}), {}, "only one has output['a']"),
    (testing.check_same, (lambda: 1, lambda: 1), {}, "nothing at all"),
    (testing.check_deterministic, (lambda: iter(()),), {}, "no batch"),
    (testing.check_deterministic, (lambda: 3,), {}, "returned int"),
]


@pytest.mark.parametrize(("check", "given", "options", "words"), REFUSALS)
def test_what_cannot_be_judged_is_neither_right_nor_wrong(
    check: Callable[..., None], given: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    assert words in refused(check, *given, **options)


def test_a_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    model(X).sum().backward()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    gradients = {name: each.grad for name, each in model.named_parameters()}
    values = {name: each.clone() for name, each in gradients.items() if each is not None}
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index, union-attr]
    for ask in (
        lambda: testing.check_finite(model, X),
        lambda: testing.check_every_parameter_learns(model, X),
        lambda: testing.check_overfits_one_batch(model, lambda: model(X).square().sum(), steps=3),
        lambda: testing.check_samples_do_not_mix(model, X),
        lambda: testing.check_same(model, model, X),
        lambda: testing.check_loss_hears_the_output(model, sum_of(model)),
    ):
        try:
            ask()
        except Finding:
            continue
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    for name, each in model.named_parameters():
        assert each.grad is gradients[name]
        assert torch.equal(each.grad, values[name])
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index, union-attr]
    assert after == states


def test_a_traceback_ends_at_the_line_that_called_the_check() -> None:
    with pytest.raises(Finding) as raised:
        testing.check_tied(Gpt(tied=False), "embedding.weight", "head.weight")
    assert len(raised.traceback) == 2  # this test, and the wrapper that pytest hides
    assert raised.traceback[-1].frame.f_locals["__tracebackhide__"] is True


def test_checks_are_counted_whatever_they_find() -> None:
    before = RAN["check_tied"]
    testing.check_tied(Gpt(), "embedding.weight", "head.weight")
    found(testing.check_tied, Gpt(tied=False), "embedding.weight", "head.weight")
    assert RAN["check_tied"] == before + 2


def test_a_finding_fits_a_terminal() -> None:
    words = found(testing.check_samples_do_not_mix, lambda x: x.softmax(0), X)
    cause = words[words.index("Usual cause: ") :]
    assert max(map(len, cause.splitlines())) <= WIDTH


def test_seeds_are_put_back_and_repeat() -> None:
    before = torch.get_rng_state()
    with seeded(3) as seed:
        first = random.random(), float(np.random.rand()), float(torch.rand(()))
    assert seed == 3
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(3):
        assert (random.random(), float(np.random.rand()), float(torch.rand(()))) == first
