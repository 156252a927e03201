"""Fill a batch up to the planned number of rows with rows that count for nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autopar.ir.errors import UsageError
from autopar.ir.padding import Padding
from autopar.runtime.inputs import Input


def padded(
    expected: Mapping[str, Input], given: Mapping[str, Tensor], padding: Padding, *, whole: bool
) -> dict[str, Tensor]:
    """``given`` with rows added at its end: labels that are ignored, and copies of the last row elsewhere.

    A copy, not zeros: what is finite for a row of the data is finite for it, so that its gradient is zero, not NaN.
    Inputs without a batch, and inputs that do not fit in another dim, stay as they are. Raises UsageError for more
    rows than planned, none, or different numbers of them, and where adding rows would change the result.
    """
    found = dict(given)
    rows = {name: given[name].shape[0] for name in padding.batch if name in given and given[name].dim()}
    planned = {name: (expected[name].type.shape if whole else expected[name].local_shape)[0] for name in rows}
    if all(rows[name] == planned[name] for name in rows):
        return found
    first = next(iter(rows))
    for name, count in rows.items():
        if count != rows[first]:
            raise UsageError(f"input {name} has {count} rows, input {first} has {rows[first]}")
        if not 0 < count <= planned[name]:
            raise UsageError(f"input {name} has {count} rows; between 1 and {planned[name]} can be padded")
    if padding.refused:
        raise UsageError(
            f"a batch of {rows[first]} rows cannot be padded to {planned[first]} without changing the loss: "
            f"{padding.refused}. Leave the last batch out (drop_last=True), or plan for its size"
        )
    for name, count in rows.items():
        missing = planned[name] - count
        last = given[name][-1:].expand(missing, *given[name].shape[1:])
        if name in padding.labels:
            last = torch.full_like(last, padding.labels[name])
        found[name] = torch.cat([given[name], last])
    return found
