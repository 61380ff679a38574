"""Eight small models that are wired right, and twelve copies with one planted mistake each.

Shapes: B samples, T positions, V tokens, D features, C classes. All sizes of one model differ, so
that a swap of two dimensions shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

B, T, V, D, HEADS, C = 3, 8, 32, 16, 4, 5

Values = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Project:
    """What a person would hand to the checks. build: the model; batch: its arguments on a device.

    targets: for the loss; data: makes the batches again; paths: pairs that should be equal.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[str], tuple[torch.Tensor, ...]]
    takes: tuple[str, ...]
    gives: str
    sizes: dict[str, int]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    sees: Any = None
    frozen: tuple[str, ...] = ()
    tied: tuple[str, str] | None = None
    data: Callable[[], Any] = lambda: DataLoader(Rows(), batch_size=B, shuffle=True)
    paths: Callable[[], tuple[Callable[..., Any], Callable[..., Any], Any]] | None = None


class Rows(Dataset[torch.Tensor]):
    """Twelve rows of numbers with noise from a generator."""

    def __init__(self, seed: int | None = 7) -> None:
        self.noise = np.random.default_rng(seed)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.from_numpy(self.noise.normal(size=6))


def numbers(*shape: int) -> Callable[[str], tuple[torch.Tensor]]:
    """Return what makes one tensor of normal numbers, the same each time."""
    return lambda device: (
        torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device),
    )


def tokens(device: str) -> tuple[torch.Tensor]:
    """Return token ids (B, T)."""
    return (torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1)).to(device),)


def to_classes(model: nn.Module, inputs: Any) -> torch.Tensor:
    """Cross-entropy over C classes."""
    return F.cross_entropy(model(*inputs), torch.arange(len(inputs[0])) % C)


def to_next_token(model: nn.Module, inputs: Any) -> torch.Tensor:
    """Cross-entropy of the next token at every position but the last."""
    logits = model(*inputs)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), inputs[0][:, 1:].flatten())


class Mlp(nn.Module):
    """Two layers. mixes: normalises over the samples."""

    def __init__(self, *, mixes: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, D), nn.Linear(D, C)
        self.norm = nn.BatchNorm1d(D) if mixes else nn.LayerNorm(D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.norm(self.first(x))))


class TwoShards(nn.Module):
    """The layers of an Mlp cut in two, as tensor-parallel ranks would have them. twice: sums twice."""

    def __init__(self, whole: Mlp, *, twice: bool = False) -> None:
        super().__init__()
        self.whole, self.twice = whole, twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.whole.first, self.whole.second
        columns = zip(first.weight.chunk(2), first.bias.chunk(2), strict=True)
        hidden = torch.cat([F.linear(x, weight, bias) for weight, bias in columns], dim=1)
        hidden = F.gelu(self.whole.norm(hidden)).chunk(2, dim=1)
        rows = zip(hidden, second.weight.chunk(2, dim=1), strict=True)
        shards = [F.linear(part, weight) for part, weight in rows]
        return sum(shards) * (2 if self.twice else 1) + second.bias  # the all-reduce


