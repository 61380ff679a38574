"""The random number generators of one rank as JSON: python, numpy, torch and every CUDA device.

Loader workers are not among them: their state is in no process that could save it, so samples draw
from `sampling.sample_rng` instead.
"""

from __future__ import annotations

import base64
import random
import sys

import numpy as np
import torch

from tracks_dagster.track.records import Json


def capture() -> Json:
    """Return the state of every generator of this process."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [
            name,
            _text(np.asarray(keys, dtype="<u4").tobytes()),
            position,
            has_gauss,
            cached,
        ],
        "torch": _text(torch.get_rng_state().numpy().tobytes()),
        "cuda": [_text(s.numpy().tobytes()) for s in _cuda_states()],
    }


def restore(state: Json) -> None:
    """Put every generator back to what `capture` returned.

    CUDA states are put back when this process sees as many devices as the one that captured; else
    stderr says so.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    words32 = np.frombuffer(base64.b64decode(keys), dtype="<u4")
    np.random.set_state((name, words32, position, has_gauss, cached))
    torch.set_rng_state(_tensor(state["torch"]))
    seen, saved = len(_cuda_states()), len(state["cuda"])
    if seen != saved:
        text = (
            f"random state: saved of {saved} CUDA devices, and there are {seen}; they keep theirs"
        )
        print(text, file=sys.stderr, flush=True)
    else:
        torch.cuda.set_rng_state_all([_tensor(text) for text in state["cuda"]])


def fingerprint() -> object:
    """Return what differs once a generator of this process's CPU has been drawn from."""
    _, keys, *drawn = np.random.get_state(legacy=True)
    numpys = np.asarray(keys).tobytes(), drawn
    return random.getstate(), numpys, torch.get_rng_state().numpy().tobytes()


def seed_all(seed: int, *, rank: int, step: int = 0) -> None:
    """Seed every generator from (seed, rank, step), differently for each.

    For a fresh start, and for a resume on another number of ranks, where no saved state fits.
    """
    words = np.random.SeedSequence((seed, rank, step)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))  # seeds the CUDA devices too


def _cuda_states() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
