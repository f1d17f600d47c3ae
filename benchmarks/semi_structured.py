"""2:4 networks on a GPU: dense, all layers semi-structured, and what `as_semi_structured` chose.

The feed-forward block of a transformer (4096-16384-4096) in bfloat16, its weights pruned 2:4 by
size, for several numbers of rows; each way as plain calls and as a replayed CUDA graph. Cases take
turns; ratios are medians over rounds of (dense time / time of the SAME round), so above 1 is faster
than dense. The chosen network must never be slower.

    python -m benchmarks.semi_structured --out results/semi-structured.json     # about 1 minute
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.sparse import to_sparse_semi_structured

from bayesieve.deliver.semi_structured import as_semi_structured
from bayesieve.files import write_atomically

ROWS = (16, 128, 512, 1024, 2048, 4096, 8192, 16384)
ROUNDS = 9
Call = Callable[[], object]


def two_of_four_(layer: nn.Linear) -> None:
    """Zero the two smallest of every four weights."""
    with torch.no_grad():
        groups = layer.weight.unflatten(1, (-1, 4))
        small = groups.abs().argsort(2)[..., :2]
        layer.weight.copy_(groups.scatter(2, small, 0.0).flatten(1))


def block(width: int, hidden: int) -> nn.Sequential:
    """The feed-forward block, pruned, in bfloat16 on the GPU."""
    net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
    for layer in (net[0], net[2]):
        assert isinstance(layer, nn.Linear)
        two_of_four_(layer)
    return net.bfloat16().cuda().eval().requires_grad_(False)


def all_sparse(net: nn.Sequential) -> nn.Sequential:
    """The block with every Linear layer as a semi-structured product."""
    layers: list[nn.Module] = []
    for layer in net:
        if isinstance(layer, nn.Linear):
            changed = nn.Linear(1, 1, device="cuda", dtype=torch.bfloat16)
            weight = to_sparse_semi_structured(layer.weight.detach())
            changed.weight = nn.Parameter(weight, requires_grad=False)
            changed.bias = layer.bias
            layers.append(changed)
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


def graphed(net: nn.Module, x: Tensor) -> Call:
    """A replayed CUDA graph of one call."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            net(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        net(x)

    def replay(_alive: tuple[object, ...] = (net, x)) -> None:
        graph.replay()  # reads the memory of what `_alive` keeps from being freed

    return replay


def milliseconds(call: Call, repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    with torch.no_grad():
        for _ in range(repeats):
            call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def measure(net: nn.Sequential, n: int) -> dict[str, object]:
    """One row of the table: n inputs."""
    x = torch.randn(n, 4096, device="cuda", dtype=torch.bfloat16)
    semi = as_semi_structured(net, x)
    print(f"{n} rows\n{semi.describe()}", flush=True)
    ways = {"dense": net, "sparse": all_sparse(net), "chosen": semi.module}
    with torch.no_grad():
        wanted = net(x).float()
        error = float((semi.module(x).float() - wanted).abs().max() / wanted.abs().max())
    calls: dict[tuple[str, str], Call] = {
        (way, "eager"): partial(module, x) for way, module in ways.items()
    }
    calls |= {(way, "graph"): graphed(module, x) for way, module in ways.items()}
    repeats = max(5, 40960 // max(n, 1024))
    rounds = [{case: milliseconds(call, repeats) for case, call in calls.items()}
              for _ in range(ROUNDS + 1)][1:]  # fmt: skip
    row: dict[str, object] = {"rows": n, "error": error}
    for way, how in calls:
        ms = statistics.median(one[way, how] for one in rounds)
        ratio = statistics.median(one["dense", how] / one[way, how] for one in rounds)
        row |= {f"{way}_{how}_ms": round(ms, 4), f"{way}_{how}": round(ratio, 3)}
    print({name: value for name, value in row.items() if not name.endswith("_ms")}, flush=True)
    return row


def main() -> None:
    """Print a row for each number of inputs, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("semi_structured: there is no CUDA device here, and nothing to measure.")
        return
    torch.manual_seed(0)
    net = block(4096, 16384)
    record = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "network": "4096-16384-4096",
        "rows": [measure(net, n) for n in ROWS],
    }  # fmt: skip
    print(json.dumps(record))
    if asked.out is not None:
        write_atomically(asked.out, record)


if __name__ == "__main__":
    main()
