"""What selective recomputation keeps: as priced before lowering, and as found in the lowered block."""

from __future__ import annotations

import pytest

from autopar.ir.graph import Graph, Value
from autopar.ir.recompute import communicates, is_expensive, once
from autopar.passes.pricing import local_bytes
from tests.parity.planned import Case, Planned, planned

CASES = [
    Case(model=model, mesh=mesh, recompute="selective", zero=0)
    for model in ("gpt2", "llama", "bert") for mesh in ("dp=2", "tp=2", "dp=2,tp=2")
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matrix_products_attention_and_collectives_run_once(case: Case) -> None:
    block = planned(case).program.graph.blocks[0]
    single = once(block)
    assert {node.results[0].name for node in block.nodes if is_expensive(node) or communicates(node)} == set(single)
    assert sum(is_expensive(node) for node in block.nodes) >= 5


def test_a_product_that_only_a_collective_reads_is_not_kept() -> None:
    """The sums of a row-parallel product are kept once, as the collective leaves them."""
    block = planned(Case(model="bert", mesh="tp=2", recompute="selective")).program.graph.blocks[0]
    single, producers = once(block), block.producers()
    summed = [node for node in block.nodes if communicates(node) and is_expensive(producers[str(node.operands[0])])]
    assert summed
    for node in summed:
        assert single[node.result.name] and not single[str(node.operands[0])]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_price_counts_what_is_kept(case: Case) -> None:
    """Bytes that the solver counts for a call, parameters apart, are those of the lowered block."""
    plan = planned(case)
    block = plan.program.graph.blocks[0]
    values = block.values()
    kept = [name for name, keeps in once(block).items() if keeps and not of_a_parameter(block, name)]
    carried = block.sources("input")[0].result.name
    expected = sum(nbytes(values[name]) for name in [*kept, carried])
    assert counted(plan) == expected


def of_a_parameter(block: Graph, name: str) -> bool:
    """Whether the value is a parameter in another layout."""
    node = block.producers()[name]
    while node.target.startswith("comm."):
        node = block.producers()[str(node.operands[0])]
    return node.target in ("param", "buffer")


def nbytes(value: Value) -> int:
    assert value.layout is not None
    return local_bytes(value.layout, value.type)


def counted(plan: Planned) -> int:
    """Bytes of the first call's tables, those of parameters left out."""
    chain, ((_, choice), *_) = plan.encoded.problem.chains[0], plan.solution.calls[0]
    variables = plan.encoded.variables[chain.segment.name]
    total = 0
    for table in chain.segment.tables:
        if table.bytes is not None and all(variables[v].kind != "source" for v in table.variables):
            total += int(table.bytes[tuple(choice[v] for v in table.variables)])
    return total
