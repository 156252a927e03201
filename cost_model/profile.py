"""``CostProfile``: the numbers that prices are made of, and two hooks by which a user replaces a price."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

from autopar.cost_model import profile_file
from autopar.cost_model.priced import Group, OpCost
from autopar.cost_model.profile_schema import Device, Link, Optimizer, ProfileData
from autopar.cost_model.toml_file import nearest
from autopar.cost_model.toml_lines import KeyPath, key_text
from autopar.ir.errors import AutoparError, FileFormatError, UsageError

BUILTIN_NAME = "builtin"
LONGEST_S = 86400.0  # of one operation that a hook prices


class CostProfile:
    """The built-in figures, with the file ``base`` laid over them where given.

    Subclass it to price ops or collectives in Python: override ``compute_s`` or ``collective_s`` and return
    seconds, or None to keep the built-in figure. A hook must be a pure function.
    Numbers never change after construction, and profiles compare by identity.
    """

    _base: Path | None = None

    def __init__(self, base: None | str | Path = None) -> None:
        self._base = None if base is None else Path(base)
        self.data  # noqa: B018  (a bad file is an error here, not at the first price)

    def compute_s(self, op: OpCost, device: str) -> float | None:
        """Seconds of one op on one device, or None to keep the built-in figure."""
        return None

    def collective_s(self, kind: str, bytes: int, group: Group) -> float | None:
        """Seconds of one collective with ``bytes`` of payload per rank before it, or None as above."""
        return None

    @functools.cached_property
    def layers(self) -> tuple[profile_file.Layer, ...]:
        """The files that the numbers come from; later ones win."""
        overlay = () if self._base is None else (profile_file.read_layer(self._base),)
        return profile_file.builtin_layers() + overlay

    @functools.cached_property
    def data(self) -> ProfileData:
        """The merged tables."""
        return profile_file.merge(self.layers)

    @functools.cached_property
    def name(self) -> str:
        """The class of a Python profile, else the file's stem, else ``builtin``."""
        if type(self) is not CostProfile:
            return type(self).__qualname__
        return BUILTIN_NAME if self._base is None else self._base.stem

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of the merged numbers, and of the class name of a subclass (its code is not hashed)."""
        cls = type(self)
        extra = () if cls is CostProfile else (f"{cls.__module__}.{cls.__qualname__}",)
        return profile_file.content_sha256(self.data, *extra)

    @functools.cached_property
    def has_compute_hook(self) -> bool:
        """Whether ``compute_s`` is overridden."""
        return type(self).compute_s is not CostProfile.compute_s or "compute_s" in self.__dict__

    @functools.cached_property
    def has_collective_hook(self) -> bool:
        """Whether ``collective_s`` is overridden."""
        return type(self).collective_s is not CostProfile.collective_s or "collective_s" in self.__dict__

    def device(self, name: str) -> Device:
        """The table of a device. Raises ``UsageError`` with the nearest names for an unknown one."""
        try:
            return self.data.device[name]
        except KeyError:
            hint = nearest(name, list(self.data.device))
            raise UsageError(f"the cost profile {self.name} has no device {name!r}; {hint}") from None

    def link(self, name: str) -> Link:
        """The table of a link. Raises ``UsageError`` with the nearest names for an unknown one."""
        try:
            return self.data.link[name]
        except KeyError:
            hint = nearest(name, list(self.data.link))
            raise UsageError(f"the cost profile {self.name} has no link {name!r}; {hint}") from None

    def with_bandwidth(self, link: str, rate_bytes_s: float) -> CostProfile:
        """A copy of which a link has another bandwidth; raises ``UsageError`` as ``link``."""
        made = copy.copy(self)
        table = self.link(link).model_copy(update={"bandwidth_gb_s": rate_bytes_s / 1e9})
        made.data = self.data.model_copy(update={"link": {**self.data.link, link: table}})
        made.__dict__.pop("sha256", None)
        return made

    def device_number(self, name: str, key: str) -> float:
        """A number of a device. Raises ``FileFormatError`` naming the key if the profile does not hold it."""
        value: float | None = getattr(self.device(name), key)
        if value is None:
            raise self.missing(("device", name, key), "or choose another device or element type")
        return value

    def link_number(self, name: str, key: str) -> float:
        """A number of a link. Raises ``FileFormatError`` naming the key if the profile does not hold it."""
        value: float | None = getattr(self.link(name), key)
        if value is None:
            raise self.missing(("link", name, key), "or choose another link")
        return value

    def device_link(self, name: str, key: str) -> str:
        """The name of a device's ``intra`` or ``inter`` link, with the same error as for a number."""
        value: str | None = getattr(self.device(name), key)
        if value is None:
            raise self.missing(("device", name, key), "or say it in the cluster file")
        return value

    def optimizer(self, name: str) -> Optimizer:
        """The row of an optimizer. Raises ``UsageError`` with the nearest names for an unknown one."""
        try:
            return self.data.optimizer[name]
        except KeyError:
            hint = nearest(name, list(self.data.optimizer))
            raise UsageError(f"the cost profile {self.name} has no optimizer {name!r}; {hint}") from None

    def section_number(self, section: str, key: str) -> float:
        """A number of ``[memory]`` or ``[overlap]``, with the same error as for a device."""
        value: float | None = getattr(getattr(self.data, section), key)
        if value is None:
            raise self.missing((section, key), "there is no default")
        return value

    @property
    def experts_imbalance(self) -> float:
        """Rows of the device with most of them over the mean, where experts are split over devices."""
        return self.section_number("experts", "imbalance")

    def origin(self, *path: str) -> str:
        """Where the number at ``path`` came from: a file and a line."""
        return profile_file.origin(self.layers, path)

    def missing(self, path: KeyPath, otherwise: str) -> FileFormatError:
        """The error for a number that the profile does not hold, naming it and the way out."""
        *table, key = path
        owner = key_text(tuple(table))
        message = f"{owner} has no {key}; add it under [{owner}] of a cost profile, {otherwise}"
        return FileFormatError(message, details={"key": key_text(path), "profile": self.name})


def hook_s(profile: CostProfile, hook: str, subject: str, *asked: object) -> float | None:
    """A hook's answer: seconds, or None. ``UsageError`` naming the hook for anything else, and for what it raises."""
    name = f"{type(profile).__qualname__}.{hook}"
    try:
        value: object = getattr(profile, hook)(*asked)
    except AutoparError:
        raise
    except Exception as error:
        raise UsageError(f"{name} failed for {subject}: {type(error).__name__}: {error}") from error
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LONGEST_S:
        return float(value)
    raise UsageError(f"{name} returned {value!r} for {subject}; expected seconds, a day at most, or None")
