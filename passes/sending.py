"""A pipeline's problem with what its stages send priced: the layout in which one call hands over to the next costs time
where a stage begins between them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopar.ir.layout import Layout
from autopar.passes.build import Encoded, Model
from autopar.passes.pipelining import Shape, transfer_ns
from autopar.passes.pricing import Pricing, local_bytes
from autopar.passes.problem import Chain, Table


def sending(model: Model, encoded: Encoded, pricing: Pricing, shape: Shape) -> Encoded:
    """``encoded`` where what goes into each call costs its share of all that stages send and receive, as if each of the
    places between two calls were as likely to be where a stage begins."""
    problem = encoded.problem
    share = 2 * (shape.stages - 1) / max(1, sum(chain.count for chain in problem.chains))

    def priced(chain: Chain) -> Chain:
        name, tables = chain.segment.name, []
        for variable in chain.inputs:
            known = encoded.variables[name][variable]
            kind = model.facts[name, known.name].type
            sizes = [local_bytes(value, kind) if isinstance(value, Layout) else 0 for value in known.values]
            costs = [round(share * 2 * shape.microbatches * transfer_ns(size, pricing)) for size in sizes]
            tables.append(Table(variables=(variable,), sync_ns=np.array(costs, dtype=np.int64)))
        return replace(chain, segment=replace(chain.segment, tables=(*chain.segment.tables, *tables)))

    return replace(encoded, problem=replace(problem, chains=tuple(map(priced, problem.chains))))
