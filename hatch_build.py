"""The description of the package for an index: README.md with absolute addresses.

An index shows README.md without the files beside it. BAYESIEVE_FILES names where these are to be
found, such as https://HOST/OWNER/bayesieve/raw/v0.2.0; a release sets it (CONTRIBUTING.md). Without
it links and pictures stay relative, which is right in a clone.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "BAYESIEVE_FILES"


class ReadmeHook(MetadataHookInterface):
    """Fills in `readme`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling with the table `project`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = with_addresses(text, os.environ.get(VARIABLE, ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_addresses(text: str, files: str) -> str:
    """Markdown whose relative links begin with `files`; as it is where that is empty.

    Example:
        >>> with_addresses("![a](docs/a.png) [b](#results) [c](https://x.org)", "https://h/raw/")
        '![a](https://h/raw/docs/a.png) [b](#results) [c](https://x.org)'
    """
    if not files:
        return text
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({files.rstrip('/')}/", text)
