"""Memory of runs: the most at once, measured in a fresh process, against the estimate before it.

    OMP_NUM_THREADS=1 python -m benchmarks.memory [--engine sbnn] [--net mlp:400,400] [--out FILE]
    OMP_NUM_THREADS=1 python -m benchmarks.memory --images 814255 [--decoded] [--out FILE]

Each run takes six steps, writes a checkpoint and evaluates 2,000 examples, by draws where the
engine has any. What the process took after a small run of the same kind is not counted. The
median of three runs counts, since the allocator keeps more in some than in others. With
`--out`, rows that the file has already are kept.

With `--images`, the data are a folder of so many images, 28 x 28 as in EMNIST,
written to TMPDIR first, and the run is that of `bayesieve train`, from reading the first of them.
With `--decoded` no files are written: random pixels stand for what the decoder would return.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from bayesieve import runs
from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.memory import forget_peak, peak_resident_bytes
from bayesieve.assess.predict import FEWEST_DRAWS, draws_of
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.data import images
from bayesieve.engines.recipes import ENGINES, RunSize, build
from bayesieve.errors import UnsupportedModelError
from bayesieve.files import write_atomically
from bayesieve.nets import lenet5_caffe, mlp
from bayesieve.runs.memory import memory_need
from bayesieve.training.launch import fit

SHAPE, CLASSES, N_TRAIN, N_TEST, BATCH, STEPS = (1, 28, 28), 10, 20_000, 2_000, 128, 6
REPEATS = 3
NETS = {
    "mlp:400,400": lambda: mlp(SHAPE, CLASSES, (400, 400)),
    "mlp:1200,1200": lambda: mlp(SHAPE, CLASSES, (1200, 1200)),
    "lenet5-caffe": lambda: lenet5_caffe(SHAPE, CLASSES),
    "lenet-300-100": lambda: mlp(SHAPE, CLASSES, (300, 100)),
}


def measure(engine_name: Any, net: str, measured: int | None = None) -> dict[str, Any]:
    """Estimate and peak of one run in this process; or only the estimate, of a peak known."""
    torch.set_num_threads(1)
    size = RunSize.of(engine_name, N_TRAIN, None, STEPS, BATCH)
    engine = build(engine_name, size, {})
    if measured is not None:
        x = torch.zeros(N_TRAIN + N_TEST, *SHAPE)
        y = torch.zeros(len(x), dtype=torch.int64)
        problem = Problem(NETS[net](), Categorical(), (x[:N_TRAIN], y[:N_TRAIN]))
        return row_of(engine_name, net, problem, engine, (x[N_TRAIN:], y[N_TRAIN:]), measured)
    run_and_evaluate(engine, mlp(SHAPE, CLASSES, (10,)), 200, 20)  # loads all libraries
    before = forget_peak()
    problem, test = run_and_evaluate(engine, NETS[net](), N_TRAIN, N_TEST)
    measured = peak_resident_bytes() - before
    return row_of(engine_name, net, problem, engine, test, measured)


def row_of(
    engine_name: str,
    net: str,
    problem: Problem,
    engine: Any,
    test: tuple[Tensor, Tensor],
    measured: int,
) -> dict[str, Any]:
    need = memory_need(problem, engine, batch_size=BATCH, test=test)
    return {
        "engine": engine_name, "net": net, "parameters": problem.layout.size, **asdict(need),
        "measured": measured, "measured_to_estimate": round(measured / need.peak, 3),
    }  # fmt: skip


def run_and_evaluate(
    engine: Any, net: nn.Module, n_train: int, n_test: int
) -> tuple[Problem, tuple[Tensor, Tensor]]:
    """Train on random images and predict others; returns the problem and these."""
    x = torch.randn(n_train + n_test, *SHAPE, generator=torch.Generator().manual_seed(0))
    y = x.flatten(1)[:, :CLASSES].argmax(1)
    test = x[n_train:], y[n_train:]
    problem = Problem(net, Categorical(), (x[:n_train], y[:n_train]))
    with tempfile.TemporaryDirectory() as folder:
        run = fit(problem, engine, steps=STEPS, batch_size=BATCH, folder=folder)
        posterior = run.posterior
        evaluate(posterior, test, n_samples=draws_of(posterior, FEWEST_DRAWS))
    return problem, test


def measure_images(n: int, decoded: bool) -> dict[str, Any]:
    """Estimate and peak of a run on n images in files, or decoded already, in this process."""
    torch.set_num_threads(1)
    made = mock.patch.object(images, "decode_images", random_pixels) if decoded else nullcontext()
    with tempfile.TemporaryDirectory() as home, made:
        small, large = (write_images(Path(home) / f"{m}", m, decoded) for m in (500, n))
        settings: dict[str, Any] = {
            "net": "mlp:100",
            "steps": STEPS,
            "figures": False,
            "device": "cpu",
        }
        runs.train(data=f"images:{small}", out=Path(home) / "small run", **settings)
        before = forget_peak()
        need = runs.train(data=f"images:{large}", dry_run=True, **settings)["memory"]
        reading = peak_resident_bytes() - before
        before = forget_peak()
        runs.train(data=f"images:{large}", out=Path(home) / "large run", **settings)
        measured = max(reading, peak_resident_bytes() - before)
    return {
        "engine": "sbnn", "net": "mlp:100", "images": n, "decoded": decoded, **need,
        "measured_reading": reading, "measured": measured,
        "measured_to_estimate": round(measured / need["peak"], 3),
    }  # fmt: skip


def random_pixels(path: Path, _: int | None = None, **__: object) -> images.Decoded:
    """Random images as the decoder returns them; the name of the path says how many."""
    n = int(path.name)
    pixels = np.random.default_rng(0).integers(0, 256, (n, *SHAPE[1:], 1), dtype=np.uint8)
    none = np.zeros(n, dtype=bool)
    return images.Decoded(pixels, np.arange(n) % 2, none, np.array(["a", "b"]))


def write_images(home: Path, n: int, decoded: bool) -> Path:
    """A folder of random images of two classes as PNG files; an empty one if they are decoded."""
    from PIL import Image

    generator = np.random.default_rng(0)
    for label in "ab":
        (home / label).mkdir(parents=True)
    for i in range(0 if decoded else n):
        pixels = generator.integers(0, 256, SHAPE[1:], dtype=np.uint8)
        Image.fromarray(pixels).save(home / "ab"[i % 2] / f"{i:06d}.png", compress_level=0)
    return home


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=tuple(ENGINES))
    parser.add_argument("--net", choices=tuple(NETS))
    parser.add_argument("--here", action="store_true", help="measure in this process")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--estimate", action="store_true", help="estimate the rows of --out anew")
    parser.add_argument("--images", type=int, help="measure reading so many images instead")
    parser.add_argument("--decoded", action="store_true", help="without files and decoder")
    asked = parser.parse_args()
    if asked.images:
        row = measure_images(asked.images, asked.decoded)
        print(json.dumps(row))
        if asked.out is not None:
            add_row(asked.out, row)
        return
    if asked.here:
        try:
            print(json.dumps(measure(asked.engine, asked.net)))
        except UnsupportedModelError as error:
            print(json.dumps({"engine": asked.engine, "net": asked.net, "refused": str(error)}))
        return
    rows = []
    if asked.out is not None and asked.out.is_file():
        rows = json.loads(asked.out.read_text(encoding="utf-8"))["rows"]
    if asked.estimate:
        rows = [
            measure(r["engine"], r["net"], r["measured"])
            if "measured" in r and "images" not in r
            else r
            for r in rows
        ]
        write_atomically(asked.out, {"machine": machine(), "rows": rows})
        for row in rows:
            print(json.dumps(row), flush=True)
        return
    done = {(row["engine"], row["net"]) for row in rows}
    for net in [asked.net] if asked.net else NETS:
        for engine in [asked.engine] if asked.engine else ENGINES:
            if (engine, net) in done:
                continue
            command = [sys.executable, "-m", "benchmarks.memory", "--here"]
            command += ["--engine", engine, "--net", net]
            ran = [
                json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
                for _ in range(REPEATS)
            ]
            ran.sort(key=lambda row: row.get("measured", 0))
            rows.append(ran[REPEATS // 2] | {"runs": REPEATS})
            print(json.dumps(rows[-1]), flush=True)
            if asked.out is not None:
                write_atomically(asked.out, {"machine": machine(), "rows": rows})


def add_row(path: Path, row: dict[str, Any]) -> None:
    """Put a row of images into a record, in the place of an earlier one."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    same = ("images", "decoded")
    kept = [one for one in rows if any(one.get(name) != row[name] for name in same)]
    write_atomically(path, {"machine": machine(), "rows": [*kept, row]})


def machine() -> dict[str, str]:
    return {"python": sys.version.split()[0], "torch": torch.__version__, "device": "cpu"}


if __name__ == "__main__":
    main()
