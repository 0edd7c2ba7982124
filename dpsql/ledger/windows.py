"""When a budget renews: every so many days since its window was set, or with the calendar month.

Windows are fixed, not sliding: w of them add up, and a span as long as one may see two windows' worth.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from dpsql.ledger.damage import legible
from dpsql.policy import RenewalWindow


def stamp(moment: datetime) -> str:
    """Return a moment as the ledger writes it: UTC, of one width, so that text order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def moment(text: str) -> datetime:
    """Return the moment that `stamp` wrote.

    Raises:
        LedgerUnavailable: `stamp` wrote something else.
    """
    with legible():
        return datetime.fromisoformat(text)


def window_start(window: RenewalWindow, anchor: datetime, now: datetime, timezone: str) -> datetime:
    """Return when the window that contains `now` began.

    Args:
        window: The window's length.
        anchor: When windows of so many days began to be counted.
        now: Not before the anchor.
        timezone: IANA name of the zone whose months count.
    """
    if window.days is not None:
        length = timedelta(days=window.days)
        return anchor + (now - anchor) // length * length
    local = now.astimezone(ZoneInfo(timezone))
    return local.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0).astimezone(UTC)


def window_end(window: RenewalWindow, start: datetime, timezone: str) -> datetime:
    """Return when the window that began at `start` ends: the first moment of the next one."""
    if window.days is not None:
        return start + timedelta(days=window.days)
    local = start.astimezone(ZoneInfo(timezone))
    year, month = divmod(local.year * 12 + local.month, 12)
    return local.replace(
        year=year, month=month + 1, day=1, hour=0, minute=0, second=0, microsecond=0, fold=0
    ).astimezone(UTC)
