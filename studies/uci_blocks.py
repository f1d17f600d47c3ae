"""Rows of the UCI study computed a few splits at a time, so that a run can stop and go on.

A block is a row on some consecutive splits; splits do not know of each other, so the blocks of a
row say together what the row computed at once says. Its random numbers differ, for those of a
population depend on who is in it.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from studies.uci_scoring import summary

Record = Mapping[str, Any]


def blocks(n_splits: int, n_rows: int) -> list[tuple[int, int]]:
    """(first split, number of splits) of every block: a minute or two of one core each.

    Small tables need many networks per population to be fast, large ones do not.

    Example:
        >>> blocks(20, 455), blocks(5, 41_157)[:2]
        ([(0, 10), (10, 10)], [(0, 1), (1, 1)])
    """
    size = 10 if n_rows < 2000 else 4 if n_rows < 20_000 else 1
    return [(i, min(size, n_splits - i)) for i in range(0, n_splits, size)]


def join_blocks(parts: Sequence[Record]) -> dict[str, Any]:
    """The record of a row from those of its blocks, in the order of their splits."""
    first = parts[0]
    joint: dict[str, Any] = {name: first[name] for name in ("candidates", "budget")}
    for name in ("chosen", "noise_factor", "degrees_of_freedom"):
        if name in first:
            joint[name] = [value for part in parts for value in part[name]]
    for name in ("full", "half"):
        if name in first:
            joint[name] = _scores([part[name] for part in parts])
    if "one_shot" in first:
        columns = zip(*(part["one_shot"] for part in parts), strict=True)
        joint["one_shot"] = [_scores(column) for column in columns]
    for name in ("choice_seconds", "seconds", "processor_seconds"):
        if name in first:
            joint[name] = round(sum(part[name] for part in parts), 2)
    return {**joint, "block_seconds": [part["seconds"] for part in parts]}


def _scores(parts: Sequence[Record]) -> dict[str, Any]:
    rmse, log_lik = (
        [value for part in parts for value in part[name]]
        for name in ("rmse_splits", "log_lik_splits")
    )
    joint = summary(rmse, log_lik)
    if "removed" in parts[0]:
        joint["removed"] = min(part["removed"] for part in parts)
    if "seconds" in parts[0]:
        joint["seconds"] = round(sum(part["seconds"] for part in parts), 2)
    same = {name: parts[0][name] for name in ("members", "removed_in_one_shot") if name in parts[0]}
    return {**joint, **same}


class Clock:
    """How long this call has been at work, and whether it may begin another block.

    Args:
        command: of this call.
        jobs: processes it uses.
        stop_after: seconds after which nothing new begins; None sets no limit.
    """

    def __init__(self, command: str, jobs: int, stop_after: float | None = None) -> None:
        self._began = time.perf_counter()
        self._command, self._jobs, self._stop_after = command, jobs, stop_after

    @property
    def seconds(self) -> float:
        """Since this object was made."""
        return time.perf_counter() - self._began

    @property
    def open(self) -> bool:
        """Whether there is time to begin something."""
        return self._stop_after is None or self.seconds < self._stop_after

    def call(self) -> dict[str, Any]:
        """What is stored of this call."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return {"command": self._command, "jobs": self._jobs, "cores": cores,
                "seconds": round(self.seconds, 1)}  # fmt: skip
