"""A model with an operation of the user's own: repeated by every device, or split as a registered rule says."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import autopar
from autopar import Plan, errors
from autopar.arguments import Arguments, check
from autopar.cli import main
from autopar.compiling import ready
from autopar.finding import find_plan, lower_plan
from autopar.ir.program import Program
from autopar.ir.registry import REGISTERED
from autopar.runtime.parity import compare
from autopar.runtime.simulate import simulate
from tests.harness import run_processes
from tests.parity.processes import NETWORKS
from tests.rules.custom_ops import MIX, PAIR, SQUASH, batch, net

FAIR = str(NETWORKS / "fair.toml")
MESHES = [{"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2}]
RULE = "*b d, d -> *b d"


@pytest.fixture(autouse=True)
def _unregistered() -> Iterator[None]:
    yield
    REGISTERED.clear()


def arguments(mesh: dict[str, int]) -> Arguments:
    devices = 1
    for size in mesh.values():
        devices *= size
    return check(cluster=f"1x{devices}xCPU", mesh=mesh, profile=FAIR, num_microbatches=1)


def planned(mesh: dict[str, int], *, mixed: bool = False) -> tuple[Plan, Program]:
    given = arguments(mesh)
    return find_plan(ready(net(mixed=mixed), batch(), given), given)


def gradients(*, mixed: bool = False) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model = net(mixed=mixed)
    loss = model(**batch())
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def is_right(program: Program, *, mixed: bool = False) -> None:
    loss, expected = gradients(mixed=mixed)
    state = {name: p.detach() for name, p in net(mixed=mixed).named_parameters()}
    found = simulate(program, batch(), state)
    assert found.loss is not None
    compare({"loss": found.loss}, {"loss": loss}, tol=1e-10, what="loss")
    compare(found.gradients, expected, tol=1e-10, what="gradients")


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("mixed", [False, True], ids=["one", "three"])
def test_an_island_computes_what_one_device_does(mesh: dict[str, int], mixed: bool) -> None:
    """Its operand is gathered, every device does all of it, and its gradient is whole."""
    with pytest.warns(errors.IslandWarning):
        plan, program = planned(mesh, mixed=mixed)
    assert [(i.op, i.count) for i in plan.islands] == [(op, 1) for op in ([MIX, PAIR] if mixed else []) + [SQUASH]]
    assert all(0 < island.flops_share < 1 for island in plan.islands)
    (node,) = [n for n in program.graph.nodes if n.target == SQUASH]
    assert node.result.layout is not None
    assert not any(node.result.layout.owners(dim) for dim in (0, 1))
    is_right(program, mixed=mixed)


def test_the_warning_names_the_operation_once_with_its_line_and_what_to_do() -> None:
    """Per plan; a single device repeats nothing and hears nothing."""
    with pytest.warns(errors.IslandWarning) as caught:
        planned({"dp": 2})
    (message,) = [str(warning.message) for warning in caught]
    assert re.search(rf"{SQUASH} has no sharding rule.*once a step, first at custom_ops\.py:\d+", message)
    assert f"autopar.register_rule('{SQUASH}', RULE)" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned({"dp": 1})


def test_an_island_costs_all_of_its_bytes_on_every_device() -> None:
    """Twice the devices do not make it faster, a rule does."""
    with pytest.warns(errors.IslandWarning):
        two, _ = planned({"dp": 2})
    with pytest.warns(errors.IslandWarning):
        four, _ = planned({"dp": 4})
    assert four.islands[0].flops_share > two.islands[0].flops_share
    autopar.register_rule(SQUASH, RULE)
    assert planned({"dp": 4})[0].objective_s < four.objective_s


def test_operations_of_lists_and_several_results_are_split_by_their_rules_too() -> None:
    """Those before and behind an island, which alone is repeated."""
    autopar.register_rule(SQUASH, RULE)
    autopar.register_rule(PAIR, "*b, *b -> *b, *b", check=True, example=([torch.randn(4, 6), torch.randn(4, 6)],))
    with pytest.warns(errors.IslandWarning, match=MIX):
        plan, program = planned({"dp": 2}, mixed=True)
    assert [island.op for island in plan.islands] == [MIX]
    is_right(program, mixed=True)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_registered_rule_splits_the_operation(mesh: dict[str, int]) -> None:
    """And the result is that of one device, without a warning."""
    autopar.register_rule(SQUASH, RULE, check=True)
    plan, program = planned(mesh)
    assert plan.islands == ()
    assert plan.fingerprint.rules == {SQUASH: RULE + ", saves=('all',)"}
    (node,) = [n for n in program.graph.nodes if n.target == SQUASH]
    assert node.result.layout is not None
    assert {axis for dim in (0, 1) for _, _, axis in node.result.layout.owners(dim)} == set(mesh)
    is_right(program)


def test_a_rule_that_says_replicated_is_kept_whole_without_a_warning() -> None:
    autopar.register_rule(SQUASH, "replicated")
    plan, program = planned({"dp": 2})
    assert plan.islands == ()
    is_right(program)


def test_a_rule_that_does_not_fit_the_model_is_quoted_with_the_line() -> None:
    autopar.register_rule(SQUASH, "a b d, d -> a b d")
    with pytest.raises(errors.UsageError, match=r"'a b d, d -> a b d', does not fit its use at custom_ops\.py:\d+"):
        planned({"dp": 2})


def test_a_plan_made_with_a_rule_is_refused_where_the_rule_is_missing_or_other() -> None:
    """Both ways: the plan's rule and the process's are shown."""
    autopar.register_rule(SQUASH, RULE)
    plan, _ = planned({"dp": 2})
    given = arguments({"dp": 2})
    lower_plan(ready(net(), batch(), given), plan, given)
    REGISTERED.clear()
    with pytest.raises(errors.MismatchError, match=rf"rule of {SQUASH}.* this process has none registered"):
        lower_plan(ready(net(), batch(), given), plan, given)
    autopar.register_rule(SQUASH, "*b !d, !d -> *b !d")
    with pytest.raises(errors.MismatchError, match=r"`\*b d, d -> \*b d,.*this process has `\*b !d, !d -> \*b !d,"):
        lower_plan(ready(net(), batch(), given), plan, given)
    REGISTERED.clear()
    with pytest.warns(errors.IslandWarning):
        bare, _ = planned({"dp": 2})
    autopar.register_rule(SQUASH, RULE)
    with pytest.raises(errors.MismatchError, match="the plan was made with none registered"):
        lower_plan(ready(net(), batch(), given), bare, given)


def trained(mesh: dict[str, int], rule: str | None) -> dict[str, Any]:
    """Loss and whole gradients, on this rank."""
    if rule is not None:
        autopar.register_rule(SQUASH, rule)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = autopar.parallelize(net(), batch(), mesh=mesh, profile=FAIR)
    parts: Any = model.shard_inputs(batch())
    loss = model.train_step(**parts)
    grads = {name: p.grad.full_tensor() for name, p in model.named_parameters() if p.grad is not None}  # type: ignore[attr-defined]
    told = sum(issubclass(warning.category, errors.IslandWarning) for warning in caught)
    return {"loss": loss, "gradients": grads, "told": told, "rank": dist.get_rank()}


@pytest.mark.parametrize(("mesh", "rule"), [({"dp": 2}, None), ({"tp": 2}, None), ({"dp": 2, "tp": 2}, RULE)], ids=str)
def test_on_processes_a_custom_operation_trains_as_on_one_device(mesh: dict[str, int], rule: str | None) -> None:
    """With and without a rule; rank 0 alone warns."""
    loss, expected = gradients()
    for found in run_processes(4 if len(mesh) > 1 else 2, trained, mesh, rule):
        compare({"loss": found["loss"]}, {"loss": loss}, tol=1e-10, what="loss")
        compare(found["gradients"], expected, tol=1e-10, what="gradients")
        assert found["told"] == (rule is None and found["rank"] == 0)


def registered_on_rank_0() -> str:
    if dist.get_rank() == 0:
        autopar.register_rule(SQUASH, RULE)
    try:
        autopar.parallelize(net(), batch(), mesh={"dp": 2}, profile=FAIR)
    except errors.MismatchError as error:
        return str(error)
    return ""


def test_a_rule_on_one_rank_alone_is_refused_on_every_rank() -> None:
    first, second = run_processes(2, registered_on_rank_0)
    assert "another rank" in first
    assert f"rule of {SQUASH}" in second


def test_the_plan_file_keeps_the_rules(tmp_path: Path) -> None:
    autopar.register_rule(SQUASH, RULE)
    plan, _ = planned({"dp": 2})
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").fingerprint.rules == plan.fingerprint.rules


def test_the_command_line_shows_the_warning_as_one_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a line of autopar's source; the plan lists the island."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code = main(["plan", "tests.rules.custom_ops:example", "--cluster", "1x2xCPU", "--mesh", "dp=2"])
    out, err = capsys.readouterr()
    assert code == 0
    assert err.startswith(f"warning: {SQUASH} has no sharding rule")
    assert "IslandWarning" not in err
    assert SQUASH in out
