"""Memory: bytes that tensors take, counted with or without allocating them, and bytes free.

On the meta device tensors have shapes and no numbers. Whatever runs there inside `LiveBytes` tells
what it would take, in milliseconds, however large it is.
"""

import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

_aten = torch.ops.aten
_NEVER = {_aten.isnan.default, _aten.isinf.default}  # of numbers nobody has
# Libraries lay images out in blocks of channels, and so copy them before and after.
_REORDERING = {_aten.convolution.default, _aten.convolution_backward.default}
_KEEPS = {_aten.any.default, _aten.any.dim, _aten.any.dims}


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages that operations make, while something holds on to them.

    Meta tensors take part in whatever needs their numbers as if all were finite: each is 1, and a
    condition holds, unless it asks for NaN or infinity.

    Args:
        known: tensors that are not counted.
        meta: whether only meta tensors are counted.

    Example:
        >>> with LiveBytes() as live:
        ...     kept = torch.empty(3, 4, device="meta").exp() + 1
        >>> live.now, live.most
        (48, 96)
    """

    def __init__(self, known: Iterable[Tensor] = (), *, meta: bool = False) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._meta, self._counted = meta, set[int]()
        self.now = self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default and args[0].is_meta:
            if args[0].dtype == torch.bool:
                return not hasattr(args[0], "_never")
            return 1.0 if args[0].is_floating_point() else 1
        if self._meta:  # a tensor that `forward` makes on the CPU meets meta tensors
            args, kwargs = _all_meta(func, args, kwargs)
        if "generator" in kwargs and any(isinstance(a, Tensor) and a.is_meta for a in args):
            kwargs = {**kwargs, "generator": None}  # of a device with numbers
        result = func(*args, **kwargs)
        if func in _REORDERING and args[0].is_meta:
            copied = sum(t.nbytes for t in tree_leaves(result) if isinstance(t, Tensor))
            self.most = max(self.most, self.now + 3 * copied)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._see(tensor)
        if func in _NEVER or (func in _KEEPS and hasattr(args[0], "_never")):
            result._never = True
        return result

    def _see(self, tensor: Tensor) -> None:
        if self._meta and not tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or key in self._counted:
            return
        self._counted.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self.now -= size


def _all_meta(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments without numbers where one of them has none, but for copies between devices."""
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    mixed = any(leaf.is_meta for leaf in leaves) and not all(leaf.is_meta for leaf in leaves)
    if not mixed or func is _aten.copy_.default:
        return args, kwargs
    there: tuple[Any, Any] = tree_map_only(Tensor, lambda t: t.to("meta"), (args, kwargs))
    return there


def free_bytes(device: torch.device | str = "cpu") -> int:
    """Bytes that this process may still take on a device.

    On a CPU the least of what the system has, what the control groups of the process leave
    (containers, batch systems), and its own limit of address space.

    Example:
        >>> free_bytes() > 0
        True
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [_available(), *_left_in_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]
    if os.name == "posix":
        import resource  # there is none elsewhere

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            limits.append(most - _own_bytes("VmSize"))
    return max(0, min(limits))


def peak_resident_bytes() -> int:
    """Most memory that this process has had at once."""
    return _own_bytes("VmHWM")


def forget_peak() -> int:
    """Let `peak_resident_bytes` begin anew where the system can; bytes in use, or its peak."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_resident_bytes()


def _own_bytes(name: str) -> int:
    return _bytes_after(Path("/proc/self/status"), name)


def _available() -> int:
    """Bytes free without swapping; the whole memory where the system does not say."""
    found = _bytes_after(Path("/proc/meminfo"), "MemAvailable")
    return found or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _bytes_after(path: Path, name: str) -> int:
    """The number of a line such as `MemAvailable:  1024 kB`; 0 where there is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    found = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(next(found, "0"))


def _left_in_groups(member_of: Path, root: Path) -> list[int]:
    """Bytes that each limit of a process's control groups leaves, in both versions of Linux's.

    Args:
        member_of: lists the groups, `ID:KINDS:PATH` a line.
        root: where the groups are mounted.
    """
    names = {"": ("memory.max", "memory.current", "inactive_file")}
    names["memory"] = (
        "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
    )  # fmt: skip
    left = []
    try:
        lines = member_of.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        kind = next((kind for kind in names if kind in kinds.split(",")), None)
        if kind is None:
            continue
        limit, usage, reclaimable = names[kind]
        folder = root / kind / path.lstrip("/")
        for group in (folder, *folder.parents):
            try:
                most, used = ((group / name).read_text().strip() for name in (limit, usage))
                rows = (group / "memory.stat").read_text().split("\n")
            except OSError:
                continue  # a container sees its own group as the root
            cache = next((int(r.split()[1]) for r in rows if r.startswith(f"{reclaimable} ")), 0)
            if most != "max":
                left.append(int(most) - int(used) + cache)
    return left
