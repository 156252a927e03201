"""What one call of a module reads besides its arguments, and whether it does more than compute.

While a call is recorded, every attribute that is read of a module is noted with its token, and every function of
the user's that runs, with the tokens of the global names in its code. Another instance may stand for the recorded one
if all those tokens are the same there. Plain data that a module of the instance keeps is noted, too, and kept by the
other's as well. All other writes, to modules and to objects, refuse it: the other call would not make them.
"""

from __future__ import annotations

import dis
import functools
import gc
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from autopar.passes.trace.source import OURS, TORCH
from autopar.passes.trace.tokens import ABSENT, IncomparableError, Names, Same, is_plain, state_of, token

_T = TypeVar("_T")
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_TABLES = ("_parameters", "_buffers", "_modules")  # instances have the same names in them, else they are not compared
OF_CLASS = "<a method or property of the class>"
_OF_C = (BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType)
_STORES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR")


class Reads:
    """The reads of one call. ``refused``: why it cannot stand for another; empty if it can."""

    def __init__(self, modules: Mapping[str, nn.Module], names: Names) -> None:
        self._modules = modules
        self._names = names
        self._attributes: dict[tuple[Any, str], Any] = {}
        self._globals: dict[tuple[Any, str, str], Any] = {}
        self._written: dict[tuple[str, str], Callable[[nn.Module], object]] = {}  # does it on another instance's
        self.codes: dict[CodeType, dict[str, Any]] = {}
        self._writers: dict[CodeType, dict[str, Any]] = {}  # those that write to their first argument
        self.refused = ""

    def attribute(self, module: nn.Module, name: str) -> None:
        """``name`` of ``module`` is read."""
        state = state_of(module)
        at = self._names.modules.get(id(state))
        key = (Same(module) if at is None else at, name)
        if not (key in self._attributes or key in self._written or self.refused):
            self._attributes[key] = aside(lambda: self._token(lookup(module, name)))

    def write(self, module: nn.Module, name: str, value: Any) -> None:
        """``value`` is about to be set as ``name`` of ``module``."""
        found = lookup(module, name)
        if found is value or (isinstance(value, nn.Module) and _is_state_of(found, value)):
            self.attribute(module, name)
        elif is_plain(value) and _is_plain_place(module, name):
            self.change(module, name, lambda other: setattr(other, name, value))
        else:
            self.refused = f"it writes {name} of a module"

    def change(self, module: nn.Module, name: str, again: Callable[[nn.Module], object]) -> None:
        """``name`` of ``module`` is about to change, as ``again`` would change it on another one."""
        at = self._names.modules.get(id(state_of(module)))
        if at is None:
            self.refused = f"it changes {name} of a module that is not its own"
        else:
            self._written[at, name] = again

    def code(self, code: CodeType, globals_: dict[str, Any], frame: FrameType | None = None) -> None:
        """``code`` is about to run for the first time; that which writes to its first argument, in ``frame``."""
        self.codes[code] = globals_
        if self.refused or not is_users(code.co_filename):
            return
        stores, own, loads = _effects(code)
        self.refused = stores
        if own:
            self._writers[code] = self.codes.pop(code)  # to be looked at in each call
            if frame is not None and not _is_watched(frame.f_locals[code.co_varnames[0]]):
                self.refused = f"{code.co_qualname} writes {own} of an object"
        for name in loads:
            value = globals_.get(name, ABSENT)
            inside = code.co_names if _is_users_own(value) else ()
            for attribute in ("", *(part for part in inside if part in vars(value))):
                key = (Same(globals_), name, attribute)
                if key not in self._globals:
                    self._globals[key] = self._token(_global(*key))

    def close(self) -> None:
        """The call is over: nothing that it read may have changed."""
        if not self.refused and not aside(lambda: self.hold(self._modules, self._names)):
            self.refused = "it changes what it reads"

    def hold(self, modules: Mapping[str, nn.Module], names: Names) -> bool:
        """Whether the call of another instance, of these ``modules``, would read the same now."""
        try:
            for (at, name), read in self._attributes.items():
                if token(lookup(modules[at] if isinstance(at, str) else at.thing, name), names) != read:
                    return False
            return all(token(_global(*key), names) == read for key, read in self._globals.items())
        except IncomparableError:
            return False

    def again(self, modules: Mapping[str, nn.Module], into: Reads) -> None:
        """Note in ``into`` what the call reads that this one stands for."""
        for at, name in self._attributes:
            into.attribute(modules[at] if isinstance(at, str) else at.thing, name)
        for code, globals_ in (*self.codes.items(), *self._writers.items()):
            if code not in into.codes:
                into.code(code, globals_)

    def write_again(self, modules: Mapping[str, nn.Module]) -> None:
        """Set on ``modules`` what the call set on its own."""
        for (at, _), again in self._written.items():
            again(modules[at])

    def _token(self, value: Any) -> Any:
        try:
            return token(value, self._names)
        except IncomparableError as error:
            self.refused = f"it reads {error}"
            return None


