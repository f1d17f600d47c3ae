"""Test errors in % that [Saha] prints for networks cut in one shot (tables 4, 5, 6, 8 and 9)."""

from collections.abc import Mapping

# table 4: units of both hidden layers, MNIST
WIDTHS = {400: 1.45, 800: 1.47, 1200: 1.58}
# sBNN and Bayes by backprop at weights dropped in %
Pairs = Mapping[float, tuple[float, float]]
MNIST: Pairs = {0: (1.58, 1.24), 50: (1.57, 1.24), 75: (1.52, 1.24), 95: (1.54, 1.29),
                98: (1.61, 1.39)}  # fmt: skip
CIFAR10: Pairs = {0: (26.34, 25.81), 50: (27.02, 25.86), 75: (27.04, 25.82), 90: (26.63, 26.26),
                  95: (27.45, 29.64), 98: (33.92, 42.83)}  # fmt: skip
# LeNet-5-Caffe under prior set 1 and 2 at weights dropped in %
LENET5: Pairs = {
    0: (0.70, 1.03), 96: (0.69, 1.01), 97: (0.87, 1.01), 98: (1.56, 1.01), 98.2: (1.78, 0.99),
    98.5: (2.64, 1.00), 98.7: (3.39, 1.02), 99: (4.46, 1.03), 99.2: (9.99, 1.06),
    99.5: (24.93, 1.30), 99.7: (63.82, 1.78), 99.9: (83.08, 31.62),
}  # fmt: skip
# table 9: VGG-like network at zeros in %
VGG = {0.0: 7.6, 98.5: 8.7}


def column(pairs: Pairs, which: int) -> dict[float, float]:
    """One method's or prior's errors by weights dropped in %, without the whole network.

    Example:
        >>> column(MNIST, 1)[98]
        1.39
    """
    return {rate: errors[which] for rate, errors in pairs.items() if rate}
