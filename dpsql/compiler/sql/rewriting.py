"""rewriting: the analyst's query with a part of it replaced, for hints.

Rule: each text is a copy of the whole query, so there are few of them, and none for a large query.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import islice, takewhile

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from dpsql.compiler.sql.parse import position
from dpsql.compiler.sql.postgres_syntax import print_sql, tokens_of

_REPLACED = "replaced"
"""Marks a node of which a copy is made."""
_MAX_NODES = 500
"""Nodes of a query that is copied."""
_MAX_KEYS = 4
"""Keys of GROUP BY that are written in another way."""
_MAX_LISTED = 2
"""Columns of a SELECT list that become group keys."""
_MAX_FRACTIONS = 10
"""Quantiles of a query in a hint."""
_PLACES = (exp.RowNumber, exp.Ntile, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
"""Window functions of a row's place among others."""
_CLAUSES = (exp.Where, exp.Having, exp.Order, exp.Group, exp.Join)
"""What a query may lack."""


def is_small(tree: exp.Expr) -> bool:
    """True of a query that is short enough for a hint."""
    return next(islice(tree.walk(), _MAX_NODES, None), None) is None


def replaced(node: exp.Expr, *written: str, everywhere: bool = False) -> tuple[str, ...]:
    """Return the whole query, once for each replacement of the node.

    Args:
        node: A part of the query's tree.
        written: The replacements; {} is the node itself.
        everywhere: Whether all parts that equal the node are replaced.
    """

    def write(text: str) -> Callable[[exp.Expr], None]:
        def change(copy: exp.Expr) -> None:
            query = copy.root()
            found = [part for part in query.walk() if part is copy or (everywhere and part == node)]
            for part in found:
                part.replace(exp.Var(this=text.replace("{}", print_sql(node))))

        return change

    return tuple(query for text in written for query in changed(node, write(text)))


def changed(node: exp.Expr, change: Callable[[exp.Expr], None]) -> tuple[str, ...]:
    """Return the whole query with one node changed: one text, or none if the query is large.

    Args:
        node: A part of the query's tree, which is not changed.
        change: Changes a copy of the node.
    """
    if not is_small(node.root()):
        return ()
    node.meta[_REPLACED] = True
    try:
        query = node.root().copy()
    finally:
        del node.meta[_REPLACED]
    copy = next(part for part in query.walk() if _REPLACED in part.meta)
    del copy.meta[_REPLACED]
    change(copy)
    return (print_sql(query),)


def joined_by_and(node: exp.Expr) -> tuple[str, ...]:
    """The whole query with AND in the place of every &&."""
    return tuple(map(_with_and, changed(node, lambda _: None)))


def _with_and(text: str) -> str:
    for token in reversed(tokens_of(text)):
        if token.token_type == TokenType.DAMP:
            text = f"{text[: token.start]}AND{text[token.end + 1 :]}"
    return text


def counted(node: exp.Select) -> tuple[str, ...]:
    """The SELECT with COUNT(*) in the place of its list, and without what follows WHERE."""

    def count(select: exp.Expr) -> None:
        for clause in ("group", "having", "order", "limit", "offset", "distinct", "windows"):
            select.set(clause, None)
        select.set("expressions", [exp.Count(this=exp.Star())])

    return changed(node, count)


def grouped(node: exp.Select) -> tuple[str, ...]:
    """Return the SELECT with the number of rows for each value of the one or two columns that it lists."""
    columns = [item.unalias() for item in node.expressions]
    if len(columns) > _MAX_LISTED or not all(type(column) is exp.Column for column in columns):
        return ()

    def group(select: exp.Expr) -> None:
        for clause in ("distinct", "limit", "offset"):
            select.set(clause, None)
        select.append("expressions", exp.Count(this=exp.Star()))
        select.set("group", exp.Group(expressions=[column.copy() for column in columns]))

    return changed(node, group)


def averaged(node: exp.Select) -> tuple[str, ...]:
    """A query for the average number of rows in the groups of a SELECT."""
    group = node.args.get("group")
    if group is None:
        return ()
    inner = node.copy()
    for clause in ("having", "order", "limit", "offset", "distinct", "windows"):
        inner.set(clause, None)
    inner.set("expressions", [exp.Alias(this=exp.Count(this=exp.Star()), alias=exp.Identifier(this="n"))])
    inner.set("group", exp.Group(expressions=[_meant(node, key).copy() for key in group.expressions]))
    return (f"SELECT AVG(n) FROM ({print_sql(inner)}) AS t",)  # noqa: S608  # never run for the user


