"""Values of settings that are given as text inside one argument, such as `--set` and `--search`."""

from types import NoneType
from typing import get_args, get_origin, get_type_hints

from bayesieve.cli.config_files import sections


def plain_value(text: str) -> bool | int | float | str:
    """What a text means: true or false, a whole number, a number, or itself.

    Example:
        >>> [plain_value(text) for text in ("true", "8", "1e-3", "he")]
        [True, 8, 0.001, 'he']
    """
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def takes_whole_numbers(setting: str) -> bool:
    """Whether a setting, section.name, takes whole numbers only; False if there is none of it.

    Example:
        >>> takes_whole_numbers("training.batch_size"), takes_whole_numbers("engine.lr")
        (True, False)
    """
    section, _, name = setting.partition(".")
    hint = get_type_hints(sections().get(section, object)).get(name)
    kinds = (hint,) if get_origin(hint) is None else get_args(hint)
    return {kind for kind in kinds if kind is not NoneType} == {int}
