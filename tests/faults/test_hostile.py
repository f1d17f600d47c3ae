"""Small files that ask for much: every limit is checked before anything is read or allocated.

Each file here once took minutes or gigabytes. The tests count CPU seconds and bytes, with margins
far above what a refusal takes and far below what reading would.
"""

import gzip
import io
import json
import os
import resource
import struct
import tarfile
import time
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pyarrow
import pyarrow.parquet
import pytest
import torch
from onnx import helper, numpy_helper
from PIL import Image
from torch import nn

from bayesieve import runs
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network
from bayesieve.core.posterior import Samples
from bayesieve.core.storage import load_posterior, save
from bayesieve.data import load_data
from bayesieve.data.files import iterate_files, read_npz
from bayesieve.data.image_sets import read_idx
from bayesieve.data.images import decode_image
from bayesieve.data.tables import read_columns, read_csv, read_parquet
from bayesieve.deliver.onnx import read_onnx
from bayesieve.errors import DamagedFileError, DataError, TooLargeError, UsageError
from bayesieve.files import LIMITS, LIMITS_VARIABLE, limit, read_json
from bayesieve.runs.config import read_config
from bayesieve.runs.owned import MARKER
from commands import as_json, ok, refused, write_table


@pytest.fixture(autouse=True)
def _bounded():
    memory, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 250_000  # kB
    assert time.process_time() - started < 4


@pytest.fixture
def put(tmp_path):
    """Write a file, its content given or written by a function of its path; return the path."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def too_large(name, read, *arguments):
    """Reading is refused by a limit; the message names the file, the limit and how to raise it."""
    with pytest.raises(TooLargeError) as caught:
        read(*arguments)
    message = str(caught.value)
    assert str(arguments[0]) in message
    assert f"{LIMITS_VARIABLE}={name}=" in message
    assert len(message) < 600
    return message


# ------------------------------------------------------------------------------- how files are made


def npz(*headers, data=b""):
    """An NPZ file of arrays with these headers, each followed by the same bytes."""

    def write(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for i, text in enumerate(headers):
                head = text.encode()
                start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head))
                archive.writestr(f"x{i}.npy", start + head + data)

    return write


def header(shape, dtype="|u1"):
    return f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}"


def parquet(path):
    column = pyarrow.array(np.zeros(30_000, np.int8)).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({f"c{i}": column for i in range(10)}), path)


def idx(*sizes, data=b""):
    return bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + data


def member(kind, size, name="x"):
    """The header of a member of a tar archive."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def picture(size, kind="PNG"):
    out = io.BytesIO()
    Image.new("L", size).save(out, kind)
    return out.getvalue()


def model(*nodes, **constants):
    """An ONNX file from nodes (operation, inputs, outputs, attributes) and constants by name."""
    x = helper.make_tensor_value_info("input", 1, ["n", 4])
    y = helper.make_tensor_value_info("logits", 1, None)
    values = [numpy_helper.from_array(np.array(v), name) for name, v in constants.items()]
    rows = [helper.make_node(op, inputs, outputs, **more) for op, inputs, outputs, more in nodes]
    graph = helper.make_graph(rows, "g", [x], [y], values)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


def loop():
    """The body of a loop that copies its value."""
    info = [helper.make_tensor_value_info(name, kind, []) for name, kind in
            (("i", 7), ("c", onnx.TensorProto.BOOL), ("d", 9), ("v", 1), ("w", 1))]  # fmt: skip
    steps = [helper.make_node("Identity", [a], [b]) for a, b in ("cd", "vw")]
    return helper.make_graph(steps, "b", [*info[:2], info[3]], [info[2], info[4]])


def columns(n, *rows):
    return "\n".join([",".join(f"c{i}" for i in range(n)), *rows]) + "\n"


# -------------------------------------------------------------------------------- more than a limit

DEEP = {"array": "[" * 60_000, "object": '{"a":' * 10_000,
        "closed": '{"a":' + "[" * 70 + "]" * 70 + "}"}  # fmt: skip
REGULAR, ONE, KILO = tarfile.REGTYPE, np.ones(1, np.float32), bytes(1000)
SUM = [("ReduceSum", ["big"], ["r"], {"keepdims": 0}), ("Add", ["input", "r"], ["logits"], {})]
UNPACKED = {"unpacked": LIMITS["unpacked"] >> 7}
LOW = {"unpacked": 5000, "ratio": 1}


