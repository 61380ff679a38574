"""A project in the shape of nanoGPT, written for the tests: its idioms, a few thousand weights.

A script without functions; its config are globals that `configurator.py` changes by argv; it asks RANK
whether it is distributed, maps a `.bin` of tokens, evaluates in its loop and writes a `ckpt.pt` of its
own. `JOINED` is the same script as a person joins it.
"""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import numpy as np

TRAIN = '''\
"""Train on one device:  python train.py config/tiny.py --batch_size=4
or on several:           torchrun --nproc_per_node=2 train.py config/tiny.py
"""

import math
import os
import time
from contextlib import nullcontext

import numpy as np
import torch
from model import GPT, GPTConfig
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

# I/O
out_dir = "out"
eval_interval = 250
log_interval = 1
eval_iters = 20
always_save_checkpoint = True
# data
dataset = "openwebtext"
gradient_accumulation_steps = 4
batch_size = 12
block_size = 64
# model
n_layer = 12
n_head = 12
n_embd = 768
dropout = 0.0
# adamw
learning_rate = 6e-4
max_iters = 600000
weight_decay = 1e-1
beta1 = 0.9
beta2 = 0.95
grad_clip = 1.0
# learning rate decay
decay_lr = True
warmup_iters = 2000
lr_decay_iters = 600000
min_lr = 6e-5
# system
backend = "nccl"
device = "cuda"
dtype = "float16"
seed = 1337
config_keys = [
    k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))
]
exec(open("configurator.py").read())  # overrides from the command line or a config file
config = {k: globals()[k] for k in config_keys}

# is this a ddp run?
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    ddp_rank = int(os.environ["RANK"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process = True
    seed_offset = 0
    ddp_world_size = 1

if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(seed + seed_offset)
device_type = "cuda" if "cuda" in device else "cpu"
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if dtype == "float32" else torch.amp.autocast(device_type, dtype=ptdtype)

# poor man's data loader
data_dir = os.path.join("data", dataset)


def get_batch(split):
    # a new memmap for each batch, to avoid a memory leak
    data = np.memmap(os.path.join(data_dir, f"{split}.bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x.to(device), y.to(device)


iter_num = 0
best_val_loss = 1e9

model_args = dict(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=block_size, dropout=dropout)
model = GPT(GPTConfig(**model_args))
model.to(device)
scaler = torch.amp.GradScaler(device_type, enabled=(dtype == "float16"))
optimizer = model.configure_optimizers(weight_decay, learning_rate, (beta1, beta2))
if ddp:
    model = DDP(model)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            with ctx:
                logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


# learning rate decay scheduler (cosine with warmup)
def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    if it > lr_decay_iters:
        return min_lr
    decay_ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    coeff = 0.5 * (1.0 + math.cos(math.pi * decay_ratio))
    return min_lr + coeff * (learning_rate - min_lr)


# training loop
X, Y = get_batch("train")  # fetch the very first batch
t0 = time.time()
raw_model = model.module if ddp else model
while True:
    # determine and set the learning rate for this iteration
    lr = get_lr(iter_num) if decay_lr else learning_rate
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr

    # evaluate the loss on train/val sets and write checkpoints
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss or always_save_checkpoint:
            best_val_loss = losses["val"]
            checkpoint = {
                "model": raw_model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "model_args": model_args,
                "iter_num": iter_num,
                "best_val_loss": best_val_loss,
                "config": config,
            }
            torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))

    # forward backward update, with gradient accumulation to simulate a larger batch size
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")  # the batch after this
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)

    # timing and logging
    t1 = time.time()
    dt, t0 = t1 - t0, t1
    if iter_num % log_interval == 0 and master_process:
        lossf = loss.item() * gradient_accumulation_steps
        print(f"iter {iter_num}: loss {lossf:.4f}, time {dt * 1000:.2f}ms")
    iter_num += 1
    if iter_num > max_iters:
        break

if ddp:
    destroy_process_group()
'''