def lookup(module: nn.Module, name: str) -> Any:
    """What ``module.name`` stands for, without running a property."""
    state = state_of(module)
    if name in state:
        return state[name]
    for table in _TABLES:
        if name in state.get(table, ()):
            return state[table][name]
    for base in type(module).__mro__:
        if name in vars(base):
            found = vars(base)[name]
            return OF_CLASS if hasattr(type(found), "__get__") else found
    return ABSENT


def _is_watched(thing: Any) -> bool:
    """Whether what is set on it is seen: it is a module whose class sets attributes as torch's do."""
    setter = next(base for base in type(thing).__mro__ if "__setattr__" in vars(base))
    return isinstance(thing, nn.Module) and setter.__module__.startswith("torch.")


def _is_state_of(found: Any, module: nn.Module) -> bool:
    return isinstance(found, nn.Module) and state_of(found) is state_of(module)


def _is_plain_place(module: nn.Module, name: str) -> bool:
    """Whether to set ``name`` of ``module`` does nothing else."""
    of_class = next((vars(base)[name] for base in type(module).__mro__ if name in vars(base)), None)
    held = any(name in state_of(module).get(table, ()) for table in _TABLES)
    return not held and not hasattr(type(of_class), "__set__")


def _global(globals_: Same, name: str, attribute: str) -> Any:
    found = globals_.thing.get(name, ABSENT)
    return vars(found).get(attribute, ABSENT) if attribute and found is not ABSENT else found


@functools.cache
def is_users(filename: str) -> bool:
    """Whether a file is neither torch's, nor the standard library's, nor the trace's."""
    if filename.startswith((TORCH, OURS, "<")):
        return False
    return not filename.startswith(_STANDARD) or any(part in filename for part in _PACKAGES)


def is_ours(filename: str) -> bool:
    """Whether a file is the trace's."""
    return filename.startswith(OURS)


def _is_users_own(value: Any) -> bool:
    """Whether ``value`` is a class or Python module, whose attributes code reads without being seen, and the user's."""
    if isinstance(value, type):
        value = sys.modules.get(value.__module__)
    return isinstance(value, ModuleType) and is_users(getattr(value, "__file__", None) or "<builtin>")


def unwatched(run: Callable[[], _T]) -> _T:
    """What ``run`` gives; no function that it calls is seen."""
    watching = sys.getprofile()
    sys.setprofile(None)
    try:
        return run()
    finally:
        sys.setprofile(watching)


def aside(run: Callable[[], _T]) -> _T:
    """What ``run`` gives; neither is it seen nor do the modes of a trace see what it asks of tensors."""
    with torch._C.DisableTorchFunction():
        return unwatched(run)


