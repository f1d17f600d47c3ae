"""A run goes on from what a kill has left, with its own data, or says in one line why not."""

import hashlib
import re

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bayesieve.core.reading import with_data
from bayesieve.engines.map import MAP
from bayesieve.errors import DamagedFileError, DataError
from bayesieve.training import checkpoint
from bayesieve.training.checkpoint import OTHER_DATA, read_checkpoint
from bayesieve.training.fingerprint import difference, fingerprint
from bayesieve.training.launch import fit
from commands import call, ok, refused, write_table
from faults.injectors import Killed, flip, positions, truncate
from faults.rows import cases
from runs import toy

FLAGS = ("--epochs", "3", "--batch-size", "16", "--no-figures", "--device", "cpu", "--net", "mlp:4",
         "--engine", "map")  # fmt: skip


def stopped(folder, problem=None, after=2, **options):
    """A run of three epochs that is killed when its checkpoint after some epochs is written."""

    def kill(progress):
        if progress.epoch == after:
            raise Killed

    with pytest.raises(Killed):
        fit(problem or toy(), MAP(), epochs=3, batch_size=8, folder=folder, callbacks=[kill])


def resumed(folder, problem=None, resume=True):
    return fit(problem or toy(), MAP(), epochs=3, batch_size=8, folder=folder, resume=resume)


@pytest.fixture(scope="module")
def unbroken():
    return fit(toy(), MAP(), epochs=3, batch_size=8).posterior.mean


def as_version_0_1(folder):
    """Checkpoints as earlier versions wrote them: a checksum in a file beside each."""
    for path in folder.glob("checkpoints/*.safetensors"):
        with safe_open(path, "pt") as stream:
            about = stream.metadata()["bayesieve"]
        tensors = load_file(path)
        rows = tensors.pop("history").numpy().tobytes().decode()
        about = about[:-1] + f', "history": {rows}}}'
        save_file(tensors, path, {"bayesieve": about})
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.with_suffix(".sha256").write_text(digest)


def newest(folder):
    return max(folder.glob("checkpoints/*.safetensors"))


def lose_the_sum(path):
    path.with_suffix(".sha256").unlink()


def spoil_the_sum(path):
    path.with_suffix(".sha256").write_bytes(b"\xff\xfe" * 32)


def cut_the_sum(path):
    truncate(path.with_suffix(".sha256"), 10)


@pytest.mark.parametrize("fault", [None, lose_the_sum, spoil_the_sum, cut_the_sum])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_checkpoint_of_an_earlier_version_and_its_checksum(
    tmp_path, unbroken, logged, fault, epochs
):
    stopped(tmp_path, after=epochs)
    as_version_0_1(tmp_path)
    if fault is not None:
        fault(newest(tmp_path))
    if epochs == 1 and fault in (spoil_the_sum, cut_the_sum):  # the only checkpoint is in doubt
        with pytest.raises(DamagedFileError, match="`force` in place of `resume`"):
            resumed(tmp_path)
        return
    assert torch.equal(resumed(tmp_path).posterior.mean, unbroken)
    warned = fault in (spoil_the_sum, cut_the_sum)
    assert ("trying the one before it" in logged.getvalue()) == warned


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_checkpoint_that_is_damaged_anywhere_is_passed_over(tmp_path, logged, tally, damage):
    stopped(tmp_path)
    path = newest(tmp_path)
    whole = path.read_bytes()
    for at in positions(path, cases(1 << 20, 256)):
        flip(path, at) if damage == "flip" else truncate(path, at)
        assert read_checkpoint(path.parent)[1]["step"] == 3
        tally.injected()
        path.write_bytes(whole)
    assert read_checkpoint(path.parent)[1]["step"] == 6
    assert path.name in logged.getvalue()


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    tmp_path, monkeypatch, unbroken
):
    stopped(tmp_path, after=1)
    with monkeypatch.context() as patch:

        def killed(*_):
            raise Killed

        patch.setattr(checkpoint, "write_atomically", killed)
        with pytest.raises(Killed):
            resumed(tmp_path)
    assert torch.equal(resumed(tmp_path).posterior.mean, unbroken)


