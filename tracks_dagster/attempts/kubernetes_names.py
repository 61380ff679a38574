"""Names, labels and tolerations as Kubernetes accepts them, checked before a cluster is asked. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tracks_dagster.track.records import Json
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import in_quotes

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OPERATORS = ("Equal", "Exists")
DNS_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
QUEUE_NAME = re.compile(r"(?=.{1,63}$)" + DNS_NAME.pattern)  # Kueue: a name that fits a label
LABEL_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def toleration_problems(given: Mapping[str, Json]) -> Iterator[str]:
    """Yield what the API server would refuse of a toleration, or what it would never match by."""
    effect, operator = given.get("effect"), given.get("operator", OPERATORS[0])
    if effect not in (None, "", *EFFECTS):
        yield unknown("effect of a taint", str(effect), EFFECTS)
    if operator not in OPERATORS:
        yield unknown("operator of a toleration", str(operator), OPERATORS)
    for key in ("key", "value"):
        if key in given and not isinstance(given[key], str):
            yield f"{key}: {in_quotes(given[key])}"
    if not given.get("key") and operator != "Exists":
        yield "key is missing: name the taint's key, or write operator: Exists for all of them."
    if operator == "Exists" and given.get("value"):
        yield "value cannot stand beside operator: Exists, which takes every value."
    if "tolerationSeconds" in given and effect != "NoExecute":
        yield "tolerationSeconds needs effect: NoExecute."
