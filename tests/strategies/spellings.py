"""Spellings: the same question in other words.

A query's tree is edited where PostgreSQL gives the edited text the same meaning, and its text is then set anew with
other blanks, comments, parentheses and letters. What sqlglot would print with another meaning is left as it is.
"""

import re
from collections.abc import Callable, Sequence
from random import Random

import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres

from dpsql.compiler.sql.postgres_syntax import PlainPostgres
from tests.strategies.queries import COLUMNS

_MIRRORED: dict[type[exp.Expr], type[exp.Binary]] = {
    **{exp.EQ: exp.EQ, exp.NEQ: exp.NEQ, exp.LT: exp.GT, exp.GT: exp.LT, exp.LTE: exp.GTE, exp.GTE: exp.LTE},
    **{exp.Mul: exp.Mul, exp.BitwiseAnd: exp.BitwiseAnd, exp.BitwiseOr: exp.BitwiseOr},
}
_OPPOSITE: dict[type[exp.Expr], type[exp.Binary]] = {
    **{exp.EQ: exp.NEQ, exp.NEQ: exp.EQ, exp.LT: exp.GTE, exp.GTE: exp.LT, exp.GT: exp.LTE, exp.LTE: exp.GT},
}
_COLUMNS = frozenset(name for table in COLUMNS.values() for kind in table.values() for name in kind) | {"code", "title"}
_DECIMAL = re.compile(r"\d+\.\d+")

Edit = Callable[[Random, exp.Expr], exp.Expr | None]
"""Another expression of the same meaning, or None where the edit does not apply."""


def respelled(sql: str, seed: int, edits: int = 6) -> str:
    """The same query in another spelling; the same one for the same seed."""
    chance = Random(seed)
    tree = sqlglot.parse_one(sql, dialect=PlainPostgres)
    if edits:
        _rename(chance, tree)
    for _ in range(edits):
        _edit_once(chance, tree)
    return _set_anew(chance, tree.sql(dialect=Postgres))


def _edit_once(chance: Random, tree: exp.Expr) -> None:
    nodes = [node for node in tree.walk() if isinstance(node, exp.Expr)]
    chance.shuffle(nodes)
    for node in nodes:
        edit = chance.choice(_EDITS)
        found = edit(chance, node)
        if found is not None and found is not node:
            node.replace(found)
            return


def _rename(chance: Random, tree: exp.Expr) -> None:
    """Other names in place of aliases, wherever they stand."""
    aliases = {node.this.name for node in tree.find_all(exp.TableAlias) if node.this is not None}
    aliases |= {node.alias for node in tree.find_all(exp.Alias)}
    names = {alias: f"n{chance.randrange(1000)}_{place}" for place, alias in enumerate(sorted(aliases))}
    for node in tree.find_all(exp.Identifier):
        if node.name in names and not (isinstance(node.parent, exp.Column) and node.name in _COLUMNS):
            node.set("this", names[node.name])


# Edits


def _sides(chance: Random, node: exp.Expr) -> exp.Expr | None:
    """a < b as b > a; both sides are in parentheses already, or bind more tightly."""
    if type(node) not in _MIRRORED or isinstance(node.expression, exp.Any | exp.All):
        return None
    return _MIRRORED[type(node)](this=_paren(node.expression), expression=_paren(node.this))


def _terms(chance: Random, node: exp.Expr) -> exp.Expr | None:
    """The terms of AND or OR in another order, one of them perhaps twice."""
    if not isinstance(node, exp.And | exp.Or):
        return None
    terms = list(node.flatten())
    chance.shuffle(terms)
    if chance.random() < 0.3:
        terms.append(terms[0])
    whole = terms[0].copy()
    for term in terms[1:]:
        whole = type(node)(this=whole, expression=term.copy())
    return exp.Paren(this=whole)


def _negated_twice(chance: Random, node: exp.Expr) -> exp.Expr | None:
    if type(node) in _OPPOSITE and not isinstance(node.expression, exp.Any | exp.All):
        opposite = _OPPOSITE[type(node)](this=_paren(node.this), expression=_paren(node.expression))
        return exp.Paren(this=exp.Not(this=exp.Paren(this=opposite)))
    return None


def _between(chance: Random, node: exp.Expr) -> exp.Expr | None:
    """x BETWEEN a AND b as x >= a AND x <= b."""
    if not isinstance(node, exp.Between) or node.args.get("symmetric"):
        return None
    subject = _paren(node.this)
    low = exp.GTE(this=subject, expression=_paren(node.args["low"]))
    high = exp.LTE(this=subject.copy(), expression=_paren(node.args["high"]))
    return exp.Paren(this=exp.And(this=low, expression=high))


