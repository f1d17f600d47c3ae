"""The federated study on a few simulated images."""

import json

import torch

from bayesieve.data.examples import DataSet, Examples
from studies import federated


def few(n=600):
    """Images of ten classes, each with its own bright pixels."""
    source = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 10
    x = 0.3 * torch.randn(n, 1, 28, 28, generator=source)
    x[torch.arange(n), 0, 2 * y, 2 * y] += 3
    return Examples(x, y)


def test_every_client_has_two_classes_and_no_image_twice():
    clients, watched = federated.divided(few(), per_client=40)
    assert [sorted(set(c.y.tolist())) for c in clients[:2]] == [[0, 1], [1, 2]]
    rows = torch.cat([c.x.flatten(1) for c in (*clients, watched)])
    assert len(torch.unique(rows, dim=0)) == len(rows) == 600


def test_even_clients_have_all_classes_and_no_image_twice():
    clients, watched = federated.divided(few(), per_client=40, even=True)
    assert all(len(c.y) == 40 and len(set(c.y.tolist())) == 10 for c in clients)
    rows = torch.cat([c.x.flatten(1) for c in (*clients, watched)])
    assert len(torch.unique(rows, dim=0)) == len(rows) == 600


def test_the_quick_study_writes_a_row_for_every_way(tmp_path, monkeypatch):
    data = DataSet("mnist", few(2000), few(50), "classification", tuple("0123456789"))
    monkeypatch.setattr(federated, "load_data", lambda name: data)
    out = tmp_path / "federated.json"
    rows = ["fedavg", "sbnn-average", "flat_vi-product", "even/fedavg"]
    assert federated.main(["--quick", "--seeds", "1", "--rows", *rows, "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert [row["name"] for row in record["rows"]] == rows
    assert all(len(row["detail"]["curves"][0]) == 2 for row in record["rows"])
