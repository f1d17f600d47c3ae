"""A byte fuzzer over every reader: the same cases for the same numbers, on every machine.

A case is a reader, a number, and what the number makes of an intact file: bits flipped, bytes cut,
inserted, repeated or taken from elsewhere, sizes replaced by absurd ones, JSON values by odd ones.
Checksums are left out or made again, as an attacker would. `run_case` reads the file. It may work,
or raise one of our errors that names the file; anything else is a finding.
"""

import copy
import gzip
import io
import json
import random
import re
import resource
import sys
import tarfile
import time
import traceback
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as tensors_to_bytes
from torch import nn

import bayesieve
from bayesieve import runs
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Samples, SparseModel
from bayesieve.core.storage import load_posterior, save
from bayesieve.data import load_data
from bayesieve.data.image_sets import load_cifar, load_idx, read_idx
from bayesieve.data.images import decode_image, load_images
from bayesieve.data.uci import load_uci
from bayesieve.deliver.bundle import read_bundle, reading, save_bundle
from bayesieve.deliver.onnx import read_onnx
from bayesieve.errors import BayesieveError
from bayesieve.runs.config import read_config
from bayesieve.runs.folder import NETWORK, RunFolder
from bayesieve.runs.owned import MARKER
from bayesieve.training.checkpoint import read_checkpoint
from bayesieve.uncertainty.familiarity import Familiarity
from commands import write_table
from faults.rows import OTHER

SOURCE = Path(bayesieve.__file__).parent
SECONDS, KILOBYTES = 5.0, 600_000  # of one case, and of all cases together
_SIZES = (0, 1, 2**31, 2**48, *(2**k - 1 for k in (7, 8, 15, 16, 31, 32, 63, 64)))
_ODD = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 1e308, -1e-320, float("nan"), float("inf"),
    "", "x", "module:os.system", "../../etc/passwd", "\x00", "\ud800", "a" * 3000, "mlp:3,3", [],
    [[]], {}, {"a": []}, [1, 2, 3], ["x"] * 50, [-1], [10**9, 10**9], {"node": "x"}, {"tuple": []},
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A file that a reader takes.

    Args:
        path: the file; it is replaced in every case.
        content: its intact bytes.
        read: reads everything that comes from it.
        pack: from changed bytes to those of the file, such as gzip.
    """

    path: Path
    content: bytes
    read: object
    pack: object = bytes

    def changed(self, r, others):
        """Its bytes after changes: of values where it has some that are known, or of any bytes."""
        if self.path.suffix == ".json" and r.random() < 0.7:
            return with_odd_value(r, self.content)
        if self.path.suffix == ".safetensors" and r.random() < 0.5:
            return with_odd_header(r, self.content)
        return mutated(r, self.content, others)


# ---------------------------------------------------------------------------------------- mutations


def mutated(random_numbers, content, others):
    """Bytes after one to four changes."""
    data = bytearray(content)
    for _ in range(random_numbers.choice((1, 1, 1, 2, 4))):
        random_numbers.choice(_CHANGES)(random_numbers, data, others)
    return bytes(data)


def _place(r, data):
    """A place: anywhere, or in the first bytes, where headers are."""
    return r.randrange(min(len(data), r.choice((16, 128, 1 << 30))) or 1)


def _flip(r, data, others):
    for _ in range(r.choice((1, 1, 3, 20))):
        if data:
            data[_place(r, data) % len(data)] ^= 1 << r.randrange(8)


def _overwrite(r, data, others):
    at = _place(r, data)
    data[at : at + 1] = bytes([r.choice((0, 1, 32, 34, 44, 91, 92, 93, 123, 125, 127, 128, 255))])


def _size(r, data, others):
    width = r.choice((1, 2, 4, 8))
    number = r.choice(_SIZES) % (1 << 8 * width)
    at = _place(r, data)
    data[at : at + width] = number.to_bytes(width, r.choice(("little", "big")))


def _digits(r, data, others):
    """Replace a number in a text."""
    numbers = list(re.finditer(rb"\d+", data[:100_000]))
    if numbers:
        at = r.choice(numbers)
        new = str(r.choice((*_SIZES, -1, "1e999", "0.5", "1" * 400)))
        data[at.start() : at.end()] = new.encode()


def _cut(r, data, others):
    del data[_place(r, data) :]


def _remove(r, data, others):
    at = _place(r, data)
    del data[at : at + r.choice((1, 2, 8, 100))]


def _insert(r, data, others):
    at = _place(r, data)
    data[at:at] = r.randbytes(r.choice((1, 2, 8, 300)))


def _repeat(r, data, others):
    at = _place(r, data)
    data[at:at] = data[at : at + r.choice((1, 4, 60, 600))] * r.choice((1, 2, 50))


def _splice(r, data, others):
    other = r.choice(others)
    data[_place(r, data) :] = other[_place(r, other) :]


_CHANGES = (_flip, _overwrite, _size, _digits, _cut, _remove, _insert, _repeat, _splice)


def with_odd_value(r, text):
    """JSON with one to three of its values replaced, removed or moved."""
    values = json.loads(text)
    for _ in range(r.choice((1, 1, 2, 3))):
        places = list(_places(values))
        if not places:
            break
        owner, key = r.choice(places)
        what = r.randrange(6)
        if what == 0:
            del owner[key]
        elif what == 1:
            other, name = r.choice(places)
            owner[key] = json.loads(
                json.dumps(other.get(name) if isinstance(other, dict) else other)
            )
        elif what == 2 and isinstance(owner, dict):
            owner[r.choice(("x", "__class__", "", "0", "a.b"))] = owner.pop(key)
        else:
            owner[key] = copy.deepcopy(r.choice(_ODD))
    return json.dumps(values).encode()


def with_odd_header(r, data):
    """A safetensors file with odd values in its header, or in the JSON of its metadata."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    about = header.get("__metadata__", {})
    if "bayesieve" in about and r.random() < 0.7:
        about["bayesieve"] = with_odd_value(r, about["bayesieve"]).decode()
        text = json.dumps(header).encode()
    else:
        text = with_odd_value(r, json.dumps(header))
    return len(text).to_bytes(8, "little") + text + data[end:]


