"""The options that several commands share, as types of their parameters."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

_MODEL = "Model"
_SEARCH = "What the search may choose"
_OUTPUT = "Output"


class HalfPrecision(StrEnum):
    """Element types of mixed precision."""

    BF16 = "bf16"
    FP16 = "fp16"


class Recompute(StrEnum):
    """Whether blocks run their forward again in the backward."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Like(StrEnum):
    """The standard recipes."""

    DATA_PARALLEL = "data_parallel"
    ZERO3 = "zero3"
    MEGATRON = "megatron"
    GPIPE = "gpipe"
    HYBRID_3D = "hybrid_3d"


def _option(
    *names: str,
    metavar: str,
    text: str,
    panel: str | None = None,
    low: int | None = None,
    high: int | None = None,
) -> object:
    """An option whose default says nothing that the help does not."""
    return typer.Option(
        *names, metavar=metavar, help=text, show_default=False, rich_help_panel=panel, min=low, max=high
    )


MODEL_HELP = "zoo:NAME, hf:CONFIG, or package.module:function returning (model, example_inputs)."

Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of tables.", rich_help_panel=_OUTPUT)
]
Output: TypeAlias = Annotated[
    Path | None, _option("-o", "--output", metavar="FILE", text="Save the plan.", panel=_OUTPUT)
]
Model: TypeAlias = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
PlanFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A file that `autopar plan -o` wrote.", show_default=False)
]

BatchSize: TypeAlias = Annotated[
    int | None,
    _option("--batch-size", metavar="N", text="Global batch: sequences of one step.", panel=_MODEL, low=1),
]
SeqLen: TypeAlias = Annotated[
    int | None, _option("--seq-len", metavar="N", text="Tokens of a sequence.", panel=_MODEL, low=1)
]
Layers: TypeAlias = Annotated[
    int | None,
    _option("--layers", metavar="N", text="Depth, instead of the model's own.", panel=_MODEL, low=1),
]

ClusterSpec: TypeAlias = Annotated[
    str | None,
    _option(
        "--cluster",
        metavar="SPEC",
        text="NODESxGPUSxDEVICE\\[@RATE] such as 2x8xH100-SXM, or a file; default: this machine.",
    ),
]
ProfileSpec: TypeAlias = Annotated[
    str | None,
    _option("--profile", metavar="NAME|FILE", text="Cost profile; default: the built-in figures."),
]

MeshSpec: TypeAlias = Annotated[
    str | None,
    _option("--mesh", metavar="AXIS=N,...", text="Pin axes: dp=4,tp=8; -1 leaves one free.", panel=_SEARCH),
]
MemoryBudget: TypeAlias = Annotated[
    str | None,
    _option(
        "--memory-budget",
        metavar="SIZE",
        text="Per device: 60GiB, 64GB or plain bytes; default: 0.95 of the device's.",
        panel=_SEARCH,
    ),
]
Constraints: TypeAlias = Annotated[
    list[str] | None,
    _option(
        "--constraint",
        metavar="RULE",
        text="replicate:PATTERN, split:PATTERN:dim=0,axis=tp or stage:PATTERN:index=1, by the names of parameters or "
        "modules; may be repeated.",
        panel=_SEARCH,
    ),
]
Optimizer: TypeAlias = Annotated[
    str,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="What memory must hold: adamw, adam, sgd, sgd_momentum or adafactor.",
        rich_help_panel=_SEARCH,
    ),
]
MixedPrecision: TypeAlias = Annotated[
    HalfPrecision | None,
    _option("--mixed-precision", metavar="bf16|fp16", text="Default: as the model is.", panel=_SEARCH),
]
NumMicrobatches: TypeAlias = Annotated[
    int | None,
    _option("--num-microbatches", metavar="N", text="Pin the number of microbatches.", panel=_SEARCH, low=1),
]
Schedule: TypeAlias = Annotated[
    str | None, _option("--schedule", metavar="NAME", text="Pin the pipeline schedule.", panel=_SEARCH)
]
Zero: TypeAlias = Annotated[
    int | None, _option("--zero", metavar="0..3", text="Pin the ZeRO level.", panel=_SEARCH, low=0, high=3)
]
RecomputeMode: TypeAlias = Annotated[
    Recompute | None,
    _option("--recompute", metavar="none|selective|full", text="Pin recomputation of blocks.", panel=_SEARCH),
]
LikeRecipe: TypeAlias = Annotated[
    Like | None,
    _option("--like", metavar="RECIPE", text=f"Plan as a standard recipe does: {', '.join(Like)}.", panel=_SEARCH),
]
Rng: TypeAlias = Annotated[
    str,
    typer.Option("--rng", metavar="exact|fast", help="Dropout: alike on all plans, or fused.", rich_help_panel=_SEARCH),
]
TimeLimit: TypeAlias = Annotated[
    str,
    typer.Option(
        "--time-limit", metavar="TIME", rich_help_panel=_SEARCH,
        help="End the search: 60, 90s or 2min. Standard recipes get as long again.",
    ),
]