def every(path):
    return [name for name, _ in iterate_files(path, lambda name: True)]


def images(path, **options):
    return load_data(f"images:{path.parent.parent}", **options)


def packed(kind, size, n_bytes):
    """A packed archive whose member is said to be larger than it is."""
    return lambda path: path.write_bytes(gzip.compress(member(kind, size) + bytes(n_bytes)))


TOO_LARGE = {  # limit, reader, file, content, limits that are lowered to keep the test small
    "long json": ("json", read_json, "config.json",
                  lambda path: (path.touch(), os.truncate(path, 1 << 33))),
    "deep yaml": ("depth", read_config, "a.yaml", "[" * 60_000),
    "deep blocks": ("depth", read_config, "a.yaml", "".join(" " * i + "a:\n" for i in range(300))),
    "deep toml": ("depth", read_config, "a.toml", "data" + ".a" * 30_000 + " = 1"),
    "long yaml": ("settings", read_config, "a.yaml", "#" * 70_000),
    "long toml": ("settings", read_config, "a.toml", "#" * 70_000),
    "long settings": ("settings", read_config, "a.json", "#" * 70_000),
    "100,000 columns": ("columns", read_csv, "t.csv", columns(100_000, "1,2")),
    "parquet": ("unpacked", read_parquet, "t.parquet", parquet, UNPACKED),
    "npz": ("unpacked", read_npz, "x.npz", npz(header((3_000_000,)), data=bytes(3_000_000)),
            UNPACKED),
    "many arrays": ("unpacked", read_npz, "x.npz", npz(*[header((1000,))] * 40, data=KILO),
                    {"unpacked": 30_000, "ratio": 2}),
    "columns of npz": ("columns", read_npz, "x.npz", npz(*[header((1000,))] * 40, data=KILO),
                       {"columns": 39}),
    "idx": ("unpacked", lambda path: read_idx(path, 1), "i.gz",
            lambda path: path.write_bytes(gzip.compress(idx(3_000_000, data=bytes(3_000_000)))),
            UNPACKED),
    "tar member": ("unpacked", every, "x.tar.gz", packed(REGULAR, 4 << 30, 1 << 20)),
    "tar members": ("unpacked", every, "x.tar.gz",
                    gzip.compress((member(REGULAR, 1000) + bytes(1024)) * 10), LOW),
    "size of images": ("pixels", partial(images, image_size=10**6), "a/x.png", picture((4, 4))),
    "images together": ("unpacked", images, "a/5.png",
                        lambda path: [path.with_name(f"{i}.png").write_bytes(picture((400, 400)))
                                      for i in range(6)], {"unpacked": 500_000}),
    "onnx constant": ("unpacked", read_onnx, "x.onnx",
                      model(("ConstantOfShape", ["s"], ["big"], {}), *SUM, s=[1 << 31])),
    "onnx expand": ("unpacked", read_onnx, "x.onnx",
                    model(("Expand", ["one", "s"], ["big"], {}), *SUM, s=[1 << 31], one=ONE)),
    "onnx tile": ("unpacked", read_onnx, "x.onnx",
                  model(("Tile", ["input", "s"], ["logits"], {}), s=[1, 1 << 28])),
} | {
    f"tar header {kind!r}": ("header", every, "x.tar.gz", packed(kind, 2 << 30, 20 << 20))
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME,
                 tarfile.GNUTYPE_LONGLINK, tarfile.SOLARIS_XHDTYPE)
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_more_than_a_limit_is_refused_before_it_is_read(put, monkeypatch, name):
    limit_name, read, file, content, *lower = TOO_LARGE[name]
    path = put(file, content)
    for key, value in (lower[0] if lower else {}).items():
        monkeypatch.setitem(LIMITS, key, value)
    with pytest.raises(TooLargeError) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message or str(path.parent.parent) in message
    assert f"{LIMITS_VARIABLE}={limit_name}=" in message
    assert len(message) < 600


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_nested_json_is_refused_by_every_reader(put, text):
    path = put("config.json", text)
    too_large("depth", read_json, path)
    too_large("depth", read_config, path)
    for command in ("evaluate", "report", "profile"):
        assert "levels of nesting" in refused(1, command, path.parent)


