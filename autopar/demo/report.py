"""The demo from its first line to its last."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from autopar.cli.output import progress, stdout, warn
from autopar.cli.plan_view import show_plan
from autopar.cli.tables import pairs, section
from autopar.demo import verdict
from autopar.demo.progress import follow, tokens_per_second
from autopar.demo.text import standard_library
from autopar.demo.training import Planned, Step, Task, make_model, train_parallel, train_plain
from autopar.ir.errors import UsageError
from autopar.ir.plan import Plan
from autopar.processes import conversation


def demonstrate(task: Task) -> None:
    """Plan and train, train again without autopar, compare. Raises ``VerificationError`` if they differ."""
    _check(task)
    console = stdout()
    _introduce(console, task)
    several = f"{task.processes} processes, planned"
    one = "1 process, plain PyTorch"
    made = conversation(train_parallel, task.processes, task)
    try:
        with progress("tracing the model and searching a plan"):
            planned = next(made)
        assert isinstance(planned, Planned)
        plan = Plan.from_bytes(planned.plan, where="the demo's plan")
        show_plan(plan)
        if task.processes > 1 and not plan.collectives:
            warn("at these sizes it is fastest to split nothing: every process does all the work")
        console.print(f"\nplanned and rewritten in {planned.seconds:.1f} s; training\n")
        parallel = follow(console, several, _steps(made), task)
    finally:
        made.close()
    plain = follow(console, one, train_plain(task), task)
    _conclude(console, task, {several: parallel, one: plain})
    verdict.judge([step.loss for step in parallel], [step.loss for step in plain])
    console.print("\nThe loss fell, and both runs trained the same model.")


def _check(task: Task) -> None:
    for name in ("layers", "width", "heads", "batch_size", "seq_len", "steps", "processes"):
        if getattr(task, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(task, name)}; it must be 1 or more")
    if task.width % task.heads:
        raise UsageError(f"--width {task.width} cannot be cut into {task.heads} heads; give --heads that divide it")


def _introduce(console: Console, task: Task) -> None:
    parameters = sum(parameter.numel() for parameter in make_model(task).parameters())
    console.print(pairs([
        ("model", f"GPT2LMHeadModel of Hugging Face, {task.layers} layers, {parameters / 1e6:.1f} M parameters"),
        ("text", f"Python's standard library, {len(standard_library()) / 1e6:.1f} MB, a token is a byte"),
        ("batch", f"{task.batch_size} sequences of {task.seq_len}, {task.steps} steps of AdamW, float32"),
    ]))  # fmt: skip
    console.print()


def _steps(said: Iterator[Planned | Step]) -> Iterator[Step]:
    for word in said:
        assert isinstance(word, Step)
        yield word


def _conclude(console: Console, task: Task, runs: dict[str, list[Step]]) -> None:
    rows = []
    for title, steps in runs.items():
        first, last = steps[0].loss, steps[-1].loss
        rows.append((title, f"loss {first:.4f} → {last:.4f}, {tokens_per_second(steps, task):,.0f} tokens/s"))
    losses, reference = ([step.loss for step in steps] for steps in runs.values())
    difference = verdict.largest_difference(losses, reference)
    rows.append(("largest difference", f"{difference:.2e} of {len(losses)} losses; allowed {verdict.LIMIT:.0e}"))
    console.print(section("Result", pairs(rows)))