def _places(values):
    pairs = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in list(pairs):
        yield values, key
        if isinstance(value, dict | list):
            yield from _places(value)


# ------------------------------------------------------------------------------------------ targets


def _png(kind, size=(5, 4), mode="RGB", **more):
    out = io.BytesIO()
    pixels = np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(size[1], size[0], 3)
    Image.fromarray(pixels).convert(mode).save(out, kind, **more)
    return out.getvalue()


def _tar(mode, content):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.PAX_FORMAT) as archive:
        names = ("train/a/1.png", "train/b/2.png", "test/a/" + "ä" * 60 + ".png", "test/b/4.png")
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def with_sums(data):
    """A tar archive with the checksums of its headers made again."""
    data = bytearray(data)
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % (sum(data[at : at + 512]) & 0o777777)
    return bytes(data)


def _npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _zipped(name, *others):
    def pack(data):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, data)
            for other, content in others:
                archive.writestr(other, content)
        return out.getvalue()

    return pack


def _unsigned(path):
    """A safetensors file without checksums, which an attacker would make anew."""
    with safe_open(path, "pt") as stream:
        about = {name: text for name, text in (stream.metadata() or {}).items() if name != "sha256"}
    path.write_bytes(tensors_to_bytes(load_file(path), about))
    return path.read_bytes()


def _idx(sizes):
    n = int(np.prod(sizes))
    head = bytes([0, 0, 8, len(sizes)]) + b"".join(size.to_bytes(4, "big") for size in sizes)
    return head + bytes(i % 10 for i in range(n))


