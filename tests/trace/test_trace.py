"""What a trace tells of a model: names, types, ties, structure; and that it leaves the model alone."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from autopar.ir.errors import UsageError
from autopar.ir.types import TensorType
from autopar.passes.canonicalize import canonicalize
from autopar.passes.trace import trace
from tests.trace.compare import assert_same
from tests.trace.interpreter import run, sources_of
from tests.trace.models import MLP, gpt2, llama

Pair = namedtuple("Pair", "first second")


def targets(graph: Any) -> set[str]:
    return {node.target for node in graph.nodes}


def test_nodes_carry_schema_names_defaults_left_out_and_the_source_line() -> None:
    graph = trace(MLP(), (torch.randn(4, 6),)).graph
    by_target = {node.target: node for node in graph.nodes}
    linear = next(node for node in graph.nodes if node.target == "aten.linear.default")
    assert linear.operands == ("x", "first_weight", "first_bias")
    assert linear.attrs == ()
    assert linear.result.type == TensorType("f32", (4, 8))
    assert linear.source.startswith("first models.py:")
    assert by_target["input"].attrs == (("name", "x"),)


def test_numbers_in_place_of_tensors_become_attributes() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2.0 * x + 1

    graph = trace(Scaled(), (torch.randn(3),)).graph
    mul, add = (node for node in graph.nodes if node.target != "input")
    assert (mul.operands, mul.attr("other")) == (("x",), 2.0)
    assert (add.operands, add.attr("other")) == (("mul",), 1)


def test_trace_leaves_the_model_as_it_was() -> None:
    model, inputs = gpt2()
    model.transformer.wpe.weight.requires_grad_(False)
    model.train()
    before = {name: (id(p), p.clone(), p.requires_grad) for name, p in model.named_parameters()}
    buffers = {name: id(b) for name, b in model.named_buffers()}
    assert model.config.use_cache
    traced = trace(model, inputs)
    assert model.config.use_cache
    assert model.training
    assert model.lm_head.weight is model.transformer.wte.weight
    assert buffers == {name: id(b) for name, b in model.named_buffers()}
    for name, parameter in model.named_parameters():
        identity, value, learns = before[name]
        assert identity == id(parameter)
        assert torch.equal(value, parameter)
        assert parameter.requires_grad == learns
    by_name = {info.fqn: info for info in traced.parameters}
    assert not by_name["transformer.wpe.weight"].trainable


def test_model_is_restored_when_the_trace_fails() -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    model = Bad()
    weight = model.w
    with pytest.raises(Exception, match="no"):
        trace(model, (torch.randn(3),))
    assert model.w is weight


def test_tied_parameter_stands_once_under_its_first_name() -> None:
    model, inputs = gpt2()
    traced = trace(model, inputs)
    tied = next(info for info in traced.parameters if info.aliases)
    assert (tied.fqn, tied.aliases) == ("transformer.wte.weight", ("lm_head.weight",))
    names = [node.attr("fqn") for node in traced.graph.sources("param")]
    assert names.count("transformer.wte.weight") == 1
    assert "lm_head.weight" not in names


def test_a_meta_model_gives_the_same_graph_as_a_real_one() -> None:
    model, inputs = llama()
    real = trace(model, inputs).graph
    with torch.device("meta"):
        other, _ = llama()
    assert trace(other, {k: v.to("meta") for k, v in inputs.items()}).graph == real


def test_meta_model_of_any_size_is_traced_without_memory() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1 << 20, 1 << 20, device="meta")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).sum()  # type: ignore[no-any-return]

    traced = trace(Wide(), (torch.empty(1 << 20, 1 << 20, device="meta"),))
    assert traced.graph.producers()[traced.graph.outputs[0]].target == "aten.sum.default"


def test_nested_inputs_and_outputs_keep_their_structure() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor, *, extra: dict[str, Any]) -> dict[str, Any]:
            y = x * self.w + extra["shift"][0]
            return {"pair": Pair(y, (x, None)), "name": "out", "list": [y.sum(), 3]}

    inputs = {"x": torch.randn(2, 3), "extra": {"shift": [torch.randn(3)], "flag": True}}
    traced, _ = assert_same(Nested(), inputs, tolerance=1e-6)
    assert traced.input_names == ("x", "extra.shift.0")
    restored = traced.out_spec.unflatten(["a", "b", "c"])
    assert restored == {"pair": Pair("a", ("b", None)), "name": "out", "list": ["c", 3]}


def test_model_outputs_are_restored_as_the_model_gave_them() -> None:
    model, inputs = gpt2()
    traced = trace(model, inputs)
    restored = traced.out_spec.unflatten(["loss", "logits"])
    assert type(restored).__name__ == type(model(**inputs)).__name__
    assert (restored.loss, restored["logits"]) == ("loss", "logits")
    assert traced.loss_output == 0


def test_a_call_that_is_nested_otherwise_is_refused() -> None:
    traced = trace(MLP(), (torch.randn(4, 6),))
    assert len(traced.in_spec.flatten_call((torch.randn(4, 6),), {})) == 1
    with pytest.raises(UsageError, match="example"):
        traced.in_spec.flatten_call((), {"x": torch.randn(4, 6)})


def test_keywords_may_come_in_any_order() -> None:
    model, inputs = gpt2()
    traced = trace(model, inputs)
    swapped = dict(reversed(inputs.items()))
    first, second = traced.in_spec.flatten_call((), swapped)
    assert first is inputs["input_ids"]
    assert second is inputs["labels"]


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_loss_function_takes_output_and_target(form: str) -> None:
    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output, target)

    x, target = torch.randn(4, 6).double(), torch.randn(4, 3).double()
    model = MLP().double()
    if form == "tuple":
        traced, _ = assert_same(model, (x, target), loss_fn=loss_fn)
    else:
        traced = trace(model, {"x": x, "target": target}, loss_fn=loss_fn)
    assert traced.input_names == ("x", "target")
    assert traced.loss_output == 0
    assert traced.parameters[0].fqn == "first.weight"


def test_loss_function_without_a_target_is_refused() -> None:
    with pytest.raises(UsageError, match="target"):
        trace(MLP(), {"x": torch.randn(4, 6)}, loss_fn=nn.functional.mse_loss)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", "bf16"), ("fp16", "f16")])
def test_mixed_precision_retypes_parameters_and_float_inputs_but_no_buffers(name: str, dtype: str) -> None:
    class WithBuffer(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(3), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            hidden = torch.finfo(y.dtype).min
            return y.masked_fill(y > 3, hidden).to(self.scale.dtype) * self.scale  # type: ignore[operator, arg-type]

    traced = trace(WithBuffer(), (torch.randn(4, 6),), mixed_precision=name)
    assert {node.result.type.dtype for node in traced.graph.sources("param")} == {dtype}
    assert traced.graph.sources("input")[0].result.type.dtype == dtype
    by_name = {info.fqn: info for info in traced.parameters}
    assert by_name["first.weight"].type.dtype == "f32"
    assert by_name["first.weight"].compute_dtype == dtype
    buffer = by_name["scale"]
    assert (buffer.compute_dtype, buffer.buffer, buffer.persistent) == ("f32", True, False)
    fill = next(node for node in traced.graph.nodes if node.target == "aten.masked_fill.Scalar")
    assert fill.attr("value") == torch.finfo({"bf16": torch.bfloat16, "f16": torch.float16}[dtype]).min


def test_constants_are_lifted_and_single_numbers_written_in() -> None:
    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.tensor(2.0) + self.table

    traced, graph = assert_same(Constants(), (torch.randn(2, 3).double(),))
    assert list(traced.constants) == ["table"]
    assert "aten.full.default" in targets(traced.graph)
    assert "constant" in targets(graph)


def test_no_grad_regions_are_inlined_and_cut_gradients() -> None:
    class Stopped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                scale = (self.w * x).abs().sum() + 1
                table = x * 2
            return self.w / scale + table + (self.w * 2).detach()

    traced, graph = assert_same(Stopped(), (torch.randn(3).double(),))
    cut = [node for node in traced.graph.nodes if node.target == "autopar.detach"]
    assert len(cut) == 1
    assert sum(node.target == "autopar.detach" for node in graph.nodes) == 2


@pytest.mark.parametrize("decorated", [False, True])
def test_inference_mode_cuts_gradients_as_no_grad_does(decorated: bool) -> None:
    """Which torch.export leaves no trace of."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.head = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if decorated:
                hidden = torch.inference_mode()(self.trunk)(x)
            else:
                with torch.inference_mode():
                    hidden = self.trunk(x)
            with torch.inference_mode(False):
                made: torch.Tensor = self.head(hidden.clone())
            return made.sum()

    model = Frozen()
    traced, _ = assert_same(model, (torch.randn(5, 3).double(),))
    assert [node.target for node in traced.graph.nodes].count("autopar.detach") >= 1
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()


