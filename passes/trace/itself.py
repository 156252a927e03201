"""Operations that may give back the very tensor that they are given.

torch.export then takes that tensor for their result wherever it is used later. It keeps its gradient, under ``no_grad``
too, where a view of it would have none.
"""

from __future__ import annotations

from typing import Any

from torch import fx

_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout")
_MAY = ("to", "type_as", "contiguous", "positive", "real", "resolve_conj", "flatten", *_DROPOUTS)


def gives_itself(node: fx.Node, name: str) -> bool:
    """Whether the result of the operation called ``name`` is its first argument as it is."""
    operation = name.split(".")[1]
    if operation not in _MAY:
        return False
    if operation in _DROPOUTS and not all(node.args[1:3]):  # nothing is dropped; a trace makes a tensor nevertheless
        return True
    given: Any = node.args[0]
    before, made = given.meta["val"], node.meta["val"]
    return bool(
        made.untyped_storage()._cdata == before.untyped_storage()._cdata
        and (made.dtype, made.shape, made.stride()) == (before.dtype, before.shape, before.stride())
        and made.storage_offset() == before.storage_offset()
    )
