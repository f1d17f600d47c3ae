"""Numbers and tables as text. Nothing here imports torch."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 160


def short(value: object) -> str:
    """A value as Python writes it, cut in the middle where it is long: files may hold anything.

    Example:
        >>> short("mlp"), len(short("a" * 10**6)), short([[[[[[[1]]]]]]])
        ("'mlp'", 160, '[[[[[[...]]]]]]')
    """
    try:
        return _SHORT.repr(value)
    except ValueError:  # a whole number that Python refuses to write
        return f"a very long {type(value).__name__}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A table in Markdown: the first `left` columns to the left, the others to the right.

    Example:
        >>> print(markdown_table(("", "error"), [("dense", "2 %")]))
        |  | error |
        | --- | ---: |
        | dense | 2 % |
    """
    marks = [*["---"] * left, *["---:"] * (len(header) - left)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, marks, *rows))


def as_percent(fraction: float) -> str:
    """A fraction in percent with two decimals.

    Example:
        >>> as_percent(0.985)
        '98.50 %'
    """
    return f"{100 * fraction:.2f} %"


def signed(value: float, digits: int = 2) -> str:
    """A difference with its sign, the minus as long as the plus.

    Example:
        >>> signed(0.5), signed(-1.25, 1), signed(-0.001)
        ('+0.50', '−1.2', '0.00')
    """
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def sparkline(values: Sequence[float]) -> str:
    """Numbers as bars of eight heights, the largest full.

    Example:
        >>> sparkline([0.02, 0.02, 0.1, 0.5, 0.9])
        '▁▁▁▅█'
    """
    top = max(values, default=0.0) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[min(7, max(0, int(8 * value / top)))] for value in values)


def tempering_words(kl: float) -> str:
    """Describe the tempering of a posterior in words; empty for Bayes' rule, kl = 1.

    Args:
        kl: KL weight, or temperature of a sampler.

    Example:
        >>> print(tempering_words(0.1))  # doctest: +ELLIPSIS
        Tempered: KL weight 0.1, as if there were 10 times as much data...
    """
    if kl == 1:
        return ""
    times = f"{1 / kl:.3g} times as much" if kl < 1 else f"only {1 / kl:.2g} of the"
    return (
        f"Tempered: KL weight {kl:.3g}, as if there were {times} data. With kl = 1 it is Bayes' "
        "rule."
    )


def as_bytes(n: float) -> str:
    """A number of bytes in a unit that people read.

    Example:
        >>> as_bytes(53_000)
        '53.0 kB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def one_line(value: object, most: int = 300) -> str:
    """Text on one line that cannot break out of its place in Markdown.

    Example:
        >>> one_line("a | `b`")
        "a / 'b'"
    """
    return " ".join(str(value).split())[:most].replace("|", "/").replace("`", "'")


def certificate_rows(certificate: Mapping[str, Any]) -> list[list[str]]:
    """A header and a row of text for each check of `certify`: shares in percent, NLL in nats.

    Example:
        >>> check = {"name": "accuracy", "dense": 0.98, "sieved": 0.975, "worse_by": 0.005,
        ...          "interval": [-0.01, 0.02], "tolerance": 0.01, "verdict": "unsure"}
        >>> certificate_rows({"level": 0.95, "checks": [check]})[1]
        ['accuracy', '98.00 %', '97.50 %', '0.50 %', '-1.00 to 2.00 %', '1 %', 'unsure']
    """
    interval = f"{100 * certificate['level']:g} % interval"
    rows = [["", "dense", "sieved", "worse by", interval, "at most", ""]]
    for check in certificate["checks"]:
        name, is_share = check["name"], check["name"] != "nll"
        scale, unit, digits = (100, " %", 2) if is_share else (1, "", 4)
        plain = not is_share or name.startswith("rmse")  # roots as they are, compared in percent
        sides = [
            "" if value is None else f"{value:.4g}" if plain else as_percent(value)
            for value in (check["dense"], check["sieved"])
        ]
        worse, low, high = (
            f"{scale * value:.{digits}f}" for value in (check["worse_by"], *check["interval"])
        )
        limit = f"{scale * check['tolerance']:g}{unit}"
        row = [name, *sides, f"{worse}{unit}", f"{low} to {high}{unit}", limit, check["verdict"]]
        rows.append(row)
    return rows