def test_an_image_of_too_many_pixels(put):
    path = put("a/x.png", picture((9000, 9000)))
    with pytest.raises(TooLargeError, match=r"x\.png must have at most .* pixels") as caught:
        images(path)
    assert str(path) in str(caught.value)


def test_draws_that_unpack_to_gigabytes(tmp_path, monkeypatch):
    network = Network.of(nn.Linear(30, 3), Categorical())
    draws = torch.zeros(8, 93)
    draws[:, 0] = 1
    path = save(Samples(network, draws), tmp_path / "q.safetensors")
    assert torch.equal(load_posterior(path, network).draws, draws)
    monkeypatch.setitem(LIMITS, "unpacked", 2000)
    monkeypatch.setitem(LIMITS, "ratio", 1)
    too_large("unpacked", load_posterior, path, network)


def test_the_variable_raises_a_limit(put, monkeypatch):
    path = put("t.csv", "a,b,c\n1,2,3\n")
    monkeypatch.setitem(LIMITS, "columns", 2)
    message = too_large("columns", read_csv, path)
    assert "must have at most 2 columns, got 3" in message
    monkeypatch.setenv(LIMITS_VARIABLE, message.partition(f"{LIMITS_VARIABLE}=")[2].rstrip("."))
    assert list(read_csv(path)) == ["a", "b", "c"]


def test_every_limit_is_documented():
    page = Path(__file__).parents[2] / "docs" / "data.md"
    rows = page.read_text(encoding="utf-8")
    assert all(f"\n| `{name}` | " in rows for name in LIMITS)


@pytest.mark.parametrize("text", ["columns", "columns=-1", "colums=3", "columns=1e5"])
def test_a_wrong_variable_is_named(text, monkeypatch):
    monkeypatch.setenv(LIMITS_VARIABLE, text)
    with pytest.raises(UsageError, match=f"{LIMITS_VARIABLE} must read name=number"):
        limit("columns")


# -------------------------------------------------------------------------------- what is not meant

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
PAX = member(tarfile.XHDTYPE, 512) + b"12 path=abc\n".ljust(512, b"\0")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
LYING = [header((10**18, 0)), header((10**7, 0, 10**7)), header((-1,)), header((10**30,)),
         header((1,), "O"), header((1,), "V1000000000"), "-" * 5000 + "1", "(" * 3000, "{" * 100,
         "{'descr': " + "[" * 300, "\n", header("(1", "|u1"),
         header((True, 2), "no such type")]  # fmt: skip


def decoded(path):
    return decode_image(path.parent, path.name, path.read_bytes(), None)


def of_table(kind):
    return lambda path: read_columns(kind, path, None)