def test_dropout_is_kept_in_training_and_gone_otherwise() -> None:
    model, inputs = gpt2(resid_pdrop=0.1)
    model.train()
    assert "aten.dropout.default" in targets(canonicalize(trace(model, inputs).graph))
    model.eval()
    assert "aten.dropout.default" not in targets(canonicalize(trace(model, inputs).graph))


def test_inputs_and_unused_parameters_are_told() -> None:
    class Lazy(MLP):
        def forward(self, x: torch.Tensor, unused: torch.Tensor | None = None) -> torch.Tensor:
            return self.first(x)  # type: ignore[no-any-return]

    traced = trace(Lazy(), (torch.randn(4, 6), torch.randn(2)))
    assert traced.input_names == ("x", "unused")
    assert len(traced.graph.sources("input")) == 2
    assert len(traced.parameters) == 4
    assert len(traced.graph.sources("param")) == 2


def test_dataclass_registered_with_torch_is_an_output() -> None:
    @dataclasses.dataclass
    class Result:
        value: torch.Tensor
        loss: torch.Tensor

    torch.export.register_dataclass(Result)

    class Model(MLP):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return Result(y, y.sum())

    traced = trace(Model(), (torch.randn(4, 6),))
    assert traced.loss_output == 1
    assert traced.out_spec.unflatten([1, 2]) == Result(1, 2)  # type: ignore[arg-type]


