"""rewrite: one aggregation of protected rows into SQL in which every unit's contribution is bounded.

Rule 1: what a unit contributes is a function of the multiset of its own rows: counts, exact integer sums, and an
order by a keyed hash of values (never of codes, which shift with other units' values) that ends in the values.
Rule 2: a step is left out only where the engine's schema, or the number of public groups, makes it void.
Rule 3: cells are integers; totals are clamped to ±2^62, which moves neighbours no further apart.

The steps, each a CTE:
    rows      what each row brings: unit, keys k0…, values and conditions x0…
    coded     where keys are fine: text keys replaced by order-preserving codes, and the keyed hash
    ranked    groups of a unit numbered by keyed hash, on rows (fine keys) or on per_unit (coarse ones, `kept_groups`)
    summed    counts and exact sums of each unit in each group
    per_unit  the same, clamped to what one unit may add
    shared    where rows are limited over all groups together: how many of a group count; per_unit is clamped after it
    cells     added up over units

Of a bounded copy, whose rows are so few of each unit already, the cells are sums over rows at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dpsql.compiler.ir import Column, Expr, Field, Grid, Protected, Relation
from dpsql.compiler.kept_groups import by_ranking_all, by_ranking_few
from dpsql.compiler.kept_rows import by_shares
from dpsql.compiler.parts import Contribution, Part, PartKind
from dpsql.compiler.render import Renderer
from dpsql.compiler.schema import StoredGrid
from dpsql.compiler.walk import fields_in
from dpsql.sqltypes import SqlType

MAX_TOTAL = 2**62
SALT = 0x6470_7371_6C
"""Part of the keyed hash. It need not be secret: any function of a unit's own rows bounds its contribution."""


@dataclass(frozen=True)
class Bounding:
    """One aggregation and what may be left out of it.

    Attributes:
        protected: The rows.
        keys: Group keys.
        parts: The cells, in order.
        contribution: What one unit may contribute.
        domain: All public key combinations, or None where keys are private.
        fine: True where most rows have a group of their own, so that groups are ranked before rows are summed.
        counts_units: True where groups are selected by their units. Elsewhere, nobody asks for them, and where rows are
            limited over all groups they are not counted.
        stored: Of a bounded copy, the fields whose values are on their grid, and within its limits, already.
    """

    protected: Protected
    keys: tuple[Expr, ...]
    parts: tuple[Part, ...]
    contribution: Contribution
    domain: Relation | None
    fine: bool
    counts_units: bool
    stored: Mapping[Field, StoredGrid] = field(default_factory=dict)


def rewrite(bounding: Bounding, renderer: Renderer) -> str:
    """Return engine SQL whose rows are: keys as text, the number of units if asked for, then one bigint a part.

    Rows of public keys come in key order; those of private keys in any order, for only some of them will be kept.
    """
    return _Rewrite(bounding, renderer).sql()


def clamp(text: str, lower: int | str, upper: int | str) -> str:
    """SQL for a value that is never NULL, moved into [lower, upper]."""
    return f"greatest(least({text}, {upper}), {lower})"


