"""Reading settings from plain data: strict about names and types, and precise about where."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from bayesieve.checks import did_you_mean
from bayesieve.cli.config import RunConfig

Nested = Mapping[str, Mapping[str, Any]]  # section -> setting -> value
RECORD = "record"  # what config.json of a run folder holds besides settings
COMMAND_LINE = "command line"
_C = TypeVar("_C")
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


class UsageError(ValueError):
    """The command was called with settings that cannot be meant; exit code 2."""


@cache
def sections() -> dict[str, type]:
    """The sections of a configuration by name."""
    return dict(get_type_hints(RunConfig))


def from_dict(values: Mapping[str, Any], where: str, base: RunConfig | None = None) -> RunConfig:
    """Settings from nested plain data, over those of `base`.

    Args:
        values: section -> setting -> value.
        where: file that error messages name; with COMMAND_LINE they name flags.
        base: settings that `values` overrides; the defaults unless given.

    Example:
        >>> from_dict({"engine": {"lr": "1e-3"}}, "run.yaml").engine.lr
        0.001
        >>> from_dict({"engine": {"learn_rate": 1}}, "run.yaml")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        bayesieve.cli.config_files.UsageError: run.yaml: unknown key 'engine.learn_rate'...
    """
    config = RunConfig() if base is None else base
    for name, section in values.items():
        if name not in sections():
            raise UsageError(
                f"{where}: unknown section {name!r}; sections are {', '.join(sections())}."
                f"{did_you_mean(name, sections())}"
            )
        if not isinstance(section, Mapping):
            raise UsageError(f"{where}: {name} must hold keys and values, got {section!r}.")
        changed = _section(getattr(config, name), name, section, where)
        config = replace(config, **{name: changed})
    return config


def to_dict(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Nested plain data, ready for JSON; `from_dict` undoes it.

    Example:
        >>> from_dict(to_dict(RunConfig()), "config.json") == RunConfig()
        True
    """
    return {
        name: {key: list(v) if isinstance(v, tuple) else v for key, v in section.items()}
        for name, section in asdict(config).items()
    }


def read_config(path: Path, base: RunConfig | None = None) -> RunConfig:
    """Settings of a YAML, TOML or JSON file, by its ending."""
    if not path.is_file():
        raise UsageError(f"{path}: no such configuration file.")
    text = path.read_text(encoding="utf-8")
    try:
        values = _parse(text, path)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: not a valid {path.suffix[1:]} file: {reason}.") from error
    if not isinstance(values, Mapping):
        raise UsageError(f"{path}: must hold sections such as data and engine.")
    settings = {name: value for name, value in values.items() if name != RECORD}
    return from_dict(settings, str(path), base)


def _parse(text: str, path: Path) -> Any:
    if path.suffix in (".yaml", ".yml"):
        import yaml

        try:
            return yaml.safe_load(text) or {}
        except yaml.YAMLError as error:
            raise ValueError(error) from error
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if path.suffix == ".json":
        return json.loads(text)
    raise UsageError(f"{path}: a configuration file must end in .yaml, .yml, .toml or .json.")


def _section(current: _C, name: str, values: Mapping[str, Any], where: str) -> _C:
    hints = get_type_hints(type(current))
    changes = {}
    for key, value in values.items():
        if key not in hints:
            known = {f"{part}.{spec.name}" for part, kind in sections().items()
                     for spec in fields(kind)}  # fmt: skip
            own = {f"{name}.{spec}" for spec in hints}
            full = f"{name}.{key}"
            hint = did_you_mean(full, own) or did_you_mean(full, known)
            raise UsageError(f"{where}: unknown key {full!r}.{hint}")
        changes[key] = convert(value, hints[key], _who(type(current), name, key, where))
    return replace(current, **changes)  # type: ignore[type-var]


def _who(kind: type, section: str, key: str, where: str) -> str:
    """What a message calls a setting: its flag on the command line, its key in a file."""
    if where != COMMAND_LINE:
        return f"{where}: {section}.{key}"
    return next(str(spec.metadata["flag"]) for spec in fields(kind) if spec.name == key)


def convert(value: Any, hint: Any, who: str) -> Any:
    """The value as the type of its field; raises a message that names the field.

    Example:
        >>> convert("1e-3,1e-2", float | tuple[float, ...], "engine.lr")
        (0.001, 0.01)
    """
    options = get_args(hint) if get_origin(hint) not in (tuple, Literal, None) else (hint,)
    if value is None and NoneType in options:
        return None
    kinds = [kind for kind in options if kind is not NoneType]
    for kind in kinds:
        if get_origin(kind) is Literal:
            return _choice(value, get_args(kind), who)
    for kind in kinds:
        found = _as_tuple(value, get_args(kind)[0]) if get_origin(kind) is tuple else (
            _as_scalar(value, kind)
        )  # fmt: skip
        if found is not None:
            return found
    raise UsageError(f"{who} must be {_word(kinds[0])}, got {value!r}.")


def _choice(value: Any, choices: tuple[str, ...], who: str) -> str:
    if isinstance(value, bool) and "on" in choices:  # YAML reads on and off as true and false
        value = "on" if value else "off"
    if value in choices:
        return str(value)
    hint = did_you_mean(str(value), choices)
    raise UsageError(f"{who} must be one of {', '.join(choices)}; got {value!r}.{hint}")


def _as_tuple(value: Any, kind: type) -> tuple[Any, ...] | None:
    parts = value.split(",") if isinstance(value, str) and kind is float else value
    if isinstance(parts, str):
        return (parts,) if kind is str else None
    if not isinstance(parts, list | tuple):
        return None
    found = tuple(_as_scalar(part, kind) for part in parts)
    return None if any(part is None for part in found) else found


def _as_scalar(value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:  # YAML reads 1e-3 as text
            return float(value)
        except ValueError:
            return None
    if isinstance(value, bool) and kind is not bool:
        return None
    return value if isinstance(value, kind) else None


def _word(kind: Any) -> str:
    return _WORDS.get(kind, "a list")
