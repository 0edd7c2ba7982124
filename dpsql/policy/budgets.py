"""`[roles.NAME]`, `[groups.NAME]` and `[dataset] budget`: what may be lost, and what one query costs."""

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from dpsql.policy.model import (
    Budget,
    MechanismChoice,
    PolicyColumn,
    QueryDefaults,
    RenewalWindow,
    Role,
    Table,
    UserGroup,
    can_be_key,
)
from dpsql.policy.node import Node, Shape, did_you_mean
from dpsql.policy.source import quoted
from dpsql.privacy.conversion import exact_text
from dpsql.privacy.cost import Accountant
from dpsql.sqltypes import SqlType

LEAST_EPSILON, MOST_EPSILON = "1e-9", "1e4"
LEAST_DELTA, MOST_DELTA = "1e-20", "0.1"
LEAST_SHARE, MOST_SHARE = "0.01", "0.99"
LEAST_WIDE_SHARE, MOST_WIDE_SHARE = "0.001", "0.5"
MAX_WINDOW_DAYS = 3660
SMALL_DOMAIN = 1000
"""An integer column with at most so many values between its limits has all of them shown, like a declared domain."""

_QUERIES_WITH_PRIVATE_KEYS = 1000
"""A role whose file says no δ for a query can ask for so many with private keys."""

_CAP: Shape = {
    "epsilon": "epsilon = 20",
    "delta": "delta = 1e-6",
    "accountant": 'accountant = "zcdp"',
    "selection_share": "selection_share = 0.5",
}
_BUDGET: Shape = {**_CAP, "epsilon": "epsilon = 5", "window": 'window = "30 days"'}
_QUERY: Shape = {
    "epsilon": "epsilon = 0.1",
    "delta": "delta = 1e-9",
    "mechanism": 'mechanism = "auto"',
    "max_epsilon": "max_epsilon = 1.0",
    "wide_share": "wide_share = 0.1",
    "bias_share": "bias_share = 0.1",
    "derives": "derives = false",
}
_ROLE: Shape = {
    "budget": "budget = { epsilon = 5, delta = 1e-6 }",
    "query": "query = { epsilon = 0.1, delta = 1e-9, max_epsilon = 1.0 }",
    "tables": 'tables = ["patients", "visits"]',
}
_GROUP: Shape = {"budget": "budget = { epsilon = 8, delta = 1e-6 }", "description": 'description = "The team"'}
# An event of a role must have a price in the currency of the cap and of a group: a Gaussian priced in ρ has none in
# (ε, δ), and the δ of a selection has none in a Rényi divergence.
_ROLE_ACCOUNTANTS = {
    Accountant.PURE: (Accountant.PURE,),
    Accountant.BASIC: (Accountant.BASIC, Accountant.ADVANCED, Accountant.PURE),
    Accountant.ADVANCED: (Accountant.ADVANCED, Accountant.BASIC, Accountant.PURE),
    Accountant.ZCDP: (Accountant.ZCDP, Accountant.RDP, Accountant.ADVANCED, Accountant.BASIC, Accountant.PURE),
    Accountant.RDP: (Accountant.RDP, Accountant.PURE),
}


def read_cap(node: Node, tables: tuple[Table, ...]) -> Budget:
    """Return the dataset's budget."""
    if isinstance(node.value, dict) and "window" in node.value:
        window = replace(node, key=(*node.key, "window"))
        raise window.wrong("the cap over all users never renews", "remove window; a role's budget may have one")
    return _budget(node, _CAP, tables)


def read_roles(node: Node, tables: tuple[Table, ...], cap: Budget) -> tuple[Role, ...]:
    """Return the roles, each with a budget that the cap can account for."""
    roles = tuple(_role(name, member, tables, cap) for name, member in node.members("role").items())
    if not roles:
        raise node.wrong("at least one role is required", f"write: [roles.analyst] with {_ROLE['budget']}")
    return roles


def read_groups(node: Node, tables: tuple[Table, ...], roles: tuple[Role, ...], cap: Budget) -> tuple[UserGroup, ...]:
    """Return the groups of users; a user of any role may be in any of them, so each must account for every role."""
    return tuple(_group(name, member, tables, roles, cap) for name, member in node.members("group").items())


def _group(name: str, node: Node, tables: tuple[Table, ...], roles: tuple[Role, ...], cap: Budget) -> UserGroup:
    keys = node.fields(_GROUP, required=("budget",))
    budget = _budget(keys["budget"], _BUDGET, tables)
    for role in roles:
        if role.budget.accountant not in _ROLE_ACCOUNTANTS[budget.accountant]:
            raise keys["budget"].wrong(
                f'accountant "{budget.accountant.value}" for users of role {quoted(role.name)}, '
                f'which has accountant "{role.budget.accountant.value}"',
                f'write: accountant = "{cap.accountant.value}", as the cap: it accounts for every role',
            )
    return UserGroup(name, budget, keys["description"].text() if "description" in keys else None)