@pytest.mark.slow
def test_graph_is_the_same_in_every_process() -> None:
    code = (
        "import hashlib, torch\n"
        "from autopar.passes.canonicalize import canonicalize\n"
        "from autopar.passes.trace import trace\n"
        "from tests.trace.models import MLP\n"
        "graph = canonicalize(trace(MLP(), (torch.ones(4, 6),)).graph)\n"
        "print(hashlib.sha256(repr(graph).encode()).hexdigest())\n"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        for _ in "ab"
    }
    assert len(runs) == 1


def test_results_have_the_types_that_the_graph_states() -> None:
    model, inputs = llama()
    traced = trace(model, inputs, mixed_precision="bf16")
    graph = canonicalize(traced.graph)
    sources = sources_of(model.bfloat16(), traced, list(inputs.values()))
    for info in traced.parameters:
        if info.buffer:
            sources[info.fqn] = sources[info.fqn].float()
    assert len(run(graph, sources)) == 2  # `run` checks every type


@torch.library.custom_op("autopar_tests::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


tripled.register_fake(torch.empty_like)
tripled.register_autograd(lambda ctx, grad: grad * 3)


def test_registered_operators_are_kept_whole() -> None:
    class Model(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.autopar_tests.tripled(super().forward(x))  # type: ignore[no-any-return]

    _, graph = assert_same(Model().double(), (torch.randn(4, 6).double(),))
    assert "autopar_tests.tripled.default" in targets(graph)


def test_batch_norm_is_sums_over_the_batch_and_changes_its_buffers() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).double()
    traced, graph = assert_same(model, (torch.randn(4, 6).double(),))
    assert "aten.batch_norm.default" not in targets(graph)
    assert sum(node.target == "autopar.assign" for node in graph.nodes) == 1
    assert traced.updates == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
