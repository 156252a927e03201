"""All ranks run one plan on one model: rank 0 makes the plan, everyone gets its bytes and compares hashes first."""

from __future__ import annotations

import hashlib
import json

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.ir import errors
from autopar.ir.errors import AutoparError, MismatchError
from autopar.runtime.dtypes import as_real
from autopar.runtime.parameters import Whole


def share(data: bytes | AutoparError | None, device: torch.device) -> bytes:
    """Rank 0's bytes on every rank; if rank 0 failed, its error is raised on every rank, there as it was.

    A collective. ``data`` is ignored on other ranks.
    """
    payload = b""
    if dist.get_rank() == 0:
        payload = _failure(data) if isinstance(data, AutoparError) else b"+" + (data or b"")
    size = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    dist.broadcast(size, src=0)
    buffer = torch.empty(int(size), dtype=torch.uint8, device=device)
    if payload:
        buffer.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
    dist.broadcast(buffer, src=0)
    received = bytes(buffer.cpu().tolist())
    if received[:1] == b"!":
        raise data if isinstance(data, AutoparError) and dist.get_rank() == 0 else _revived(received[1:])
    return received[1:]


def agree(text: str, what: str, device: torch.device) -> None:
    """Raise MismatchError on every rank unless all gave the same ``text``. A collective."""
    digest = hashlib.sha256(text.encode()).digest()
    mine = torch.tensor(list(digest), dtype=torch.uint8, device=device)
    all_of = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of, mine)
    other = [rank for rank, theirs in enumerate(all_of) if not torch.equal(theirs, all_of[0])]
    if other:
        raise MismatchError(
            f"{what} of rank {other[0]} differs from that of rank 0; every rank must build the same model, "
            "with the same inputs, the same arguments and the same versions"
        )


def of_rank_0(whole: Whole, device: torch.device) -> Whole:
    """``whole`` of rank 0 on every rank: models drawn from unequal seeds would train to nonsense, without a word.

    Every call is a collective of all ranks.
    """
    if dist.get_world_size() == 1:
        return whole

    def shared(name: str) -> Tensor:
        tensor = whole(name).detach().to(device, copy=True).contiguous()
        dist.broadcast(as_real(tensor), src=0)
        return tensor

    return shared


def _failure(error: AutoparError) -> bytes:
    document = {"kind": type(error).__name__, "message": str(error), "details": error.details}
    return b"!" + json.dumps(document, default=str).encode()


def _revived(data: bytes) -> AutoparError:
    document = json.loads(data)
    kind = getattr(errors, document["kind"], AutoparError)
    made = kind(document["message"], details=document["details"])
    assert isinstance(made, AutoparError)
    return made