def of_groups(node: exp.Expr) -> tuple[str, ...]:
    """A query that aggregates the groups of a SELECT of one item, which is an aggregate of this aggregate."""
    select, outer = node.find_ancestor(exp.Select), node.find_ancestor(exp.AggFunc)
    if select is None or select is not node.root() or outer is None or not is_small(select):
        return ()
    if len(select.expressions) != 1:
        return ()
    inner = select.copy()
    for clause in ("order", "limit", "offset", "distinct", "windows"):
        inner.set(clause, None)
    inner.set("expressions", [exp.Alias(this=node.copy(), alias=exp.Identifier(this="n"))])
    text = print_sql(outer).replace(print_sql(node), "n")
    return (f"SELECT {text} FROM ({print_sql(inner)}) AS t",)  # noqa: S608  # never run for the user


def distinct_counted(node: exp.Select) -> tuple[str, ...]:
    """The query with the number of distinct values in the place of SELECT DISTINCT of one item."""
    if node.args.get("distinct") is None or len(node.expressions) != 1:
        return ()

    def count(select: exp.Expr) -> None:
        for clause in ("order", "limit", "offset", "distinct"):
            select.set(clause, None)
        values = exp.Distinct(expressions=[select.expressions[0].unalias()])
        select.set("expressions", [exp.Count(this=values)])

    return changed(node, count)


def partitioned(node: exp.Select, key: str) -> tuple[str, ...]:
    """The query with a column before others in PARTITION BY of the SELECT's first window."""

    def partition(window: exp.Expr) -> None:
        window.set("partition_by", [exp.column(key), *(window.args.get("partition_by") or ())])

    window = node.find(exp.Window)
    return changed(window, partition) if window is not None else ()


def quantiles(node: exp.Select) -> tuple[str, ...]:
    """A query for the quantiles that the places of a SELECT's rows are made for, in the groups of its PARTITION BY.

    The fractions are those of NTILE, or the numbers between 0 and 1 in the query, or quartiles.
    """
    numbered = (window for window in node.find_all(exp.Window) if isinstance(window.this, _PLACES))
    window = next((window for window in numbered if window.args.get("order")), None)
    if window is None or not is_small(node.root()):
        return ()
    ordered, keys = window.args["order"].expressions[0], window.args.get("partition_by") or ()
    calls = [
        f"PERCENTILE_DISC({fraction:g}) WITHIN GROUP (ORDER BY {print_sql(ordered.this)}) AS p{round(100 * fraction)}"
        for fraction in _fractions(window)
    ]
    query = node.copy()
    for clause in ("having", "order", "limit", "offset", "distinct", "windows", "group"):
        query.set(clause, None)
    query.set("expressions", [*(key.copy() for key in keys), *(exp.Var(this=call) for call in calls)])
    if keys:
        query.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    if before := _ctes_before(node):
        query.set("with_", exp.With(expressions=[cte.copy() for cte in before]))
    return (print_sql(query),)


def _fractions(window: exp.Window) -> list[float]:
    parts = window.this.this.name if isinstance(window.this, exp.Ntile) and window.this.this is not None else ""
    if parts.isdecimal() and 1 < int(parts) <= _MAX_FRACTIONS:
        return [place / int(parts) for place in range(1, int(parts))]
    numbers = {float(each.this) for each in window.root().find_all(exp.Literal) if not each.is_string}
    return sorted(number for number in numbers if 0 < number < 1)[:_MAX_FRACTIONS] or [0.25, 0.5, 0.75]


def _ctes_before(node: exp.Expr) -> list[exp.Expr]:
    """What WITH names around a query, before the place that the query has there."""
    found: list[exp.Expr] = []
    around: set[int] = set()
    place: exp.Expr | None = node
    while place is not None:
        with_ = place.args.get("with_")
        ctes = with_.expressions if with_ is not None else []
        found = [*takewhile(lambda cte: id(cte) not in around, ctes), *found]
        around.add(id(place))
        place = place.parent
    return found


def rounded_keys(node: exp.Select) -> tuple[str, ...]:
    """The query with one key of GROUP BY rounded or truncated, for each key and each way."""
    group = node.args.get("group")
    ways = ("FLOOR({} / 10) * 10", "DATE_TRUNC('month', {})", "EXTRACT(year FROM {})")
    keys = [_meant(node, key) for key in group.expressions] if group is not None else node.expressions
    return tuple(query for key in keys[:_MAX_KEYS] for query in replaced(key, *ways, everywhere=True))


def _meant(select: exp.Select, key: exp.Expr) -> exp.Expr:
    """The expression that a key of GROUP BY is: of the SELECT list where it is a position."""
    if isinstance(key, exp.Literal) and str(key.this).isdecimal() and 0 < int(str(key.this)) <= len(select.expressions):
        item: exp.Expr = select.expressions[int(str(key.this)) - 1]
        return item.unalias()
    return key


