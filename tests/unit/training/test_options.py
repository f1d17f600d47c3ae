"""Small parts around the loop: what a run may be told, its progress bar, its signals."""

import signal
import sys
import threading

import pytest
import torch

from bayesieve.training.interrupts import Interrupted, interruptible
from bayesieve.training.options import Saving, Validation
from bayesieve.training.progress import Bar, progress_bar
from bayesieve.training.records import plain, printed
from bayesieve.training.stepper import fast_matmul


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Validation(None, patience=0), "Validation: patience must be > 0, got 0"),
        (lambda: Validation(None, min_delta=-1.0), "Validation: min_delta must be >= 0"),
        (lambda: Saving(None, every=0), "Saving: every must be > 0, got 0"),
    ],
)
def test_wrong_options_raise(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_signals_raise_a_flag_inside_the_block_only(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with interruptible(Saving(tmp_path)) as flag:
        assert not flag.raised
        signal.raise_signal(signal.SIGTERM)
        assert flag.raised
        with pytest.raises(Interrupted, match="stopped by SIGTERM; continue with --resume"):
            flag.leave()
    assert signal.getsignal(signal.SIGTERM) is before


def test_handlers_come_back_after_an_error(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError, match="boom"), interruptible(Saving(tmp_path)):
        raise RuntimeError("boom")
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_folder_or_outside_the_main_thread_signals_are_left_alone(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with interruptible(None) as flag:
        assert signal.getsignal(signal.SIGINT) is before
        assert not flag.raised
    seen = []

    def elsewhere():
        with interruptible(Saving(tmp_path)):
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
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar(10, 4) as bar:
        bar.advance()
        bar.describe(ROW, 3, 10)
    out, err = capsys.readouterr()
    assert out == ""
    assert "epoch 2/3  log-lik -2.000  val_error 0.25  zeros 0.5" in err
    assert "5/10" in err


def test_numbers_and_settings_are_plain():
    assert plain(torch.tensor([0.5], dtype=torch.float64)) == 0.5
    assert plain(torch.tensor([0.5, 1.0])) == [0.5, 1.0]
    first, second = (printed({"score": lambda: None}) for _ in range(2))
    assert first == second
    assert " at 0x" not in first


def test_matrix_products_on_a_cpu_keep_their_precision():
    before = torch.get_float32_matmul_precision()
    with fast_matmul(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before
