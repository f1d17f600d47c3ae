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
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
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
    """Write a file and return its path."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
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


# ----------------------------------------------------------------------------------------- limits


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


# ----------------------------------------------------------------------- JSON and files of settings


@pytest.mark.parametrize("text", ['{"a": "' + '\\"' * 40_000, "\\" * 80_000, '"\\' * 40_000])
def test_backslashes_are_read_once(put, text):
    path = put("config.json", text)
    with pytest.raises(DamagedFileError, match=r"config\.json is damaged: it is no JSON"):
        read_json(path)
    assert "is damaged" in refused(1, "evaluate", path.parent)


CLOSED = '{"a": ' + "[" * 70 + "]" * 70 + "}"


@pytest.mark.parametrize("text", ["[" * 60_000, '{"a":' * 10_000, CLOSED], ids=range(3))
def test_nested_json_is_refused_by_every_reader(put, text):
    path = put("config.json", text)
    too_large("depth", read_json, path)
    too_large("depth", read_config, path)
    for command in ("evaluate", "report", "profile"):
        assert "levels of nesting" in refused(1, command, path.parent)


def test_brackets_inside_of_strings_are_no_levels(put):
    path = put("config.json", json.dumps({"a": "[" * 1000 + '"{\\'}))
    assert read_json(path)["a"].count("[") == 1000


def test_a_long_json_file_is_not_read(put):
    path = put("config.json", "{}")
    os.truncate(path, 1 << 33)
    too_large("json", read_json, path)


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_aliases_of_yaml_are_refused(put):
    with pytest.raises(UsageError, match=r"a\.yaml: write out the alias \*a"):
        read_config(put("a.yaml", LAUGHS))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "[" * 60_000),
        ("a.yaml", "".join(" " * i + "a:\n" for i in range(300))),
        ("a.toml", "data" + ".a" * 30_000 + " = 1"),
        ("a.json", "[" * 60_000),
    ],
)
def test_settings_may_not_nest_deeply(put, name, text):
    too_large("depth", read_config, put(name, text))


@pytest.mark.parametrize("name", ["a.yaml", "a.toml", "a.json"])
def test_settings_are_small(put, name):
    too_large("settings", read_config, put(name, "#" * 70_000))


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
    ],
)
def test_odd_settings_are_named_in_a_short_message(put, name, text, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = put(name, text)
    with pytest.raises(UsageError) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 700
    assert not (tmp_path / "owned").exists()


# ------------------------------------------------------------------------------------------- tables


def test_a_table_of_100_000_columns_is_refused_at_its_first_line(put):
    path = put("t.csv", ",".join(f"c{i}" for i in range(100_000)) + "\n1,2\n")
    too_large("columns", read_csv, path)


def test_many_columns_below_the_limit_take_seconds(put, monkeypatch):
    n = 5_000  # the old check of names took the square of this
    rows = [",".join(map(str, range(i, n + i))) for i in range(3)]
    columns = read_csv(put("t.csv", "\n".join([",".join(f"c{i}" for i in range(n)), *rows])))
    assert len(columns) == n


@pytest.mark.parametrize(
    "text", ['a,b\n"' + "x" * 5_000_000, "a,b\n" + '"\n' * 500_000, "a,b\n" + "1," * 500_000]
)
def test_giant_fields_and_lines_of_csv(put, text):
    path = put("t.csv", text)
    with pytest.raises(DataError, match=r"csv: lines? (\d+ )?of .*t\.csv"):
        read_csv(path)


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/stdin", "/"])
def test_a_device_is_no_table(place):
    with pytest.raises(DataError, match=f"csv: {place} must be a file"):
        read_columns("csv", Path(place), "y")


def test_parquet_that_unpacks_to_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setitem(LIMITS, "unpacked", LIMITS["unpacked"] >> 7)
    path = tmp_path / "t.parquet"
    column = pyarrow.array(np.zeros(30_000, np.int8)).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({f"c{i}": column for i in range(10)}), path)
    assert path.stat().st_size < 20_000
    too_large("unpacked", read_parquet, path)


# --------------------------------------------------------------------------------- NPZ, zip and IDX


def npz_of(path, *headers, data=b""):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for i, text in enumerate(headers):
            head = text.encode()
            start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head))
            archive.writestr(f"x{i}.npy", start + head + data)
    return path


def header(shape, dtype="|u1"):
    return f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}"


def test_npz_that_unpacks_to_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setitem(LIMITS, "unpacked", LIMITS["unpacked"] >> 7)
    path = npz_of(tmp_path / "x.npz", header((3_000_000,)), data=bytes(3_000_000))
    assert path.stat().st_size < 4_000
    too_large("unpacked", read_npz, path)


def test_npz_of_many_arrays_is_counted_together(tmp_path, monkeypatch):
    path = npz_of(tmp_path / "x.npz", *[header((1000,))] * 40, data=bytes(1000))
    monkeypatch.setitem(LIMITS, "unpacked", 30_000)
    monkeypatch.setitem(LIMITS, "ratio", 2)
    too_large("unpacked", read_npz, path)
    monkeypatch.setitem(LIMITS, "columns", 39)
    too_large("columns", read_npz, path)


@pytest.mark.parametrize(
    "text",
    [header((10**18, 0)), header((10**7, 0, 10**7)), header((-1,)), header((10**30,)),
     header((1,), "O"), header((1,), "V1000000000"), "-" * 5000 + "1", "(" * 3000, "{" * 100,
     "{'descr': " + "[" * 300, "\n", header("(1", "|u1"), header((True, 2), "no such type")],
)  # fmt: skip
def test_lying_headers_of_npz(tmp_path, text):
    path = npz_of(tmp_path / "x.npz", text, data=b"1")
    with pytest.raises(DataError, match=r"npz: .*x\.npz"):
        read_npz(path)


def test_tables_of_arrays_without_entries(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros((4, 0)), y=np.zeros((4, 0)))
    with pytest.raises(DataError, match="npz: "):
        read_columns("npz", path, None)


def test_gzip_of_idx_that_unpacks_to_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setitem(LIMITS, "unpacked", LIMITS["unpacked"] >> 7)
    path, n = tmp_path / "images.gz", 3_000_000
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1]) + n.to_bytes(4, "big") + bytes(n), 6))
    too_large("unpacked", read_idx, path, 1)


@pytest.mark.parametrize("sizes", [(2**32 - 1,) * 3, (0, 2**31, 2**31), (1, 1, 2)])
def test_idx_whose_header_promises_more_than_the_file(tmp_path, sizes):
    content = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sizes)
    for data in (content, gzip.compress(content)):
        path = tmp_path / "images"
        path.write_bytes(data)
        try:
            assert read_idx(path, 3).size == 0
        except DataError as error:
            assert "idx: " in str(error)  # noqa: PT017 - an empty array is fine too


# ----------------------------------------------------------------------------------- tar and images


def every(path):
    return [name for name, _ in iterate_files(path, lambda name: True)]


def head(kind, size, name="x"):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


HEADERS = {
    "pax": tarfile.XHDTYPE, "global pax": tarfile.XGLTYPE, "long name": tarfile.GNUTYPE_LONGNAME,
    "long link": tarfile.GNUTYPE_LONGLINK, "solaris": tarfile.SOLARIS_XHDTYPE,
}  # fmt: skip


@pytest.mark.parametrize("kind", HEADERS.values(), ids=HEADERS)
def test_headers_of_tar_are_small(put, kind):
    path = put("x.tar.gz", gzip.compress(head(kind, 2 << 30) + bytes(20 << 20)))
    too_large("header", every, path)


def test_a_member_of_tar_that_unpacks_to_gigabytes(put):
    path = put("x.tar.gz", gzip.compress(head(tarfile.REGTYPE, 4 << 30) + bytes(1 << 20)))
    too_large("unpacked", every, path)


def test_members_of_tar_are_counted_together(put, monkeypatch):
    monkeypatch.setitem(LIMITS, "unpacked", 5000)
    monkeypatch.setitem(LIMITS, "ratio", 1)
    block = head(tarfile.REGTYPE, 1000) + bytes(1024)
    too_large("unpacked", every, put("x.tar.gz", gzip.compress(block * 10)))


@pytest.mark.parametrize("n", [10, 5000])
def test_a_chain_of_pax_headers(put, n):
    pax = head(tarfile.XHDTYPE, 512) + b"12 path=abc\n".ljust(512, b"\0")
    path = put("x.tar.gz", gzip.compress(pax * n))
    with pytest.raises(DataError, match=r"x\.tar\.gz must be an intact tar archive"):
        every(path)


def picture(size, kind="PNG"):
    out = io.BytesIO()
    Image.new("L", size).save(out, kind)
    return out.getvalue()


def test_an_image_of_too_many_pixels(put, tmp_path):
    path = put("a/x.png", picture((9000, 9000)))
    with pytest.raises(TooLargeError, match=r"x\.png must have at most .* pixels") as caught:
        load_data(f"images:{tmp_path}")
    assert str(path) in str(caught.value)


def test_images_are_counted_together(put, tmp_path, monkeypatch):
    monkeypatch.setitem(LIMITS, "unpacked", 500_000)
    for i in range(6):
        put(f"a/{i}.png", picture((400, 400)))
    too_large("unpacked", lambda path: load_data(f"images:{path}"), tmp_path)


def test_a_size_of_images_that_settings_choose(put, tmp_path):
    put("a/x.png", picture((4, 4)))
    too_large("pixels", lambda path: load_data(f"images:{path}", image_size=10**6), tmp_path)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize("content", [EPS, picture((4, 4), "GIF"), picture((4, 4), "PPM"), b"8BPS"])
def test_formats_that_nobody_named_are_not_opened(tmp_path, content):
    with pytest.raises(DataError, match="in no format known"):
        decode_image(tmp_path, "x.png", content, None)


# --------------------------------------------------------------------------- posteriors and folders


def test_draws_that_unpack_to_gigabytes(tmp_path, monkeypatch):
    network = Network.of(nn.Linear(30, 3), Categorical())
    draws = torch.zeros(8, 93)
    draws[:, 0] = 1
    path = save(Samples(network, draws), tmp_path / "q.safetensors")
    assert torch.equal(load_posterior(path, network).draws, draws)
    monkeypatch.setitem(LIMITS, "unpacked", 2000)
    monkeypatch.setitem(LIMITS, "ratio", 1)
    too_large("unpacked", load_posterior, path, network)


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


# --------------------------------------------------------------------------------------------- ONNX


def onnx_file(path, *nodes, **constants):
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    x = make.make_tensor_value_info("input", 1, ["n", 4])
    y = make.make_tensor_value_info("logits", 1, None)
    values = [onnx.numpy_helper.from_array(np.array(v), name) for name, v in constants.items()]
    rows = [make.make_node(op, inputs, outputs, **more) for op, inputs, outputs, more in nodes]
    graph = make.make_graph(rows, "g", [x], [y], values)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


SUM = [("ReduceSum", ["big"], ["r"], {"keepdims": 0}), ("Add", ["input", "r"], ["logits"], {})]
GROWING = {
    "constant": ([("ConstantOfShape", ["s"], ["big"], {}), *SUM], {"s": [1 << 31]}),
    "expand": ([("Expand", ["one", "s"], ["big"], {}), *SUM],
               {"s": [1 << 31], "one": np.ones(1, np.float32)}),
    "tile": ([("Tile", ["input", "s"], ["logits"], {})], {"s": [1, 1 << 28]}),
}  # fmt: skip


@pytest.mark.parametrize("name", GROWING)
def test_onnx_whose_results_are_gigabytes(tmp_path, name):
    nodes, constants = GROWING[name]
    too_large("unpacked", read_onnx, onnx_file(tmp_path / "x.onnx", *nodes, **constants))


def test_onnx_of_a_length_that_nobody_infers(tmp_path):
    nodes = [("Range", ["a", "b", "c"], ["big"], {}), *SUM]
    path = onnx_file(tmp_path / "x.onnx", *nodes, a=0.0, b=1e12, c=1.0)
    with pytest.raises(DamagedFileError, match=r"x\.onnx is damaged: it holds a Range"):
        read_onnx(path)


def test_onnx_that_loops(tmp_path):
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    info = [make.make_tensor_value_info(name, kind, []) for name, kind in
            (("i", 7), ("c", 9), ("d", 9), ("v", 1), ("w", 1))]  # fmt: skip
    steps = [make.make_node("Identity", ["c"], ["d"]), make.make_node("Identity", ["v"], ["w"])]
    body = make.make_graph(steps, "b", [*info[:2], info[3]], [info[2], info[4]])
    nodes = [("Loop", ["n", "t", "v0"], ["r"], {"body": body}), SUM[1]]
    path = onnx_file(tmp_path / "x.onnx", *nodes, n=1 << 50, t=True, v0=np.float32(0))
    with pytest.raises(DamagedFileError, match=r"x\.onnx is damaged: it holds a Loop"):
        read_onnx(path)