def _role(name: str, node: Node, tables: tuple[Table, ...], cap: Budget) -> Role:
    keys = node.fields(_ROLE, required=("budget", "query"))
    visible = _visible(keys["tables"], tables) if "tables" in keys else tables
    budget = _budget(keys["budget"], _BUDGET, visible)
    allowed = _ROLE_ACCOUNTANTS[cap.accountant]
    if budget.accountant not in allowed:
        raise keys["budget"].wrong(
            f'accountant "{budget.accountant.value}" under a cap with accountant "{cap.accountant.value}"',
            f'write: accountant = "{allowed[0].value}", or give the cap accountant = "{budget.accountant.value}"',
        )
    query = _query(keys["query"], budget, visible)
    _check_min_units(keys["budget"], budget, query, visible)
    return Role(name, budget, query, frozenset(table.name for table in visible))


def changed(budget: Budget, epsilon: Fraction, delta: Fraction) -> Budget:
    """Return a budget raised by the given amounts (lowered, if negative), within the limits of policies.

    The pure accountant has no delta, so its budget gets none.
    """
    most = Fraction(0) if budget.accountant is Accountant.PURE else Fraction(MOST_DELTA)
    least = Fraction(0) if budget.delta == 0 else Fraction(LEAST_DELTA)
    return replace(
        budget,
        epsilon=min(max(budget.epsilon + epsilon, Fraction(LEAST_EPSILON)), Fraction(MOST_EPSILON)),
        delta=min(max(budget.delta + delta, least), most),
    )


def _visible(node: Node, tables: tuple[Table, ...]) -> tuple[Table, ...]:
    known = {table.name: table for table in tables}
    visible: dict[str, Table] = {}
    for element in node.elements():
        name = element.text()
        if name not in known:
            raise element.wrong(f"{quoted(name)} is not a table of this policy", did_you_mean(name, known))
        if name in visible:
            raise element.wrong(f"{quoted(name)} stands twice", "remove one of the two")
        visible[name] = known[name]
    return tuple(visible.values())


def _budget(node: Node, shape: Shape, tables: tuple[Table, ...]) -> Budget:
    keys = node.fields(shape, required=("epsilon",))
    accountant = _accountant(keys["accountant"]) if "accountant" in keys else Accountant.ZCDP
    if "delta" not in keys and accountant is not Accountant.PURE:
        raise node.wrong("delta is missing", f"write: {shape['delta']}")
    delta = _delta(keys["delta"], accountant) if "delta" in keys else Fraction(0)
    if delta == 0 and accountant not in (Accountant.PURE, Accountant.BASIC):
        what = f"{accountant.value} needs a delta above 0"
        raise keys["delta"].wrong(what, f'write: {shape["delta"]}, or accountant = "pure"')
    share = Fraction(1, 2) if delta and accountant.selects and _selects_groups(tables) else Fraction(0)
    if "selection_share" in keys:
        share = _selection_share(keys["selection_share"], accountant)
    budget = Budget(
        epsilon=keys["epsilon"].number_between(LEAST_EPSILON, MOST_EPSILON),
        delta=delta,
        accountant=accountant,
        window=_window(keys["window"]) if "window" in keys else None,
        selection_share=share,
    )
    if _needs_delta(tables) and _for_selection(budget) == 0:
        hint = 'write: delta = 1e-6 with accountant = "zcdp", or give a key column values = [...]'
        raise node.wrong("delta is 0, and every group key of these tables is private", hint)
    return budget


def _accountant(node: Node) -> Accountant:
    return Accountant(node.choice(known.value for known in _ROLE_ACCOUNTANTS))


def _delta(node: Node, accountant: Accountant) -> Fraction:
    delta = node.number()
    if delta == 0:
        return delta
    if accountant is Accountant.PURE:
        raise node.wrong("the pure accountant requires delta = 0", 'write: delta = 0, or accountant = "zcdp"')
    return node.number_between(LEAST_DELTA, MOST_DELTA)


def _selection_share(node: Node, accountant: Accountant) -> Fraction:
    share = node.number()
    if share == 0:
        return share
    if not accountant.selects:
        raise node.wrong(f"the {accountant.value} accountant does not split delta", "remove selection_share")
    # Each part must be large enough to be used.
    return node.number_between(LEAST_SHARE, MOST_SHARE)


def _window(node: Node) -> RenewalWindow:
    text = node.text()
    if text == "calendar month":
        return RenewalWindow(None)
    found = re.fullmatch(r"([1-9][0-9]{0,3}) days?", text)
    if found is None or int(found[1]) > MAX_WINDOW_DAYS:
        what = f'{quoted(text)} must be "N days" (up to {MAX_WINDOW_DAYS}) or "calendar month"'
        raise node.wrong(what, 'write: window = "30 days"')
    return RenewalWindow(int(found[1]))


