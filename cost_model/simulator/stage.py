"""The instructions of one program on one device: passes of a microbatch, and the end of a step.

FSDP2 in forward: the parameters of a holder are gathered while the holder before computes, and the one before that;
in backward those of the next holder are gathered when one has its own. Gradients are scattered or reduced when the
backward of a holder is done, and the backward of the next waits for nothing of it but memory: its end waits until
they are scattered. Torch's pipelines leave gathered what a backward needed, and reduce all gradients at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from autopar.cost_model.simulator.gradients import gradients
from autopar.cost_model.simulator.holders import (
    ROOT,
    Holder,
    cut_into,
    holders,
    levels,
    memory_ns,
    stored_bytes,
    updated_bytes,
)
from autopar.cost_model.simulator.instructions import (
    Close,
    Instruction,
    Key,
    Move,
    Open,
    Part,
    Post,
    Wait,
    Work,
)
from autopar.cost_model.simulator.prices import Prices, link
from autopar.cost_model.simulator.scripts import FULL, INPUTS, WEIGHTS, Calls, Item, Script, script
from autopar.ir.graph import Node
from autopar.ir.live import live_nodes
from autopar.ir.program import Program


class Stage:
    """``number``: of the stage in its pipeline, whose values ``receives`` come from the one before."""

    def __init__(
        self, program: Program, prices: Prices, *, optimizer: str, number: int = 0, receives: Collection[str] = (),
        sends: Sequence[str] = (), piped: bool = False,
    ) -> None:  # fmt: skip
        self.program, self.prices, self.optimizer = program, prices, optimizer
        self.number, self.piped = number, piped
        outputs = sends or ((program.loss,) if program.loss is not None else program.graph.outputs)
        marks = gradients(program.graph, receives)
        self.main = script(program.graph, marks, prices, nodes=live_nodes(program.graph.nodes, outputs, inputs=False))
        self.blocks: dict[str, Script] = {
            block.name: script(block, marks, prices, recompute=program.recompute.get(block.name))
            for block in program.graph.blocks
        }
        before = program.prologue
        self.before = None if before is None else script(before, gradients(before, ()), prices)
        self.holders = holders(program, prices)
        self.of_call: dict[str, list[Holder]] = {}
        for holder in self.holders:
            self.of_call.setdefault(holder.name, []).append(holder)
        # in the order in which forward ends with them: the root last
        inside = [each for each in self.holders if each.name != ROOT]
        self._order = [each for each in (*inside, *self.of_call.get(ROOT, ())) if each.fsdp]
        self._at = {id(each): at for at, each in enumerate(self._order)}
        self._gathered: set[int] = set()
        self._posted: set[int] = set()
        self._scattered: Key | None = None
        self._ending: list[Wait] = []

    def begin(self) -> Iterator[Instruction]:
        """What runs once, before the first microbatch."""
        self._gathered.clear()
        yield from self._plain(() if self.before is None else self.before.forward)

    def forward(self, microbatch: int) -> Iterator[Instruction]:
        yield Open(self._title("forward", microbatch), "forward", "pass")
        queue = [each for each in self._in_forward() if each.gathers and id(each) not in self._gathered]
        for each in queue[:2]:
            yield from self._post(each, "forward")
        ahead = iter(queue[2:])
        for holder in self.of_call.get(ROOT, ()):
            yield from self._enter(holder, ahead)
        for item in self.main.forward:
            if isinstance(item, Calls):
                for name, block in _calls(item.node):
                    for holder in self.of_call.get(name, ()):
                        yield from self._enter(holder, ahead)
                    yield Open(f"{name} forward", "forward", "call", block)
                    yield from self._plain(self.blocks[block].forward)
                    yield Close()
                    self._gathered -= {id(holder) for holder in self.of_call.get(name, ()) if not holder.stays}
            else:
                yield from self._plain((item,))
        yield Close()

    def backward(self, microbatch: int, half: str = FULL) -> Iterator[Instruction]:
        """``half``: of a schedule that computes the gradients for the stage before first, and all others later."""
        title = self._title("backward" if half == FULL else f"backward of {half}", microbatch)
        yield Open(title, "backward", "pass")
        last = microbatch == self.program.microbatches - 1
        for holder in self.of_call.get(ROOT, ()):
            yield from self._enter_back(holder)
        for item in self.main.backward[half]:
            if isinstance(item, Calls):
                for name, block in reversed(_calls(item.node)):
                    yield from self._call_back(name, block, microbatch, half, last=last)
            else:
                yield from self._plain((item,))
        for holder in self.of_call.get(ROOT, ()):
            yield from self._leave_back(holder, microbatch, half, last=last)
        yield from self._settled()
        yield Close()

    def reduce(self) -> Iterator[Instruction]:
        """All gradients at once, as torch's pipelines do."""
        for holder in self.holders:
            yield from self._reduce(holder, last=True)
        yield from self._settled()

    def gather(self) -> Iterator[Instruction]:
        """All parameters at once, as torch's looped pipelines do before a stage computes."""
        for holder in self._in_forward():
            if holder.gathers:
                yield from self._post(holder, "forward")

    def gathered(self) -> Iterator[Instruction]:
        for holder in self._in_forward():
            yield from self._wait(holder)

    def update(self) -> Iterator[Instruction]:
        """The optimizer."""
        moved: dict[str, int] = {}
        zero = levels(self.program)
        for parameter in self.program.parameters:
            if parameter.trainable and not parameter.buffer:
                size = updated_bytes(parameter, zero[parameter.fqn], self.optimizer, self.prices)
                moved[parameter.type.dtype] = moved.get(parameter.type.dtype, 0) + size
        for dtype, size in moved.items():
            ns = memory_ns("optimizer", "optimizer", size, dtype, self.prices)
            if ns:
                yield Work(ns, "optimizer", (Part(self.optimizer, self._where(), ns),))

    def sums(self) -> tuple[Move, ...]:
        """Gradients that wait for the end of the step: those with the same axes are added up in one buffer."""
        together: dict[tuple[tuple[str, ...], str], int] = {}
        zero = levels(self.program)
        for parameter in self.program.parameters:
            if parameter.step_axes:
                key = (parameter.step_axes, parameter.type.dtype)
                parts = cut_into(parameter, zero[parameter.fqn], self.prices)
                together[key] = together.get(key, 0) + -(-stored_bytes(parameter) // parts)
        return tuple(
            Move(
                name=f"all_reduce {axis}", where=self._where(),
                ns=self.prices.move_ns("all_reduce", size, self.prices.groups[axis]), category="grad", cause="sums",
                stream=f"collectives {axis}", link=link(self.prices.groups[axis]),
            )
            for (axes, _), size in together.items() for axis in axes
        )  # fmt: skip

    def _call_back(self, name: str, block: str, microbatch: int, half: str, *, last: bool) -> Iterator[Instruction]:
        own = self.of_call.get(name, ())
        for holder in reversed(own):
            yield from self._enter_back(holder)
        made = self.blocks[block]
        yield Open(f"{name} backward", "backward", "call", block)
        if half != WEIGHTS:
            yield from self._plain(made.again)
        yield from self._plain(made.backward[half])
        yield Close()
        for holder in reversed(own):
            yield from self._leave_back(holder, microbatch, half, last=last)

    def _plain(self, items: Sequence[Item]) -> Iterator[Instruction]:
        """Items of a graph without calls."""
        for item in items:
            assert not isinstance(item, Calls)
            yield item

    def _in_forward(self) -> list[Holder]:
        """FSDP2's holders in the order in which forward begins with them."""
        return [each for each in self.holders if each.fsdp]

    def _enter(self, holder: Holder, ahead: Iterator[Holder]) -> Iterator[Instruction]:
        if holder.gathers and id(holder) not in self._gathered:
            yield from self._wait(holder)
            following = next(ahead, None)
            if following is not None:
                yield from self._post(following, "forward")

    def _enter_back(self, holder: Holder) -> Iterator[Instruction]:
        if not holder.fsdp:
            return
        yield from self._post(holder, "backward")
        yield from self._wait(holder)
        at = self._at[id(holder)]
        if at:
            yield from self._post(self._order[at - 1], "backward")

    def _leave_back(self, holder: Holder, microbatch: int, half: str, *, last: bool) -> Iterator[Instruction]:
        whole = self.piped or not holder.fsdp or holder.zero < 2
        if whole and half != INPUTS and self.program.microbatches > 1:
            ns = holder.accumulates[microbatch > 0]
            if ns:
                yield Work(ns, "grad", (Part("accumulate", holder.name or "root", ns),))
        if self.piped:
            return
        if last or holder.zero >= 2:
            yield from self._reduce(holder, last=last)
        if last or not holder.stays:
            self._gathered.discard(id(holder))

    def _reduce(self, holder: Holder, *, last: bool) -> Iterator[Instruction]:
        if holder.scatters:
            if self._scattered is not None:
                yield Wait(self._scattered, "reductions")
            for move in holder.scatters:
                self._scattered = ("scatter", id(holder), self.number)
                yield Post(self._scattered, move)
        for move in holder.reduces if last else ():
            after = ("scatter", id(holder), self.number) if holder.scatters else None
            key = ("reduce", id(holder), self.number)
            yield Post(key, move, after)
            self._ending.append(Wait(key, "reductions"))

    def _settled(self) -> Iterator[Instruction]:
        """Wait until all gradients are where they belong."""
        if self._scattered is not None:
            yield Wait(self._scattered, "reductions")
        yield from self._ending
        self._scattered = None
        self._ending.clear()

    def _post(self, holder: Holder, category: str) -> Iterator[Instruction]:
        if id(holder) in self._gathered or id(holder) in self._posted:
            return
        self._posted.add(id(holder))
        for move in holder.gathers:
            yield Post(("gather", id(holder)), move._replace(category=category))

    def _wait(self, holder: Holder) -> Iterator[Instruction]:
        if id(holder) in self._posted:
            self._posted.discard(id(holder))
            self._gathered.add(id(holder))
            if holder.gathers:
                yield Wait(("gather", id(holder)), "gathers")

    def _title(self, what: str, microbatch: int) -> str:
        stage = f"stage {self.number} " if self.piped else ""
        return f"{stage}{what}, microbatch {microbatch}"

    def _where(self) -> str:
        return f"stage {self.number}" if self.piped else "step"


def _calls(node: Node) -> list[tuple[str, str]]:
    """(name, block) of each call."""
    name, block = node.results[0].name, str(node.attr("block"))
    return [(f"{name}/{index}", block) for index in range(int(str(node.attr("count"))))]
