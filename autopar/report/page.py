"""A view as one HTML page that needs nothing else: no script, no font, no request."""

from __future__ import annotations

import importlib.util

from autopar.ir.errors import UsageError
from autopar.report.view import View


def need_jinja() -> None:
    """Raises UsageError with the way out where jinja2 is not installed."""
    if importlib.util.find_spec("jinja2") is None:
        raise UsageError("the report needs jinja2, which is not installed: pip install 'autopar[report]'")


def render(view: View) -> str:
    """The same view makes the same text. Raises UsageError where jinja2 is not installed."""
    need_jinja()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("autopar.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template("report.html.j2").render(view=view)
