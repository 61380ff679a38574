"""What an image brings, and the kubelet's words when it cannot be had."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.wings.kubernetes.double.answers import Json

_NAME = re.compile(r"^[a-z0-9][a-z0-9._:/-]*(:[A-Za-z0-9._-]+)?(@sha256:[a-f0-9]{64})?$")


@dataclass(kw_only=True)
class Image:
    """What images bring: variables, and the commands of those whose pods name none.

    missing: images that no registry has. missing_here: those that no node has, for a pull policy of
    Never.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    entrypoints: Mapping[str, Sequence[str]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    missing_here: set[str] = field(default_factory=set)

    def variables(self) -> dict[str, str]:
        """Return the variables of every image: this Python first in the path, and no more."""
        path = f"{Path(sys.executable).parent}:{os.defpath}:/usr/local/bin"
        return {"PATH": path, "HOME": "/tmp", "LANG": "C.UTF-8", **self.environ}

    def refusal(self, container: Json) -> tuple[str, str] | None:
        """Return why the image cannot be used at all, as reason and message of a waiting state."""
        name = container["image"]
        if not _NAME.match(name):
            why = f'Failed to apply default image tag "{name}": couldn\'t parse image name '
            return "InvalidImageName", why + f'"{name}": invalid reference format'
        if container.get("imagePullPolicy") == "Never" and name in self.missing_here:
            why = f'Container image "{name}" is not present with pull policy of Never'
            return "ErrImageNeverPull", why
        return None


def pull_error(image: str) -> str:
    """Return what a container runtime says when no registry answers for an image."""
    host, _, path = image.partition("/")
    repository, _, tag = path.partition(":")
    return (
        f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": '
        f'failed to do request: Head "http://{host}/v2/{repository}/manifests/{tag or "latest"}": '
        "dial tcp 127.0.0.1:80: connect: connection refused"
    )
