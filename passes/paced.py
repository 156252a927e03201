"""What a step takes where data-parallel ranks run unequal numbers of microbatches, and which numbers these are.

A rank runs its microbatches one after the other on its own device and meets the others once a step, at the reduction of
gradients. So a step lasts until the last rank is through: what happens once, and its share times what one microbatch
takes on its device. ``Pricing.uneven`` bounds that for every share and every assignment at once. With t[d, o] ns of
operation o on device d, n[d] devices of N, and shares that are m microbatches on average:

    price of o    h[o] = N / (sum over d of n[d] / t[d, o])
    step          max over d of  sum over instances i of f_i(u[d] · t[d, i])
    bound         sum over i of f_i(m · h[i]),  where t[d, i] and h[i] are the sums of operations in i
                  f_i(c) = once_i + c + what of i's traffic the slowest device's computing of one microbatch leaves

What one microbatch leaves exposed is no less on any other device. So the step is at least the bound plus max over d of
u[d] T[d] - m H, where T[d] and H are the sums of t[d, i] and h[i]. Not every u[d] T[d] is less than m times the
harmonic mean of T, since the u[d] add up to N m; and a harmonic mean of sums is no less than the sum of harmonic means,
which is H. So the difference is not negative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autopar.ir.program import DATA_AXIS
from autopar.passes.bounds import Bounds
from autopar.passes.build import Encoded, build
from autopar.passes.ground import Ground
from autopar.passes.outer import Candidate
from autopar.passes.pricing import Pricing
from autopar.passes.problem import Problem
from autopar.passes.settled import settled
from autopar.passes.shares import Paced, Taker, allocate
from autopar.passes.solve import Solution
from autopar.passes.solve.check import Sums, sums_of_instance
from autopar.passes.uneven import exchanged_once


def pace(bounds: Bounds, encoded: tuple[Encoded, Pricing], candidate: Candidate, solution: Solution) -> Paced | None:
    """The shares with which a solution ends first; None where they are equal. Raises UnsupportedError as ``uneven``.

    Microbatches are equal and run one at a time, parameters and gradients are whole or cut alike: what a device holds
    does not depend on its share, and so memory, which the solver limits to the smallest device's, is no matter here.
    """
    pricing, cluster = encoded[1], bounds.cluster
    size = pricing.mesh.size(DATA_AXIS)
    kinds = {device: finish_of(bounds, pricing, candidate, solution, device) for device in cluster.devices}
    units = size * candidate.count
    devices = [cluster.device_of_rank(rank) for rank in range(size)]
    program = settled(bounds, encoded, candidate, solution)[1]
    shares = allocate(units, [Taker(finish_ns=kinds[device], most=units) for device in devices])
    if shares is None or len(set(shares)) == 1:
        return None
    ends = [(kinds[device](count), -rank) for rank, (device, count) in enumerate(zip(devices, shares, strict=True))]
    finish_ns, last = max(ends)
    finish_ns += sum(pricing.collective_ns(kind, size, DATA_AXIS) for kind, size in exchanged_once(program))
    return Paced(shares=shares, device=devices[-last], count=shares[-last], finish_ns=finish_ns)


def finish_of(bounds: Bounds, pricing: Pricing, candidate: Candidate, solution: Solution, device: str) -> Finish:
    """A device's time for any number of microbatches, from the problems of one and of two."""
    model = bounds.model_of(candidate)
    ground = Ground(model, replace(bounds.positions, inner=False), replace(pricing, device=device))
    one, two = (
        sums(build(model, ground.found, ground.pricing, count, ground=ground).problem, solution) for count in (1, 2)
    )
    return Finish(tuple((repeat, first, second) for (repeat, first), (_, second) in zip(one, two, strict=True)))


@dataclass(frozen=True)
class Finish:
    """``instances``: how often each runs in a step, and its sums for one microbatch and for two."""

    instances: tuple[tuple[int, Sums, Sums], ...]

    def __call__(self, count: int) -> int:
        total = 0
        for repeat, one, two in self.instances:
            sync = one.sync_ns + (count - 1) * (two.sync_ns - one.sync_ns)
            total += repeat * (sync + one.exposed_ns)
        return total


def sums(problem: Problem, solution: Solution) -> list[tuple[int, Sums]]:
    """Of each instance, with how often it runs in a step."""
    found = [(1, sums_of_instance(problem.root, solution.root))]
    for chain, runs in zip(problem.chains, solution.calls, strict=True):
        found += [(repeat, sums_of_instance(chain.segment, values)) for repeat, values in runs]
    return found
