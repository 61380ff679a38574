"""Text from outside, made harmless to a terminal, a page and whoever reads them.

Control characters move the cursor, set titles, forge lines; marks of direction show text in another
order than it has. They are shown as escapes instead: `\\x1b`, `\\u202e`.
"""

from __future__ import annotations

import re

LINE_END = " ⏎ "

# C0 but line feed and tab, DEL, C1; marks of direction; separators of lines; halves of surrogates.
_CONTROL = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return `text` with every such character as an escape; lines and tabs stay."""
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    """Return text that is to stand in a line of ours as one: nobody's words look like the next."""
    return LINE_END.join(text.splitlines())


def visible_json(text: str) -> str:
    """Return JSON of the same value that holds none of these characters."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
