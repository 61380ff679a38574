"""The rooms of devices that others hold, against a plain sort of them."""

from __future__ import annotations

from random import Random

from tests.seeds import fresh_seeds
from tracks_dagster.scheduling.rooms import Rooms

WORLDS = 300


def check(seed: int) -> None:
    """Add and remove at random; what is listed is what was left, also in copies."""
    random = Random(seed)
    plain = {f"d{n}": random.randint(-2, 9) for n in range(random.choice([0, 1, 40]))}
    rooms, others = Rooms(plain), []
    for _ in range(random.choice([5, 100])):
        name, left = f"d{random.randint(0, 50)}", random.randint(-2, 9)
        assert rooms.remove(name) == plain.pop(name, None), f"seed {seed}"
        if random.random() < 0.7:
            rooms.add(name, left)
            plain[name] = left
        if random.random() < 0.1:
            others.append((rooms, dict(plain)))
            rooms = rooms.copy()
        if random.random() < 0.3:
            others.append((rooms.copy(), dict(plain)))
            need = random.randint(-3, 10)
            expected = [
                name for left, name in sorted((n, d) for d, n in plain.items()) if left >= need
            ]
            assert list(rooms.fitting(need)) == expected, f"seed {seed}"
            assert rooms.count(need) == len(expected), f"seed {seed}"
    for other, as_it_was in others:
        listed = sorted(as_it_was, key=lambda name: (as_it_was[name], name))
        assert list(other.fitting(-3)) == listed, f"seed {seed}"


def test_rooms_are_listed_as_a_plain_sort_lists_them() -> None:
    for seed in fresh_seeds(WORLDS):
        check(seed)
