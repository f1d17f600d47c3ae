"""Posteriors and sparse models as single safetensors files: tensors and plain JSON, no code.

The header's metadata holds one JSON text under the key "bayesieve":

    format    1
    class     "Factorised", "Samples" or "UnitScaled"
    layout    rows [name, shape, role] in the order of w
    prior     null, or the class name and numbers of the prior
    dtype     of the weights, such as "float32"
    extra     whatever the caller adds

Tensors are mean and std, or draws (of several draws only the weights that are not 0 in all of them,
with their places under "draws.index", where that is shorter); logit_inclusion where defined; keep,
for a sparse model; module buffers under "buffers.<name>", and those that differ between draws under
"draw_buffers.<name>".

Every file carries its own SHA-256 in the metadata, under "sha256": 64 digits of the header, with
zeros in their place, and 64 of each MiB of tensors. `read_tensors` compares them all. Files of
versions before have none and are read as they are.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from bayesieve.core.layout import Layout
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Posterior, Samples, SparseModel, posterior_of
from bayesieve.core.posterior_horseshoe import UnitScaled
from bayesieve.core.priors import Normal, Prior, SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.errors import damaged
from bayesieve.files import check_growth, check_limit, parse_json, write_atomically
from bayesieve.text import short

FORMAT = 1
_KEY = "bayesieve"
BUFFERS, DRAW_BUFFERS = "buffers.", "draw_buffers."  # how names of module buffers begin
_INDEX = "draws.index"
_CUT = "it is cut off or no safetensors file"
_SUM, _BLOCK, _DIGITS = "sha256", 1 << 20, 64  # key, bytes of tensors per checksum, its digits
_ENTRY = re.compile(rf"{_KEY}.*|{_SUM}|format")  # keys of the metadata, of every version
_SHOWN = 3  # ranges or tensors in a message
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_PRIORS: dict[str, type[Normal] | type[SpikeSlab]] = {"Normal": Normal, "SpikeSlab": SpikeSlab}
_FIELDS = {
    "Factorised": ("mean", "std"),
    "Samples": ("draws",),
    "UnitScaled": ("mean", "spread", "log_mean", "log_std"),
}


def save(
    thing: Posterior | SparseModel, path: Path | str, *, extra: Mapping[str, Any] | None = None
) -> Path:
    """Write a posterior or a sparse model to one file, all or nothing.

    Args:
        thing: what to save.
        path: file to write; an existing one is replaced.
        extra: plain JSON data to keep with it, read back by `read_header`.

    Example:
        >>> import tempfile
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(nn.Linear(2, 1), Gaussian())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(Factorised(network, torch.arange(3.0), torch.ones(3)), folder + "/q")
        ...     load_posterior(path, network).mean
        tensor([0., 1., 2.])
    """
    posterior = posterior_of(thing)
    tensors = posterior_tensors(posterior)
    if isinstance(posterior, Samples):
        n, d = posterior.draws.shape
        index = (posterior.draws != 0).any(0).nonzero()[:, 0]
        if n > 1 and len(index) * (n + 1) < n * d:  # values and places are shorter
            tensors |= {"draws": posterior.draws[:, index], _INDEX: index.to(torch.int32)}
    if isinstance(thing, SparseModel):
        tensors["keep"] = thing.keep
    prior = posterior.prior
    header = {
        "format": FORMAT,
        "class": type(posterior).__name__,
        "layout": posterior.layout.to_json(),
        "prior": prior and {"class": type(prior).__name__, **asdict(prior)},
        "dtype": dtype_name(posterior.mean.dtype),
        "extra": dict(extra or {}),
    }
    return write_atomically(path, file_bytes(tensors, {_KEY: json.dumps(header)}))


def load_posterior(path: Path | str, network: Network | Problem) -> Posterior:
    """Read a posterior and attach it to its network, on the network's device.

    Args:
        path: a file written by `save`; of a sparse model the masked posterior is returned.
        network: a network, or a problem, of the same layout and dtype.

    Example:
        >>> import tempfile
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(torch.nn.Linear(1, 1), Gaussian())
        >>> path = Path(tempfile.mkdtemp()) / "a.safetensors"
        >>> _ = save(Factorised(network, torch.tensor([1.0, 2.0]), torch.ones(2)), path)
        >>> load_posterior(path, network).mean
        tensor([1., 2.])
    """
    return _load(Path(path), network)[0]


def load_sparse(path: Path | str, network: Network | Problem) -> SparseModel:
    """Read a sparse model and attach it to its network, on the network's device.

    Args:
        path: a file written by `save`.
        network: a network, or a problem, of the same layout and dtype.

    Example:
        >>> import tempfile
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(torch.nn.Linear(1, 1), Gaussian())
        >>> keep = torch.tensor([True, False])
        >>> q = Factorised(network, torch.tensor([1.0, 2.0]), torch.ones(2)).masked(keep)
        >>> path = save(SparseModel(q, keep), Path(tempfile.mkdtemp()) / "a.safetensors")
        >>> load_sparse(path, network).keep
        tensor([ True, False])
    """
    path = Path(path)
    posterior, tensors = _load(path, network)
    if "keep" not in tensors:
        raise ValueError(f"load: {path} holds a posterior without a mask; use load_posterior.")
    keep = tensors["keep"]
    if keep.dtype != torch.bool or keep.shape != (posterior.layout.size,):
        raise damaged(path, "its mask has another shape or type than the weights")
    if bool((posterior.mean * ~keep).any()):
        raise damaged(path, "a weight outside its mask is not 0")
    return SparseModel(posterior, keep)


def read_header(path: Path | str) -> dict[str, Any]:
    """The plain data of a file written by `save`: format, class, layout, prior, dtype, extra."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load: there is no file {path}.")
    with path.open("rb") as stream:
        header = _read_header(path, stream)
    _check_header_sum(path, header)
    return _about(path, header.metadata)


