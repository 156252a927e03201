"""What one kind of op runs at on one device, looked up once: peak, efficiency, bandwidth, seconds."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autopar.cost_model.curves import LogCurve
from autopar.cost_model.dtypes import peak_key
from autopar.cost_model.profile import CostProfile
from autopar.cost_model.profile_schema import Curve, MeasuredOp

EfficiencySource: TypeAlias = Literal[
    "hook", "measured_seconds", "curve", "measured_rate", "peak", "bytes_only"
]

MATMUL_CLASS = "matmul"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """``s_per_flop`` is at the constant efficiency, or at peak where ``efficiency`` is a curve.

    ``s_per_flop`` None: the profile does not hold the peak ``peak_key``. ``measured_s`` over flops or, if
    ``measured_by_bytes``, over bytes. ``source`` is how the op is priced.
    """

    s_per_flop: float | None
    peak_key: str | None
    s_per_byte: float | None
    s_per_mixed_element: float
    efficiency: LogCurve | None
    measured_s: LogCurve | None
    measured_by_bytes: bool
    source: EfficiencySource


@functools.lru_cache(maxsize=65536)
def rates(profile: CostProfile, device: str, dtype: str, op_class: str, target: str) -> Rates:
    """The rates of ops of this kind. Raises ``UsageError`` for an unknown device or element type."""
    table = profile.device(device)
    key = peak_key(dtype)
    if key == "fp32_tflops" and table.use_tf32:
        key = "tf32_tflops"
    measured = profile.data.op.get(target)
    if measured is not None and (measured.seconds is None or not _applies(measured, device, dtype)):
        measured = None
    curve = profile.data.efficiency.get(op_class)
    if curve is not None and not _applies(curve, device, dtype):
        curve = None

    fraction = 1.0
    source: EfficiencySource = "bytes_only" if key is None else "peak"
    if key is not None and curve is not None:
        source = "curve"
    elif key is not None and op_class == MATMUL_CLASS and table.measured_bf16_tflops is not None:
        fraction = table.measured_bf16_tflops / profile.device_number(device, "bf16_tflops")
        source = "measured_rate"
    peak_tflops: float | None = None if key is None else getattr(table, key)
    copy_tb_s = table.measured_copy_tb_s or table.memory_tb_s
    return Rates(
        s_per_flop=0.0 if key is None else peak_tflops and 1.0 / (peak_tflops * 1e12 * fraction),
        peak_key=key,
        s_per_byte=copy_tb_s and 1.0 / (copy_tb_s * 1e12),
        s_per_mixed_element=1.0 / (table.mixed_giga_elements_s * 1e9) if table.mixed_giga_elements_s else 0.0,
        efficiency=None if curve is None else LogCurve(curve.flops, curve.fraction),
        measured_s=_measured_curve(measured),
        measured_by_bytes=measured is not None and measured.bytes is not None,
        source="measured_seconds" if measured is not None else source,
    )


def _measured_curve(measured: MeasuredOp | None) -> LogCurve | None:
    if measured is None:
        return None
    sizes = measured.flops or measured.bytes or []
    return LogCurve(sizes, measured.seconds or [], value_axis="log", grows_past_end=True)


def _applies(curve: Curve, device: str, dtype: str) -> bool:
    return curve.device in (None, device) and curve.dtype in (None, dtype)
