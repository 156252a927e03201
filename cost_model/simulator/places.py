"""The instructions of each place of a pipeline: its stages under the schedule, and what it sends to other places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autopar.cost_model.priced import Group
from autopar.cost_model.simulator.counted import Counted, counted, root_parameters, vector_parameters
from autopar.cost_model.simulator.holders import cut_into, levels, stored_bytes
from autopar.cost_model.simulator.instructions import Collective, Instruction, Move, Post, Receive, Tell
from autopar.cost_model.simulator.prices import Prices, link, local_bytes
from autopar.cost_model.simulator.schedules import BACKWARD, BACKWARD_WEIGHTS, FORWARD, Action, actions
from autopar.cost_model.simulator.scripts import FULL, INPUTS, WEIGHTS
from autopar.cost_model.simulator.stage import Stage
from autopar.ir.pipeline import LOOPED, PIPELINE_AXIS, Pipeline


class Places:
    """``stages``: the instructions of each stage by itself."""

    def __init__(self, pipeline: Pipeline, prices: Prices, *, optimizer: str) -> None:
        self.pipeline, self.prices = pipeline, prices
        self.stages = tuple(
            Stage(
                each.program, prices, optimizer=optimizer, number=number, receives=each.receives, sends=each.sends,
                piped=True,
            )
            for number, each in enumerate(pipeline.stages)
        )  # fmt: skip

    def script(self, place: int) -> Iterator[Instruction]:
        """A step of one place."""
        own = [self.stages[at] for at in self.pipeline.local(place)]
        steps = actions(self.pipeline, place)
        looped = self.pipeline.schedule in LOOPED
        for stage in own:
            yield from stage.begin()
        first = {action.stage: action for action in reversed(steps)}
        if looped:
            for at in sorted(first, key=lambda at: steps.index(first[at])):
                yield from self.stages[at].gather()
        left = {stage.number: stage.program.microbatches for stage in own}
        for action in steps:
            stage = self.stages[action.stage]
            if looped and action is first[action.stage]:
                yield from stage.gathered()
            yield from self._act(action, stage)
            if action.kind in (BACKWARD, BACKWARD_WEIGHTS):
                left[stage.number] -= 1
                if looped and not left[stage.number]:
                    yield from stage.reduce()
        if not looped:
            for stage in own:
                yield from stage.reduce()
        for stage in own:
            yield from (Collective(move) for move in stage.sums())
        yield from self._tied(place)
        for stage in own:
            yield from stage.update()

    def counted(self, place: int) -> Counted:
        """What the objective counts of a place: of a parameter at its first stage, of a transfer at both ends.

        Sums over places count at all of them: nobody is done before.
        """
        total, microbatches = Counted(), self.stages[0].program.microbatches
        programs = [stage.program for stage in self.pipeline.stages]
        outside, vectors = (
            len(frozenset[str]().union(*map(of, programs))) for of in (root_parameters, vector_parameters)
        )
        for at in self.pipeline.local(place):
            before = {each.fqn for stage in self.pipeline.stages[:at] for each in stage.program.parameters}
            sent_ns = sum(
                2 * self.prices.move_ns("broadcast", self._bytes(sender, real=False), self.prices.worst_pair())
                for sender in (at - 1, at) if 0 <= sender < len(self.stages) - 1
            )  # fmt: skip
            total += counted(self.stages[at], before, outside, vectors)
            total += Counted(transfers_s=microbatches * sent_ns / 1e9)
        nodes = self.prices.groups[PIPELINE_AXIS].nodes
        tied_ns = sum(self.prices.move_ns("all_reduce", size, _group(len(at), nodes)) for _, at, size in self._shared())
        return total + Counted(sums_s=tied_ns / 1e9)

    def _act(self, action: Action, stage: Stage) -> Iterator[Instruction]:
        at, microbatch = action.stage, action.microbatch
        last = len(self.stages) - 1
        if action.kind == FORWARD:
            if at:
                yield Receive((at, "forward", microbatch))
            yield from stage.forward(microbatch)
            if at < last:
                yield self._send(at, at + 1, "forward", microbatch)
            return
        if action.kind == BACKWARD_WEIGHTS:
            yield from stage.backward(microbatch, WEIGHTS if at else FULL)
            return
        if at < last:
            yield Receive((at, "backward", microbatch))
        if action.kind == BACKWARD:
            yield from stage.backward(microbatch)
        elif at:
            yield from stage.backward(microbatch, INPUTS)
        if at:
            yield self._send(at, at - 1, "backward", microbatch)

    def _send(self, sender: int, receiver: int, direction: str, microbatch: int) -> Post:
        size = self._bytes(min(sender, receiver), real=direction == "backward")
        group = self._pair(sender, receiver)
        to = self.pipeline.place(receiver)
        move = Move(
            name=f"send to place {to}", where=f"stage {sender}, microbatch {microbatch}",
            ns=self.prices.move_ns("broadcast", size, group), category="send", cause="places",
            stream=f"send to {to}", link=link(group),
        )  # fmt: skip
        return Post(("send", sender, direction, microbatch), move, None, (receiver, direction, microbatch))

    def _bytes(self, sender: int, *, real: bool) -> int:
        """What goes over the boundary behind a stage; ``real``: the gradients that come back."""
        stage = self.pipeline.stages[sender]
        values = stage.program.graph.values()
        return sum(local_bytes(values[name]) for name in stage.sends if not real or values[name].type.has_gradient)

    def _pair(self, stage: int, other: int) -> Group:
        return self.prices.pair(self.pipeline.place(stage), self.pipeline.place(other))

    def _tied(self, place: int) -> Iterator[Instruction]:
        """Gradients of parameters that stand at several places, added up when the last of these is ready."""
        for number, (fqn, at, size) in enumerate(self._shared()):
            if place not in at:
                continue
            yield Tell(("tied", number, place))
            for other in at:
                if other != place:
                    yield Receive(("tied", number, other))
            group = _group(len(at), self.prices.pair(at[0], at[-1]).nodes)
            yield Collective(Move(
                name=f"all_reduce {PIPELINE_AXIS}", where=fqn, ns=self.prices.move_ns("all_reduce", size, group),
                category="grad", cause="sums", stream=f"collectives {PIPELINE_AXIS}", link=link(group),
            ))  # fmt: skip

    def _shared(self) -> Sequence[tuple[str, tuple[int, ...], int]]:
        """Trained parameters at several places, with these and the bytes of a gradient."""
        found: dict[str, tuple[set[int], int]] = {}
        for number, stage in enumerate(self.pipeline.stages):
            zero = levels(stage.program)
            for parameter in stage.program.parameters:
                if parameter.trainable and not parameter.buffer:
                    size = -(-stored_bytes(parameter) // cut_into(parameter, zero[parameter.fqn], self.prices))
                    at, _ = found.setdefault(parameter.fqn, (set(), size))
                    at.add(self.pipeline.place(number))
        return [(fqn, tuple(sorted(at)), size) for fqn, (at, size) in found.items() if len(at) > 1]


def _group(places: int, nodes: int) -> Group:
    """So many places, all on one node or each on its own."""
    near = places if nodes == 1 else 1
    return Group(axis=PIPELINE_AXIS, size=places, ranks_per_node=near, nodes=places // near)