def make_targets(home):
    """Every file of every reader, intact, below a folder."""
    targets = {}

    def add(name, path, content, read, pack=bytes):
        path = home / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pack(content))
        read(path)  # the intact file is fine
        targets[name] = Target(path, content, read, pack)

    add("idx", "idx/images", _idx((3, 4, 5)), lambda path: read_idx(path, 3))
    add("idx.gz", "idx/images.gz", _idx((3, 4, 5)), lambda path: read_idx(path, 3), gzip.compress)
    _add_tables(home, add)
    for kind in ("PNG", "JPEG", "BMP", "WEBP", "TIFF"):
        add(kind.lower(), f"pictures/x.{kind.lower()}", _png(kind),
            lambda path: decode_image(path.parent, path.name, path.read_bytes(), None))  # fmt: skip
    packed = {"compression": "tiff_adobe_deflate"}
    add("packed tiff", "pictures/y.tiff", _png("TIFF", **packed),
        lambda path: decode_image(path.parent, path.name, path.read_bytes(), 8))  # fmt: skip
    add("tar", "images.tar", _tar("w", _png("PNG")), load_images, with_sums)
    add("tar.gz", "images.tar.gz", _tar("w", _png("PNG")), load_images,
        lambda data: gzip.compress(with_sums(data), mtime=0))  # fmt: skip
    add("tar.xz", "images.tar.xz", _tar("w:xz", _png("PNG")), load_images)
    settings = {"data": {"name": "digits"}, "engine": {"lr": 0.01}, "training": {"epochs": 3}}
    yaml = "data: {name: digits}\nengine:\n  lr: 1e-3\nnet: {prune_params: ['a', \"b\"]}\n"
    toml = '[data]\nname = "digits"\n[engine]\nlr = 1e-3\n[net]\nprune_params = ["a"]\n'
    add("yaml", "settings.yaml", yaml.encode(), read_config)
    add("toml", "settings.toml", toml.encode(), read_config)
    add("settings", "settings.json", json.dumps(settings).encode(), read_config)
    _add_models(home, add)
    _add_run(home, add)
    _add_onnx(add)
    return targets


def table_of(kind, target="y"):
    """A reader of a table in a file of this kind."""
    return lambda path: load_data(f"{kind}:{path}", target=target)


def _add_tables(home, add):
    rows = "\n".join(f"{i},{i % 3},{'red' if i % 2 else 'blue'},{0.5 * i}" for i in range(12))
    add("csv", "t.csv", f"a,b,c,y\n{rows}\n".encode(), table_of("csv"))
    quoted = "\n".join(f'"{i}";"x ""{i % 2}"" ";{i}' for i in range(12))
    add("quoted csv", "q.csv", f'"a";"b";"y"\n{quoted}\n'.encode(), table_of("csv"))
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    arrays = io.BytesIO()
    np.savez_compressed(arrays, x=x, y=y)

    add("npz", "t.npz", arrays.getvalue(), table_of("npz", None))
    add("npy in npz", "u.npz", _npy(x), table_of("npz", None), _zipped("x.npy", ("y.npy", _npy(y))))
    out = io.BytesIO()
    columns = {"a": np.arange(10.0), "b": ["x", "y"] * 5, "y": np.arange(10) % 3}
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    add("parquet", "t.parquet", out.getvalue(), table_of("parquet"))
    uci = io.BytesIO()
    masks = np.packbits(np.eye(2, 10, dtype=bool), axis=1)
    np.savez(uci, x=x, y=x[:, 0], n_splits=np.array(2), test_mask=masks)
    add(
        "uci", "uci/boston.npz", uci.getvalue(), lambda path: load_uci("boston", path.parents[1], 0)
    )
    record = bytes([3]) + bytes(3072)
    folder = "cifar10/cifar-10-batches-bin"
    for k in range(1, 6):
        (home / folder).mkdir(parents=True, exist_ok=True)
        (home / folder / f"data_batch_{k}.bin").write_bytes(record * 2)
    add("cifar", f"{folder}/test_batch.bin", record, lambda path: load_cifar("cifar10", home))
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    for name in names:
        (home / "mnist").mkdir(exist_ok=True)
        (home / "mnist" / f"{name}-ubyte").write_bytes(_idx((4, 3, 3) if "idx3" in name else (4,)))
    add("labels", "mnist/t10k-labels-idx1-ubyte", _idx((4,)), lambda path: load_idx("mnist", home))


def _add_models(home, add):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    network = Network.of(module, Categorical())
    mean = network.weights_of(module)
    keep = torch.rand(len(mean)) < 0.5
    q = Factorised(network, mean, 0.1 * torch.ones_like(mean), buffers=network.buffers())
    sparse = SparseModel(q.masked(keep), keep)
    known = Familiarity.of(torch.randn(40, 20))
    draws = Samples(network, mean.repeat(4, 1) * keep, buffers=network.buffers())
    for name, thing in (("posterior", sparse), ("draws", draws)):
        path = save(thing, home / f"{name}.safetensors")
        add(name, path.name, _unsigned(path), lambda path: load_posterior(path, network))
    (home / "familiarity.safetensors").write_bytes(known.to_bytes())
    add("familiarity", "familiarity.safetensors", _unsigned(home / "familiarity.safetensors"),
        lambda path: Familiarity.read(path))  # fmt: skip
    bundle = save_bundle(module, home / "bundle", posterior=sparse.posterior, sparse=sparse,
                         classes=["a", "b", "c"], familiarity=known)  # fmt: skip

    def whole(path):
        read = read_bundle(path.parent)
        return read.keep, read.posterior, read.familiarity

    config = json.loads((bundle / "config.json").read_text())
    config |= {reading.HEADERS: {}, "sha256": {}, reading.CHECKSUM: None}
    (bundle / "config.json").write_text(json.dumps(config))
    for name in ("config.json", "model.safetensors", "masks.safetensors", "posterior.safetensors"):
        is_tensors = name.endswith(".safetensors")
        content = _unsigned(bundle / name) if is_tensors else (bundle / name).read_bytes()
        add(f"bundle {name}", f"bundle/{name}", content, whole)


