"""Run the code of a page, and show below each block what it printed and drew."""

import contextlib
import io
import os
import re
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A block that runs, and the printed output that a page may show below it.
_BLOCK = re.compile(r"^```python runnable\n(.*?)^```\n(?:\n```\n.*?^```\n)?", re.M | re.S)


def executed(markdown: str, name: str) -> tuple[str, dict[str, bytes]]:
    r"""The page with the output of its blocks, which are one program, and its pictures by name.

    Args:
        markdown: of the page.
        name: of the page; pictures are called NAME-1.svg, NAME-2.svg, ...

    Example:
        >>> text, pictures = executed("```python runnable\nprint(1 + 1)\n```\n", "sum")
        >>> text.split()
        ['```python', 'print(1', '+', '1)', '```', '```text', '2', '```']
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.close("all")  # figures of others are not this page's
    pictures: dict[str, bytes] = {}
    namespace: dict[str, object] = {"__name__": "docs"}

    def run(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(block[1], name, "exec"), namespace)
        shown = [f"```python\n{block[1]}```\n"]
        if text := printed.getvalue().rstrip():
            shown.append(f"```text\n{text}\n```\n")
        for number in pyplot.get_fignums():
            image = io.BytesIO()
            pyplot.figure(number).savefig(image, format="svg", bbox_inches="tight")
            picture = f"{name}-{len(pictures) + 1}.svg"
            pictures[picture] = image.getvalue()
            shown.append(f"![What the code above draws]({picture})\n")
        pyplot.close("all")
        return "\n".join(shown)

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        before = os.environ.get("BAYESIEVE_ROOT")
        os.environ["BAYESIEVE_ROOT"] = str(ROOT)
        try:
            text = _BLOCK.sub(run, markdown)
        finally:
            if before is None:
                del os.environ["BAYESIEVE_ROOT"]
            else:
                os.environ["BAYESIEVE_ROOT"] = before
    return text, pictures
