"""How names, texts, types and limits are written in a policy."""

import json
import re
from fractions import Fraction

from dpsql.policy import Bound
from dpsql.privacy.conversion import exact_text
from dpsql.sqltypes import SqlType

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {SqlType.DOUBLE: "double", SqlType.NUMERIC: "decimal", SqlType.VARCHAR: "varchar", SqlType.CHAR: "char"}


def key_text(name: str) -> str:
    """A key, quoted where it must be."""
    return name if _BARE.fullmatch(name) else quoted_text(name)


def quoted_text(text: str) -> str:
    """A string."""
    # A JSON string is a TOML string, but for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def type_text(sql_type: SqlType) -> str:
    """A type by its short name."""
    name = _SHORT.get(sql_type, sql_type.value.replace(" without time zone", ""))
    return name.replace("timestamp with time zone", "timestamptz")


def limit_text(limit: Bound) -> str:
    """A limit: a number, a date or a timestamp."""
    if isinstance(limit, Fraction):
        return exact_text(limit)
    return limit.isoformat()
