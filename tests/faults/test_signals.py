"""SIGTERM and Ctrl-C at any change of a file or import: the right exit code, and how to go on."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from faults.moments import send, stopped_at
from faults.rows import cases, spread
from faults.work import COMMANDS

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and fork")
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
SHORT = [("train", False), ("prune", True), ("export", True), ("sweep", False)]
EACH = [(name, over) for name in COMMANDS for over in (False, True)]


@pytest.mark.parametrize(("name", "over"), cases(SHORT, EACH))
def test_a_command_that_is_stopped(tmp_path, work, tally, name, over):
    n_moments = len(work.moments(name, over))
    for n in moments(name, over, n_moments):
        number = (signal.SIGTERM, signal.SIGINT)[n % 2]
        home = tmp_path / f"{n}"
        arguments = work.place(name, home, over)
        stopped = stopped_at(home, arguments, n, send(number))
        tally.injected()
        at = stopped.moments[n - 1]
        words = f"{name}, over={over}, {number.name} at {n} of {n_moments} ({at})"
        tally.check_end(stopped.code, stopped.text, words)
        last = (stopped.text.strip().splitlines() or [""])[-1]
        if stopped.code != CODES[number]:
            tally.found("wrong exit codes", f"{words}: {stopped.code} {stopped.text[-400:]}")
        elif not (last.startswith("error: stopped by") and ("again" in last or "--" in last)):
            tally.found("other failures", f"{words}: {last!r}")
        work.check(name, home, over, tally, words)
        shutil.rmtree(home)


def moments(name, over, n):
    """Moments to try: one, elsewhere for each command; or many."""
    if cases(True, False):
        return [1 + (n * (SHORT.index((name, over)) + 1)) // 14]
    return spread(n, {"fit-table": 3, "report": 4}.get(name, 8))


# A fresh process that sends itself a signal when it imports its n-th module, and counts them.
STARTING = """
import os, signal, sys
number, n, *words = sys.argv[1:]
count = 0
def hook(event, details):
    global count
    if event == "import":
        count += 1
        if count == int(n):
            os.kill(os.getpid(), int(number))
signal.signal(signal.SIGINT, signal.default_int_handler)
from bayesieve.cli import run
sys.argv = ["bayesieve", *words]
sys.addaudithook(hook)
try:
    run()
finally:
    print("imports", count, file=sys.stderr)
"""
WORDS = ("train", "--data", "digits", "--net", "mlp:8", "--dry-run")


def started(number, n, *words):
    return subprocess.run([sys.executable, "-c", STARTING, str(int(number)), str(n), *words],
                          capture_output=True, text=True, timeout=300)  # fmt: skip


def test_a_command_that_is_stopped_while_it_is_imported(tally):
    """In the short form before a command is known; in the long one up to the end of a dry run."""
    words, n_imports = cases(("version",), WORDS), 0
    if cases(False, True):
        unbroken = started(signal.SIGTERM, 0, *words)
        assert unbroken.returncode == 0, unbroken.stderr
        n_imports = int(unbroken.stderr.split()[-1])
    for n in cases([20, 101], spread(n_imports, 40)):
        number = (signal.SIGTERM, signal.SIGINT)[n % 2]
        stopped = started(number, n, *words)
        tally.injected()
        about = f"{number.name} at import {n}"
        tally.check_end(stopped.returncode, stopped.stderr, about)
        lines = [line for line in stopped.stderr.splitlines() if not line.startswith("imports ")]
        if stopped.returncode != CODES[number]:
            tally.found("wrong exit codes", f"{about}: {stopped.returncode} {stopped.stderr}")
        elif not (lines and lines[-1].startswith("error: stopped by") and "again" in lines[-1]):
            tally.found("other failures", f"{about}: {lines}")
