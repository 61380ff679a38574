"""How the GPUs of one machine are linked, as `nvidia-smi topo -m` prints it. Pure.

Its table has a row and a column for each GPU, parted by tabs, with the best way between each two: NV4
for four NVLinks; PIX and PXB by PCIe switches alone; PHB and NODE inside one NUMA node; SYS across
NUMA nodes. A further column has the NUMA node of each GPU's nearest CPUs. It is believed before the
pairs: some machines say SYS of all of them, also on one node. (NVML's nvmlDeviceGetNumaNodeId is
something else: the node that a GPU's own memory is, as on Grace.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_GPU = re.compile(r"GPU\d+")
_STYLE = re.compile(r"\x1b\[\d*m")  # the head is underlined, in a pipe as well
_NVLINK = re.compile(r"NV\d+")
_SWITCHED = frozenset({"PIX", "PXB"})
_ONE_NODE = frozenset({*_SWITCHED, "PHB", "NODE"})
_NUMA = "NUMA Affinity"

Islands = tuple[str, ...]


def parse_islands(text: str, count: int) -> tuple[Islands, ...]:
    """Return the islands that each of `count` GPUs is in: NVLink, NUMA node, PCIe switch.

    In the order of nvidia-smi's own numbers. Empty for each where the table is not of these GPUs, or
    has another shape.
    """
    lines = [_STYLE.sub("", line).split("\t") for line in text.splitlines()]
    table = [[cell.strip() for cell in cells] for cells in lines]
    head = next((cells for cells in table if "GPU0" in cells[1:]), [])
    rows = [cells for cells in table if _GPU.fullmatch(cells[0]) and len(cells) > count]
    names = [f"GPU{number}" for number in range(count)]
    columns = [cell for cell in head if _GPU.fullmatch(cell)]
    ways = [row[1 : count + 1] for row in rows]
    is_whole = [row[0] for row in rows] == names and all(
        way[number] == "X" for number, way in enumerate(ways)
    )
    if head[1 : count + 1] != names or columns != names or not is_whole:
        return ((),) * count
    nvlink = _groups(ways, lambda way: _NVLINK.fullmatch(way) is not None)
    switch = _groups(ways, _SWITCHED.__contains__)
    numa = _by_column(head, rows) or _groups(ways, _ONE_NODE.__contains__)
    return tuple(
        (
            f"NVLink island (GPUs {_listed(nvlink, number)})",
            f"NUMA node (GPUs {_listed(numa, number)})",
            f"PCIe switch (GPUs {_listed(switch, number)})",
        )
        for number in range(count)
    )


def _groups(ways: Sequence[Sequence[str]], is_linked: Callable[[str], bool]) -> list[int]:
    """Return the group of each GPU: those that reach each other by such ways, a third in between too.

    A group is named by the first one in it.
    """
    groups = list(range(len(ways)))
    for number, row in enumerate(ways):
        for other, way in enumerate(row):
            if is_linked(way) and groups[number] != groups[other]:
                first, last = sorted((groups[number], groups[other]))
                groups = [first if group == last else group for group in groups]
    return groups


def _by_column(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the NUMA node of each GPU, named by its first GPU; nothing where not all have one."""
    at = head.index(_NUMA) if _NUMA in head else len(head)
    nodes = [row[at] if at < len(row) else "" for row in rows]
    if not all(node[:1].isdigit() for node in nodes):  # "N/A"
        return []
    return [nodes.index(node) for node in nodes]


def _listed(groups: Sequence[int], number: int) -> str:
    """Return the GPUs of one's group: "0-3", "0,2"."""
    members = [other for other, group in enumerate(groups) if group == groups[number]]
    first, last = members[0], members[-1]
    if len(members) > 1 and last - first == len(members) - 1:
        return f"{first}-{last}"
    return ",".join(map(str, members))
