"""Shuffles of 0 … n - 1, keyed by (seed, epoch): the same on every machine and version, for ever.

A checkpoint holds a place in such a shuffle and not its samples, so another order after an upgrade
would train some samples twice and others never, unseen. What is here must not change; a better one gets
a name of its own in `track.sample_order`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

# Half of them change the left half, half the right. With 16, all orders of 3 to 6 samples are equally
# frequent as far as 40 000 keys can tell (chi-squared within 2 deviations); with 12, those of 6 samples
# are not (11 deviations), with 8 those of 5 neither (56).
ROUNDS = 16
_HALF_BITS = np.uint64(32)


def philox_key(seed: int, epoch: int) -> Words:
    """Return the key of all random numbers of an epoch. (2,)"""
    return np.array([seed, epoch], dtype=np.uint64)


def sorted_permutation(length: int, *, seed: int, epoch: int) -> Indices:
    """Return the order of samples 0 … length - 1 in one epoch. (length,)

    The order of 64-bit words of Philox keyed by (seed, epoch): numpy keeps a bit generator's stream
    over its versions (NEP 19), but not what `Generator.permutation` makes of it. Memory: 24 bytes a
    sample while sorting, so only runs that began with it still use it.
    """
    words = np.random.Philox(key=philox_key(seed, epoch)).random_raw(length)
    order = np.argsort(words, kind="stable").astype(np.int64, copy=False)
    order.flags.writeable = False  # shares of steps are views of it
    return order


class FeistelPermutation:
    """A shuffle of 0 … length - 1 that is computed where it is read, in constant memory.

    A Feistel network over a × b cells, a = ⌈√length⌉, b = ⌈length / a⌉: a place is (left, right), and
    each round adds a hash of one to the other, which can be undone, so no two places meet. Cells
    beyond `length` are fewer than a; what lands there is sent on until it lands inside (Black and
    Rogaway, Ciphers with Arbitrary Finite Domains, 2002: generalised Feistel, cycle walking).
    Rounds are keyed by Philox words of (seed, epoch).
    """

    def __init__(self, length: int, *, seed: int, epoch: int) -> None:
        """Draw the keys. length: 1 to 2⁶², so that a and b have at most 32 bits."""
        self._length = length
        self._a = math.isqrt(length - 1) + 1
        self._b = -(-length // self._a)
        self._keys = np.random.Philox(key=philox_key(seed, epoch)).random_raw(ROUNDS)

    def at(self, first: int, count: int) -> Indices:
        """Return the samples at places first … first + count - 1. (count,)"""
        places = self._moved(np.arange(first, first + count, dtype=np.uint64))
        # Ends: a walk meets each of the fewer than `a` cells outside once at most.
        while (outside := places >= self._length).any():
            places[outside] = self._moved(places[outside])
        return places.astype(np.int64)

    def _moved(self, cells: Words) -> Words:
        a, b = np.uint64(self._a), np.uint64(self._b)
        left, right = np.divmod(cells, b)
        for key_left, key_right in self._keys.reshape(-1, 2):
            left = (left + _below(a, right + key_left)) % a
            right = (right + _below(b, left + key_right)) % b
        return left * b + right


def _below(bound: np.uint64, words: Words) -> Words:
    """Return a hash of each word, 0 … bound - 1: the high half of 64 mixed bits, scaled down."""
    return (_mixed(words) >> _HALF_BITS) * bound >> _HALF_BITS


def _mixed(words: Words) -> Words:
    """Return the words with every bit spread over all: the finaliser of splitmix64 (Steele et al.,
    Fast Splittable Pseudorandom Number Generators, 2014; constants by Stafford, mix 13)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
