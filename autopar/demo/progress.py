"""How far a run is: a bar on a terminal, a line every few steps elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from autopar.demo.training import Step, Task

LINES = 10
"""About how many lines stand for the bar where there is no terminal."""


def follow(console: Console, title: str, steps: Iterable[Step], task: Task) -> list[Step]:
    """Show ``steps`` while they are made and return them all."""
    every = max(1, task.steps // LINES)
    bar = _bar(console) if console.is_terminal else None
    made: list[Step] = []
    with bar or nullcontext():
        row = bar.add_task(title, total=task.steps, loss="", speed="") if bar else None
        for step in steps:
            made.append(step)
            loss, speed = f"loss {step.loss:.4f}", f"{tokens_per_second(made[-5:], task):,.0f} tokens/s"
            if bar and row is not None:
                bar.update(row, advance=1, loss=loss, speed=speed)
            elif step.number % every == 0 or step.number == task.steps - 1:
                console.print(f"{title}: step {step.number + 1}/{task.steps}  {loss}  {speed}")
    return made


def tokens_per_second(steps: list[Step], task: Task) -> float:
    """Of the median step, so that the first one, which warms up, does not count."""
    return task.tokens / sorted(step.seconds for step in steps)[len(steps) // 2]


def _bar(console: Console) -> Progress:
    words = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    figures = (TextColumn("{task.fields[loss]}"), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    return Progress(*words, *figures, console=console)
