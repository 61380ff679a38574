"""How GPUs are linked, read from tables as `nvidia-smi topo -m` prints them."""

from __future__ import annotations

import pytest

from tracks_dagster.attempts.device_links import parse_islands

NV, NUMA, SWITCH = range(3)


def table(*rows: str, head: str = "CPU Affinity,NUMA Affinity,GPU NUMA ID", **extra: str) -> str:
    """Return a table. rows: what is right of each GPU's name, parted by blanks; extra: of all rows."""
    gpus = [f"GPU{number}" for number in range(len(rows))]
    titles = "\t".join(["", *gpus, *head.split(",")])
    lines = [f"\x1b[4m{titles}\x1b[0m"]  # underlined, in a pipe as well
    for name, row in zip(gpus, rows, strict=True):
        cells = [" X " if cell == "X" else cell for cell in row.split()]
        lines.append("\t".join([name, *cells]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  NV#  = # NVLinks", ""])


def islands(text: str, count: int, link: int) -> list[str]:
    """Return the GPUs of each one's island of that link."""
    return [each[link].partition("GPUs ")[2].rstrip(")") for each in parse_islands(text, count)]


BRIDGED = table(
    "X NV4 PXB SYS 0-15,32-47 0  N/A",
    "NV4 X PXB SYS 0-15,32-47 0  N/A",
    "PXB PXB X SYS 0-15,32-47 0  N/A",
    "SYS SYS SYS X 16-31,48-63 1  N/A",
)


def test_islands_are_listed_by_link_the_fastest_first() -> None:
    assert parse_islands(BRIDGED, 4)[0] == (
        "NVLink island (GPUs 0-1)",
        "NUMA node (GPUs 0-2)",
        "PCIe switch (GPUs 0-2)",
    )
    assert parse_islands(BRIDGED, 4)[3] == (
        "NVLink island (GPUs 3)",
        "NUMA node (GPUs 3)",
        "PCIe switch (GPUs 3)",
    )


def test_an_nvlink_switch_makes_one_island_of_two_numa_nodes() -> None:
    rows = [" ".join("X" if n == m else "NV18" for m in range(8)) for n in range(8)]
    text = table(*(f"{row} 0-55 {n // 4}" for n, row in enumerate(rows)))
    assert islands(text, 8, NV) == ["0-7"] * 8
    assert islands(text, 8, NUMA) == ["0-3"] * 4 + ["4-7"] * 4
    assert islands(text, 8, SWITCH) == [str(n) for n in range(8)]  # the table has NVLink instead


def test_a_third_one_in_between_makes_an_island() -> None:
    # Four in a ring, as on machines without a switch for NVLink: 0 and 2 are not next to each other.
    text = table("X NV1 SYS NV2 0", "NV1 X NV2 SYS 0", "SYS NV2 X NV1 0", "NV2 SYS NV1 X 0")
    assert islands(text, 4, NV) == ["0-3"] * 4


def test_islands_need_not_be_neighbours() -> None:
    text = table("X SYS NV4 0", "SYS X SYS 0", "NV4 SYS X 0")
    assert islands(text, 3, NV) == ["0,2", "1", "0,2"]


@pytest.mark.parametrize(
    ("affinity", "nodes"),
    [
        ("0 0 1", ["0-1", "0-1", "2"]),  # believed before the pairs
        ("N/A N/A N/A", ["0", "1-2", "1-2"]),  # else by the pairs
        ("0 N/A 1", ["0", "1-2", "1-2"]),
    ],
)
def test_numa_nodes_are_those_of_the_column_else_of_the_pairs(
    affinity: str, nodes: list[str]
) -> None:
    ways = ["X SYS SYS", "SYS X NODE", "SYS NODE X"]
    text = table(*(f"{w} 0-7 {n}" for w, n in zip(ways, affinity.split(), strict=True)))
    assert islands(text, 3, NUMA) == nodes


def test_an_old_driver_without_the_column_is_read_and_other_cards_are_passed_over() -> None:
    text = table("X PHB PIX 0-9", "PHB X SYS 0-9", head="mlx5_0,CPU Affinity")
    assert islands(text, 2, NUMA) == ["0-1"] * 2
    assert islands(text, 2, SWITCH) == ["0", "1"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 2),
        ("Failed to initialize NVML: Driver/library version mismatch\n", 2),
        (BRIDGED, 3),  # a device more than the machine has by the other answers
        (BRIDGED, 5),
        (BRIDGED.replace("GPU3\tSYS", "GPU3"), 4),
        (BRIDGED.replace("\t", "   "), 4),
        (BRIDGED.replace("GPU2\tPXB", "GPU7\tPXB"), 4),
        ("\n".join(reversed(BRIDGED.splitlines())), 4),
    ],
)
def test_of_another_table_nothing_is_known(text: str, count: int) -> None:
    assert parse_islands(text, count) == ((),) * count
