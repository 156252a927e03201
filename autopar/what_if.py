"""What another memory, network, number of devices or batch would change: the same question asked again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autopar.arguments import check
from autopar.cost_model import Cluster, default_budget_bytes, parse_bytes, parse_rate_bytes_s
from autopar.finding import find_plan
from autopar.ir.errors import UsageError
from autopar.ir.plan import Plan
from autopar.replay import keywords_of, prepared_of

FORMS = (
    "memory=+16GiB (or -8GB, or 64GiB), bandwidth.inter=100Gb/s, bandwidth.intra=300GB/s, devices=16 (or a cluster "
    "such as 2x8xH100-SXM), batch=1024"
)
# Keywords of ``arguments.check``.
Keywords = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """``key=value``; ``str`` is the inverse of ``parse``."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"

    @classmethod
    def parse(cls, text: str) -> Change:
        """Raises UsageError with the forms for anything else."""
        key, equals, value = text.partition("=")
        if not equals or key not in _CHANGES or not value:
            raise UsageError(f"--what-if {text}: not a change; write {FORMS}", details={"option": "--what-if"})
        return cls(key, value)


def changed(keywords: Keywords, changes: Sequence[Change]) -> dict[str, Any]:
    """The keywords with every change made, in order. Raises UsageError for a value that its key cannot have."""
    found = dict(keywords)
    for change in changes:
        try:
            found |= _CHANGES[change.key](found, change.value)
        except UsageError as error:
            raise UsageError(f"--what-if {change}: {error}", details={"option": "--what-if"}) from None
    return found


def ask(
    plan: Plan, changes: Sequence[Change], *, profile: Any = None, time_limit: float = 60.0, model: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Plan:  # fmt: skip
    """The plan that a fresh search finds under the changes, all else as it was asked then.

    ``model``: what a change of the batch is traced from, where the plan's name does not say it. Raises what a search
    raises, and UsageError for a batch of a model that cannot be built again.
    """
    keywords = changed(keywords_of(plan, profile=profile), changes)
    keywords |= {"time_limit": time_limit, "progress": progress}
    if "batch_size" in keywords["sizes"] and any(change.key == "batch" for change in changes):
        return _traced_anew(plan, keywords, model)
    arguments = check(**keywords)
    found, _ = find_plan(prepared_of(plan, arguments), arguments, compare=bool(plan.recipes))
    return found


def _traced_anew(plan: Plan, keywords: dict[str, Any], model: str | None) -> Plan:
    """Another batch has other shapes everywhere."""
    spec = model or plan.model
    if ":" not in spec:
        raise UsageError(
            f"the plan of {plan.model} does not say how to build the model, which another batch needs: name it with "
            "--model (zoo:NAME, hf:CONFIG, or package.module:function)"
        )
    from autopar import api
    from autopar.models import resolve

    found = resolve(spec, **keywords["sizes"])
    return api.plan(found.model, found.example_inputs, **{**keywords, "name": plan.model}, recipes=bool(plan.recipes))


def _memory(keywords: Keywords, value: str) -> dict[str, Any]:
    sign, size = (value[0], value[1:]) if value[0] in "+-" else ("", value)
    given = parse_bytes(size)
    if not sign:
        return {"memory_budget": given}
    now = keywords["memory_budget"] or default_budget_bytes(keywords["cluster"], keywords["profile"])
    then = now + given if sign == "+" else now - given
    if then <= 0:
        raise UsageError(f"nothing would be left of the {now / 1e9:.4g} GB that may be used")
    return {"memory_budget": then}


def _inter(keywords: Keywords, value: str) -> dict[str, Any]:
    cluster: Cluster = keywords["cluster"]
    network = replace(cluster.network, bandwidth_bytes_s=parse_rate_bytes_s(value))
    return {"cluster": replace(cluster, network=network)}


def _intra(keywords: Keywords, value: str) -> dict[str, Any]:
    profile, rate_bytes_s = keywords["profile"], parse_rate_bytes_s(value)
    for group in keywords["cluster"].nodes:
        profile = profile.with_bandwidth(group.intra or profile.device_link(group.device, "intra"), rate_bytes_s)
    return {"profile": profile}


def _devices(keywords: Keywords, value: str) -> dict[str, Any]:
    """A cluster, or so many devices on nodes as there are."""
    if not value.isdecimal():
        return {"cluster": Cluster.load(value)}
    cluster, wanted = keywords["cluster"], int(value)
    if not cluster.is_homogeneous:
        raise UsageError("a number of devices is not enough where nodes differ: name a cluster file")
    (group, *_), near = cluster.nodes, cluster.gpus_per_node
    if wanted < 1 or (wanted > near and wanted % near):
        raise UsageError(f"{wanted} devices do not fill nodes of {near}: take a multiple, or name a cluster")
    made = replace(group, count=max(1, wanted // near), gpus=min(near, wanted))
    return {"cluster": replace(cluster, nodes=(made,))}


def _batch(keywords: Keywords, value: str) -> dict[str, Any]:
    if not value.isdecimal() or int(value) < 1:
        raise UsageError("a batch is a number of 1 or more")
    return {"sizes": {**keywords["sizes"], "batch_size": int(value)}}


_CHANGES: Mapping[str, Callable[[Keywords, str], dict[str, Any]]] = {
    "memory": _memory, "bandwidth.inter": _inter, "bandwidth.intra": _intra, "devices": _devices, "batch": _batch,
}  # fmt: skip