def _list(chance: Random, node: exp.Expr) -> exp.Expr | None:
    """x IN (a, b) as x IN (b, a, b), or as x = b OR x = a."""
    if not isinstance(node, exp.In) or not node.expressions:
        return None
    items = [item.copy() for item in node.expressions]
    chance.shuffle(items)
    if chance.random() < 0.5:
        return exp.In(this=_paren(node.this), expressions=[*items, items[0].copy()])
    equations: list[exp.Expr] = [exp.EQ(this=_paren(node.this), expression=_paren(item)) for item in items]
    whole = equations[0]
    for equation in equations[1:]:
        whole = exp.Or(this=whole, expression=equation)
    return exp.Paren(this=whole)


def _case(chance: Random, node: exp.Expr) -> exp.Expr | None:
    """CASE x WHEN a as CASE WHEN x = a."""
    if not isinstance(node, exp.Case) or node.this is None:
        return None
    branches = [
        exp.If(this=exp.EQ(this=_paren(node.this), expression=_paren(branch.this)), true=branch.args["true"].copy())
        for branch in node.args["ifs"]
    ]
    default = node.args.get("default")
    return exp.Case(ifs=branches, default=default.copy() if default is not None else None)


def _where(chance: Random, node: exp.Expr) -> exp.Expr | None:
    """WHERE c as WHERE c AND TRUE."""
    if not isinstance(node, exp.Where):
        return None
    always = chance.choice(["TRUE", "1 = 1", "NOT FALSE", "'a' <> 'b'"])
    return exp.Where(this=exp.And(this=_paren(node.this), expression=sqlglot.parse_one(always, dialect=Postgres)))


def _rows(chance: Random, node: exp.Expr) -> exp.Expr | None:
    """COUNT(*) as COUNT(1)."""
    if not isinstance(node, exp.Count) or not isinstance(node.this, exp.Star):
        return None
    return exp.Count(this=exp.Literal.number(1), big_int=True)


def _number(chance: Random, node: exp.Expr) -> exp.Expr | None:
    """A number that is compared, with other digits."""
    around = node.parent
    is_compared = type(around) in _OPPOSITE
    if isinstance(around, exp.Between):  # all three are compared in one type
        is_compared = isinstance(around.args["low"], exp.Literal) and isinstance(around.args["high"], exp.Literal)
    if not isinstance(node, exp.Literal) or node.is_string or not is_compared:
        return None
    text = str(node.this)
    if _DECIMAL.fullmatch(text):
        return exp.Literal.number(chance.choice([f"{text}0", f"0{text}", f"{text}e0"]))
    return exp.Literal.number(chance.choice([f"{text}.0", f"{text}e0"])) if len(text) < 9 else None


def _keys(chance: Random, node: exp.Expr) -> exp.Expr | None:
    """The keys of a plain GROUP BY in another order."""
    if not isinstance(node, exp.Group) or any(isinstance(e, exp.Rollup | exp.Cube) for e in node.expressions):
        return None
    keys = [key.copy() for key in node.expressions]
    chance.shuffle(keys)
    return exp.Group(expressions=keys)


_KEYS = {"people": "pid", "stays": "pid, stay_id", "cards": "pid", "letters": "who", "lines": "visit_id"}
"""Keys that the policy does not list, and that * leaves out."""


def _wrapped(chance: Random, node: exp.Expr) -> exp.Expr | None:
    """FROM t as FROM (SELECT * FROM t) AS t."""
    if not isinstance(node, exp.Table) or not isinstance(node.parent, exp.From | exp.Join):
        return None
    keys = _KEYS.get(node.name)
    inner = f"SELECT *{f', {keys}' if keys else ''} FROM {node.name} AS inside{' WHERE TRUE' * (chance.random() < 0.5)}"
    return sqlglot.parse_one(f"SELECT 1 FROM ({inner}) AS {node.alias_or_name}", dialect=PlainPostgres).find(
        exp.Subquery
    )


_EDITS: Sequence[Edit] = (
    _sides,
    _terms,
    _negated_twice,
    _between,
    _list,
    _case,
    _where,
    _rows,
    _number,
    _keys,
    _wrapped,
)


def _paren(node: exp.Expr) -> exp.Expr:
    plain = isinstance(node, exp.Column | exp.Literal | exp.Paren | exp.Func | exp.Subquery)
    return node.copy() if plain else exp.Paren(this=node.copy())


# Text

_BLANKS = (" ", "  ", "\n", "\t", " /* so */ ", " -- to the end\n")
_WORDS = frozenset({"SELECT", "FROM", "WHERE", "GROUP", "BY", "AND", "OR", "NOT", "AS", "IN", "CASE", "WHEN", "END"})


def _set_anew(chance: Random, sql: str) -> str:
    """The tokens of a text with other blanks and comments between them."""
    parts: list[str] = []
    end = 0
    for token in PlainPostgres().tokenize(sql):
        text = sql[token.start : token.end + 1]
        if token.start < end or not text:
            continue
        if text.upper() in _WORDS:
            text = chance.choice([text.lower(), text.upper(), text.title()])
        if text.startswith("'") and chance.random() < 0.3 and "\\" not in text:
            text = f"E{text}"
        apart = token.start > end
        parts += [chance.choice(_BLANKS) if apart else "", text]
        end = token.end + 1
    return "".join(parts)
