"""Lines of an explanation as HTML: commands stand out, pages of the UI can be followed."""

from __future__ import annotations

import re
from html import escape

_CODE = re.compile(r"`([^`]+)`")
_ADDRESS = re.compile(r"https?://[^\s<>\"']+")


def rich(line: str) -> str:
    """Return a line with nothing in it that a reader's words could turn into markup."""
    coded = _CODE.sub(r"<code>\1</code>", escape(line))
    return _ADDRESS.sub(lambda m: f'<a href="{m[0]}" rel="noreferrer">{m[0]}</a>', coded)
