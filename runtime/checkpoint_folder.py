"""The folder of a checkpoint: written beside what stands there and put in its place at once; checked before it is read.

Whatever ends a save, what was saved before is still there.
"""

from __future__ import annotations

import os
import pickle
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata

from autopar.ir.errors import FileFormatError, UnsupportedError, UsageError
from autopar.runtime.unanimous import Unanimous

METADATA = ".metadata"  # torch's name for what lists all tensors; written last

# What unpickling raises for bytes that are no such file.
NOT_PICKLED = (pickle.UnpicklingError, EOFError, LookupError, AttributeError, ImportError, TypeError, ValueError)

SEEN_WITHIN_S = 10.0  # other hosts may see a new folder so much later


@dataclass(frozen=True)
class Folder:
    """Where one checkpoint is, on a filesystem that all ranks share."""

    path: Path

    @staticmethod
    def of(path: object) -> Folder:
        """Raises UnsupportedError for an address of a remote store, UsageError for what is no path of a folder."""
        if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
            raise UsageError(f"{path!r} is no path of a folder")
        if "://" in str(path):
            raise UnsupportedError(f"{path}: checkpoints are folders of a filesystem; give a path without ://")
        real = Path(os.path.realpath(path))  # where a link leads; the link stays
        if real == Path.cwd() or real == real.parent:
            raise UsageError(f"{path}: a checkpoint takes the place of its folder: name one inside of it")
        return Folder(real)

    @property
    def unfinished(self) -> Path:
        """Where it is written."""
        return self.path.with_name(f".{self.path.name}.unfinished")

    @property
    def replaced(self) -> Path:
        """Where the one before is while this one takes its place."""
        return self.path.with_name(f".{self.path.name}.replaced")

    def written(self, write: Callable[[Path], None], ranks: Unanimous) -> None:
        """Let all ranks ``write`` and put what they wrote in its place. A collective.

        Raises UsageError where the path holds something else than a checkpoint, or cannot be written.
        """
        first = not dist.is_initialized() or dist.get_rank() == 0
        ranks.run(self._begin if first else lambda: None)
        ranks.run(self._seen)
        try:
            write(self.unfinished)
        except BaseException:
            if first:
                shutil.rmtree(self.unfinished, ignore_errors=True)
            raise
        ranks.run(self._finish if first else lambda: None)

    def _begin(self) -> None:
        try:
            there = self.path.exists()
            if there and not (self.path.is_dir() and self._replaceable()):
                raise UsageError(f"{self.path} is no checkpoint and would be replaced by one: name another folder")
            _remove(self.unfinished)
            if (self.path / METADATA).is_file():  # else what was to be replaced is the only whole one
                _remove(self.replaced)
            self.unfinished.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror or error}") from None

    def _replaceable(self) -> bool:
        """A checkpoint, or an empty folder."""
        return (self.path / METADATA).is_file() or not any(self.path.iterdir())

    def _seen(self) -> None:
        until = time.monotonic() + SEEN_WITHIN_S
        while not self.unfinished.is_dir():
            if time.monotonic() > until:
                raise UsageError(f"{self.path}: this rank does not see the folder; all ranks must share its filesystem")
            time.sleep(0.05)

    def _finish(self) -> None:
        try:
            if (self.path / METADATA).is_file():
                _remove(self.replaced)
                self.path.rename(self.replaced)
            elif self.path.exists():
                self.path.rmdir()
            self.unfinished.rename(self.path)
            _remove(self.replaced)
        except OSError as error:
            why = error.strerror or error
            raise UsageError(f"{self.path} cannot be written: {why}; the checkpoint is in {self.unfinished}") from None

    @cached_property
    def pretrained(self) -> bool:
        """Whether it holds weights as Hugging Face's ``save_pretrained`` leaves them, by names of parameters alone."""
        return not (self.path / METADATA).is_file() and any(self.path.glob("*.safetensors"))

    @cached_property
    def reader(self) -> FileSystemReader:
        return HuggingFaceStorageReader(str(self.path)) if self.pretrained else FileSystemReader(self.path)

    def metadata(self) -> Metadata:
        """What is in it. Raises FileFormatError where it is none, or a part of it is missing."""
        try:
            if self.pretrained:
                return self._of_weights()
            there = (self.path / METADATA).is_file()
        except OSError as error:  # a name that is too long, say
            raise FileFormatError(f"{self.path}: {error.strerror}", details={"file": str(self.path)}) from None
        if not there:
            raise FileFormatError(f"{self.path}: {self._missing()}", details={"file": str(self.path)})
        try:
            found = self.reader.read_metadata()
        except (OSError, *NOT_PICKLED) as error:
            raise FileFormatError(
                f"{self.path / METADATA} cannot be read: {error}", details={"file": str(self.path)}
            ) from None
        self._check(found)
        return found

    def read(self, tensors: dict[str, Any]) -> None:
        """Fill them in place. Each rank reads by itself: there is nothing to agree on."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                state_dict_loader.load(tensors, storage_reader=self.reader, no_dist=True)
        except CheckpointException as error:
            why, _ = next(iter(error.failures.values()))
            raise FileFormatError(f"{self.path} cannot be read: {why}; load another before going on") from None

    def _of_weights(self) -> Metadata:
        try:
            return self.reader.read_metadata()
        except ImportError:
            raise UnsupportedError(f"{self.path} holds safetensors: pip install safetensors to read them") from None
        except Exception as error:  # noqa: BLE001 — safetensors has an error of its own
            raise FileFormatError(f"{self.path} cannot be read: {error}", details={"file": str(self.path)}) from None

    def _missing(self) -> str:
        if (self.replaced / METADATA).is_file():
            return f"no checkpoint; a save ended as it took the place of {self.replaced}, which is whole"
        if not self.path.exists():
            return "no such folder"
        return f"no checkpoint: {METADATA} is missing"

    def _check(self, found: Metadata) -> None:
        """All files are as long as is said of them."""
        ends: dict[str, int] = {}
        for info in (found.storage_data or {}).values():
            ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
        for name, end in sorted(ends.items()):
            file = self.path / name
            there = file.stat().st_size if file.is_file() else None
            if there is None or there < end:
                what = "is missing" if there is None else f"has {there} bytes of {end}"
                raise FileFormatError(
                    f"{file} {what}: the checkpoint is damaged; load another", details={"file": str(file)}
                )


def _remove(path: Path) -> None:
    """Whatever it is, if it is there."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def tree(metadata: Metadata) -> dict[Any, Any]:
    """Names of the entries in nested dicts, by the keys that torch's planner made them of: names, numbers in lists."""
    nested: dict[str, tuple[Any, ...]] = metadata.planner_data or {}
    top: dict[Any, Any] = {}
    for name in metadata.state_dict_metadata:
        *path, last = nested.get(name, (name,))
        at = top
        for key in path:
            at = at.setdefault(key, {})
        at[last] = name
    return top
