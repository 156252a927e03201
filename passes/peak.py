"""What a device holds at each moment of a step's last backward pass, and the largest of them.

The solver bounds memory by a sum: all that is kept, all gradients and the largest transient at once. In truth
activations go as gradients come; this walk over the calls, last to first, says when. It exceeds the sum only where
the buffer of the root's gradients, sent last, is larger than all activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class ParameterBytes:
    """Bytes of one parameter, or of several added up.

    parameter, state: as kept, and the optimizer's state. copy: what computing reads, where it stays through the step.
    before: gradients of earlier microbatches; gradient: what is left of them after the step.
    made: gradients as autograd makes them, where they are not one of those two. sent: the buffer that they are
    reduced from, which lives until those of the next call are. gathered: of ZeRO 3, while the call computes, those
    of the next call too.
    """

    parameter: int = 0
    state: int = 0
    copy: int = 0
    before: int = 0
    gradient: int = 0
    made: int = 0
    sent: int = 0
    gathered: int = 0

    def __add__(self, other: ParameterBytes) -> ParameterBytes:
        return ParameterBytes(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def summed(self, *, root: bool) -> tuple[int, int]:
        """What the solver counts: held through the step, and for a time beside the activations of a call.

        The root's gradients live until the step is over, and are sent when no activations are left.
        """
        held = self.parameter + self.state + self.copy + max(self.before, self.gradient)
        return (held + self.made, 0) if root else (held, self.made + self.sent + self.gathered)


@dataclass(frozen=True, kw_only=True)
class Held:
    """The root or a call: its parameters; activations held until its backward; what that makes besides, at most."""

    parameters: ParameterBytes
    activations: int
    passing: int


def peak(root: Held, calls: Sequence[Held]) -> dict[str, int]:
    """Bytes by what they are for at the moment when they are most. ``calls`` in order of the forward pass."""
    return max(_moments(root, calls), key=lambda parts: sum(parts.values()))


def _moments(root: Held, calls: Sequence[Held]) -> Iterator[dict[str, int]]:
    every = sum((call.parameters for call in calls), root.parameters)
    activations = root.activations + sum(call.activations for call in calls)
    gradients, pending = every.before, 0

    def now(transient: int) -> dict[str, int]:
        return {
            "parameters": every.parameter, "gradients": gradients, "optimizer": every.state, "copies": every.copy,
            "activations": activations, "transient": transient,
        }  # fmt: skip

    yield now(root.passing)
    gradients += root.parameters.made
    for call in reversed(calls):
        its = call.parameters
        yield now(call.passing + its.gathered + pending)
        activations -= call.activations
        yield now(its.gathered + its.made + pending)
        gradients += its.gradient - its.before
        pending = its.sent
    activations -= root.activations
    yield now(root.parameters.sent)
    gradients += root.parameters.gradient - root.parameters.before - root.parameters.made
    yield now(root.parameters.sent)
