"""The tables of a cost profile: every key, its unit and its range.

Every number is optional here, because a file may hold any subset; whoever needs a number that is absent
raises an error that names it. Units are the end of each key; GB = 10^9 bytes, MiB = 2^20 bytes.
"""

from __future__ import annotations

import datetime
import itertools
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from autopar.cost_model.dtypes import Dtype
from autopar.cost_model.toml_file import StrictTable


def _iso(value: object) -> object:
    """A TOML date as the text it is written as, so that quoted and bare dates are one."""
    return value.isoformat() if isinstance(value, datetime.date) else value


Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Date = Annotated[str, BeforeValidator(_iso)]
Share = Annotated[float, Field(ge=0, le=1)]


class Sourced(StrictTable):
    """Where and when the numbers of a table were found."""

    source: str | None = None
    date: Date | None = None


class Device(Sourced):
    """One accelerator or CPU process: dense peak rates, memory, links."""

    fp8_tflops: Positive | None = None
    bf16_tflops: Positive | None = None
    fp16_tflops: Positive | None = None
    tf32_tflops: Positive | None = None
    fp32_tflops: Positive | None = None
    fp64_tflops: Positive | None = None
    use_tf32: bool | None = None
    """True: float32 work runs at ``tf32_tflops``, as with torch's ``allow_tf32``."""
    measured_bf16_tflops: Positive | None = None
    """A measured matrix product; over ``bf16_tflops`` it is the efficiency of matmul without a curve."""
    memory_gb: Positive | None = None
    memory_mib: Positive | None = None
    """What the driver reports; wins over ``memory_gb``."""
    memory_tb_s: Positive | None = None
    measured_copy_tb_s: Positive | None = None
    """Measured device copy, bytes read and written; wins over ``memory_tb_s``."""
    mixed_giga_elements_s: Positive | None = None
    """Elementwise ops whose tensors differ in shape or floating-point type: elements a second, where a GPU takes them
    one by one; without it they are priced as all others."""
    intra: str | None = None
    """The link inside a node."""
    inter: str | None = None
    """The usual link between nodes, ``nics_per_node`` of them."""
    nics_per_node: Count | None = None
    overlap_fraction: Share | None = None
    """The share of compute time behind which communication can hide."""


class Link(Sourced):
    """One direction of one GPU's link, or of one network port."""

    bandwidth_gb_s: Positive | None = None
    latency_us: Positive | None = None
    """One hop of a ring."""
    base_latency_us: Positive | None = None
    """One start of a collective; without it a collective costs its hops alone."""
    usable_fraction: Fraction | None = None
    """The part of the bandwidth that payload gets; without it all of it."""


class Curve(Sourced):
    """A figure by problem size; ``device`` and ``dtype`` narrow what it applies to."""

    device: str | None = None
    dtype: Dtype | None = None


def _check_axis(key: str, sizes: list[float], other_key: str, others: list[float]) -> None:
    if not sizes or len(sizes) != len(others):
        raise ValueError(
            f"has {len(sizes)} {key} and {len(others)} {other_key}, expected as many, at least 1"
        )
    if any(low >= high for low, high in itertools.pairwise(sizes)):
        raise ValueError(f"has {key} that do not rise, expected each greater than the one before")


class Efficiency(Curve):
    """Fraction of peak of an op class by flops of one op; interpolated in log(flops), constant outside."""

    flops: list[Positive]
    fraction: list[Fraction]

    @model_validator(mode="after")
    def _same_length(self) -> Efficiency:
        _check_axis("flops", self.flops, "fraction", self.fraction)
        return self


class MeasuredOp(Curve):
    """Measured seconds of one op by its flops, or by its bytes; they win over the formula.

    Interpolated between points in the logarithm of both. Below the first point its seconds hold; above the
    last the seconds grow in proportion. The same table serves forward and backward, each by its own size. A
    table without any of the three measures nothing.
    """

    flops: list[Positive] | None = None
    bytes: list[Positive] | None = None
    seconds: list[Positive] | None = None

    @model_validator(mode="after")
    def _one_axis(self) -> MeasuredOp:
        if self.flops is None and self.bytes is None and self.seconds is None:
            return self
        if (self.flops is None) == (self.bytes is None):
            raise ValueError("needs either flops or bytes beside seconds, one of the two")
        key = "bytes" if self.flops is None else "flops"
        _check_axis(key, self.flops or self.bytes or [], "seconds", self.seconds or [])
        return self


class Optimizer(Sourced):
    """What an optimizer keeps for one parameter tensor."""

    states: Natural | None = None
    """Full tensors of the parameter's shape."""
    factored: bool | None = None
    """From two dims on, one row and one column tensor instead of a full one."""
    state_dtype: Literal["parameter", Dtype] | None = None
    tensor_bytes: Natural | None = None
    """Once per parameter tensor."""


class Memory(Sourced):
    """Margins of a device's memory."""

    budget_fraction: Fraction | None = None


class Overlap(Sourced):
    """For devices without an ``overlap_fraction`` of their own."""

    fraction: Share | None = None


class Experts(Sourced):
    """How a router shares tokens out among experts."""

    imbalance: Annotated[float, Field(ge=1)] | None = None
    """Rows of the device with most of them over the mean, where experts are split over devices."""


class Nccl(Sourced):
    """Reference figures of NCCL, for comparison with measurements; pricing does not read them."""

    latency_us: dict[str, list[Positive]] = Field(default_factory=dict)
    bandwidth_fraction: dict[str, Fraction] = Field(default_factory=dict)
    ll_cap_gb_s: dict[str, Positive] = Field(default_factory=dict)
    per_link_gb_s: dict[str, Positive] = Field(default_factory=dict)
    measured_busbw_gb_s: dict[str, list[Positive]] = Field(default_factory=dict)
    measured_latency_us: dict[str, list[Positive]] = Field(default_factory=dict)


class ProfileData(StrictTable):
    """A whole cost profile."""

    device: dict[str, Device] = Field(default_factory=dict)
    link: dict[str, Link] = Field(default_factory=dict)
    efficiency: dict[str, Efficiency] = Field(default_factory=dict)
    op: dict[str, MeasuredOp] = Field(default_factory=dict)
    optimizer: dict[str, Optimizer] = Field(default_factory=dict)
    memory: Memory = Memory()
    overlap: Overlap = Overlap()
    experts: Experts = Experts()
    nccl: Nccl = Nccl()
