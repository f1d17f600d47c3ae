"""One rule for exit codes: 2 where the call is wrong, 1 where the work fails, for every command."""

import shutil

import numpy as np
import pytest

from bayesieve.cli.main import _message, exit_code
from bayesieve.errors import (
    BayesieveError,
    DamagedFileError,
    DataError,
    DivergedError,
    UnsupportedModelError,
    UsageError,
    VerificationError,
)
from commands import call, ok

TINY = ("--data", "digits", "--net", "mlp:4", "--epochs", "1", "--device", "cpu", "--no-figures")
ROWS = "\n".join(f"{i % 7},{i % 5},{(i * i) % 11}.5" for i in range(40))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a run, its pruned form, a bundle, tables and images' worth of numbers."""
    folder = tmp_path_factory.mktemp("codes")
    ok("train", *TINY, "--out", folder / "run")
    ok("prune", folder / "run", "--zeros", "0.5", "--no-figures", "--out", folder / "pruned")
    ok("compact", folder / "pruned", "--out", folder / "small")
    (folder / "good.csv").write_text(f"a,b,y\n{ROWS}\n")
    (folder / "ragged.csv").write_text(f"a,b,y\n{ROWS}\n1,2\n")
    (folder / "holes.csv").write_text(f"a,b,y\n{ROWS}\n1,,2\n")
    (folder / "flat.csv").write_text("a,y\n" + "\n".join(f"{i},1.5" for i in range(30)))
    (folder / "empty.csv").write_text("")
    (folder / "no.npz").write_bytes(b"PK")
    np.savez(folder / "x.npz", x=np.zeros((3, 1, 8, 8), dtype=np.float32))
    (folder / "broken_net.py").write_text("def net(:\n")
    (folder / "own_net.py").write_text(
        "from torch import nn\n\n\ndef net(input_shape, n_outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Tanh(), nn.Linear(4, 10))\n"
        "\n\ndef fails(input_shape, n_outputs):\n    raise KeyError('width')\n"
    )
    for source, copy in (("run", "cut"), ("small", "cut-bundle"), ("run", "cut-config")):
        shutil.copytree(folder / source, folder / copy)
    for name in ("cut/posterior.safetensors", "cut-bundle/model.safetensors"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-60])
    (folder / "cut-config" / "config.json").write_text("{")
    (folder / "file").write_text("mine")
    return folder