class _Rewrite:
    def __init__(self, bounding: Bounding, renderer: Renderer) -> None:
        self._b = bounding
        self._renderer = renderer
        self._dialect = renderer.dialect
        self._keys = [f"k{index}" for index in range(len(bounding.keys))]
        self._grouping = ["unit", *self._keys]
        lists = bounding.contribution.lists
        # What a unit keeps some of: groups, or lists of groups, of which it keeps every group.
        self._kept_keys = self._keys if lists is None else [self._keys[place] for place in lists]
        self._types = {"unit": bounding.protected.unit.type}
        self._types |= {name: key.type for name, key in zip(self._keys, bounding.keys, strict=True)}
        self._columns: dict[str, str] = {}
        self._ctes: list[str] = []
        self._coded: dict[str, str] = {}
        # Cells that are not added up unit by unit, each with the part whose table it reads: ranks of one column share.
        first: dict[Part, int] = {}
        self._tables = {
            index: first.setdefault(replace(part, rank=None), index)
            for index, part in enumerate(bounding.parts)
            if part.rank is not None or (part.kind.is_distinct and not bounding.contribution.one_row)
        }

    def sql(self) -> str:
        """The whole statement."""
        b = self._b
        used = frozenset({b.protected.unit}).union(
            *(fields_in(key) for key in b.keys),
            *(fields_in(each) for part in b.parts for each in part.operands),
        )
        source = self._renderer.relation(b.protected.relation, used)
        unit = self._renderer.name(b.protected.unit)
        keys = [f"{self._renderer.expression(key)} AS {name}" for key, name in zip(b.keys, self._keys, strict=True)]
        for part in b.parts:
            self._collect(part)
        columns = [f"{text} AS {name}" for text, name in self._columns.items()]
        once = len(self._apart) < 2
        self._cte(
            "rows",
            f"SELECT {', '.join([f'{unit} AS unit', *keys, *columns])} FROM {self._dialect.derived(source)}",
            lazy=once,
        )
        if b.contribution.copied:
            cells = self._few_rows()
        else:
            cells = self._one_row() if b.contribution.one_row else self._many_rows()
        answer = self._enumerated(self._decoded(cells))
        return f"WITH {', '.join(self._ctes)} {answer}"

    def _cte(self, name: str, body: str, *, lazy: bool = False) -> None:
        self._ctes.append(f"{name} AS {'NOT MATERIALIZED ' if lazy else ''}({body})")

    @property
    def _apart(self) -> list[tuple[int, Part]]:
        """The parts that a table apart is made for."""
        return [(index, self._b.parts[index]) for index, table in self._tables.items() if index == table]

    # What each row brings

    def _collect(self, part: Part) -> None:
        """Give the columns of `rows` that a part reads their names."""
        if part.grid is not None:
            self._value(part)
        elif part.argument is not None:
            self._argument(part)
        self._where(part)

    def _column(self, text: str) -> str:
        return self._columns.setdefault(text, f"x{len(self._columns)}")

    def _value(self, part: Part) -> str:
        """The argument on its grid, clamped; NULL stays NULL. A product is that of the distances from two centres."""
        if part.argument is None or part.grid is None:
            raise TypeError("a sum has an argument and a grid")
        if part.factors:
            apart = (
                f"({self._on_grid(f.argument, f.grid)} - {self._dialect.whole(f.grid.centre)})" for f in part.factors
            )
            return " * ".join(apart)
        return self._on_grid(part.argument, part.grid)

    def _on_grid(self, argument: Expr, grid: Grid) -> str:
        text = self._renderer.expression(argument)
        stored = self._b.stored.get(argument.field) if isinstance(argument, Column) else None
        is_there = stored is not None and stored.grid == grid
        return self._column(text if is_there else self._dialect.on_grid(text, argument.type, grid))

    def _argument(self, part: Part) -> str:
        """What a count counts; a grid value is NULL just where its argument is, so one column serves both."""
        if part.argument is None:
            return "*"
        if part.grid is not None:
            return self._value(part)
        on_grid = [each for each in self._b.parts if each.grid is not None and each.argument == part.argument]
        on_grid = [each for each in on_grid if not each.factors]
        if on_grid and part.kind is not PartKind.DISTINCT:
            return self._value(on_grid[0])
        return self._column(self._renderer.expression(part.argument))

    def _where(self, part: Part) -> str:
        if part.filter is None:
            return ""
        return f" FILTER (WHERE {self._column(self._renderer.expression(part.filter))})"

    def _count(self, part: Part) -> str:
        return f"count({self._argument(part)}){self._where(part)}"

    # A unit with one row: nothing to bound but the values

    def _one_row(self) -> str:
        plain = [(i, part) for i, part in enumerate(self._b.parts) if part.rank is None]
        totals = [f"{self._plain_total(part)} AS p{index}" for index, part in plain]
        cells = f"SELECT {', '.join([*self._keys, 'count(*) AS units', *totals])} FROM rows{_group_by(self._keys)}"
        for index, part in self._apart:
            value = self._argument(part)
            where = " AND ".join([f"{value} IS NOT NULL", *self._conditions(part)])
            self._histogram(
                index, self._keys, f"(SELECT {', '.join([*self._keys, f'{value} AS v'])} FROM rows WHERE {where})"
            )
        return self._with_apart(cells)

    def _plain_total(self, part: Part) -> str:
        if part.kind in (PartKind.COUNT, PartKind.CUT):
            return self._count(part)
        if part.kind.is_distinct:
            return self._distinct_total(part, self._argument(part), self._where(part))
        total = f"coalesce(sum({self._value(part)}){self._where(part)}, 0)"
        if part.kind is PartKind.MEAN and part.grid is not None:
            # Wider than the cells: how many rows there are has no bound.
            total += f" - {self._dialect.wide(part.grid.centre)} * {self._count(part)}"
        return _total(total)

    def _distinct_total(self, part: Part, value: str, where: str = "") -> str:
        """Distinct values counted, or added up."""
        count = f"count(DISTINCT {value}){where}"
        if part.kind is PartKind.DISTINCT or part.grid is None:
            return count
        total = f"coalesce(sum(DISTINCT {value}){where}, 0)"
        if part.kind is PartKind.DISTINCT_MEAN:
            total += f" - {self._dialect.wide(part.grid.centre)} * {count}"
        return _total(total)

    # A unit with a few rows, and no more in any query: nothing to bound but the values

    def _few_rows(self) -> str:
        totals = [f"{self._row_total(part)} AS p{index}" for index, part in enumerate(self._b.parts)]
        units = "count(DISTINCT unit)" if self._b.counts_units else self._dialect.whole(0)
        cells = ", ".join([*self._keys, f"{units} AS units", *totals])
        return f"SELECT {cells} FROM rows{_group_by(self._keys)}"

    def _row_total(self, part: Part) -> str:
        if not part.counts_units or self._b.contribution.max_rows == 1:
            return self._plain_total(part)
        there = [] if part.argument is None else [f"{self._argument(part)} IS NOT NULL"]
        where = " AND ".join([*there, *self._conditions(part)])
        return "count(DISTINCT unit)" + (f" FILTER (WHERE {where})" if where else "")

    # Units with several rows

    def _many_rows(self) -> str:
        ranks_rows = self._ranks_rows
        rows = self._ranked_rows() if ranks_rows else "rows"
        sums, bounded = self._per_unit(rows)
        kept = self._kept_groups() if self._b.contribution.ranked and not ranks_rows else "per_unit"
        if self._b.contribution.all_rows is not None:
            kept = self._kept_rows(kept, self._b.contribution.all_rows, sums, bounded)
        plain = [i for i in range(len(self._b.parts)) if i not in self._tables]
        totals = [f"{_total(f'coalesce(sum(p{index}), 0)')} AS p{index}" for index in plain]
        # Nobody asks for units whose groups are not limited.
        limited = self._b.contribution.all_rows is None or self._b.counts_units
        units = "count(*)" if limited else self._dialect.whole(0)
        cells = f"SELECT {', '.join([*self._keys, f'{units} AS units', *totals])} FROM {kept}{_group_by(self._keys)}"
        for index, part in self._apart:
            if part.rank is None:
                self._distinct_part(index, part, rows, kept)
            else:
                self._rank_part(index, part, rows, kept)
        return self._with_apart(cells)

    @property
    def _ranks_rows(self) -> bool:
        """True where rows are ranked by their groups; else groups are, once their rows are summed."""
        return self._b.contribution.ranked and self._b.fine and self._b.contribution.lists is None

    def _ranked_rows(self) -> str:
        """Rows of the groups that each unit keeps, ranked before anything is summed."""
        sources = {key: f"rows.{key}" for key in self._keys}
        joins = "".join(self._code(key, sources) for key in self._keys if self._is_coded(key))
        hashed = self._hash("unit", *(f"rows.{key}" for key in self._keys))
        keys = [f"{source} AS {key}" for key, source in sources.items()]
        self._cte(
            "coded", f"SELECT {', '.join(['unit', *keys, f'{hashed} AS h', *self._columns.values()])} FROM rows{joins}"
        )
        order = ", ".join(["h", *(f"{key} NULLS LAST" for key in self._keys)])
        rank = f"dense_rank() OVER (PARTITION BY unit ORDER BY {order})"
        self._cte("ranked", f"SELECT *, {rank} AS r FROM coded")
        return f"ranked WHERE r <= {self._b.contribution.max_groups}"

    def _is_coded(self, key: str) -> bool:
        return self._dialect.codes_text and self._types[key].is_text

    def _code(self, key: str, sources: dict[str, str]) -> str:
        """Number a key's values, and return the join that puts the numbers in their place."""
        codes = f"row_number() OVER (ORDER BY {key} NULLS LAST)"
        self._cte(f"code_{key}", f"SELECT {key}, {codes} AS code FROM (SELECT DISTINCT {key} FROM rows)")
        self._coded[key], sources[key] = f"code_{key}", f"code_{key}.code"
        return f" JOIN code_{key} ON {self._dialect.same(f'rows.{key}', f'code_{key}.{key}', self._types[key])}"

    def _hash(self, *columns: str) -> str:
        """The keyed hash of columns, which are named with or without their table."""
        return self._dialect.keyed_hash(
            [(column, self._types[column.removeprefix("rows.")]) for column in columns], SALT
        )

    def _per_unit(self, rows: str) -> tuple[list[str], list[str]]:
        """Sum each unit's rows in each group; returns the sums' names, and what the unit adds by them.

        The former are what `per_unit` has where shares of rows are still to be made, the latter elsewhere.
        """
        sums: dict[str, str] = {}

        def inner(text: str) -> str:
            return sums.setdefault(text, f"a{len(sums)}")

        bounded = [
            f"{self._bounded(part, inner)} AS p{index}"
            for index, part in enumerate(self._b.parts)
            if index not in self._tables
        ]
        shares = self._b.contribution.all_rows is not None
        counted = [f"least({inner('count(*)')}, {self._b.contribution.max_rows}) AS n"] if shares else []
        aggregates = [f"{text} AS {name}" for text, name in sums.items()]
        names = ", ".join(self._grouping)
        ranks_groups = self._b.contribution.ranked and not self._ranks_rows
        order = f" ORDER BY {names}" if (ranks_groups or shares) and self._dialect.orders_groups else ""
        # The hash is the groups' own: by naming it, rows that are ranked by it are in the order of their groups.
        groups = names.replace("unit", "unit, h", 1) if rows != "rows" and self._dialect.orders_groups else names
        self._cte("summed", f"SELECT {', '.join([names, *aggregates])} FROM {rows} GROUP BY {groups}{order}")
        hashed = [f"{self._hash('unit', *self._kept_keys)} AS h"] if ranks_groups else []
        added = [*counted, *sums.values()] if shares else bounded
        self._cte("per_unit", f"SELECT {', '.join([names, *hashed, *added])} FROM summed")
        return [*sums.values()], bounded

    def _kept_rows(self, groups: str, most: int, sums: list[str], bounded: list[str]) -> str:
        """What each unit adds to the groups that it keeps, with its share of so many rows in each."""
        hashed = self._hash("unit")
        carried = [*self._grouping, *sums]
        for name, body in by_shares(groups, most, self._keys, carried, hashed, self._same_unit, self._dialect):
            self._cte(name, body)
        self._cte("bounded", f"SELECT {', '.join([*self._grouping, 'm', *bounded])} FROM shared")
        return "bounded"

    def _cap(self, part: Part) -> str:
        """How many rows of a unit count in a group: as many in each, or its share of those in all; units count once."""
        return "m" if self._b.contribution.all_rows is not None and part.cap > 1 else str(part.cap)

    def _limit(self, part: Part, limit: int) -> str:
        """A limit of what one unit may add, where that is the part's for `cap` rows."""
        if self._cap(part) == "m":
            return f"m * {self._dialect.whole(limit // part.cap)}"
        return self._dialect.whole(limit)

    def _bounded(self, part: Part, inner: Callable[[str], str]) -> str:
        """What one unit adds to one cell, clamped to the part's range."""
        cap = self._cap(part)
        if part.kind is PartKind.CUT:
            outside = "0" if part.filter is None else f"least({inner(self._count(part))}, 1)"
            return f"CASE WHEN {inner('count(*)')} > {cap} THEN 1 ELSE {outside} END"
        if part.kind is PartKind.COUNT or part.grid is None:
            return f"least({inner(self._count(part))}, {cap})"
        total = f"coalesce({inner(f'sum({self._value(part)}){self._where(part)}')}, 0)"
        if part.kind is PartKind.SUM:
            return f"CAST({clamp(total, self._limit(part, part.lower), self._limit(part, part.upper))} AS BIGINT)"
        rows = inner(self._count(part))
        counted = f"least({rows}, {cap})"
        quotient = self._dialect.share(total, cap, f"greatest({rows}, 1)")
        scaled = f"CASE WHEN {rows} > {cap} THEN {quotient} ELSE {total} END"
        low, high = (f"{counted} * {self._dialect.whole(end)}" for end in (part.grid.lower, part.grid.upper))
        return f"CAST({clamp(scaled, low, high)} - {counted} * {self._dialect.whole(part.grid.centre)} AS BIGINT)"

    def _kept_groups(self) -> str:
        """Groups that each unit keeps, chosen after its rows are summed."""
        most, lists = self._b.contribution.max_groups, self._b.contribution.lists is not None
        if self._dialect.ranks_few and not lists:
            steps = by_ranking_few(most, self._same_unit)
        else:
            steps = by_ranking_all(most, self._kept_keys, lists=lists)
        for name, body in steps:
            self._cte(name, body)
        return "kept"

    def _same_unit(self, left: str, right: str) -> str:
        return self._dialect.same(left, right, self._types["unit"])

    def _with_apart(self, cells: str) -> str:
        """The cells with those that were made apart from them."""
        if not self._tables:
            return cells
        self._cte("totals", cells)
        columns = {f"p{i}": f"totals.p{i}" for i in range(len(self._b.parts)) if i not in self._tables}
        joins = ""
        for index, table in self._tables.items():
            if index == table:
                joins += f" LEFT JOIN apart{index} ON {self._match(f'apart{index}', 'totals', self._keys)}"
            columns[f"p{index}"] = f"coalesce(apart{table}.n, {self._nothing(index)})"
        keys = [f"totals.{key} AS {key}" for key in self._keys]
        cells_in_order = [f"{columns[f'p{index}']} AS p{index}" for index in range(len(self._b.parts))]
        return f"SELECT {', '.join([*keys, 'totals.units AS units', *cells_in_order])} FROM totals{joins}"

    def _nothing(self, index: int) -> str:
        """What stands where no row is."""
        return "''" if self._b.parts[index].rank is not None else "0"

    def _conditions(self, part: Part) -> list[str]:
        """The condition that rows meet, if there is one."""
        return [] if part.filter is None else [self._column(self._renderer.expression(part.filter))]

    def _distinct_part(self, index: int, part: Part, rows: str, kept: str) -> None:
        """Distinct values: each unit brings `cap` of its own, by keyed hash, to each group that it keeps."""
        value, names = self._argument(part), ", ".join(self._grouping)
        where = [f"{value} IS NOT NULL", *self._conditions(part)]
        source = self._dialect.derived(f"SELECT * FROM {rows}")
        listed = f"SELECT DISTINCT {names}, {value} AS v FROM {source} WHERE {' AND '.join(where)}"
        self._cte(f"values{index}", listed)
        self._types["v"] = part.argument.type if part.argument is not None and part.grid is None else SqlType.BIGINT
        order = f"{self._hash('unit', 'v')}, v"
        rank = f"row_number() OVER (PARTITION BY {names} ORDER BY {order})"
        self._cte(f"chosen{index}", f"SELECT {names}, v, {rank} AS r FROM values{index}")
        picked = [f"c.{key}" for key in self._keys]
        counted = ", ".join([*picked, f"{self._distinct_total(part, 'v')} AS n"])
        match = self._match("c", kept, self._grouping)
        joined = f"chosen{index} AS c JOIN {kept} ON {match} WHERE c.r <= {self._cap(part)}"
        self._cte(f"apart{index}", f"SELECT {counted} FROM {joined}{_group_by(picked)}")

    def _rank_part(self, index: int, part: Part, rows: str, kept: str) -> None:
        """Grid values: each unit brings `cap` of its rows, by keyed hash, to each group that it keeps."""
        value, names = self._argument(part), ", ".join(self._grouping)
        where = " AND ".join([f"{value} IS NOT NULL", *self._conditions(part)])
        source = self._dialect.derived(f"SELECT * FROM {rows}")
        # Rows of one value are alike, so it does not matter which of them is which.
        alike = f"row_number() OVER (PARTITION BY {names}, {value}) AS k"
        self._cte(f"values{index}", f"SELECT {names}, {value} AS v, {alike} FROM {source} WHERE {where}")
        self._types |= {"v": SqlType.BIGINT, "k": SqlType.BIGINT}
        rank = f"row_number() OVER (PARTITION BY {names} ORDER BY {self._hash('unit', 'v', 'k')}, v, k)"
        self._cte(f"chosen{index}", f"SELECT {names}, v, {rank} AS r FROM values{index}")
        picked = [f"c.{key} AS {key}" for key in self._keys]
        joined = (
            f"chosen{index} AS c JOIN {kept} ON {self._match('c', kept, self._grouping)} WHERE c.r <= {self._cap(part)}"
        )
        self._histogram(index, self._keys, f"(SELECT {', '.join([*picked, 'v'])} FROM {joined})")

    def _histogram(self, index: int, keys: list[str], rows: str) -> None:
        """How often each value v is there, as a text of value:count, … in order."""
        counted = f"SELECT {', '.join([*keys, 'v', 'count(*) AS m'])} FROM {rows} AS s{_group_by([*keys, 'v'])}"
        self._cte(f"counted{index}", counted)
        pair = f"{self._dialect.as_text('v', SqlType.BIGINT)} || ':' || {self._dialect.as_text('m', SqlType.BIGINT)}"
        listed = ", ".join([*keys, f"string_agg({pair}, ',' ORDER BY v) AS n"])
        self._cte(f"apart{index}", f"SELECT {listed} FROM counted{index}{_group_by(keys)}")

    def _match(self, left: str, right: str, names: list[str]) -> str:
        pairs = (self._dialect.same(f"{left}.{name}", f"{right}.{name}", self._types[name]) for name in names)
        return " AND ".join(pairs) or "TRUE"

    # All groups

    def _decoded(self, cells: str) -> str:
        """Cells with the keys that were replaced by codes."""
        if not self._coded:
            return cells
        self._cte("cells", cells)
        keys = [f"{self._coded[key]}.{key}" if key in self._coded else f"cells.{key}" for key in self._keys]
        joins = "".join(f" JOIN {table} ON cells.{key} = {table}.code" for key, table in self._coded.items())
        parts = [f"p{index}" for index in range(len(self._b.parts))]
        return f"SELECT {', '.join([*keys, 'units', *parts])} FROM cells{joins}"

    def _enumerated(self, cells: str) -> str:
        """The final SELECT: every public group, zero where nobody is; or the groups there are."""
        domain = self._b.domain
        parts = [f"p{index}" for index in range(len(self._b.parts))]
        if domain is None:
            keys = [f"{self._dialect.as_text(key, self._types[key])} AS {key}" for key in self._keys]
            return f"SELECT {', '.join([*keys, 'units', *parts])} FROM {self._dialect.derived(cells)}"
        names = [self._renderer.name(field) for field in domain.fields]
        listed = self._renderer.relation(domain, frozenset(domain.fields))
        columns = [
            f"{self._dialect.as_text(f'd.{f}', self._types[k])} AS {k}" for k, f in zip(self._keys, names, strict=True)
        ]
        columns.append("coalesce(b.units, 0) AS units")
        columns += [f"coalesce(b.{cell}, {self._nothing(index)}) AS {cell}" for index, cell in enumerate(parts)]
        pairs = zip(self._keys, names, strict=True)
        match = " AND ".join(self._dialect.same(f"b.{key}", f"d.{name}", self._types[key]) for key, name in pairs)
        order = ", ".join(f"d.{name} NULLS LAST" for name in names)
        return f"SELECT {', '.join(columns)} FROM ({listed}) AS d LEFT JOIN ({cells}) AS b ON {match} ORDER BY {order}"


def _total(text: str) -> str:
    """A total as a bigint; a sum of bigints is wider, and totals beyond the clamp are not told apart."""
    return f"CAST({clamp(text, -MAX_TOTAL, MAX_TOTAL)} AS BIGINT)"


def _group_by(keys: list[str]) -> str:
    return f" GROUP BY {', '.join(keys)}" if keys else ""
