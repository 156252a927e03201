"""Where in the user's model an fx node comes from."""

from __future__ import annotations

import os

import torch
from torch import fx

_NOT_USERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


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
        if not name.startswith(_NOT_USERS):
            return f"{os.path.basename(name)}:{rest.split(',', 1)[0]}"
    return ""
