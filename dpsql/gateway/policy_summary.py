"""policy_summary: what a policy says of budgets and columns, in words for the data owner."""

from datetime import date, datetime
from fractions import Fraction

from dpsql.policy import Bound, Budget, PolicyColumn, Table, can_be_key
from dpsql.privacy.conversion import decimal_text
from dpsql.sqltypes import SqlType


def budget_text(budget: Budget) -> str:
    """What may be spent, how it adds up, and whether it renews."""
    window = f"renews every {budget.window}" if budget.window is not None else "never renews"
    share = f", {decimal_text(budget.delta * budget.selection_share)} of it for private keys" if budget.delta else ""
    return (
        f"epsilon {decimal_text(budget.epsilon)}, delta {decimal_text(budget.delta)}{share}; "
        f"{budget.accountant.value}; {window}"
    )


def limits_text(column: PolicyColumn) -> str:
    """The limits that values are moved to, with the step between them; nothing where there are none."""
    if column.lower is None or column.upper is None:
        return ""
    step = f", step {_number(column.step)}" if column.step is not None else ""
    return f"{_number(column.lower)} to {_number(column.upper)}{step}"


def _number(value: Bound) -> str:
    if isinstance(value, Fraction):
        return f"{float(value):.15g}"
    return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()


def keys_text(column: PolicyColumn, table: Table) -> str:
    """What it is to group by a column: which of its values are public, and what the others cost."""
    if table.public:
        return "public"
    if column.collected_by is not None:
        return "public, debiased: all possible answers"
    if column.values_from is not None:
        return "public: " + ".".join(column.values_from)
    if column.values is not None:
        shown = ", ".join(str(value) for value in column.values[:8])
        return f"public: {shown}{', …' if len(column.values) > 8 else ''}"
    if column.type is SqlType.BOOLEAN:
        return "public: true, false"
    if _is_short_range(column):
        return "public: all values within the bounds"
    return "private: costs delta" if can_be_key(column.type) else "no"


def _is_short_range(column: PolicyColumn) -> bool:
    from dpsql.compiler.values.sources import MAX_SOURCE  # the compiler, which `--help` does without

    lower, upper = column.lower, column.upper
    if column.type.is_integer and isinstance(lower, Fraction) and isinstance(upper, Fraction):
        return upper - lower < MAX_SOURCE
    if column.type is SqlType.DATE and isinstance(lower, date) and isinstance(upper, date):
        return (upper - lower).days < MAX_SOURCE
    return False
