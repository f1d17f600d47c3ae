"""`bayesieve train --dry-run`: what a run would take, before it starts."""

from typing import Any

import torch
from torch import Tensor

from bayesieve.cli.building import Plan
from bayesieve.cli.console import as_bytes
from bayesieve.core.state import named_tensors


def what_it_takes(plan: Plan) -> dict[str, Any]:
    """Parameters, steps and memory of a planned run; activations are not counted."""
    problem, training = plan.problem, plan.config.training
    layout = problem.layout
    state = plan.engine.init(problem, torch.Generator().manual_seed(0), training.n_models)
    state_bytes = sum(_size(value) for _, value in named_tensors(state))
    width = problem.initial.element_size()
    buffers = 4 if getattr(plan.engine, "local", False) else 2  # weights and gradients, stds too
    work_bytes = buffers * training.n_models * layout.size * width
    if plan.pruning is not None:
        work_bytes += 2 * training.n_models * layout.size  # masks
    return {
        "parameters": layout.size,
        "prunable": layout.n_sparse,
        "examples": problem.n_data,
        "steps": plan.length.n_steps,
        "steps_per_epoch": plan.length.per_epoch,
        "device": str(plan.device),
        "data_bytes": _size(problem.x) + _size(problem.y),
        "model_bytes": state_bytes + work_bytes,
        "checkpoint_bytes": state_bytes,
    }


def rows_for_people(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The same as lines of a table."""
    return [
        ("parameters", f"{facts['parameters']:,}"),
        ("of them prunable", f"{facts['prunable']:,}"),
        ("training examples", f"{facts['examples']:,}"),
        ("steps", f"{facts['steps']:,} ({facts['steps_per_epoch']:,} per epoch)"),
        ("device", facts["device"]),
        ("memory for data", as_bytes(facts["data_bytes"])),
        ("memory for models", f"{as_bytes(facts['model_bytes'])} and activations"),
        ("disk per checkpoint", as_bytes(facts["checkpoint_bytes"])),
    ]


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
