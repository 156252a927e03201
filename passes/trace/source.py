"""Where in the user's model an fx node comes from."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import fx
from torch.fx import proxy

TORCH = os.path.dirname(torch.__file__) + os.sep
"""What the names of torch's files begin with."""
OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""And those of the trace."""


def source_of(node: fx.Node, prefix: str) -> str:
    """``module.path file.py:line``; either part may be missing. ``prefix`` is cut off the path."""
    stack = node.meta.get("nn_module_stack")
    path = ""
    if stack:
        path = str(next(reversed(stack.values()))[0])
        path = "" if path == prefix.rstrip(".") else path.removeprefix(prefix)
    return f"{path} {line_of(node)}".strip()


def line_of(node: fx.Node) -> str:
    """``file.py:line`` of the innermost frame that is neither torch's nor the trace's."""
    trace = node.meta.get("stack_trace") or ""
    at = len(trace)
    while (at := trace.rfind('File "', 0, at)) >= 0:
        name, _, rest = trace[at + 6 :].partition('", line ')
        if not name.startswith((TORCH, OURS)):
            return f"{os.path.basename(name)}:{rest.split(',', 1)[0]}"
    return ""


@contextmanager
def lines_only() -> Iterator[None]:
    """Inside, torch notes with each node of a trace the line that ``line_of`` tells, not the whole stack.

    It reads and prints every frame, a quarter of the time of a trace. The name that it asks is private to torch;
    without it a trace takes longer.
    """
    place, name = vars(proxy), "CapturedTraceback"
    if name not in place:
        yield
        return
    before, place[name] = place[name], _Line
    try:
        yield
    finally:
        place[name] = before


class _Line:
    """In place of torch's class of that name: the innermost forward that is the user's."""

    @classmethod
    def extract(cls) -> type[_Line]:
        return cls

    @staticmethod
    def summary() -> traceback.StackSummary:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "forward" and not code.co_filename.startswith((TORCH, OURS)):
                line = traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name, line="")
                return traceback.StackSummary.from_list([line])
            frame = frame.f_back
        return traceback.StackSummary()