def _is_torchs(function: Any) -> bool:
    """Whether ``function`` is torch's, with no code of the user's behind it."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(function).startswith("aten.")
    return isinstance(function, _OF_C) or (getattr(function, "__module__", None) or "").startswith("torch.")


@functools.cache
def _effects(code: CodeType) -> tuple[str, str, tuple[str, ...]]:
    """Why a call that runs ``code`` is not to be repeated, else empty; what it writes of its first argument, as that of
    a module is watched; and the global names that it loads."""
    loads: dict[str, None] = {}
    own, before, replaced = "", "", False
    first = code.co_varnames[0] if code.co_argcount else ""
    for step in dis.get_instructions(code):
        last, before = before, _loaded(step)
        if step.opname == "LOAD_GLOBAL":
            loads[str(step.argval)] = None
        elif (step.opname, step.argval) == ("STORE_ATTR", "requires_grad"):
            continue  # a tensor's is part of what is compared, before and after; a module's is watched
        elif step.opname == "STORE_ATTR" and first == last != "" and not step.is_jump_target:
            own = str(step.argval)
        elif "STORE_FAST" in step.opname and first in _variables(step):
            replaced = True
        elif step.opname in _STORES or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars):
            return f"{code.co_qualname} writes {step.argval}", "", ()
        elif step.opname == "IMPORT_NAME":  # what is read of the module would not be seen
            return f"{code.co_qualname} imports {step.argval}", "", ()
    if own and replaced:
        return f"{code.co_qualname} writes {own} of what it has put in place of {first}", "", ()
    return "", own, tuple(loads)


def _loaded(step: dis.Instruction) -> str:
    """The local variable that a step loads last; Python 3.13 loads two in one step."""
    return _variables(step)[-1] if step.opname.startswith("LOAD_FAST") else ""


def _variables(step: dis.Instruction) -> tuple[str, ...]:
    return step.argval if isinstance(step.argval, tuple) else (str(step.argval),)


_open: list[Reads] = []


@contextmanager
def recording(reads: Reads) -> Iterator[None]:
    """Inside, what the thread reads is noted in ``reads`` and in those that are open around it."""
    _open.append(reads)
    try:
        if len(_open) > 1:
            yield
        else:
            with _watching():
                yield
    finally:
        _open.pop()
    reads.close()


def reads_again(reads: Reads, modules: Mapping[str, nn.Module]) -> None:
    """A call that ``reads`` stand for is part of those that are open, and leaves on its modules what it would."""
    for around in _open:
        reads.again(modules, around)
    reads.write_again(modules)


def change(module: nn.Module, name: str, again: Callable[[nn.Module], object]) -> None:
    """Tell all that is open that ``name`` of ``module`` is about to change, as ``again`` would on another one."""
    for reads in _open:
        reads.change(module, name, again)


def can_record() -> bool:
    """Whether nothing else, such as a profiler, watches the calls of this thread."""
    return bool(_open) or sys.getprofile() is None


def by_user() -> bool:
    """For what ``accesses`` tells: whether it is code of the user's that does it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)


@contextmanager
def accesses(
    reading: Callable[[nn.Module, str], object], setting: Callable[[nn.Module, str, Any], object],
    deleting: Callable[[nn.Module, str], object],
) -> Iterator[None]:  # fmt: skip
    """Inside, these are told before this thread gets, sets or deletes an attribute of a module."""
    thread = threading.get_ident()
    names = ("__getattribute__", "__setattr__", "__delattr__")
    before = {name: vars(nn.Module).get(name) for name in names}
    read, write, delete = nn.Module.__getattribute__, nn.Module.__setattr__, nn.Module.__delattr__

    def get(self: nn.Module, name: str) -> Any:
        if threading.get_ident() == thread:
            reading(self, name)
        return read(self, name)

    def put(self: nn.Module, name: str, value: Any) -> None:
        if threading.get_ident() == thread:
            setting(self, name, value)
        write(self, name, value)

    def remove(self: nn.Module, name: str) -> None:
        if threading.get_ident() == thread:
            deleting(self, name)
        delete(self, name)

    try:
        for name, told in zip(names, (get, put, remove), strict=True):
            setattr(nn.Module, name, told)
        yield
    finally:
        for name, own in before.items():
            if own is None:
                delattr(nn.Module, name)
            else:
                setattr(nn.Module, name, own)


@contextmanager
def _watching() -> Iterator[None]:
    """Inside, reads and writes of modules and calls of functions reach the open records."""

    def reading(module: nn.Module, name: str) -> None:
        if name not in _TABLES and name != "__class__":
            if name != "__dict__":
                for reads in _open:
                    reads.attribute(module, name)
            elif by_user():
                for reads in _open:
                    reads.refused = "it reads a module's __dict__"

    def writing(module: nn.Module, name: str, value: Any) -> None:
        for reads in _open:
            aside(lambda: reads.write(module, name, value))  # noqa: B023 - called at once

    def deleting(module: nn.Module, name: str) -> None:
        for reads in _open:
            reads.refused = f"it deletes {name} of a module"

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and _open and frame.f_code not in _open[-1].codes:
            for reads in _open:
                if frame.f_code not in reads.codes:
                    reads.code(frame.f_code, frame.f_globals, frame)

    class Unwatched(TorchFunctionMode):
        """What torch's own operations do is not watched, which is most of what a trace does."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if not _is_torchs(func) or any(map(callable, (*args, *kwargs.values()))):
                return func(*args, **kwargs)
            return unwatched(lambda: func(*args, **kwargs))

    collects = gc.isenabled()
    gc.disable()  # what a collection runs is no part of the call
    try:
        with accesses(reading, writing, deleting), Unwatched():
            sys.setprofile(called)
            yield
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