def with_group_key(node: exp.Expr) -> tuple[str, ...]:
    """The query with an item of its SELECT list in GROUP BY too."""
    select = node.find_ancestor(exp.Select)
    if select is None or isinstance(node, exp.Select | exp.Order | exp.Having):
        return ()
    keys = select.args["group"].expressions if select.args.get("group") is not None else []
    group = exp.Group(expressions=[key.copy() for key in (*keys, node)])
    return changed(select, lambda copy: copy.set("group", group))


def in_having(node: exp.Expr) -> tuple[str, ...]:
    """The query with a condition on an aggregate in HAVING; none where it is not in WHERE."""
    where = node.find_ancestor(exp.Where, exp.Select)
    if not isinstance(where, exp.Where) or not isinstance(where.parent, exp.Select):
        return ()

    def move(select: exp.Expr) -> None:
        condition, having = select.args["where"].this, select.args.get("having")
        parts = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
        moved = [part for part in parts if any(each == node for each in part.walk())]
        rest = [part for part in parts if part not in moved]
        select.set("where", exp.Where(this=exp.and_(*rest)) if rest else None)
        select.set("having", exp.Having(this=exp.and_(*([having.this] if having else []), *moved)))

    return changed(where.parent, move)


def in_where(node: exp.Select) -> tuple[str, ...]:
    """The query with the condition of HAVING in WHERE; none where it is on an aggregate."""
    if node.args["having"].find(exp.AggFunc) is not None:
        return ()

    def move(select: exp.Expr) -> None:
        where, having = select.args.get("where"), select.args["having"].pop()
        select.set("where", exp.Where(this=exp.and_(*([where.this] if where else []), having.this)))

    return changed(node, move)


def with_expression(node: exp.Column) -> tuple[str, ...]:
    """The query with an item of the SELECT list in the place of its name; none if no item has that name."""
    select = node.find_ancestor(exp.Select)
    items = select.expressions if select is not None and node.args.get("table") is None else []
    named = (item.this for item in items if isinstance(item, exp.Alias) and item.alias.lower() == node.name.lower())
    meant = next(named, None)
    if meant is None or meant.find(exp.Column) == node:
        return ()
    text = print_sql(exp.Paren(this=meant.copy()) if isinstance(meant, exp.Binary) else meant)
    return replaced(node, text, everywhere=True)


def with_texts(node: exp.Column, columns: Collection[str]) -> tuple[str, ...]:
    """The query with a text in the place of a name, and of all quoted names that no column has."""

    def write(copy: exp.Expr) -> None:
        for each in list(copy.root().find_all(exp.Column)):
            is_unknown = each.this.args.get("quoted") and not each.table and each.name not in columns
            if each is copy or is_unknown:
                each.replace(exp.Literal.string(each.name))

    return changed(node, write)


def linked(node: exp.Expr, key: str) -> tuple[str, ...]:
    """The query in which a subquery compares a key with that of the rows around it."""
    inner = node.find(exp.Select) if not isinstance(node, exp.Select) else node
    outer = node.find_ancestor(exp.Select)
    names = [None if select is None else _first_name(select) for select in (inner, outer)]
    if inner is None or None in names or names[0] == names[1]:
        return ()

    def link(select: exp.Expr) -> None:
        condition = exp.EQ(this=exp.column(key, table=names[0]), expression=exp.column(key, table=names[1]))
        where = select.args.get("where")
        select.set("where", exp.Where(this=condition if where is None else exp.and_(where.this, condition)))

    return changed(inner, link)


def with_extreme(node: exp.Binary, function: str, query: exp.Query) -> tuple[str, ...]:
    """The query in which a value is compared with the MIN or MAX of a subquery's rows."""
    rows = exp.TableAlias(this=exp.to_identifier("t"), columns=[exp.to_identifier("value")])
    table = exp.Subquery(this=query.unnest().copy(), alias=rows)
    value = exp.Anonymous(this=function, expressions=[exp.column("value")])
    select = exp.Select(expressions=[value], from_=exp.From(this=table))
    return replaced(node.expression, print_sql(exp.Subquery(this=select)))


def _first_name(select: exp.Select) -> str | None:
    """What the first table of FROM is called."""
    from_ = select.args.get("from_")
    return from_.this.alias_or_name if from_ is not None else None


def asked_of_each(select: exp.Select) -> tuple[str, ...]:
    """The query in which BOOL_OR or COUNT asks of each value what a condition asks of all values put together."""
    named = ((item.alias, item.this) for item in select.expressions if isinstance(item, exp.Alias))
    found = ((name, call) for name, call in named if _collects(call))
    return tuple(
        query for name, call in found for asked in _asked(select.root(), name) for query in _each(call, name, asked)
    )


def _collects(node: exp.Expr) -> bool:
    called = node.name if isinstance(node, exp.Anonymous) else node.key
    return called.lower().replace("_", "") in ("stringagg", "arrayagg", "groupconcat")