def _load(path: Path, owner: Network | Problem) -> tuple[Posterior, dict[str, Tensor]]:
    if not isinstance(owner, Network | Problem):
        raise TypeError(
            f"load: network must be a Network or a Problem, got {type(owner).__name__}. "
            "Use Network.of(model, likelihood)."
        )
    network = owner.network if isinstance(owner, Problem) else owner
    if not path.is_file():
        raise FileNotFoundError(f"load: there is no file {path}.")
    with _read(path) as (tensors, metadata):  # its bytes are hashed while it is used
        return _attached(path, _about(path, metadata), tensors, network)


def _attached(
    path: Path, header: Mapping[str, Any], tensors: dict[str, Tensor], network: Network
) -> tuple[Posterior, dict[str, Tensor]]:
    """The posterior of a file's content on a network, and the tensors."""
    _check_layout(path, header["layout"], network.layout)
    if header["dtype"] != dtype_name(network.dtype):
        raise ValueError(
            f"load: {path} holds {str(header['dtype'])[:40]} weights but the network is "
            f"{dtype_name(network.dtype)}. Convert the model with .to(dtype) first."
        )
    tensors = {name: value.to(network.device) for name, value in tensors.items()}
    if _INDEX in tensors and "draws" in tensors:
        check_growth(path, len(tensors["draws"]) * network.layout.size * network.dtype.itemsize)
    for name in _FIELDS[header["class"]]:
        if name not in tensors or not tensors[name].numel():
            continue
        least, most = tensors[name].aminmax()  # NaN where any is
        if not bool(least.isfinite() & most.isfinite()):
            raise damaged(path, f"its {name} has numbers that are not finite")
        if name in ("std", "spread") and least < 0:
            raise damaged(path, f"its {name} has numbers below 0")
    try:
        if _INDEX in tensors:
            tensors["draws"] = _unpacked(tensors, network.layout.size)
        prior, row = None, header["prior"]
        if row is not None:
            numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
            del numbers["class"]
            prior = _PRIORS[row["class"]](**numbers)
        posterior = posterior_from(header["class"], tensors, network, prior)
        if posterior.mean.dtype != network.dtype:
            raise ValueError(f"its weights are {posterior.mean.dtype}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"its content does not fit its header ({error})") from error
    return posterior, tensors


def _about(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if _KEY not in metadata:
        raise ValueError(f"load: {path} was not written by bayesieve's save.")
    header = parse_json(path, metadata[_KEY].encode(), "its header", constants=True)
    if "format" not in header:
        raise ValueError(f"load: {path} was not written by bayesieve's save.")
    if header["format"] != FORMAT:
        raise ValueError(
            f"load: {path} has format {short(header['format'])}, this version reads {FORMAT}. "
            "Update bayesieve."
        )
    missing = {"class", "layout", "prior", "dtype", "extra"} - header.keys()
    if not missing and not isinstance(header["extra"], dict):
        missing = {"extra"}
    if missing or header["class"] not in list(_FIELDS):
        raise damaged(path, f"its header lacks {', '.join(sorted(missing)) or 'a known class'}")
    return header


def posterior_tensors(posterior: Posterior) -> dict[str, Tensor]:
    """The tensors of a posterior by the names they have in files, read by `posterior_from`."""
    kind = type(posterior).__name__
    if kind not in _FIELDS:
        raise TypeError(f"save: {kind} cannot be saved; supported: {', '.join(_FIELDS)}.")
    tensors = {name: getattr(posterior, name) for name in _FIELDS[kind]}
    logit = getattr(posterior, "logit_inclusion", None)
    if logit is not None:
        tensors["logit_inclusion"] = logit
    if isinstance(posterior, UnitScaled):
        tensors["prior_std"] = torch.tensor(posterior.prior_std, dtype=torch.float64)
    tensors |= {BUFFERS + name: value for name, value in posterior.buffers.items()}
    if isinstance(posterior, Samples):
        tensors |= {DRAW_BUFFERS + name: value for name, value in posterior.draw_buffers.items()}
    return tensors


def posterior_from(
    kind: str, tensors: Mapping[str, Tensor], network: Network, prior: Prior | None = None
) -> Posterior:
    """The posterior of tensors, of their names in `posterior_tensors`, on a network.

    Args:
        kind: name of its class.
        tensors: on the network's device.
        network: whose weights it is about.
        prior: of a `Factorised`.
    """
    vectors = [tensors[name] for name in _FIELDS[kind]]
    logit, buffers = tensors.get("logit_inclusion"), _under(BUFFERS, tensors)
    if kind == "Samples":
        return Samples(network, vectors[0], logit, buffers, _under(DRAW_BUFFERS, tensors))
    if kind == "UnitScaled":
        mean, spread, log_mean, log_std = vectors
        number = tensors["prior_std"].item()
        return UnitScaled(network, mean, spread, log_mean, log_std, number, buffers)
    return Factorised(network, vectors[0], vectors[1], prior, logit, buffers)


def file_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file of tensors from any device, in any layout, with its checksums.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.safetensors"
        >>> _ = path.write_bytes(file_bytes({"a": torch.ones(2)}, {}))
        >>> read_tensors(path)[0]["a"]
        tensor([1., 1.])
    """
    plain = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    data = memoryview(tensors_to_bytes(plain))
    start = 8 + int.from_bytes(data[:8], "little")
    with _Sums(threads=len(data) - start > _BLOCK) as hashing:
        for i in range(start, len(data), _BLOCK):
            hashing.add(data[i : i + _BLOCK])
        sums = "".join(hashing.found())
    blank = _DIGITS * "0" + sums
    # Written here, since safetensors puts the metadata in another order every time.
    about = {"__metadata__": {**metadata, _SUM: blank}, **json.loads(bytes(data[8:start]))}
    text = json.dumps(about, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    whole = _hash([header]) + sums
    return b"".join([header.replace(blank.encode(), whole.encode(), 1), data[start:]])


def _hash(pieces: Sequence[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def header_sum_of(data: bytes) -> str:
    """The checksum that the header in the content of a new file carries."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return str(header["__metadata__"][_SUM][:_DIGITS])


def header_sum(path: Path) -> str | None:
    """The checksum that a file's header carries for the header itself; None in old files."""
    with path.open("rb") as stream:
        sums = _read_header(path, stream).metadata.get(_SUM)
    return None if sums is None else sums[:_DIGITS]


def _unpacked(tensors: Mapping[str, Tensor], d: int) -> Tensor:
    """Draws (n, d) of their values and places."""
    draws, index = tensors["draws"], tensors[_INDEX]
    if index.dtype != torch.int32 or index.dim() != 1 or draws.shape[1:] != index.shape:
        raise ValueError("its draws do not fit their places")
    if len(index) and (int(index.min()) < 0 or int(index.max()) >= d):
        raise ValueError(f"its draws lie outside of {d} weights")
    full = draws.new_zeros(len(draws), d)
    full[:, index.long()] = draws
    return full


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, by the rest of their names."""
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}


def _check_layout(path: Path, rows: object, layout: Layout) -> None:
    """Raise at the first tensor that differs, naming it, what the network has and what came."""
    expected = layout.to_json()
    if rows == expected:
        return
    if not isinstance(rows, list) or not all(isinstance(r, list) and len(r) == 3 for r in rows):
        raise damaged(path, "its layout is not a list of tensors")
    differing = [pair for pair in zip(expected, rows, strict=False) if pair[0] != pair[1]]
    wanted, got = f"{len(expected)} tensors", str(len(rows))
    if differing:
        wanted, got = (
            f"{short(name)} of shape {short(shape)} ({str(role)[:20]})"
            for name, shape, role in differing[0]
        )
    raise ValueError(f"load: {path} is of another network: expected {wanted}, found {got}.")


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Read every tensor of a safetensors file, and its metadata.

    The sizes in the header are compared with the size of the file before anything is allocated,
    and the bytes with the checksums of the header.

    Raises:
        DamagedFileError: names the file, the range of bytes and the tensors in it.
    """
    with _read(path) as content:
        return content


@contextmanager
def _read(path: Path) -> Iterator[tuple[dict[str, Tensor], Mapping[str, str]]]:
    """Tensors and metadata of a file. Tensors are compared with checksums when the block ends.

    They must not be changed inside it. If it fails, damage to the file is the reason that is given.
    """
    with path.open("rb") as stream:  # opened once: the path may lead to another file a moment later
        header = _read_header(path, stream)
        _check_header_sum(path, header)
        with _Sums(threads=header.n_bytes > _BLOCK) as sums:
            content = _read_content(path, stream, header, sums), header.metadata
            try:
                yield content
            except Exception:
                _check_sums(path, header, sums)
                raise
            _check_sums(path, header, sums)


def _read_content(
    path: Path, stream: BufferedReader, header: "_Header", sums: "_Sums"
) -> dict[str, Tensor]:
    """The tensors after a header; their bytes go to the checksums, if any, as they arrive."""
    tensors = {}
    try:
        for name, (dtype, shape, begin, end) in header.tensors.items():
            content = torch.empty(end - begin, dtype=torch.uint8)
            tensors[name] = content.view(dtype).reshape(shape)
            view = content.numpy().data
            while len(view):
                piece, view = view[: sums.room], view[sums.room :]
                if stream.readinto(piece) != len(piece):
                    raise damaged(path, _CUT)
                if _SUM in header.metadata:
                    sums.add(piece)
    except (OSError, RuntimeError) as error:
        raise damaged(path, f"{_CUT} ({error})") from error
    return tensors


class _Sums:
    """SHA-256 of each block of a stream of bytes; threads hash a block while the next is read.

    Args:
        threads: whether to start threads; for a block or two they are not worth it.

    Attributes:
        room: bytes until the end of the block.

    Example:
        >>> with _Sums(threads=False) as sums:
        ...     sums.add(b"abc")
        ...     [digits[:8] for digits in sums.found()]
        ['ba7816bf']
    """

    def __init__(self, threads: bool) -> None:
        self.room = _BLOCK
        self._blocks: list[list[bytes | memoryview]] = [[]]
        self._begun: list[Future[str]] = []
        self._pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1)) if threads else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def add(self, piece: bytes | memoryview) -> None:
        """Take the next bytes, at most `room` of them; they must not change before `found`."""
        self._blocks[-1].append(piece)
        self.room -= len(piece)
        if self.room == 0:
            if self._pool is not None:
                self._begun.append(self._pool.submit(_hash, self._blocks[-1]))
            self._blocks.append([])
            self.room = _BLOCK

    def found(self) -> list[str]:
        """The checksums of all blocks. Those that no thread has begun are hashed here, last first.

        So a busy machine, which lets threads wait, is no slower than without them.
        """
        last = len(self._blocks) if self._blocks[-1] else len(self._blocks) - 1
        sums = [""] * last
        for i in reversed(range(last)):
            if i >= len(self._begun) or self._begun[i].cancel():
                sums[i] = _hash(self._blocks[i])
        return [digits or self._begun[i].result() for i, digits in enumerate(sums)]