# --- the data


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "t.csv", 64, row=lambda i: (i, (i * 7) % 11, i % 5))


def test_a_csv_that_was_rewritten_is_refused_in_words(tmp_path, table):
    out, data = tmp_path / "a", ("--data", f"csv:{table}", "--target", "y")
    ok("train", *data, *FLAGS, "--out", out)
    (out / "metrics.json").unlink()  # as if it had been killed
    text = table.read_text()
    table.write_text(text.replace("\n20,8,0\n", "\n20,9,0\n"))
    assert table.stat().st_size == len(text)
    result = call("train", "--out", out, "--resume", "--no-figures")
    assert result.exit_code == 1
    line = result.stderr.strip().splitlines()[-1]
    assert re.search(r"data are not those that the run was begun with: inputs differ", line)
    assert "--resume-with-other-data" in line
    ok("train", "--out", out, "--resume-with-other-data", "--no-figures")
    table.write_text(text)
    (out / "metrics.json").unlink()
    ok("train", "--out", out, "--resume", "--no-figures")


def test_targets_and_inputs_that_change_are_told_apart(tmp_path):
    problem = toy()
    stopped(tmp_path, problem)
    y = problem.y.clone()
    y[3] = (y[3] + 1) % 3
    with pytest.raises(DataError, match="targets differ among examples 2 to 3") as caught:
        resumed(tmp_path, with_data(problem, (problem.x, y)))
    assert "inputs" not in str(caught.value)
    with pytest.raises(DataError, match="inputs differ everywhere"):
        resumed(tmp_path, with_data(problem, (problem.x.flip(0), problem.y)))
    resumed(tmp_path, with_data(problem, (problem.x, y)), resume=OTHER_DATA)


def test_a_last_digit_is_no_difference():
    x, y = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0)), torch.arange(1000)
    data = fingerprint(x, y)
    assert difference(data, fingerprint(torch.nextafter(x, x + 1), y)) is None
    other = x.clone()
    other[700, 2] += 0.1
    assert difference(data, fingerprint(other, y)) == "inputs differ among examples 693 to 755"
    swapped = x.clone()
    swapped[[10, 11]] = x[[11, 10]]
    assert difference(data, fingerprint(swapped, y)) == "inputs differ among examples 0 to 62"


def test_large_data_are_sampled(monkeypatch):
    monkeypatch.setattr("bayesieve.training.fingerprint._MOST_BYTES", 4000)
    x, y = torch.arange(64_000.0).reshape(6400, 10), torch.zeros(6400)
    data = fingerprint(x, y)
    x[0] += 1
    assert difference(data, fingerprint(x, y)) == "inputs differ among examples 0 to 399"
    assert difference(data, fingerprint(x[1:], y[1:])).startswith("inputs have shape")


def test_resume_must_be_one_of_three(tmp_path):
    with pytest.raises(ValueError, match="resume must be True, False or"):
        resumed(tmp_path, resume="yes")


def test_without_checkpoints_that_can_be_read_one_message_says_what_to_do(tmp_path, table):
    out, data = tmp_path / "a", ("--data", f"csv:{table}", "--target", "y")
    ok("train", *data, *FLAGS, "--out", out)
    for name in ("metrics.json", "posterior.safetensors"):
        (out / name).unlink()
    for path in out.glob("checkpoints/*"):
        flip(path, -1)
    result = call("train", "--out", out, "--resume", "--no-figures")
    assert result.exit_code == 1
    assert "`bayesieve train` with --force in place of --resume" in result.stderr
    assert "use `bayesieve train --resume`" in refused(2, "train", *data, *FLAGS, "--out", out)
    ok("train", *data, *FLAGS, "--out", out, "--force")


def test_one_other_label_among_many_is_seen():
    """Whole numbers carry no rounding: only their hash counts, however large their sum is."""
    labels = torch.full((16_000_000,), 200, dtype=torch.uint8)
    other = labels.clone()
    other[0] = 199
    x = torch.zeros(16, 1)
    found = difference(fingerprint(x, labels), fingerprint(x, other))
    assert found == "targets differ among examples 0 to 999999"
