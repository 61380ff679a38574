"""What each check takes and says beyond the matrix: its options, its limits, what it leaves behind."""

from __future__ import annotations

import itertools
import math
import random
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
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
(WIDE,) = numbers(64, 256)("cpu")
CAUSAL = torch.full((B, B), -torch.inf).triu(1)


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


@dataclass
class Named:
    """What a model takes or returns by name."""

    x: Any


class Encoding(UserDict[str, torch.Tensor]):
    """A mapping that is read by its attributes, as a tokenizer's."""

    def __getattr__(self, name: str) -> torch.Tensor:
        return self.data[name]


class Opaque:
    """A value that compares with nothing, and shows no tensors."""


class Remembers(nn.Module):
    """Adds what it last returned. in_buffer: which is a buffer's new value, or an attribute."""

    def __init__(self, *, in_buffer: bool) -> None:
        super().__init__()
        self.layer, self.in_buffer, self.last = nn.Linear(6, 6), in_buffer, torch.zeros(B, 6)
        self.register_buffer("state", torch.zeros(B, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x) + (self.state if self.in_buffer else self.last)
        if self.in_buffer:
            self.state = y.detach()
        else:
            self.last = y.detach()
        return y


class Packed(nn.Module):
    """An output as long as the longest sample; samples are sorted by length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(6, D, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


class Mixture(nn.Module):
    """Sends each sample to one of eight experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = (
            nn.Linear(6, 8),
            nn.ModuleList(nn.Linear(6, 6) for _ in range(8)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, chosen = self.router(x).softmax(1).max(1)
        rows = [self.experts[index](row) for index, row in zip(chosen.tolist(), x, strict=True)]
        return torch.stack(rows) * share[:, None]


class Scaled(nn.Module):
    """Causal attention, or one that sees all, behind a LayerScale."""

    def __init__(self, **attention: Any) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(V, D), Attention(**attention)
        self.scale = nn.Parameter(torch.full((D,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embedding(x)
        return h + self.scale * self.attention(h)


class Constant(nn.Module):
    """Adds a tensor that .to(device) does not move."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.constant = nn.Linear(6, 6), torch.ones(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.constant


def with_buffer(model: nn.Module, value: torch.Tensor) -> nn.Module:
    model.register_buffer("buffer", value)
    return model


def stopped(model: nn.Module) -> nn.Module:
    """Return the model with a first layer that has no gradient."""
    model.first.requires_grad_(False)  # type: ignore[union-attr, operator]
    return model


def same_as(model: nn.Module) -> nn.Module:
    copy = Mlp()
    copy.load_state_dict(model.state_dict())
    return copy


def of_one_storage() -> nn.Module:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = nn.Parameter(first.weight.data)
    return nn.ModuleList([first, second])


def with_first_row(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def write(x: torch.Tensor) -> torch.Tensor:
        x[0] = value
        return x

    return write


def long_sum(x: torch.Tensor, parts: int) -> torch.Tensor:
    """Return a gradient (256, 256) of large parts, some of which cancel."""
    each = x.chunk(parts)
    return torch.stack([100 * part.T @ part for part in each]).sum(0)


def of_two_views(model: nn.Module) -> torch.Tensor:
    """A loss of two calls, of which one is not learned from."""
    a, b = model(X), model(X + 0.1)
    return 1 - F.cosine_similarity(a, b.detach()).mean()


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
        id="an output that is not a tensor",
    ),
    pytest.param(
        lambda: testing.check_shapes(lambda x: (x, x, x), X, takes="B F", gives=("B F", "B F")),
        "output has 3 parts, where ('B F', 'B F') names 2",
        id="an output too many",
    ),
    pytest.param(
        lambda: testing.check_shapes(lambda x: Named(x.T), X, takes="B F", gives={"x": "B F"}),
        "output.x has the shape (6, 3): dimension 0 (B) should be 3",
        id="a field of a dataclass",
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
        lambda: testing.check_finite(lambda x: (x - x - 1).log_(), X),
        "(x - x - 1).log_(), X), (torch.Tensor.log_ made the first NaN)",
        id="the line of a NaN that is made in place",
    ),
    pytest.param(
        lambda: testing.check_finite(with_first_row(math.nan), X),
        "x[0] = value (torch.Tensor.__setitem__ made the first NaN)",
        id="the line that writes a NaN",
    ),
    pytest.param(
        lambda: testing.check_finite(lambda x: torch.complex(x, x) / 0, X),
        "torch.complex(x, x) / 0",
        id="the line of a complex NaN",
    ),
    pytest.param(
        lambda: testing.check_finite(with_buffer(Mlp(), X / 0 * 0), X),
        "buffer (3, 6): 18 NaN",
        id="NaN in a buffer",
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
        lambda: testing.check_dtypes(
            lambda x: torch.fft.fft(x).to(torch.complex32).to(torch.complex64), X
        ),
        "is complex32",
        marks=pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
        id="a complex type that is narrower",
    ),
    pytest.param(
        lambda: testing.check_on_device(
            lambda x, lengths: x * (lengths + 1),
            (X.to("meta"), torch.ones(6)),
            on_cpu=["inputs[1]"],
        ),
        "is on cpu",
        id="lengths of the CPU that meet the device",
    ),
    pytest.param(
        lambda: testing.check_dtypes(torch.compile(lambda x: x.half().float(), backend="eager"), X),
        "lambda x: x.half().float()",
        id="what is compiled",
    ),
    pytest.param(
        lambda: testing.check_on_device(Constant().to("meta"), X.to("meta")),
        "self.layer(x) + self.constant: an argument of torch.Tensor.add, (6), is on cpu",
        id="a constant that is not a buffer",
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
        lambda: testing.check_every_parameter_learns(Mixture(), X),
        "(an expert without samples: give more of them)",
        id="experts that get nothing",
    ),
    pytest.param(
        lambda: testing.check_loss_hears_the_output(m := Mlp(), lambda: of_two_views(m)),
        "call 2: output (3, 5): no path leads from the loss to it",
        id="one call of two",
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
        lambda: testing.check_overfits_one_batch(
            m := Forward(lambda w, x: (x @ w, x + w.sum())),
            lambda: F.cross_entropy(m(X * 0)[0], torch.arange(3)),
            steps=4,
        ),
        "One batch was not learned by heart",
        id="such targets, and an output that is meant for no loss",
    ),
    pytest.param(
        lambda: testing.check_overfits_one_batch(
            m := Mlp(), lambda: F.cross_entropy(m(X), torch.arange(3)), steps=9
        ),
        "It was still falling",
        id="too few steps",
    ),
    pytest.param(
        lambda: testing.check_tied(of_one_storage(), "0.weight", "1.weight"),
        "one storage in two parameters",
        id="two parameters of one storage",
    ),
    pytest.param(
        lambda: testing.check_tied(
            nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).half()]), "0.weight", "1.weight"
        ),
        "torch.float32 on cpu and torch.float16 on cpu, in two tensors",
        id="two dtypes",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(lambda x: torch.complex(x, x * x.sum(0)), X),
        "output: sample ",
        id="imaginary parts that mix",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(lambda x: x.softmax(1), X.T, batch_dim=1),
        "(2 of 3 change)",
        id="samples in dimension 1",
    ),
    pytest.param(
        lambda: testing.check_positions(Scaled(reach=T), IDS),
        "position 0 changes by",
        id="an attention without a mask behind a LayerScale",
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
        lambda: testing.check_same(m := Mlp(), stopped(same_as(m)), X),
        "gradient of first.weight (16, 6): there is none in b",
        id="a gradient that one path lacks",
    ),
    pytest.param(
        lambda: testing.check_same(
            lambda x: {"loss": 1.0, "x": x}, lambda x: {"loss": 0.25, "x": x}, X
        ),
        "output['loss'] (): b is 0.25 times a",
        id="numbers of Python",
    ),
    pytest.param(
        lambda: testing.check_same(
            lambda x: torch.complex(x, x), lambda x: torch.complex(x, 2 * x), X
        ),
        "output (3, 6): ",
        id="imaginary parts",
    ),
    pytest.param(
        lambda: testing.check_same(lambda x: (x, x * 1e-7), lambda x: (x, x * 2e-7), X),
        "output[1] (3, 6): b is 2 times a",
        id="a factor between small values",
    ),
    pytest.param(
        lambda: testing.check_same(lambda x: x / 0, lambda x: x / 0 * 0, X),
        "output (3, 6): ",
        id="NaN on one side",
    ),
    pytest.param(
        lambda: testing.check_same(m := nn.Dropout(0.5), m, X, seeds=(0, 1)),
        "the largest difference",
        id="dropout that is on",
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
        id="a value that is not a tensor",
    ),
    pytest.param(
        lambda: testing.check_deterministic(lambda: [1] * next(LENGTHS)),
        "is there in one of the two only",
        id="batches of other lengths",
    ),
    pytest.param(
        lambda: testing.check_deterministic(lambda: torch.tensor([2**60 + next(LENGTHS)])),
        "batch 1: 1 of 1 values differ",
        id="large numbers that differ by one",
    ),
    pytest.param(
        lambda: testing.check_deterministic(lambda: Named(np.array([str(next(LENGTHS))]))),
        "batch 1.x: 1 of 1 values differ",
        id="an array of texts in a dataclass",
    ),
]


@pytest.mark.parametrize(("ask", "words"), FINDINGS)
def test_a_finding_says_where_and_how_much(ask: Callable[[], None], words: str) -> None:
    torch.manual_seed(0)
    finding = found(ask)
    assert words in finding
    assert "Usual cause: " in finding
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
        lambda: testing.check_finite(with_buffer(Mlp(), CAUSAL), X), id="a mask in a buffer"
    ),
    pytest.param(
        lambda: testing.check_finite(lambda x, mask: (x + mask).softmax(1), (X @ X.T, CAUSAL)),
        id="a mask in the inputs",
    ),
    pytest.param(
        lambda: testing.check_finite(
            Forward(lambda w, x: {"logits": (x @ w).masked_fill(x > 0, -torch.inf)}),
            X,
            infinite=["output['logits']"],
        ),
        id="logits that are masked on purpose",
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
            Forward(lambda w, x, lengths: (x @ w, lengths.cpu() - 1)).to("meta"),
            (X.to("meta"), torch.ones(B)),
            on_cpu=["inputs[1]"],
        ),
        id="what is computed from lengths on the CPU",
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
        lambda: testing.check_every_parameter_learns(Forward(lambda w, x: w * 1e-41, 3), X),
        id="gradients near the smallest number",
    ),
    pytest.param(
        lambda: testing.check_every_parameter_learns(
            Wrapped(nn.ModuleDict({"_orig_mod": stopped(Mlp())})), X, frozen=["first.*"]
        ),
        id="frozen ones in a wrapper",
    ),
    pytest.param(
        lambda: testing.check_tied(
            Wrapped(nn.ModuleDict({"_orig_mod": Gpt()})), "embedding.weight", "head.weight"
        ),
        id="tied ones in a wrapper",
    ),
    pytest.param(
        lambda: testing.check_every_parameter_learns(
            Forward(lambda w, x: torch.complex(x @ w, x).conj()), X
        ),
        id="a complex output that is conjugated",
    ),
    pytest.param(
        lambda: testing.check_loss_hears_the_output(
            m := Mlp(), lambda: of_two_views(m), unheard=["call 2: output"]
        ),
        id="a call that is named as unheard",
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
        lambda: testing.check_samples_do_not_mix(
            nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), X
        ),
        id="spectral norm, whose buffers change at each call",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(Remembers(in_buffer=True), X),
        id="a state in a buffer",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(
            Packed(), (numbers(B, T, 6)("cpu")[0], torch.tensor([8, 6, 3]))
        ),
        id="an output as long as the longest sample",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(lambda x: x.div_(2), X.clone()),
        id="a function that writes into its input",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(lambda batch: batch.x * 2, (Encoding(x=X),)),
        id="a mapping with attributes",
    ),
    pytest.param(
        lambda: testing.check_every_parameter_learns(
            nn.GRU(6, D), nn.utils.rnn.pack_sequence([X, X[:2]])
        ),
        id="a named tuple, which is one argument",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(lambda batch: batch.x * 2, Named(X)),
        id="a dataclass",
    ),
    pytest.param(
        lambda: testing.check_samples_do_not_mix(
            nn.LSTM(6, D), X[None].expand(T, B, 6), batch_dim=1
        ),
        id="a sequence first",
    ),
    pytest.param(lambda: testing.check_positions(Scaled(), IDS), id="a LayerScale of 1e-6"),
    pytest.param(
        lambda: testing.check_positions(lambda x: x.cumsum(1), torch.complex(X, X)),
        id="complex numbers",
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
        lambda: testing.check_same(m := nn.Dropout(0.5).eval(), m, X, seeds=(0, 1)),
        id="dropout that is off",
    ),
    pytest.param(
        lambda: testing.check_same(lambda x: {"g": None}, lambda x: {"g": x * 0}, X),
        id="no gradient, and one of 0",
    ),
    pytest.param(
        lambda: testing.check_same(
            lambda x: {"g": x, "h": x, "0": x * 1e-9}, lambda x: {"g": x, "h": x, "0": x * 0}, X
        ),
        id="a gradient that is 0 but for rounding",
    ),
    pytest.param(
        lambda: testing.check_same(lambda x: long_sum(x, 1), lambda x: long_sum(x, 64), WIDE),
        id="what cancels in a long sum, in another order",
    ),
    pytest.param(
        lambda: testing.check_deterministic(
            lambda: {"label": math.nan, "name": np.array(["a"]), "day": np.array(["NaT"], "M8[D]")}
        ),
        id="a label that is missing, texts and days",
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


MODEL = Mlp()
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
    (
        testing.check_shapes,
        (lambda x: x, X),
        {"takes": "B F", "gives": "B C", "sizes": {"C": B}},
        "B and C are both 3",
    ),
    (testing.check_finite, (lambda x: Opaque(), X), {}, "returned Opaque, in which no tensor"),
    (testing.check_finite, (nn.LazyLinear(5), X), {}, "call it once before"),
    (testing.check_finite, (lambda x: x, X), {"infinite": ["logits"]}, "there are inputs, output."),
    (testing.check_on_device, (lambda: 1, ()), {}, "Neither model nor inputs"),
    (testing.check_on_device, (Mlp(), X), {"on_cpu": ["lengths"]}, "there are inputs."),
    (
        testing.check_on_device,
        (lambda x: x[x > 0], X.to("meta")),
        {},
        "does not run on meta, whose tensors have no values",
    ),
    (testing.check_every_parameter_learns, (lambda x: x, X), {}, "and function is not one"),
    (
        testing.check_every_parameter_learns,
        (Forward(lambda w, x: Opaque()), X),
        {},
        "returned Opaque, in which no tensor",
    ),
    (testing.check_every_parameter_learns, (Mlp(), X), {"frozen": ["frist.*"]}, "'frist.*'"),
    (testing.check_loss_hears_the_output, (Mlp(), lambda: X.sum()), {}, "did not call the model"),
    (
        testing.check_loss_hears_the_output,
        (MODEL, lambda: {"a": MODEL(X).sum()}),
        {},
        "of several losses, their sum",
    ),
    (
        testing.check_loss_hears_the_output,
        (MODEL, lambda: MODEL(X).sum()),
        {"unheard": ["ouput"]},
        "there are output.",
    ),
    (
        testing.check_overfits_one_batch,
        (MODEL, lambda: -MODEL(X).square().sum()),
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
    (
        testing.check_samples_do_not_mix,
        (Remembers(in_buffer=False), X),
        {},
        "keeps something from call to call",
    ),
    (testing.check_positions, (lambda x: x[:, 1:], IDS), {}, "Give a tensor (7, 8)."),
    (testing.check_positions, (Gpt(), IDS), {"sees": "earlier"}, "is not one of 'causal', 'all'"),
    (
        testing.check_positions,
        (Gpt(), IDS),
        {"sees": torch.ones(3, 3)},
        "should be (8, 8) or (3, 8, 8)",
    ),
    (
        testing.check_positions,
        (Gpt(), IDS * 0),
        {},
        "All ids of the first tensor of the inputs (3, 8) are the same",
    ),
    (testing.check_positions, (lambda x: x / 0 * 0, X), {}, "see check_finite"),
    (testing.check_positions, (Mlp(), X[:, 0]), {}, "has no dimension 1"),
    (testing.check_same, (lambda: {"a": X}, lambda: {"b": X}), {}, "only one has output['a']"),
    (testing.check_same, (lambda: "text", lambda: "text"), {}, "nothing at all"),
    (testing.check_deterministic, (lambda: iter(()),), {}, "no batch"),
    (testing.check_deterministic, (lambda: 3,), {}, "returned int"),
    (testing.check_deterministic, (lambda: [Opaque()],), {}, "Opaque, which cannot be compared"),
]


@pytest.mark.parametrize(("check", "given", "options", "words"), REFUSALS)
def test_what_cannot_be_judged_is_neither_right_nor_wrong(
    check: Callable[..., None], given: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    assert words in refused(check, *given, **options)


def test_a_model_is_left_as_it_was() -> None:
    model = nn.Sequential(
        nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), Remembers(in_buffer=True)
    )
    with_buffer(model, torch.ones(1).expand(4))  # which cannot be written
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