@dataclass(frozen=True)
class _Header:
    """The start of a file: its bytes, its metadata, and type, shape, begin and end of tensors."""

    content: bytes
    metadata: dict[str, Any]
    tensors: dict[str, tuple[torch.dtype, list[int], int, int]]  # in the order of the file

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return max((end for *_, end in self.tensors.values()), default=0)


def _read_header(path: Path, stream: BinaryIO) -> _Header:
    """The start of a file; the tensors of a sound one fill the rest without gaps."""
    size = os.fstat(stream.fileno()).st_size
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size - 8:
        raise damaged(path, _CUT)
    check_limit(path, "json", length, "bytes of header")
    text = stream.read(length)
    rows = parse_json(path, text, f"{_CUT}: its header")
    metadata = rows.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(map(_ENTRY.fullmatch, metadata)):
        # A damaged name of the checksums would pass for a file that never had any.
        raise damaged(path, "its header has entries that bayesieve does not write")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise damaged(path, "its header has entries that are no text")
    room, end, tensors = size - 8 - length, 0, {}
    for name, row in rows.items():
        declared = _declared(row)
        if declared is None:
            raise damaged(path, f"tensor {name[:80]!r} is not described as safetensors demand")
        if declared > room:
            raise damaged(
                path, f"tensor {name[:80]!r} declares {declared} bytes, but only {room} follow"
            )
        dtype, (begin, stop) = _DTYPES[row["dtype"]], row["data_offsets"]
        tensors[name] = dtype, row["shape"], begin, stop
    tensors = dict(sorted(tensors.items(), key=lambda item: item[1][2:]))
    for name, (_, _, begin, stop) in tensors.items():
        if begin != end:
            raise damaged(path, f"{_CUT}: tensor {name[:80]!r} begins at {begin}, not {end}")
        end = stop
    if end != room:
        raise damaged(path, f"{_CUT}: its tensors end at byte {8 + length + end}, not {size}")
    return _Header(start + text, metadata, tensors)


