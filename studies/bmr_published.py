"""What the paper on stochastic model reduction reports, to stand beside our own numbers.

Marković, Friston and Kiebel, "Bayesian Sparsification for Deep Neural Networks With Bayesian Model
Reduction", IEEE Access 2024, arXiv:2309.12095, end of training. The paper prints no table: values
were read off its figures by pixel position (± .003 for accuracy and calibration error, ± .01 to .03
for the negative log-likelihood). ">" marks a value beyond the end of an axis.
"""

METHODS = ("map", "flat", "tiered", "bmr")
NETS = ("mlp", "lenet", "vit", "mixer")
DATA = ("fashion-mnist", "cifar10", "cifar100")

# accuracy / calibration error (20 bins of equal mass) / negative log-likelihood, in METHODS order
_RESULTS = {
    ("fashion-mnist", "mlp"): ".897/.059/.43 .843/.044/.448 .860/.035/.394 .869/.010/.358",
    ("fashion-mnist", "lenet"): ".887/.063/.437 .883/.040/.337 .888/.010/.315 .901/.015/.283",
    ("fashion-mnist", "vit"): ".855/.035/.42 .846/.038/.438 .831/.014/.473 .854/.010/.404",
    ("fashion-mnist", "mixer"): ".893/.046/.34 .854/.021/.399 .863/.012/.375 .868/.008/.370",
    ("cifar10", "mlp"): ".562/>.20/1.72 .437/.104/1.604 .489/.078/1.453 .516/.018/1.36",
    ("cifar10", "lenet"): ".60/>.20/>2.5 .559/.096/1.25 .596/.050/1.152 .634/.035/1.045",
    ("cifar10", "vit"): ".50/.11/1.47 .51/.062/1.38 .358/.035/1.717 .525/.016/1.348",
    ("cifar10", "mixer"): ".685/.173/1.25 .547/.055/1.262 .452/.022/1.516 .567/.018/1.185",
    ("cifar100", "mlp"): ".285/>.20/3.75 .026/.009/4.48 .199/.048/3.38 .108/.025/3.84",
    ("cifar100", "lenet"): ".253/>.20/>6 .189/.083/3.48 .269/.058/3.04 .297/.039/2.87",
    ("cifar100", "vit"): ".372/.064/2.46 .243/.060/3.13 .202/.027/3.36 .264/.030/3.01",
    ("cifar100", "mixer"): ".401/>.20/5.9 .287/.060/2.90 .137/.014/3.68 .175/.027/3.49",
}
# pruned fraction of BMR after 50 epochs, in DATA order
_PRUNED = {
    "mlp": ">.99 >.99 .966",
    "lenet": ".811 .970 .943",
    "vit": ">.99 >.99 .996",
    "mixer": ".991 .994 .985",
}


def published(data: str, net: str, method: str) -> dict[str, str]:
    """The paper's accuracy, ece, nll and, for BMR, pruned fraction, as printed.

    Example:
        >>> published("fashion-mnist", "lenet", "bmr")
        {'accuracy': '.901', 'ece': '.015', 'nll': '.283', 'pruned': '.811'}
    """
    cell = _RESULTS[data, net].split()[METHODS.index(method)]
    found = dict(zip(("accuracy", "ece", "nll"), cell.split("/"), strict=True))
    if method == "bmr":
        found["pruned"] = _PRUNED[net].split()[DATA.index(data)]
    return found