def _query(node: Node, budget: Budget, tables: tuple[Table, ...]) -> QueryDefaults:
    keys = node.fields(_QUERY, required=("epsilon",))
    epsilon = keys["epsilon"].number_between(LEAST_EPSILON, MOST_EPSILON)
    if epsilon > budget.epsilon:
        what = f"epsilon = {exact_text(epsilon)} exceeds the budget of {exact_text(budget.epsilon)}"
        raise keys["epsilon"].wrong(what, f"write: epsilon = {exact_text(budget.epsilon / 50)}")
    most = budget.epsilon
    if "max_epsilon" in keys:
        most = keys["max_epsilon"].number_between(LEAST_EPSILON, MOST_EPSILON)
        if most < epsilon:
            what = f"max_epsilon = {exact_text(most)} is below epsilon = {exact_text(epsilon)}"
            raise keys["max_epsilon"].wrong(what, f"write: max_epsilon = {exact_text(epsilon)}")
    delta = _for_selection(budget) / _QUERIES_WITH_PRIVATE_KEYS
    if "delta" in keys:
        delta = _query_delta(keys["delta"], budget, tables)
    mechanism = MechanismChoice.AUTO
    if "mechanism" in keys:
        mechanism = _mechanism(keys["mechanism"], budget.accountant, delta)
    derives = "derives" not in keys or keys["derives"].flag()
    return QueryDefaults(epsilon, delta, mechanism, most, _wide_share(keys), derives)


def _wide_share(keys: Mapping[str, Node]) -> Fraction:
    """The share of wide totals; policies from before there were any call it bias_share."""
    given = [keys[name] for name in ("wide_share", "bias_share") if name in keys]
    if len(given) > 1:
        raise given[1].wrong("bias_share is the old name of wide_share", "remove bias_share")
    return given[0].number_between(LEAST_WIDE_SHARE, MOST_WIDE_SHARE) if given else Fraction(0)


def _query_delta(node: Node, budget: Budget, tables: tuple[Table, ...]) -> Fraction:
    delta = _delta(node, budget.accountant)
    available = _for_selection(budget)
    hint = f"write: delta = {float(available / _QUERIES_WITH_PRIVATE_KEYS):.1g}"
    if delta == 0 and _needs_delta(tables):
        raise node.wrong("delta is 0, and every group key of these tables is private", hint)
    # Without private keys no delta is charged: any value is valid.
    if delta > available and _selects_groups(tables):
        what = f"delta = {node.shown()} exceeds the budget's delta for private keys"
        none = "write: delta = 0, or give the budget a selection_share"
        raise node.wrong(what, hint if available else none if budget.accountant.selects else "write: delta = 0")
    return delta


def _mechanism(node: Node, accountant: Accountant, delta: Fraction) -> MechanismChoice:
    mechanism = MechanismChoice(node.choice(MechanismChoice))
    if mechanism is MechanismChoice.GAUSSIAN:
        if accountant is Accountant.PURE:
            raise node.wrong("the pure accountant does not support Gaussian noise", 'write: mechanism = "laplace"')
        if accountant.converts and delta == 0:
            what = f"Gaussian noise costs delta under {accountant.value}, and delta = 0"
            raise node.wrong(what, 'write: mechanism = "laplace"')
    return mechanism


def _for_selection(budget: Budget) -> Fraction:
    """Return the δ that queries may spend: under basic there is one δ for all purposes."""
    return budget.delta if budget.accountant is Accountant.BASIC else budget.delta * budget.selection_share


def _needs_delta(tables: tuple[Table, ...]) -> bool:
    """Return True if a GROUP BY is only possible on private keys."""
    return _has_private_keys(tables) and not any(
        _is_public_key(table, column) or column.type.is_moment  # parts of a date are public keys
        for table in tables
        for column in table.columns
    )


def _check_min_units(node: Node, budget: Budget, query: QueryDefaults, tables: tuple[Table, ...]) -> None:
    """Groups of few units are left out by a selection, which needs a δ."""
    ruled = next((table for table in tables if table.min_units > 1), None)
    if ruled is None or (query.delta and _for_selection(budget)):
        return
    what = f"table {quoted(ruled.name)} has min_units, and {{}}: groups cannot be selected by their units"
    hint = "leave the table out of the role's tables, or remove min_units"
    if not budget.accountant.selects:
        raise node.wrong(what.format(f"accountant {budget.accountant.value} has no delta to select with"), hint)
    none = "query.delta is 0" if _for_selection(budget) else "no delta is kept for selection"
    raise node.wrong(what.format(none), f"write: delta = 1e-9 in query, and a selection_share; or {hint}")


def _selects_groups(tables: tuple[Table, ...]) -> bool:
    """Return True if some groups are shown only where enough units are in them."""
    return _has_private_keys(tables) or any(table.min_units > 1 for table in tables)


def _has_private_keys(tables: tuple[Table, ...]) -> bool:
    return any(
        can_be_key(column.type) and not _is_public_key(table, column) and column.name != table.unit_key
        for table in tables
        for column in table.columns
    )


def _is_public_key(table: Table, column: PolicyColumn) -> bool:
    if table.public or column.values is not None or column.values_from is not None:
        return can_be_key(column.type)
    if isinstance(column.lower, Fraction) and isinstance(column.upper, Fraction):
        return column.type.is_integer and column.upper - column.lower < SMALL_DOMAIN
    return column.type is SqlType.BOOLEAN