# A command line, and behind a bar words that its message must have.
WRONG_CALLS = [
    "tran",
    "train --nonsense",
    "train --out a",
    "train --data digits",
    "train {tiny} --engine sbn --out a",
    "train {tiny} --net lenet55 --out a",
    "train {tiny} --net mlp:0 --out a",
    "train {tiny} --net module:own_net.nt --out a",
    "train {tiny} --net module:own_net.fails --out a",
    "train {tiny} --net module:broken_net.net --out a",
    "train {tiny} --data digts --out a",
    "train {tiny} --data csv:none.csv --target y --out a",
    "train {tiny} --data csv:good.csv --target z --out a",
    "train {tiny} --data csv:good.csv --out a",
    "train {tiny} --epochs 0 --out a",
    "train {tiny} --epochs many --out a",
    "train {tiny} --batch-size 0 --out a",
    "train {tiny} --lr -1 --out a",
    "train {tiny} --lr nan --out a",
    "train {tiny} --lr fast --out a",
    "train {tiny} --zeros 1.0 --out a",
    "train {tiny} --zeros -1 --out a",
    "train {tiny} --zeros 0 --out a",
    "train {tiny} --seed -1 --out a",
    "train {tiny} --seed 99999999999999999999 --out a",
    "train {tiny} --data-seed -1 --out a",
    "train {tiny} --clip-norm 0 --out a",
    "train {tiny} --val-fraction 2 --out a",
    "train {tiny} --n-models 0 --out a",
    "train {tiny} --checkpoint-every 0 --out a",
    "train {tiny} --kl -1 --out a",
    "train {tiny} --shift -1 --out a",
    "train {tiny} --prune-params layer9* --out a",
    "train {tiny} --device gpu --out a",
    "train {tiny} --config none.yaml --out a",
    "train {tiny} --out run",
    "train {tiny} --out file",
    "train --out nowhere --resume",
    "prune run --zeros 1.5 --out a",
    "prune run --zeros 0.9999 --out a",
    "prune run --zeros 0.5 --score snrr --out a",
    "prune run --zeros 0.5 --scope layr --out a",
    "prune run --n-of-m 5:4 --out a",
    "prune run --threshold 2 --out a",
    "prune run --target-macs 2 --out a",
    "prune nowhere --zeros 0.5 --out a",
    "sieve none.safetensors --net mlp:4 --data digits --out a",
    "evaluate nowhere",
    "evaluate small",
    "evaluate run --samples -1",
    "evaluate run --member 3",
    "evaluate run --split all",
    "certify run",
    "certify pruned --against nowhere",
    "certify pruned --level 1",
    "certify pruned --nll -1",
    "attack run --fgsm x",
    "compact run --out a",
    "compact pruned --out small",
    "verify nowhere",
    "export small --to onxx --out a.onnx",
    "export small --to onnx --samples 2 --out a.onnx",
    "predict nowhere x.npz --out a.csv",
    "predict small none.npz --out a.csv",
    "predict small x.npz --samples 5 --out a.csv",
    "profile nowhere",
    "report nowhere",
    "data info mnits",
    "data fetch mnits",
    "scratch train --lr 0",
    "demo --epochs 0 --out a",
    "fit-table none.csv --target y",
    "fit-table good.csv --target z",
    "select good.csv --target y --fdr 2",
    "sweep {tiny} --trials -1 --out a",
    "reproduce nothing",
    "attack nowhere | is not a run folder",
    "attack run --fgsm a,b | --fgsm must be numbers with commas between",
    "attack run --fgsm -0.1 | --fgsm: strengths must be >= 0",
    "attack run --pgd 0.1,,0.2 | --pgd must be numbers",
    "attack run --fgsm 0.1,8 | no strength is above 1, got '0.1,8'. Write 8 of 255 as 0.0314.",
    "attack run --pgd 2 | --pgd: pixels run from 0 to 1",
    "attack run --shift blur | --shift must be rotation or noise",
    "attack run --shift noise --shift noise:0.1 | --shift noise is given twice",
    "attack run --pgd 0.1 --pgd-steps 0 | --pgd-steps must be > 0",
    "attack run --samples -1 | --samples must be >= 0",
    "attack run --examples 0 | --examples must be > 0",
    "compare {tiny} --methods sbn --out a | Did you mean 'sbnn'",
    "compare {tiny} --zeros most --out a | --zeros must be numbers",
    "compare {tiny} --precision half --out a | --precision must be one of float32, bf16",
    "compare {tiny} --compile maybe --out a | --compile must be one of auto, on, off; got 'maybe'",
    "compare {tiny} --n-train 9999999 --out a | --n-train must be 1 to",
    "compare {tiny} --n-test 0 --out a | --n-test must be 1 to",
    "compare {tiny} --set map.lr=1 --out a | --set must read METHOD.SECTION.NAME=VALUE",
    "compare {tiny} --set mop.engine.lr=1 --out a | Did you mean 'map'",
    "compare {tiny} --set map.engine.l=1 --out a | unknown key 'engine.l'",
    "compare {tiny} --methods map,sbnn,map --out a | --methods names map twice",
    "compare {tiny} --methods map --set sbnn.engine.lr=1 --out a | --set changes sbnn, which",
    "prune run --keep-units 0.5 --zeros 0.5 --out a | give one of --zeros",
    "prune run --keep-units 0.5 --allow-empty-layers --out a | units leave one",
    "prune run --target-macs 0.5 --scope layer --out a | --scope needs --zeros or --keep-units",
    "prune | Missing argument 'RUN'",
    "profile run --clock sun | --clock must be",
    "profile run --batch 1 | No such option: --batch",
    "report run --points 0 | --points",
    "nothing | No such command 'nothing'",
    "--nothing | No such option: --nothing",
    "train {tiny} --device meta --out a | --device must be auto, cpu",
    "train {tiny} --engine sghmc --draws 0 --out a | --draws must be at least 1, got 0",
    "train {tiny} --engine sghmc --cycles -1 --out a | --cycles must be at least 0, got -1",
    "train {tiny} --engine sghmc --burn-in 1.2 --out a | --burn-in is a fraction",
]
FAILED_WORK = [
    "train {tiny} --data mnist --out a",
    "train {tiny} --data csv:ragged.csv --target y --out a",
    "train {tiny} --data csv:holes.csv --target y --out a",
    "train {tiny} --data csv:flat.csv --target y --out a | one value only",
    "train {tiny} --data csv:empty.csv --target y --out a",
    "train {tiny} --data npz:no.npz --out a",
    "train {tiny} --engine tdamp --net module:own_net.net --out a",
    "train {tiny} --lr 1e30 --out a",
    "train {tiny} --out file/a",
    "evaluate cut",
    "evaluate cut-config",
    "prune cut --zeros 0.5 --out a",
    "verify cut-bundle",
    "verify small --against run",
    "predict cut-bundle x.npz --out a.csv",
    "predict small no.npz --out a.csv",
]


