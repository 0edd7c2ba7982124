"""`${NAME}` in a text, filled in: by the environment's NAME, or by the file that NAME_FILE names, as secrets come."""

import os
import re
from pathlib import Path

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""The shape of a reference to the environment; any other ${ is refused."""


class NotFilledIn(Exception):
    """A reference cannot be filled in; no message shows what others are filled in with.

    Attributes:
        what: Why.
        hint: What can be done about it.
    """

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def filled_in(text: str) -> str:
    """The text with a value in the place of each reference.

    Raises:
        NotFilledIn: A reference has no name, or its name no value.
    """
    if "${" in _VARIABLE.sub("", text):
        what, hint = '"${" must be followed by a name and "}"', 'write: url = "postgresql://reader:${PASSWORD}@host/db"'
        raise NotFilledIn(what, hint)
    return _VARIABLE.sub(lambda found: _value(found[1]), text)


def _value(name: str) -> str:
    if name in os.environ:
        return os.environ[name]
    file = f"{name}_FILE"
    if file not in os.environ:
        hint = f"set it before the start: export {name}=…, or {file}=… to the file that has it"
        raise NotFilledIn(f"${{{name}}} is not in the environment", hint)
    try:
        return Path(os.environ[file]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        raise NotFilledIn(f"the file that {file} names cannot be read", "check its path and permissions") from None