def _check_header_sum(path: Path, header: _Header) -> None:
    """Raise unless the header, which has the checksums of all blocks, is the one written."""
    if _SUM not in header.metadata:
        return
    sums, content = header.metadata[_SUM], header.content
    if len(sums) != _DIGITS * (1 - (-header.n_bytes // _BLOCK)):
        raise damaged(
            path, f"its {header.n_bytes} bytes of tensors are not as many as were written"
        )
    blank = content.replace(sums.encode(), (_DIGITS * "0" + sums[_DIGITS:]).encode(), 1)
    if _hash([blank]) != sums[:_DIGITS]:
        raise damaged(path, f"bytes 0 to {len(content) - 1}, its header, are not those written")


def _check_sums(path: Path, header: _Header, sums: _Sums) -> None:
    """Raise unless the tensors are those that were written, where the header has checksums."""
    start, n_bytes, digits = len(header.content), header.n_bytes, header.metadata.get(_SUM, "")
    wanted = [digits[i : i + _DIGITS] for i in range(_DIGITS, len(digits), _DIGITS)]
    wrong = [i for i, found in enumerate(sums.found()) if found != wanted[i]]
    if not wrong:
        return
    ranges = [(i * _BLOCK, min((i + 1) * _BLOCK, n_bytes)) for i in wrong]
    hit = [name for name, (*_, a, b) in header.tensors.items()
           if any(a < end and at < b for at, end in ranges)]  # fmt: skip
    shown = ", ".join(f"{start + at} to {start + end - 1}" for at, end in ranges[:_SHOWN])
    more = f" and {len(wrong) - _SHOWN} more ranges" if len(wrong) > _SHOWN else ""
    tensors = ", ".join(repr(name[:80]) for name in hit[:_SHOWN])
    others = f" and {len(hit) - _SHOWN} more" if len(hit) > _SHOWN else ""
    raise damaged(
        path, f"bytes {shown}{more} are not those written (SHA-256; tensors {tensors}{others})"
    )


def _declared(row: object) -> int | None:
    """Bytes that one entry of the header promises; None if it contradicts itself."""
    if not isinstance(row, dict) or row.get("dtype") not in [*_DTYPES]:
        return None
    shape: Any = row.get("shape")
    offsets: Any = row.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2 or len(shape) > 8:
        return None
    n = _DTYPES[row["dtype"]].itemsize
    for length in shape:
        n *= length
    return n if n == offsets[1] - offsets[0] else None


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 48 for v in values)
