"""Traced and canonical graphs compute what real models compute: outputs, loss, every gradient."""

from __future__ import annotations

import pytest
import torch

from autopar.passes.trace import trace
from tests.trace.compare import assert_same, doubled
from tests.trace.interpreter import run, sources_of
from tests.trace.models import EAGER, TRANSFORMERS

# These cast to float32 inside.
LOOSE = dict.fromkeys(["gpt2", "gpt2_eager", "llama", "llama_padded", "mistral", "llama_eager", "t5"], 1e-6)


@pytest.mark.parametrize("name", [*TRANSFORMERS, *EAGER])
def test_graphs_compute_outputs_and_gradients_of_the_model(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = {**TRANSFORMERS, **EAGER}[name]()
    assert_same(model.double(), doubled(inputs), tolerance=LOOSE.get(name, 1e-12))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_gradients_of_the_loss_are_those_of_the_model(name: str) -> None:
    torch.manual_seed(1)
    model, inputs = TRANSFORMERS[name]()
    traced = trace(model.double(), inputs)
    assert traced.loss_output == 0
    sources = sources_of(model, traced, list(inputs.values()))
    run(traced.graph, sources)[0].backward()
    model(**inputs).loss.backward()
    for fqn, parameter in model.named_parameters():
        got, want = sources[fqn].grad, parameter.grad
        assert got is not None
        assert want is not None
        assert torch.allclose(got, want, rtol=0, atol=1e-6), fqn
