"""Pages taken apart, and plans to make them of."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import autopar
from autopar.cost_model import simulator
from autopar.explaining import meshes
from autopar.ir.plan import Plan, RecipeInfo
from autopar.models import resolve
from autopar.replay import program_of
from autopar.report import build, render
from tests.cli.plans import example_plan

EMPTY = {"meta", "link", "br", "img", "wbr"}


class Page(HTMLParser):
    """Elements with their attributes, and the visible text of each section by its id ("" before the first)."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.sections: dict[str, str] = {"": ""}
        self.open: list[str] = []
        self._section = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        if tag == "section":
            self._section = found["id"]
            self.sections[self._section] = ""
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.open):
            self.sections[self._section] += data.replace("\u00a0", " ")

    def pictures(self) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag == "svg" and attributes.get("role") == "img"]


def with_recipes(**found: RecipeInfo) -> Plan:
    """The example plan beside recipes."""
    return example_plan(recipes=found)


def planned(mesh: dict[str, int], **more: Any) -> Plan:
    """Two layers of GPT-2 on four devices."""
    found = resolve("zoo:gpt2", layers=2, seq_len=64, batch_size=16)
    return autopar.plan(
        found.model, found.example_inputs, cluster="2x2xA100-SXM-80GB", name=found.name, mesh=mesh, **more
    )


def whole_page(plan: Plan) -> str:
    """With its timeline and its alternatives."""
    program, pipeline, asked = program_of(plan)
    timeline = simulator.simulate(program, asked.cluster, asked.profile, optimizer=plan.optimizer, pipeline=pipeline)
    return render(build(plan, timeline, meshes(plan, time_limit=20)))
