"""One run on many processes, started by `torchrun`: the ranks share the examples of every step.

All ranks hold the same state. In each step

    rank r draws its own weights, its noise keyed by (seed, step, r);
    it takes the gradient g on its part of the batch;
    one message sums [log p ; g ; g (w - m)] over the ranks (log p and g alone where w is shared);
    the prior is added once, and the same update is made everywhere.

So R ranks average R draws, and a batch has the size that one process would have. What ranks must
have in common comes from the generator of the state, which all of them keep in step: the scales of
BMR and the horseshoe (their group sums follow from the message), the noise of a Markov chain, which
shares its batch, and the weights of engines that evaluate the prior at the draw. Messages of TDAMP
add, as those of its clients do. Running statistics of BatchNorm are averaged in the same message;
each rank normalises by its own part.

The first rank alone reads and writes files, validates and calls callbacks. A checkpoint does not
know the number of ranks. A signal to one rank is part of the next message and stops all of them
after the same step.
"""

import atexit
import hashlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Generator, Tensor
from torch.distributed.rendezvous import rendezvous

from bayesieve.environment import is_shared
from bayesieve.errors import LostRankError
from bayesieve.training.fingerprint import data_of, settings_of

if TYPE_CHECKING:
    from bayesieve.training.loop import Loop

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOKS = 16  # on a GPU, steps between two looks at the signals: each look waits for the step
_PATIENCE = 3.0  # seconds in which ranks that lost one say that they are still there
_own_noise: ContextVar[bool] = ContextVar("own_noise", default=True)


@contextmanager
def shared_noise() -> Iterator[None]:
    """Let the ranks of fits inside the block draw the same weights.

    A step then is that of one process up to rounding, and its message half as long; its gradient
    has the noise of one draw.
    """
    token = _own_noise.set(False)
    try:
        yield
    finally:
        _own_noise.reset(token)


def noise_key(seed: int, step: int, rank: int) -> int:
    """Seed of what a rank draws in a step, so that no checkpoint need keep it.

    Example:
        >>> noise_key(0, 7, 1) == noise_key(0, 7, 1) != noise_key(0, 7, 0)
        True
    """
    digest = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Ranks:
    """The processes of one run, seen from one of them.

    Args:
        device: of the tensors that are summed; each process of a host has a GPU of its own.
        store: where ranks leave word of themselves; None where the caller made the group.
    """

    def __init__(self, device: torch.device, store: Any = None) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device, self.own_noise = device, _own_noise.get()
        self.noise = Generator(device)
        self.arrived: list[int] = []  # signals of this process, which a handler adds
        self._store, self._buffer, self._step = store, torch.empty(0), 0
        self._flags = torch.zeros(len(_SIGNALS))
        self._names: list[str] = [""] * self.size
        dist.all_gather_object(self._names, f"process {os.getpid()} on {socket.gethostname()}")

    def begin(self, seed: int, step: int) -> None:
        """Key this rank's noise, and the global generators of dropout, by (seed, step, rank)."""
        self._step = step
        key = noise_key(seed, step, self.rank)
        self.noise.manual_seed(key)
        torch.default_generator.manual_seed(key)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(key)

    def part(self, index: Tensor) -> Tensor:
        """This rank's part of the places of a batch, (n,) or (k, n)."""
        return index[..., self.rank :: self.size]

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """The sum of each tensor over the ranks, all in one message; valid until the next.

        Signals that reached a rank travel with them.
        """
        flags = [float(number in self.arrived) for number in _SIGNALS]
        flat = [tensor.reshape(-1) for tensor in tensors]
        flat.append(tensors[0].new_tensor(flags))
        size, like = sum(map(len, flat)), flat[0]
        if len(self._buffer) != size or self._buffer.dtype != like.dtype:
            self._buffer = like.new_empty(size)
        torch.cat(flat, out=self._buffer)
        with self._loss_named():
            dist.all_reduce(self._buffer)
        *sums, self._flags = self._buffer.split([len(part) for part in flat])
        return [total.view_as(tensor) for tensor, total in zip(tensors, sums, strict=True)]

    @property
    def message_numbers(self) -> int:
        """Numbers in the last message."""
        return len(self._buffer)

    @property
    def stopped_by(self) -> int:
        """The signal that reached some rank before the last step, the same on all; 0 for none."""
        if self.device.type == "cuda" and self._step % _LOOKS:
            return 0
        counts = zip(_SIGNALS, self._flags.tolist(), strict=True)
        return max((int(number) for number, count in counts if count), default=0)

    def from_first(self, value: T) -> T:
        """The value of the first rank."""
        box = [value]
        with self._loss_named():
            dist.broadcast_object_list(box, 0)
        return box[0]

    def copy_first_(self, tensors: dict[str, Tensor]) -> None:
        """Overwrite tensors, of the same names and shapes on all ranks, by those of the first."""
        with self._loss_named():
            for name in sorted(tensors):
                dist.broadcast(tensors[name], 0)

    def check_same(self, what: str, value: object) -> None:
        """Raise, on all ranks, unless all of them have an equal value."""
        digest = hashlib.sha256(repr(value).encode()).hexdigest()
        digests = [""] * self.size
        with self._loss_named():
            dist.all_gather_object(digests, digest)
        other = [rank for rank, found in enumerate(digests) if found != digests[0]]
        if other:
            raise ValueError(
                f"fit: rank {other[0]} of {self.size} has other {what} than rank 0. Give all "
                "processes the same; each takes its part of every batch."
            )

    def start(self, loop: "Loop") -> None:
        """Raise unless the ranks run the same; give all of them the state of the first."""
        self.check_same("data", data_of(loop.population.problem))
        self.check_same("settings", settings_of(loop))
        state = loop.population.copies()
        self.copy_first_(state)
        loop.population.restore_(state)
        loop.record = self.from_first(loop.record.to("cpu")).to(self.device)

    def wait(self) -> None:
        """Wait until all ranks are here."""
        with self._loss_named():
            dist.barrier()

    @contextmanager
    def _loss_named(self) -> Iterator[None]:
        """Say which rank has ended where a message fails."""
        try:
            yield
        except RuntimeError as error:
            raise LostRankError(
                f"fit: {self._lost()} ended before the run did, or does not answer. See what it "
                "says, and continue from the last checkpoint with `resume=True`."
            ) from error

    def _lost(self) -> str:
        """Name the ranks that do not answer any more."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            if self._store is None:
                raise RuntimeError
            self._store.set(f"left {self.rank}", "yes")
            end = time.monotonic() + _PATIENCE
            while others and time.monotonic() < end:
                others = [r for r in others if not self._store.check([f"left {r}"])]
                time.sleep(0.05)
        except RuntimeError:  # the rank that kept the store is among them
            others = others if self.rank == 0 else [0]
        named = [f"rank {rank} of {self.size} ({self._names[rank]})" for rank in others]
        return " and ".join(named) or "a rank"


_joined: dict[str, Any] = {}  # the store of the group that this process made


def join(device: torch.device) -> Ranks | None:
    """Meet the other processes that `torchrun` started; None where there is only this one.

    Args:
        device: of the problem. On a GPU each process takes that of its number on the host.

    Example:
        >>> join(torch.device("cpu")) is None
        True
    """
    if not (is_shared() or (dist.is_initialized() and dist.get_world_size() > 1)):
        return None
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        store, rank, size = next(rendezvous("env://"))
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        shared = dist.PrefixStore("bayesieve", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=shared, rank=rank, world_size=size)
        _joined["store"] = shared
        atexit.register(_leave)
    return Ranks(device, _joined.get("store"))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
