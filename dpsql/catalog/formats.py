"""formats: to_char of moments, as browsing clients print them: by numbers."""

import re
from datetime import datetime
from typing import Final

from dpsql.errors import InvalidParameter

MAX_FORMAT: Final = 100
_PIECE: Final = re.compile(r'"([^"]*)"?|(YYYY|HH24|HH12|HH|MM|MI|DD|SS|MS|US|TZ|tz)|([A-Za-z])|(.)', re.DOTALL)
_WRITTEN: Final = {
    **{"MM": "%m", "DD": "%d", "HH24": "%H", "HH12": "%I", "HH": "%I", "MI": "%M", "SS": "%S"},
    "US": "%f",
}


def moment_text(moment: datetime, zone: str, form: str) -> str:
    """A moment in a form such as YYYY-MM-DD HH24:MI:SS TZ.

    Args:
        moment: What to print.
        zone: What its time zone is called.
        form: The form.

    Raises:
        InvalidParameter: The form is too long, or has what is none of these parts.
    """
    if len(form) > MAX_FORMAT:
        raise InvalidParameter(f"a format has {MAX_FORMAT} characters at the most")
    return "".join(_piece(moment, zone, match) for match in _PIECE.finditer(form))


def _piece(moment: datetime, zone: str, match: re.Match[str]) -> str:
    quoted, part, letter, sign = match.groups()
    if letter is not None:
        raise InvalidParameter(
            f'catalog queries have no format part at "{letter}"', hint="to_char(now(), 'YYYY-MM-DD HH24:MI:SS')"
        )
    if part in ("TZ", "tz"):
        return zone.upper() if part == "TZ" else zone.lower()
    if part == "MS":
        return f"{moment.microsecond // 1000:03d}"
    if part == "YYYY":
        return f"{moment.year:04d}"  # %Y does not fill up with zeros everywhere
    return moment.strftime(_WRITTEN[part]) if part is not None else (sign or quoted)
