"""Pictures of single predictions: images, fits, and what the first layer looks at."""

from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from numpy.typing import ArrayLike, NDArray

from bayesieve.assess.figures import style


def certain_examples(
    images: ArrayLike,
    labels: Sequence[int],
    predicted: Sequence[int],
    entropy: ArrayLike,
    class_names: Sequence[str],
    path: str | Path,
) -> Path:
    """Draw the most certain examples in the upper row, the least certain below.

    Args:
        images: shape (N, H, W) or (N, C, H, W) with 1 or 3 channels, on any scale.
        labels: true classes, N numbers.
        predicted: predicted classes, N numbers.
        entropy: predictive entropy in nats, N numbers.
        class_names: names of all classes.
        path: PNG file to write.

    Example:
        >>> images = np.eye(4).reshape(2, 2, 4)
        >>> certain_examples(images, [0, 1], [0, 0], [0.1, 1], "ab", "a.png").name
        'a.png'
    """
    stack = np.asarray(images, dtype=float)
    if stack.ndim == 4 and stack.shape[1] in (1, 3):
        stack = stack[:, 0] if stack.shape[1] == 1 else np.moveaxis(stack, 1, -1)
    elif stack.ndim != 3:
        raise ValueError(
            "certain_examples: images must have shape (N, H, W) or (N, C, H, W) with 1 or 3 "
            f"channels, got {stack.shape}."
        )
    pictures = (stack - stack.min()) / (float(np.ptp(stack)) or 1.0)
    doubt = np.asarray(entropy, dtype=float)
    if not len(pictures) == len(labels) == len(predicted) == doubt.size >= 2:
        raise ValueError("certain_examples: the four arrays must have one length >= 2.")
    captions = [(class_names[p], class_names[t]) for p, t in zip(predicted, labels, strict=True)]
    order = np.argsort(doubt, kind="stable")
    n = max(1, min(8, len(order) // 2))  # in a row
    n_worst = 2 if len(order) >= 3 * n else 1  # rows, none of whose examples is above
    figure = style.new_figure(1.15 * n + 0.2, 1.72 * (1 + n_worst) + 0.7)
    halves = figure.subfigures(2, 1, height_ratios=(1, n_worst), squeeze=False).flat
    best, worst = order[:n].reshape(1, n), order[::-1][: n_worst * n].reshape(n_worst, n)
    groups = (("Most certain", best), ("Least certain", worst))
    for half, (title, members) in zip(halves, groups, strict=True):
        half.suptitle(title, x=0.01, ha="left", **style.TITLE)
        panels = half.subplots(*members.shape, squeeze=False).flat
        for axes, i in zip(panels, members.flat, strict=True):
            _draw_example(axes, pictures[i], captions[i], float(doubt[i]))
    return style.save(figure, path)


def regression_fit(mean: ArrayLike, std: ArrayLike, targets: ArrayLike, path: str | Path) -> Path:
    """Draw predictions against targets with bars of the central 90 % of each normal prediction.

    Args:
        mean: predictive mean, shape (N,).
        std: predictive standard deviation, shape (N,).
        targets: shape (N,).
        path: PNG file to write.

    Example:
        >>> regression_fit([1.0, 2.0], [0.1, 0.1], [1.1, 1.9], "fit.png").name
        'fit.png'
    """
    y, bar, x = (np.asarray(a, dtype=float) for a in (mean, std, targets))
    if not (y.shape == bar.shape == x.shape and y.ndim == 1 and y.size):
        raise ValueError("regression_fit: mean, std and targets must all have one shape (N,).")
    figure = style.new_figure(5.2, 4.8)
    axes = figure.subplots()
    _draw_fit(axes, x, y, bar)
    title = f"Fit: RMSE {np.sqrt(np.mean((x - y) ** 2)):.3g}"
    style.dress(axes, title=title, xlabel="target", ylabel="prediction and its 90% interval")
    style.legend(axes, "upper left")
    return style.save(figure, path)


def first_layer_map(weights: ArrayLike, image_shape: tuple[int, ...], path: str | Path) -> Path:
    """Draw what the first layer keeps of every input pixel: number and size of its weights.

    Args:
        weights: first weight matrix, pruned entries zero, shape (n_units, n_pixels).
        image_shape: (H, W) or (C, H, W) with n_pixels entries; channels are added up.
        path: PNG file to write.

    Example:
        >>> first_layer_map([[0.0, 1.0, 0.5, 0.0]], (2, 2), "pixels.png").name
        'pixels.png'
    """
    matrix = np.abs(np.asarray(weights, dtype=float))
    if len(image_shape) not in (2, 3) or matrix.shape[1:] != (int(np.prod(image_shape)),):
        raise ValueError(
            f"first_layer_map: image_shape must hold n_pixels entries, got {image_shape} for "
            f"weights of shape {matrix.shape}."
        )
    height, width = image_shape[-2:]
    count = (matrix > 0).sum(0).reshape(-1, height, width).sum(0)
    size = matrix.sum(0).reshape(-1, height, width).sum(0)
    figure = style.new_figure(8.6, 3.9)
    dead = f"beige: {style.percent(float((count == 0).mean()))} of pixels, no weight left"
    ramp = ListedColormap(colormaps[style.HEAT](np.linspace(0.12, 1, 256)))
    shades = ramp.with_extremes(bad="#F3EFE6")
    maps = (
        (count, "Weights kept per pixel", "weights"),
        (size, "Total weight per pixel", "sum of |weight|"),
    )
    for axes, (values, title, unit) in zip(figure.subplots(1, 2), maps, strict=True):
        image = axes.imshow(np.ma.masked_array(values, count == 0), cmap=shades, vmin=0)
        style.dress(axes, title=title, xlabel=dead, ylabel="", grid="none")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set(visible=True, color=style.RULE)
        style.color_bar(axes, image, unit)
    return style.save(figure, path)


def _draw_fit(
    axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64], bar: NDArray[np.float64]
) -> None:
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    pad = 0.05 * (high - low) + 1e-12
    ends = (low - pad, high + pad)
    axes.plot(ends, ends, color=style.MUTED, lw=1, ls=(0, (4, 3)), zorder=1)
    half = NormalDist().inv_cdf(0.95) * bar
    inside = np.abs(x - y) <= half
    alpha = float(np.clip(30 / np.sqrt(y.size), 0.25, 0.9))
    kinds = ((inside, style.BLUE, "o", "inside"), (~inside, style.VERMILION, "D", "outside"))
    for members, color, marker, word in kinds:
        label = f"{word} the 90% interval ({style.percent(members.mean())})"
        axes.vlines(x[members], (y - half)[members], (y + half)[members], color, lw=1, alpha=0.4)
        (dots,) = axes.plot(x[members], y[members], marker, ms=4, mew=0, color=color, label=label)
        dots.set_alpha(alpha)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)


def _draw_example(
    axes: Axes, picture: NDArray[np.float64], names: tuple[str, str], doubt: float
) -> None:
    predicted, true = names
    text, color, rule, width = predicted, style.INK, style.RULE, 0.8
    if predicted != true:
        text, color, rule, width = f"{predicted}\nnot {true}", style.VERMILION, style.VERMILION, 1.8
    axes.imshow(picture, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set(color=rule, linewidth=width)
    axes.set_xlabel(f"{text}\n{doubt:.2g} nats", fontsize=style.NOTE_SIZE - 1.5, color=color)
