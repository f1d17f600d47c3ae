"""Small parts around the loop: what a run may be told, its progress bar, its signals."""

import signal
import sys
import threading

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.problem import Problem
from bayesieve.engines.map import MAP
from bayesieve.fast.stepper import fast_kernels
from bayesieve.sieve.rules import keep_zeros
from bayesieve.training.fingerprint import printed
from bayesieve.training.launch import fit
from bayesieve.training.progress import Bar, Interrupted, interruptible, plain, progress_bar
from bayesieve.training.validation import Validation

PAIR = (torch.zeros(2, 1), torch.zeros(2))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Validation(PAIR, patience=0), "Validation: patience must be > 0, got 0"),
        (lambda: Validation(PAIR, min_delta=-1.0), "Validation: min_delta must be >= 0"),
    ],
)
def test_wrong_options_raise(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"problem": nn.Linear(1, 1)}, TypeError, "problem must be a Problem.* got Linear"),
        ({"engine": MAP}, TypeError, "engine must be one such as .* got the class MAP"),
        ({"engine": "map"}, TypeError, "engine must be one such as .* got 'map'"),
        ({"schedule": "cosine"}, TypeError, "schedule must be a Schedule, got 'cosine'"),
        ({"pruning": keep_zeros(0.5)}, TypeError, "pruning must be a schedule such as"),
        ({"seed": -1}, ValueError, "seed must be a whole number"),
        ({"seed": 2**64}, ValueError, "seed must be a whole number"),
        ({"seed": 1.5}, ValueError, "seed must be a whole number"),
    ],
)
def test_a_wrong_kind_of_argument_is_named(change, error, text):
    given = {"problem": Problem(nn.Linear(1, 1), Gaussian(), PAIR), "engine": MAP(), **change}
    with pytest.raises(error, match=f"^fit: {text}"):
        fit(given.pop("problem"), given.pop("engine"), epochs=1, **given)


def test_held_out_examples_may_be_a_pair():
    held_out = Validation(PAIR).data
    assert held_out.x is PAIR[0]
    assert held_out.y is PAIR[1]
    with pytest.raises(TypeError, match=r"Validation: data must be .* got NoneType"):
        Validation(None)


def test_signals_raise_a_flag_inside_the_block_only(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with interruptible(caught=True) as signals:
        assert not signals
        signal.raise_signal(signal.SIGTERM)
        assert signals == [signal.SIGTERM]
        with pytest.raises(Interrupted, match="stopped by SIGTERM; continue with `resume`"):
            raise Interrupted(signals[-1])
    assert signal.getsignal(signal.SIGTERM) is before


def test_handlers_come_back_after_an_error(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError, match="boom"), interruptible(caught=True):
        raise RuntimeError("boom")
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_folder_or_outside_the_main_thread_signals_are_left_alone(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with interruptible(caught=False) as signals:
        assert signal.getsignal(signal.SIGINT) is before
        assert not signals
    seen = []

    def elsewhere():
        with interruptible(caught=True):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


ROW = {"epoch": 2, "log_lik": [-20.0, -30.0], "val_error": 0.25, "zeros": [0.5, 0.5]}


def test_the_bar_is_silent_without_a_terminal(capsys):
    with progress_bar(10, 0) as bar:
        bar.advance()
        bar.describe(ROW, 3, 10)
    Bar().advance()
    assert capsys.readouterr() == ("", "")


def test_the_bar_shows_the_last_epoch_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    with progress_bar(10, 4) as bar:
        assert Bar.shown
        bar.advance()
        bar.describe(ROW | {"epoch": 120}, 1200, 10)
    assert not Bar.shown
    out, err = capsys.readouterr()
    assert out == ""
    assert "epoch 120/1200  log-lik -2.000  error 25 %  zeros 50 %" in err
    assert "50%" in err
    assert "…" not in err  # it fits 80 columns


def test_numbers_and_settings_are_plain():
    assert plain(torch.tensor([0.5], dtype=torch.float64)) == 0.5
    assert plain(torch.tensor([0.5, 1.0])) == [0.5, 1.0]
    first, second = (printed({"score": lambda: None}) for _ in range(2))
    assert first == second
    assert " at 0x" not in first


def test_matrix_products_on_a_cpu_keep_their_precision():
    before = torch.get_float32_matmul_precision()
    with fast_kernels(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before


def test_settings_of_a_cuda_device_are_put_back_after_an_error():
    def settings():
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark

    @fast_kernels(torch.device("cuda"))
    def fails():
        assert settings() == ("high", True)
        raise KeyError

    before = settings()
    with pytest.raises(KeyError):
        fails()
    assert settings() == before