MODEL = """\
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 64
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 16
    dropout: float = 0.0


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (
            each.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for each in self.c_attn(self.ln_1(x)).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        x = x + y.transpose(1, 2).reshape(B, T, C)
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight  # weight tying

    def forward(self, idx, targets):
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    def configure_optimizers(self, weight_decay, learning_rate, betas):
        params = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in params if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)
"""

CONFIGURATOR = """\
import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if "=" not in arg:
        print(f"Overriding config with {arg}")
        exec(open(arg).read())
    else:
        key, val = arg[2:].split("=", 1)
        if key not in globals():
            raise ValueError(f"Unknown config key: {key}")
        try:
            attempt = literal_eval(val)
        except (SyntaxError, ValueError):
            attempt = val
        assert type(attempt) == type(globals()[key])
        globals()[key] = attempt
"""

CONFIG = """\
eval_interval = 5
eval_iters = 2
block_size = 16
n_layer = 2
n_head = 2
n_embd = 16
dropout = 0.1
warmup_iters = 3
lr_decay_iters = 18
device = "cpu"
"""

TRACKS_YAML = """\
version: 1
name: nano
entry: >-
  train.py config/tiny.py --batch_size={batch_size}
  --gradient_accumulation_steps={gradient_accumulation_steps} --learning_rate={learning_rate}
  --max_iters={max_iters} --seed={seed}
dataset: tokens
config:
  batch_size: 4
  gradient_accumulation_steps: 2
  learning_rate: 1e-3
  max_iters: 18
  seed: 1337
keys: {micro_batch: batch_size, accumulation: gradient_accumulation_steps, steps: max_iters}
checkpoint: {every_steps: 5}
"""

# What a person changes of it: a line of the script → what stands in its place. The batch that was
# fetched for the next step is in no checkpoint, so each is fetched where it is used.
PREFETCH = '        X, Y = get_batch("train")  # the batch after this\n'
CHANGES = {
    "import torch\n": "import torch\nfrom tracks_dagster.training import attempt as tracks\n",
    'data_dir = os.path.join("data", dataset)\n': "data_dir = (a := tracks.joined()).data()\n",
    "# training loop\n": "# training loop\n"
    "a.register(model=model, optimizer=optimizer, scaler=scaler)\n",
    "while True:\n": "for iter_num, _ in a.steps(until=max_iters):\n",
    PREFETCH: "",
    "        if ddp:\n": f"{PREFETCH}        if ddp:\n",
    "    # timing and logging\n": "    # timing and logging\n"
    "    a.report(iter_num, loss=loss * gradient_accumulation_steps, lr=lr)\n",
}


def joined() -> str:
    """Return the script with the changes."""
    script = TRAIN
    for line, after in CHANGES.items():
        assert script.count(f"\n{line}") == 1, line
        script = script.replace(f"\n{line}", f"\n{after}")
    return script


def changed_lines(before: str, after: str) -> int:
    """Return how many lines differ; one that was changed or moved went once and came once."""
    result = [line[:2] for line in difflib.ndiff(before.splitlines(), after.splitlines())]
    return max(result.count("+ "), result.count("- "))


def write_project(folder: Path, data: Path) -> str:
    """Write the project as a repository, its tokens into `data`; return its commit."""
    data.mkdir(parents=True)
    tokens = np.random.default_rng(0).integers(0, 64, 4000).astype(np.uint16)
    tokens[:3600].tofile(data / "train.bin")
    tokens[3600:].tofile(data / "val.bin")
    files = {
        "train.py": joined(),
        "model.py": MODEL,
        "configurator.py": CONFIGURATOR,
        "config/tiny.py": CONFIG,
        "tracks.yaml": TRACKS_YAML,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    for command in (("init", "-qb", "trunk"), ("add", "."), (*identity, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", folder, *command], check=True, capture_output=True)
    done = subprocess.run(
        ["git", "-C", folder, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
