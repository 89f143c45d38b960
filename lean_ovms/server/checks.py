"""Detects options that cannot work before a model is pulled or loaded. Imports nothing heavy."""

from __future__ import annotations

import os

from ..api.keys import kind_of
from ..config import Config, listed
from ..config.options import PRESENT_DIRECTORY, read_object
from ..errors import BadRequest, WrongOptions
from ..manifest import named


def checked(config: Config) -> Config:
    """Checks the options as a whole, and returns them with the API key that the program's own commands send.

    Raises WrongOptions for errors that would otherwise appear only with requests, or after the models were pulled and
    loaded.
    """
    for row in listed(config.without):
        path = config.value(row.name) if row.metadata["path"] == PRESENT_DIRECTORY else ""
        if path and not os.path.isdir(path):  # Path.is_dir() raises where a directory above it cannot be read
            raise WrongOptions(f"--{row.name} {path}: no such directory")
    _check_defaults(config)
    given = kind_of(config).own_key(config)
    key = given.strip()  # a secret often ends with a line break
    if given and not (key and key.isprintable()):
        raise WrongOptions("the API key must be one line of text that is not blank")
    return config.replace(api_key=key)


def _check_defaults(config: Config) -> None:
    given = read_object("override_generation_config", config.override_generation_config)
    if not given:
        return
    from ..api.fields import read as read_fields  # the start does not need these modules otherwise
    from ..api.generation.sampling import SAMPLING

    more = [named(row.package, row.fields) for row in config.composition.bodies if row.defaults]
    try:
        for fields in (SAMPLING, *more):
            read_fields(fields, {name: value for name, value in given.items() if name in fields.places})
    except BadRequest as error:
        raise WrongOptions(f"--override_generation_config: {error.message}") from None