def _asked(tree: exp.Expr, name: str) -> Iterator[exp.Expr]:
    """The conditions on a column of all values: what its text is like, and its elements; and their number."""
    for column in tree.find_all(exp.Column):
        whole = column.find_ancestor(exp.Like, exp.EQ, exp.Anonymous) if column.name == name else None
        of_elements = isinstance(whole, exp.EQ) and isinstance(whole.expression, exp.Any)
        is_sized = isinstance(whole, exp.Anonymous) and whole.name.lower() == "cardinality"
        if whole is not None and (of_elements or is_sized or isinstance(whole, exp.Like)):
            yield whole


def _each(call: exp.Expr, name: str, asked: exp.Expr) -> tuple[str, ...]:
    value = call.find(exp.Column)
    if value is None:
        return ()

    def change(copy: exp.Expr) -> None:
        condition = asked.copy()
        for part in [column for column in condition.find_all(exp.Column) if column.name == name]:
            place = part.find_ancestor(exp.Any) or part
            place.replace(value.copy())
        of_each = "COUNT({})" if isinstance(asked, exp.Anonymous) else "BOOL_OR({})"
        inside = print_sql(value if isinstance(asked, exp.Anonymous) else condition)
        next(part for part in copy.root().walk() if part == asked).replace(exp.column(name))
        copy.replace(exp.Var(this=of_each.format(inside)))

    return changed(call, change)


def unordered(node: exp.Select) -> tuple[str, ...]:
    """The query without ORDER BY, LIMIT and OFFSET of a SELECT."""

    def drop(select: exp.Expr) -> None:
        for clause in ("order", "limit", "offset"):
            select.set(clause, None)

    return changed(node, drop)


def inner_joins(tree: exp.Expr) -> tuple[str, ...]:
    """The query with inner joins in the place of its outer joins."""
    outer = [join for join in tree.find_all(exp.Join) if join.side]
    if not outer or not is_small(tree):
        return ()
    query = tree.copy()
    for join in query.find_all(exp.Join):
        join.set("side", None)
    return (print_sql(query),)


def reduced(tree: exp.Query, place: int | None, offset: int) -> Iterator[str]:
    """Return the query with a smaller part at a place: an operand of it, or the query without that condition or item.

    Args:
        tree: A small query.
        place: The position in the text, as `position` counts it; None for any item of the SELECT list.
        offset: The start of the query in the text.
    """
    if place is None:
        for item in reversed(tree.selects[1:]):
            yield from changed(item, _leave_out)
        return
    found = [node for node in tree.walk() if position(node, offset) == place]
    for node in found:
        if isinstance(node, exp.Func | exp.Binary | exp.Cast | exp.WithinGroup):
            yield from _operands(node)
    for node in found[-1:]:
        yield from _without(node)


_DISTINCT = ("COUNT(DISTINCT {})",)
_INSTEAD: dict[type[exp.Expr], tuple[str, ...]] = {
    **dict.fromkeys((exp.Count, exp.BitwiseAndAgg, exp.BitwiseOrAgg, exp.BitwiseXorAgg), _DISTINCT),
    exp.Mode: ("MODE() WITHIN GROUP (ORDER BY {})", "COUNT({})"),
}
"""The aggregates that are proposed for one that is refused, where AVG would not be like it."""


def _operands(node: exp.Expr) -> Iterator[str]:
    """Return the query with an operand in place of an expression; for an aggregate, with another of its column."""
    column = node.find(exp.Column)
    if isinstance(node, exp.AggFunc | exp.WithinGroup) and column is not None:
        calls = _INSTEAD.get(type(node), ("AVG({})", "COUNT({})"))
        yield from replaced(node, *(call.format(print_sql(column)) for call in calls))
        return
    for part in node.iter_expressions():
        if not isinstance(part, exp.Literal | exp.Boolean | exp.DataType | exp.Var):
            yield from replaced(node, print_sql(part), everywhere=True)


def _without(node: exp.Expr) -> Iterator[str]:
    """The query without each condition, clause or item that a node is in, from the inside out."""
    part = node
    while part.parent is not None:
        whole = part.parent
        if isinstance(whole, exp.And | exp.Filter):
            yield from changed(part, _leave_out_side)
        elif isinstance(part, _CLAUSES) or (isinstance(whole, exp.Select) and part.arg_key == "expressions"):
            yield from changed(part, _leave_out)
        part = whole


def _leave_out(copy: exp.Expr) -> None:
    """Remove a part; the sorted argument of a call stays."""
    if isinstance(copy, exp.Order) and copy.this is not None:
        copy.replace(copy.this)
    else:
        copy.pop()


def _leave_out_side(copy: exp.Expr) -> None:
    """Put the other side of AND, or the aggregate before FILTER, in the place of the whole."""
    whole = copy.parent
    if whole is None:
        raise TypeError("a side without its whole")
    whole.replace(whole.expression if copy.arg_key == "this" else whole.this)