def _add_onnx(add):
    make = onnx.helper
    x, y = (make.make_tensor_value_info(name, 1, ["n", 4]) for name in ("input", "logits"))
    weight = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = (("MatMul", ["input", "w"], ["h"]), ("Relu", ["h"], ["logits"]))
    steps = [make.make_node(*node) for node in nodes]
    graph = make.make_graph(steps, "g", [x], [y], [weight])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    make.set_model_props(model, {"classes": '["a", "b", "c", "d"]', "likelihood": "null"})
    add("onnx", "m.onnx", model.SerializeToString(), read_onnx)


def _add_run(home, add):
    (home / "fuzzed_net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), "
        "nn.Linear(4, 1))\n"
    )
    table = write_table(home / "own.csv", 30, "a,b,c,y", lambda i: (i % 5, i % 7, i % 3, 0.5 * i))
    sys.path.insert(0, str(home))
    try:
        given = {"data": f"csv:{table}", "target": "y", "net": "module:fuzzed_net.make"}
        runs.train(**given, steps=2, out=home / "run", figures=False, device="cpu")
    finally:
        sys.path.remove(str(home))
        sys.modules.pop("fuzzed_net", None)
    run = home / "run"
    (run / MARKER).unlink()
    for name in ("config.json", "metrics.jsonl"):
        read = _run_of if name == "config.json" else _history_of
        add(f"run {name}", f"run/{name}", (run / name).read_bytes(), read)
    for name in ("posterior.safetensors", NETWORK):
        add(f"run {name}", f"run/{name}", _unsigned(run / name), _run_of)
    checkpoint = next((run / "checkpoints").glob("*.safetensors"))
    content = _unsigned(checkpoint)
    name = checkpoint.relative_to(home)
    add("checkpoint", name, content, lambda path: read_checkpoint(path.parent))


def _run_of(path):
    return runs.load(path.parent, device="cpu")


def _history_of(path):
    return RunFolder(path.parent).history()


# -------------------------------------------------------------------------------------------- cases


def case(targets, name, number):
    """The bytes of a case."""
    r, target = random.Random(f"{name} {number}"), targets[name]
    others = [other.content for other in targets.values()]
    return target.pack(target.changed(r, others))


def run_case(targets, name, number):
    """Read a case; returns the kind of finding and what is wrong with the outcome, or None."""
    target, content = targets[name], case(targets, name, number)
    target.path.write_bytes(content)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, wrong = time.process_time(), None
    try:
        target.read(target.path)
    except Exception as error:
        wrong = _finding(target.path, error)
    finally:
        target.path.write_bytes(target.pack(target.content))
    seconds = time.process_time() - started
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    if seconds > SECONDS:
        wrong = OTHER, f"took {seconds:.1f} s"
    if grown > KILOBYTES:
        wrong = OTHER, f"took {grown:,} kB"
    if "fuzzed_net" in sys.modules:
        wrong = "executed code", "imported a module"
    return wrong and (wrong[0], f"{name} {number}: {wrong[1]}")


def _finding(path, error):
    """What is wrong with an error: its kind, who raised it, or that it does not name the file."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}"
    ours = isinstance(error, BayesieveError | ValueError | TypeError)
    if not ours or SOURCE not in Path(frames[-1].filename).parents:
        return "tracebacks", f"{type(error).__name__} from {where}: {str(error)[:300]}"
    message = str(error)
    named = (path.name, path.parent.name, path.stem)
    if not any(word in message for word in named):
        return OTHER, f"the file is not named: {where}: {message[:300]}"
    if len(message) > 1500:
        return OTHER, f"a message of {len(message)} characters: {message[:300]}"
    return None
