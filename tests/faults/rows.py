"""The rows of the fault table, which tests belong to each, and how their findings are counted.

The short form is part of `make test`. `make faults` runs the same tests with larger numbers
(`BAYESIEVE_FAULTS=long`) and writes the counts to results/faults.json.
"""

import os
import platform
import time
from pathlib import Path

LONG = os.environ.get("BAYESIEVE_FAULTS") == "long"
RECORD = "BAYESIEVE_FAULTS_RECORD"  # file to write the counts to
EXIT_CODES = (0, 1, 2, 130, 143)
FOUND = ("lost files", "executed code", "silent wrong answers", "tracebacks", "wrong exit codes")
OTHER = "other failures"  # a message that does not help, a file left behind, growth
COUNTS = ("faults", *FOUND, OTHER)
ROWS = {
    "kill": "kill -9 at a write, rename or removal of train, prune, compact, export, report, "
    "sweep, fit-table",
    "signals": "SIGTERM and Ctrl-C in every phase of these commands",
    "disk": "disk full, quota, read-only or vanished folder at every write",
    "damage": "truncated or bit-flipped file of a run or bundle",
    "hostile": "hostile bundle, run folder, network file, archive, table, image, YAML or JSON",
    "consent": "a stored file that names code",
    "fuzzing": "random bytes in every reader",
    "numbers": "NaN or infinity in data, weights, labels; odd values",
    "mismatch": "wrong shapes, types, classes between config, data, checkpoint",
    "pruned": "everything pruned",
    "memory": "out of memory, on CPU and CUDA",
    "foreign": "folder, file or device of somebody else as output",
    "locks": "stale lock, two writers in one folder",
    "readers": "four readers beside a writer",
    "threads": "four threads on one model, each call against one thread",
    "resume": "resumed with other data, device, torch version or number of threads",
    "rotation": "rotation of checkpoints, as in a run of a week",
    "growth": "memory over many predictions and fits",
}


def cases(short, long):
    """A number, or a list of cases, of the short form or of the long one."""
    return long if LONG else short


def spread(n, most):
    """At most some of the numbers 1 to n, evenly, with both ends.

    Example:
        >>> spread(10, 4), spread(3, 9)
        ([1, 4, 7, 10], [1, 2, 3])
    """
    if n <= most:
        return list(range(1, n + 1))
    return sorted({1 + round(i * (n - 1) / (most - 1)) for i in range(most)})


def row_of(file, name):
    """The row of a test, by its file and, where a file has several, the beginning of its name."""
    return next(
        (row for tests, begin, row in TESTS if tests == file and name.startswith(begin)), None
    )


TESTS = (
    ("test_kill.py", "", "kill"),
    ("test_signals.py", "", "signals"),
    ("test_bundles.py", "test_readers", "readers"),
    ("test_bundles.py", "", "kill"),
    ("test_consent.py", "", "consent"),
    ("test_folders.py", "", "foreign"),
    ("test_damage.py", "", "damage"),
    ("test_checksums.py", "", "damage"),
    ("test_resume.py", "test_a_checkpoint_that_is_damaged", "damage"),
    ("test_resume.py", "test_a_kill", "kill"),
    ("test_resume.py", "", "resume"),
    ("test_fuzz.py", "", "fuzzing"),
    ("test_hostile.py", "", "hostile"),
    ("test_locks.py", "", "locks"),
    ("test_not_a_number.py", "", "numbers"),
    ("test_odd_values.py", "", "numbers"),
    ("test_outputs.py", "", "foreign"),
    ("test_threads.py", "", "threads"),
    ("test_rotation.py", "", "rotation"),
    ("test_growth.py", "", "growth"),
    ("test_memory.py", "", "memory"),
    ("test_disk.py", "", "disk"),
    ("test_mismatch.py", "test_more_than_can_go", "pruned"),
    ("test_mismatch.py", "test_a_network_of", "pruned"),
    ("test_mismatch.py", "test_a_posterior_with", "numbers"),
    ("test_mismatch.py", "test_a_run_goes_on", "resume"),
    ("test_mismatch.py", "test_a_device_that", "resume"),
    ("test_mismatch.py", "", "mismatch"),
    ("test_rows.py", "", None),
)


class Tally:
    """What one test injected and found; a test with findings fails.

    `Tally.now` is that of the running test, for functions that tests share.
    """

    now = None

    def __init__(self):
        self.counts = dict.fromkeys(COUNTS, 0)
        self.findings = []

    def injected(self, n=1):
        self.counts["faults"] += n

    def found(self, kind, words):
        self.counts[kind] += 1
        self.findings.append(f"{kind}: {words}")

    def check_end(self, code, text, words):
        """Count the end of a command: its exit code, and the text it printed."""
        if "Traceback (most recent call last)" in text:
            self.found("tracebacks", f"{words}\n{text[-2000:]}")
        if code not in EXIT_CODES:
            self.found("wrong exit codes", f"{words}: {code} {text[-300:]}")


def record(counts, seconds, before):
    """The record of a run of the table; files that did not run keep what they counted before.

    Args:
        counts: {(row, file): counts} of this run.
        seconds: {(row, file): time of its tests}.
        before: an earlier record, or None.
    """
    parts = {}
    for row in (before or {}).get("rows", []):
        parts |= {(row["name"], file): part for file, part in row["files"].items()}
    parts |= {key: {**counts[key], "seconds": round(seconds[key], 1)} for key in counts}
    rows = []
    for name, words in ROWS.items():
        files = {file: part for (row, file), part in sorted(parts.items()) if row == name}
        total = {key: sum(part[key] for part in files.values()) for key in (*COUNTS, "seconds")}
        rows.append({"name": name, "words": words, **total, "files": files})
    return {
        "benchmark": "faults",
        "command": "make faults",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "form": "long" if LONG else "short",
        "rows": rows,
    }


def machine():
    import torch

    return {
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.cuda.is_available(),
        "cores": os.cpu_count(),
    }


def test_files():
    return sorted(path.name for path in Path(__file__).parent.glob("test_*.py"))
