"""SIGTERM and Ctrl-C at any change of a file: the right exit code, and how to go on."""

import os
import shutil
import signal

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
