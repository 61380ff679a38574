"""The code of the shipped model families; `data.families` holds their configs as data.

A family is a module of four functions (`family.FamilyCode`). To add one, write such a module, list it
here, and give it its row in `data.families`.
"""

from __future__ import annotations

from tracks_dagster.data.families import find_family
from tracks_dagster.training.families import gpt, tabular
from tracks_dagster.training.families.family import FamilyCode

_CODE: dict[str, FamilyCode] = {"gpt": gpt, "tabular": tabular}


def family_code(name: str) -> FamilyCode:
    """Return the family's code; raises InvalidInput naming the families that exist."""
    return _CODE[find_family(name).name]
