"""Read our docstrings for the site: `Example:` is a section of code, as `Examples:` is."""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):  # type: ignore[misc]
    """Rename the section, so that its doctests are shown as code and not as quotations."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M
            )