class Cnn(nn.Module):
    """Two convolutions and a mean over the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, D, 3), nn.GELU(), nn.Conv2d(D, D, 3, stride=2), nn.GELU()
        )
        self.head = nn.Linear(D, C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class Residual(nn.Module):
    """Adds a branch that ends with ReLU. dead: which is 0 for every input."""

    def __init__(self, *, dead: bool) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, D), nn.Conv2d(D, D, 3, padding=1)
        if dead:
            nn.init.constant_(self.conv.bias, -100.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.conv(self.norm(x)))


class ResNet(nn.Module):
    """Two residual blocks with GroupNorm. narrow: goes through bfloat16 on its way."""

    def __init__(self, *, dead: bool = False, narrow: bool = False) -> None:
        super().__init__()
        self.narrow = narrow
        self.stem = nn.Conv2d(2, D, 3, padding=1)
        self.blocks = nn.Sequential(Residual(dead=False), Residual(dead=dead))
        self.head = nn.Linear(D, C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.blocks(self.stem(x))
        if self.narrow:
            h = h.to(torch.bfloat16).float()
        return self.head(h.mean((2, 3)))


class Attention(nn.Module):
    """Causal attention. reach: how far ahead it sees; over_heads: the transpose is missing."""

    def __init__(self, *, reach: int = 0, over_heads: bool = False) -> None:
        super().__init__()
        self.reach, self.over_heads = reach, over_heads
        self.query_key_value, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        batch, length, _ = h.shape
        split = self.query_key_value(h).view(batch, length, 3, HEADS, D // HEADS)
        q, k, v = split.permute(2, 0, 1, 3, 4) if self.over_heads else split.permute(2, 0, 3, 1, 4)
        size = q.shape[-2]
        mask = torch.ones(size, size, dtype=torch.bool, device=h.device).tril(self.reach)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if not self.over_heads:
            mixed = mixed.transpose(1, 2)
        return self.out(mixed.reshape(batch, length, D))


class Gpt(nn.Module):
    """Two blocks, the head tied to the embedding. again: computes blocks again in the backward pass."""

    def __init__(self, *, tied: bool = True, again: bool = False, **attention: Any) -> None:
        super().__init__()
        self.again = again
        self.embedding, self.position = nn.Embedding(V, D), nn.Embedding(T, D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(4))
        self.attentions = nn.ModuleList(Attention(**attention) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * D, D))
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.head.weight = (
            self.embedding.weight if tied else nn.Parameter(self.embedding.weight.data.clone())
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        h = self.embedding(x) + self.position(positions)
        for index in range(2):
            h = (
                checkpoint(self._block, h, index, use_reentrant=False)
                if self.again
                else self._block(h, index)
            )
        return self.head(self.norm(h))

    def _block(self, h: torch.Tensor, index: int) -> torch.Tensor:
        h = h + self.attentions[index](self.norms[2 * index](h))
        return h + self.mlps[index](self.norms[2 * index + 1](h))


class Lstm(nn.Module):
    """Tokens in, a logit of the next one out at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(V, D), nn.LSTM(D, D, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


class Encoder(nn.Module):
    """torch's own encoder layer; is_padding (B, T) says which positions nobody may see."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, D)
        self.layer = nn.TransformerEncoderLayer(D, HEADS, 2 * D, dropout=0.0, batch_first=True)
        self.head = nn.Linear(D, C)

    def forward(self, x: torch.Tensor, is_padding: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.first(x), src_key_padding_mask=is_padding))


LENGTHS = (8, 6, 3)


def padded(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (B, T, 6) and what of them is padding (B, T)."""
    (x,) = numbers(B, T, 6)(device)
    return x, (torch.arange(T) >= torch.tensor(LENGTHS)[:, None]).to(device)


def unpadded(model: nn.Module, inputs: Any) -> torch.Tensor:
    """Cross-entropy of a class at each position that is not a padding."""
    x, is_padding = inputs
    targets = (torch.arange(T) % C).expand(B, T).masked_fill(is_padding, -100)
    return F.cross_entropy(model(x, is_padding).flatten(0, 1), targets.flatten())


class LowRank(nn.Module):
    """A frozen layer and a pair of thin ones beside it, whose second half starts with zeros."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inside, outside).requires_grad_(False)
        self.down, self.up = nn.Linear(inside, 2, bias=False), nn.Linear(2, outside, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


class Experts(nn.Module):
    """A mixture of four experts, of which each sample goes through two."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, C) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, chosen = self.router(x).softmax(1).topk(2)
        out = torch.zeros(len(x), C, device=x.device)
        for index, expert in enumerate(self.experts):
            weight = (shares * (chosen == index)).sum(1, keepdim=True)
            out = out + weight * expert(x)
        return out


def again(model: nn.Module, inputs: Any) -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    """Return the gradients of a model's own pass beside those where it is computed again."""
    return (
        by_name(model, model),
        by_name(model, lambda *x: checkpoint(model, *x, use_reentrant=False)),
        inputs,
    )


def by_name(model: nn.Module, path: Callable[..., torch.Tensor]) -> Callable[..., Values]:
    """Return the output and the gradients of a sum of squares, by name."""

    def values(*inputs: torch.Tensor) -> Values:
        model.zero_grad()
        output = path(*inputs)
        output.square().sum().backward()
        return {
            "output": output,
            **{n: p.grad for n, p in model.named_parameters() if p.grad is not None},
        }

    return values


def step(model: nn.Module, parts: int, divisor: float) -> Callable[[torch.Tensor], Values]:
    """Return a step over micro-batches, whose losses are divided before their backward passes."""

    def values(x: torch.Tensor) -> Values:
        model.zero_grad()
        for part, target in zip(
            x.chunk(parts), (torch.arange(len(x)) % C).chunk(parts), strict=True
        ):
            (F.cross_entropy(model(part), target) / divisor).backward()
        return {name: each.grad for name, each in model.named_parameters()}

    return values


def a_step(divisor: float) -> Callable[[], Any]:
    """Return a whole step of twelve samples beside one of four micro-batches."""

    def paths() -> Any:
        model = Mlp()
        return step(model, 1, 1.0), step(model, 4, divisor), numbers(12, 6)("cpu")

    return paths


def shards(*, twice: bool) -> Callable[[], Any]:
    """Return a whole layer beside the same one in two shards."""

    def paths() -> Any:
        whole = Mlp()
        return (
            by_name(whole, whole),
            by_name(whole, TwoShards(whole, twice=twice)),
            numbers(B, 6)("cpu"),
        )

    return paths


MLP = Project(
    build=Mlp,
    batch=numbers(B, 6),
    takes=("B F",),
    gives="B C",
    sizes={"C": C},
    loss=to_classes,
    paths=a_step(4),
)
PICTURES = replace(MLP, batch=numbers(B, 2, 9, 7), takes=("B 2 H W",), paths=None)
GPT = Project(
    build=Gpt,
    batch=tokens,
    takes=("B T",),
    gives="B T V",
    sizes={"V": V},
    loss=to_next_token,
    sees="causal",
    tied=("embedding.weight", "head.weight"),
)
NOT_PADDING = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
ENCODER = Project(
    build=Encoder,
    batch=padded,
    takes=("B T F", "B T"),
    gives="B T C",
    sizes={"C": C},
    loss=unpadded,
    # padding sees whatever it likes: nobody reads it
    sees=NOT_PADDING[:, None, :] | torch.eye(T, dtype=torch.bool),
)

RIGHT = {
    "MLP": replace(MLP, paths=shards(twice=False)),
    "CNN": replace(PICTURES, build=Cnn),
    "GPT, tied": GPT,
    "ResNet with GroupNorm": replace(PICTURES, build=ResNet),
    "LSTM": replace(GPT, build=Lstm, tied=None),
    "encoder with padding": ENCODER,
    "low rank beside frozen": replace(
        MLP,
        build=lambda: nn.Sequential(LowRank(6, D), nn.GELU(), LowRank(D, C)),
        frozen=("*.frozen.*",),
    ),
    "mixture of experts": replace(MLP, build=Experts, batch=numbers(12, 6)),
}


def detached(model: nn.Module, inputs: Any) -> torch.Tensor:
    """A loss of the detached output, and a weight decay that still has a gradient."""
    decay = sum(each.square().sum() for each in model.parameters())
    return to_next_token(lambda *x: model(*x).detach(), inputs) + 1e-4 * decay


def frozen_by_accident() -> nn.Module:
    model = Gpt()
    model.mlps[1].requires_grad_(False)
    return model


def padding_left_behind(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features on the device, and the mask on the CPU."""
    return padded(device)[0], padded("cpu")[1]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A wrong project and the check that is meant for its mistake. words: the finding says so."""

    project: Project
    check: str
    words: str
    cannot: tuple[str, ...] = field(default=())  # checks that can say nothing of it


WRONG = {
    "detached loss": Planted(
        project=replace(GPT, loss=detached),
        check="check_loss_hears_the_output",
        words="output (3, 8, 32): no path leads from the loss to it",
        cannot=("check_overfits_one_batch",),
    ),
    "frozen by accident": Planted(
        project=replace(GPT, build=frozen_by_accident),
        check="check_every_parameter_learns",
        words="mlps.1.0.weight (32, 16): requires_grad is False",
    ),
    "wrong axis in attention": Planted(
        project=replace(GPT, build=lambda: Gpt(over_heads=True)),
        check="check_positions",
        words="sample 0, position 1 does not change with input position [0]",
    ),
    "normalised over samples": Planted(
        project=replace(MLP, build=lambda: Mlp(mixes=True), paths=None),
        check="check_samples_do_not_mix",
        words="when only sample 0 is replaced (2 of 3 change)",
    ),
    "data on another device": Planted(
        project=replace(ENCODER, batch=padding_left_behind),
        check="check_on_device",
        words="inputs[1] (3, 8) is on cpu",
    ),
    "cast down on the way": Planted(
        project=replace(PICTURES, build=lambda: ResNet(narrow=True)),
        check="check_dtypes",
        words="h = h.to(torch.bfloat16).float()",
    ),
    "dead layer": Planted(
        project=replace(PICTURES, build=lambda: ResNet(dead=True)),
        check="check_every_parameter_learns",
        words="blocks.1.conv.weight (16, 16, 3, 3): its gradient is 0",
    ),
    "weights not tied": Planted(
        project=replace(GPT, build=lambda: Gpt(tied=False)),
        check="check_tied",
        words="equal values in two tensors",
    ),
    "mask off by one": Planted(
        project=replace(GPT, build=lambda: Gpt(reach=1)),
        check="check_positions",
        words="position 0 changes by",
    ),
    "accumulation scaled wrongly": Planted(
        project=replace(MLP, paths=a_step(1)), check="check_same", words="b is 4 times a"
    ),
    "shard summed twice": Planted(
        project=replace(MLP, paths=shards(twice=True)), check="check_same", words="tensors differ"
    ),
    "input is not deterministic": Planted(
        project=replace(MLP, data=lambda: DataLoader(Rows(seed=None), batch_size=B)),
        check="check_deterministic",
        words="batch 1: 18 of 18 values differ",
    ),
}
