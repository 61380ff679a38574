"""Looking at every torch function that a model calls, and naming the line that calls it.

Compiled code runs uncompiled meanwhile; what runs inside scripted code is not seen.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

_NOT_THE_MODEL = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parent}{os.sep}")
FRAMES_MAX = 200

# name of the function, its arguments, its result
Look = Callable[[str, tuple[Any, ...], Any], None]


class Watch(TorchFunctionMode):
    """Calls `look` after each torch function that is called while it is entered.

    Its result is None where the function raised. Of a function in place, and of `x[…] = …`, it is
    among the arguments.
    """

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function and look at what it took and returned."""
        name = resolve_name(func) or getattr(func, "__name__", str(func))
        given = (*args, *(kwargs or {}).values())
        is_call = not name.endswith(("__get__", "__set__"))  # .shape, .device, .data = …
        try:
            result = func(*args, **(kwargs or {}))
        except Exception:
            if is_call:
                self._look(name, given, None)
            raise
        if is_call:
            self._look(name, given, args[0] if name.endswith("__setitem__") else result)
        return result


@contextmanager
def watched(look: Look) -> Iterator[None]:
    """Call `look` after each torch function, those of compiled code too."""
    with Watch(look):
        if "torch._dynamo" not in sys.modules:  # nothing was compiled, and it takes long to load
            yield
            return
        with torch.compiler.set_stance("force_eager"):
            yield


def calling_line() -> str:
    """Return file, line and text of the innermost code that is neither torch's nor ours."""
    frame, left = sys._getframe(1), FRAMES_MAX
    while frame.f_back is not None and left and frame.f_code.co_filename.startswith(_NOT_THE_MODEL):
        frame, left = frame.f_back, left - 1
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    return f"{Path(file).name}:{line}: {text}"