def outcome(place, monkeypatch, tmp_path, line):
    """Exit code and last line of a command whose outputs go to a folder of their own."""
    line, _, words = line.partition(" | ")
    monkeypatch.setenv("BAYESIEVE_DATA", str(tmp_path / "no-data"))
    monkeypatch.chdir(place)
    outputs = ("a", "a.csv", "a.onnx")
    given = line.format(tiny=" ".join(TINY)).split()
    result = call(*(tmp_path / word if word in outputs else word for word in given))
    assert result.stdout == ""
    said = result.stderr.strip().splitlines()[-1]
    assert words in said
    return result.exit_code, said


@pytest.mark.parametrize("line", WRONG_CALLS)
def test_a_wrong_call_ends_with_2_and_writes_nothing(place, monkeypatch, tmp_path, line):
    code, said = outcome(place, monkeypatch, tmp_path, line)
    assert (code, said[:7]) == (2, "error: "), said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", FAILED_WORK)
def test_work_that_fails_ends_with_1(place, monkeypatch, tmp_path, line):
    code, said = outcome(place, monkeypatch, tmp_path, line)
    assert (code, said[:7]) == (1, "error: "), said


@pytest.mark.parametrize(
    ("code", "errors"),
    [
        (2, [UsageError("a"), ValueError("a"), TypeError("a")]),
        (1, [BayesieveError("a"), DataError("a"), DamagedFileError("a"), DivergedError("a")]),
        (1, [UnsupportedModelError("a"), VerificationError("a")]),
        (1, [OSError("a"), PermissionError("a"), MemoryError(), ImportError("a")]),
        (1, [type("OutOfMemoryError", (RuntimeError,), {})("a")]),
        (None, [RuntimeError("a"), KeyError("a"), AssertionError("a")]),
    ],
)
def test_the_kind_of_error_decides(code, errors):
    assert {exit_code(error) for error in errors} == {code}


def test_errors_of_the_system_name_the_file(place, monkeypatch, tmp_path):
    said = outcome(place, monkeypatch, tmp_path, "train {tiny} --out file/a")[1]
    assert said == "error: file/a: not a directory."
    missing = FileNotFoundError(2, "No such file", "/no/.report.html.0123456789abcdef.part")
    assert _message(missing) == "/no/report.html: no such file."
