"""How a project shows in a graph of assets: what it is made of, whose it is, what it is called. Pure.

Dagster takes these from a project's file; what they mean to it is said at `defs/assets/projects.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tracks_dagster.track.text.units import shown

KINDS_MAX = 3  # that Dagster shows of an asset
NAMES_MAX = 64  # upstreams, owners or tags of one project
_PART = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_GROUP = re.compile(r"[A-Za-z0-9_]{1,100}")
_OWNER = re.compile(r"team:[A-Za-z0-9_.-]{1,100}|[^@\s]{1,100}@[^@\s]{1,100}\.[^@\s.]{1,60}")
_KIND = re.compile(r"[a-z0-9_-]{1,60}")
_TAG = re.compile(r"(?:[A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
_ALIAS = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,24}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectAssets:
    """upstream: keys of assets, parts with "/" between them, that the project is trained on beside its
    dataset. aliases: given by people, each with a model of its own in the graph; the alias of the
    promotion has one anyway. owners, tags, kinds, group: of its assets, as Dagster has them; empty for
    those of all of ours.
    """

    upstream: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    group: str | None = None


def read_upstream(value: object) -> tuple[str, ...]:
    """Return the keys of assets; raises ValueError in words."""
    words = (
        "is not a key of an asset; write its parts with / between them, for example dbt/features."
    )
    return _listed(value, words, lambda text: all(map(_PART.fullmatch, text.split("/"))))


def read_aliases(value: object) -> tuple[str, ...]:
    """Return the aliases; raises ValueError in words."""
    words = "is not an alias; use 1 to 26 of a-z, 0-9 and '-', '-' not at an end."
    return _listed(value, words, _ALIAS.fullmatch)


def read_owners(value: object) -> tuple[str, ...]:
    """Return the owners; raises ValueError in words."""
    words = "is not an owner; write team:NAME or an address, for example team:churn."
    return _listed(value, words, _OWNER.fullmatch)


def read_kinds(value: object) -> tuple[str, ...]:
    """Return the kinds; raises ValueError in words."""
    found = _listed(value, "is not a kind; use a-z, 0-9, '_' and '-'.", _KIND.fullmatch)
    if len(found) > KINDS_MAX:
        raise ValueError(f"there are {len(found)} kinds; Dagster shows {KINDS_MAX} of an asset.")
    return found


def read_group(value: object) -> str:
    """Return the group; raises ValueError in words."""
    if not isinstance(value, str) or not _GROUP.fullmatch(value):
        raise ValueError(f"{shown(value)} is not a group; use A-Z, a-z, 0-9 and '_'.")
    return value


def read_tags(value: object) -> dict[str, str]:
    """Return the tags; raises ValueError in words."""
    if not isinstance(value, Mapping) or len(value) > NAMES_MAX:
        raise ValueError(
            f"{shown(value)} is not a mapping of tags; write for example {{cost: gpu}}."
        )
    for key, text in value.items():
        is_tag = isinstance(key, str) and _TAG.fullmatch(key)
        if not is_tag or not isinstance(text, str) or not _TAG_VALUE.fullmatch(text):
            raise ValueError(
                f"{shown(key)}: {shown(text)} is not a tag; use at most 63 of A-Z, a-z, 0-9, '_', '.' "
                "and '-' for each of both."
            )
    return dict(value)


def _listed(value: object, words: str, is_valid: Callable[[str], object]) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > NAMES_MAX:
        raise ValueError(f"{shown(value)} is not a list of at most {NAMES_MAX}; write [A, B].")
    for each in value:
        if not isinstance(each, str) or not is_valid(each):
            raise ValueError(f"{shown(each)} {words}")
    if len(set(value)) < len(value):
        raise ValueError(f"{shown(value)} names one twice.")
    return tuple(value)
