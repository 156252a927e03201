"""Whether the second of two calls in one program computes its results as the first does.

What follows from inputs is compared, operation by operation: not what is made once and kept, such as a table of
positions, and not what buffers hold, but what is written to them. No result of the second call may follow from what the
first one computed. Views that show all of a tensor as it is count for nothing: a call may spell them in another way.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.export import ExportedProgram

from autopar.passes.trace.inlined import Inlined, Step


def alike(program: ExportedProgram) -> bool:
    """Requires: ``program`` returns the results of both, one after the other."""
    made = Inlined.of(program)
    half = len(made.results) // 2
    first, second = ([each for each in part if each is not None] for part in (made.results[:half], made.results[half:]))
    flow = _Flow(made)
    if flow.stale(second):
        return False
    one, other = flow.live(first, first=True), flow.live(second, first=False)
    if [step.target for step, _ in one] != [step.target for step, _ in other]:  # something was kept
        one, other = ([pair for pair in each if pair[1]] for each in (one, other))
    return [step.says for step, _ in one] == [step.says for step, _ in other]


class _Flow:
    """``base``: of each value the tensor that it is a view of. ``follows``: whether each step's operands follow from
    inputs or random numbers. ``computed``: tensors that do. ``old``: those that follow from the first
    call. ``parts``: values that are views of a part."""

    def __init__(self, made: Inlined) -> None:
        self.made, self.base = made, list(range(made.values))
        self.follows: list[bool] = []
        self.old: set[int] = set()
        self.parts: set[int] = set()
        self.computed = computed = set[int]()
        written: set[int] = set()  # of what was there before
        begun = False
        for step in made.steps:
            if begun == step.first:  # the second call begins
                begun, self.old = True, (computed | written) - made.buffers
            if step.of is not None:
                self.base[step.result] = self.base[step.of]
                if step.of in self.parts or not (step.idle or step.written):
                    self.parts.add(step.result)
            read, changed = self._bases(step.reads), self._bases(step.written)
            self.follows.append(step.drawn or not read.isdisjoint(made.inputs | computed))
            written |= changed & made.constants
            if step.of is None:
                changed.add(step.result)
            if self.follows[-1]:
                computed |= changed
            if not step.first:
                self._pass_on(read, changed - made.buffers)

    def _bases(self, values: Sequence[int]) -> set[int]:
        return {self.base[value] for value in values}

    def _pass_on(self, read: set[int], changed: set[int]) -> None:
        """To what a step of the second call changes, whether that follows from the first one: not if it is filled."""
        if read.isdisjoint(self.old):
            self.old -= changed
        else:
            self.old |= changed

    def stale(self, results: Sequence[int]) -> bool:
        """Whether one of the results follows from the first call."""
        return not self._bases(results).isdisjoint(self.old)

    def live(self, results: Sequence[int], *, first: bool) -> list[tuple[Step, bool]]:
        """The steps of one call that its results, or what buffers hold, follow from, last to first; and which of them
        follow from inputs, or change a buffer or a part of what does."""
        found = []
        values, tensors = set(results), self._bases(results)
        for step, follows in zip(reversed(self.made.steps), reversed(self.follows), strict=True):
            changed = self._bases(step.written)
            kept = not changed.isdisjoint(self.made.buffers)
            if step.first != first or not (kept or step.result in values or not changed.isdisjoint(tensors)):
                continue
            values.update(step.reads, step.written)
            tensors |= self._bases(step.reads)
            if step.of is not None and not step.written:  # a view, maybe of what is yet to be written
                follows = self.base[step.of] in self.made.inputs | self.computed
            part = not (self.parts.isdisjoint(step.written) or self.computed.isdisjoint(changed))
            if not step.idle:
                found.append((step, follows or kept or part))
        return found
