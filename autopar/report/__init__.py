"""``autopar report``: a plan as one page with pictures."""

from autopar.report.page import need_jinja, render
from autopar.report.view import View, build

__all__ = ["View", "build", "need_jinja", "render"]