REFUSED = [  # reader, file, content, words of the message
    *((read_json, "config.json", text, r"config\.json is damaged: it is no JSON")
      for text in ('{"a": "' + '\\"' * 40_000, "\\" * 80_000, '"\\' * 40_000)),
    (read_config, "a.yaml", LAUGHS, r"a\.yaml: write out the alias \*a"),
    *((read_csv, "t.csv", text, r"csv: lines? (\d+ )?of .*t\.csv") for text in
      ('a,b\n"' + "x" * 5_000_000, "a,b\n" + '"\n' * 500_000, "a,b\n" + "1," * 500_000)),
    *((read_npz, "x.npz", npz(text, data=b"1"), r"npz: .*x\.npz") for text in LYING),
    (of_table("npz"), "x.npz", lambda path: np.savez(path, x=np.zeros((4, 0)), y=np.zeros((4, 0))),
     "npz: "),
    *((every, "x.tar.gz", gzip.compress(PAX * n), r"x\.tar\.gz must be an intact tar archive")
      for n in (10, 5000)),
    *((decoded, "x.png", content, "in no format known")
      for content in (EPS, picture((4, 4), "GIF"), picture((4, 4), "PPM"), b"8BPS")),
    (read_onnx, "x.onnx",
     model(("Range", ["a", "b", "c"], ["big"], {}), *SUM, a=0.0, b=1e12, c=1.0),
     r"x\.onnx is damaged: it holds a Range"),
    (read_onnx, "x.onnx", model(("Loop", ["n", "t", "v0"], ["r"], {"body": loop()}), SUM[1],
                                n=1 << 50, t=True, v0=np.float32(0)),
     r"x\.onnx is damaged: it holds a Loop"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "file", "content", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_no_reader_takes_is_refused_in_words(put, read, file, content, words):
    path = put(file, content)
    with pytest.raises((DamagedFileError, DataError, UsageError), match=words):
        read(path)


def test_brackets_inside_of_strings_are_no_levels(put):
    path = put("config.json", json.dumps({"a": "[" * 1000 + '"{\\'}))
    assert read_json(path)["a"].count("[") == 1000


def test_many_columns_below_the_limit_take_seconds(put):
    n = 5_000  # the old check of names took the square of this
    rows = [",".join(map(str, range(i, n + i))) for i in range(3)]
    assert len(read_csv(put("t.csv", columns(n, *rows)))) == n


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/stdin", "/"])
def test_a_device_is_no_table(place):
    with pytest.raises(DataError, match=f"csv: {place} must be a file"):
        read_columns("csv", Path(place), "y")


@pytest.mark.parametrize("sizes", [(2**32 - 1,) * 3, (0, 2**31, 2**31), (1, 1, 2)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_whose_header_promises_more_than_the_file(put, sizes, pack):
    path = put("images", pack(idx(*sizes)))
    try:
        assert read_idx(path, 3).size == 0
    except DataError as error:
        assert "idx: " in str(error)  # noqa: PT017 - an empty array is fine too


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "a = " + "[" * 60_000),
        ("a.yaml", "data: 1" + ":1" * 30_000),
        ("a.yaml", "data: 0x" + "f" * 60_000),
        ("a.yaml", "training: {epochs: 0x" + "f" * 60_000 + ".5}"),
        ("a.yaml", "engine: {lr: 0x" + "f" * 60_000 + "}"),
        ("a.yaml", "1: 2"),
        ("a.yaml", "data: {1: 2}"),
        ("a.yaml", "? [a]\n: 1"),
        ("a.yaml", "data: {name: 2001-99-99}"),
        ("a.yaml", "data: !!python/object/apply:os.system ['touch owned']"),
        ("a.yaml", "x" * 60_000 + ": 1"),
        ("a.toml", "[data]\n" + "k" * 60_000 + " = 1"),
        ("a.json", '{"net": {"name": ' + "9" * 5000 + "}}"),
        ("a.yaml", "\x00"),
        ("a.json", b"\xff\xfe"),
        ("a.json", "[" * 60_000),
    ],
    ids=range(16),
)
def test_odd_settings_are_named_in_a_short_message(put, name, text, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = put(name, text)
    with pytest.raises((UsageError, TooLargeError)) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 700
    assert not (tmp_path / "owned").exists()


# -------------------------------------------------------------------------------- settings of a run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run on a table."""
    home = tmp_path_factory.mktemp("hostile")
    data = f"csv:{write_table(home / 't.csv')}"
    given = ("--data", data, "--target", "y", "--net", "mlp:4", "--steps", "2", "--no-figures")
    ok("train", *given, "--out", home / "a")
    (home / "a" / MARKER).unlink()  # who changes files on purpose changes their checksums too
    return home / "a"


@pytest.fixture
def changed(run):
    """Change settings in config.json, and put them back afterwards."""
    path = run / "config.json"
    before = path.read_text()

    def change(section, name, value):
        config = json.loads(before)
        config[section][name] = value
        path.write_text(json.dumps(config))
        return run

    yield change
    path.write_text(before)


@pytest.mark.parametrize("widths", ["3000000,3000000", "9" * 30, "1" * 400, "4,4", "5"])
def test_widths_in_a_config_do_not_decide_the_memory(changed, widths):
    folder = changed("net", "name", f"mlp:{widths}")
    message = refused(2, "evaluate", folder)
    assert "is of another network than mlp:" in message
    assert str(folder / "config.json") in message


def test_a_number_of_models_in_a_config_does_not_decide_the_time(changed):
    folder = changed("training", "n_models", 10**15)
    assert len(runs.load(folder, device="cpu").models()) == 1
    assert as_json("evaluate", folder)["n_examples"] == 8
