"""A person at a terminal, who pastes what a page of the docs prints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.integration.homes import COMMAND_S_MAX, Home


@dataclass(kw_only=True)
class Terminal:
    """folder: the one it is in; a `cd` holds for what is pasted after it."""

    folder: Path
    environment: dict[str, str]

    def paste(self, script: str, *, exit_code: int = 0) -> str:
        """Run a command, or several lines, and return what was printed."""
        where = self.folder / ".pwd"
        keyboard, terminal = os.openpty()
        os.write(keyboard, b"\x04")  # who asks for what the page does not say gets no answer
        try:
            done = subprocess.run(
                ["sh", "-euc", f"{script}\npwd >{where}"],
                cwd=self.folder,
                env=self.environment,
                stdin=terminal,
                capture_output=True,
                text=True,
                timeout=COMMAND_S_MAX,
                check=False,
            )
        finally:
            os.close(keyboard)
            os.close(terminal)
        assert done.returncode == exit_code, (script, done.stdout, done.stderr)
        if exit_code == 0:
            self.folder = Path(where.read_text(encoding="utf-8").strip())
        where.unlink(missing_ok=True)
        return done.stdout + done.stderr


def terminal_of(home: Home, folder: Path) -> Terminal:
    """Return a terminal in `folder`, in which the commands of this checkout are found."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **home.variables, "HOME": str(folder), "PATH": path}
    return Terminal(folder=folder, environment=environment)


def blocks(page: str) -> Iterator[str]:
    """Yield the indented blocks of a page, each as it would be pasted."""
    block: list[str] = []
    for line in [*page.splitlines(), ""]:
        if line.startswith("    ") or (block and not line.strip()):
            block.append(line[4:])
        elif block:
            yield "\n".join(block).strip("\n")
            block = []
    if any(block):
        yield "\n".join(block).strip("\n")


def from_an_empty_folder() -> list[str]:
    """Return the commands of README's section of that name."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = readme.split("## From an empty folder\n")[1].split("\n## ")[0]
    return [line.strip() for line in section.splitlines() if line.startswith("    ")]
