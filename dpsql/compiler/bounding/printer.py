"""printer: a tree of steps as one statement of an engine, a CTE or a few of them a step.

    rows      `Rows`: unit, keys k0…, values and conditions x0…
    code_k…   where rows are ranked: text keys replaced by order-preserving codes, for engines that rank those faster
    coded     the same rows with the keyed hash of their group
    ranked    `GroupSampling` of rows
    summed    `UnitSums`: a0…
    per_unit  `RowLimit`, or `Clamp` of sums: what each unit adds to each cell, p0…
    kept      `GroupSampling` of those
    many      the units that `RowsOfMany` and `RowsOfFew` tell apart
    shared    `RowSampling`: shares m of the rows
    bounded   `Clamp` of shares
    added     what is added to the cells, `RowsOfFew` included
    chosen    `ValueSampling`
    apart     cells that are not added up unit by unit
    pieces    which pieces a group has of histograms that may be long
    totals    the cells that are added up unit by unit

Rule: totals are clamped to ±2^62, which never increases the distance between neighbours; cells are integers.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from dpsql.compiler.bounding import steps
from dpsql.compiler.bounding.group_sampling import Steps, by_ranking_all, by_ranking_few, by_shares
from dpsql.compiler.dialects.dialect import Dialect
from dpsql.compiler.dialects.render import Renderer
from dpsql.compiler.ir.nodes import Field
from dpsql.compiler.ir.schema import EngineSchema
from dpsql.compiler.ir.walk import fields_in
from dpsql.policy import Policy
from dpsql.sqltypes import SqlType

MAX_TOTAL = 2**62
_PIECE = "coalesce(pieces.piece, 0)"
SALT = 0x6470_7371_6C
"""Part of the keyed hash. It need not be secret: any function of a unit's own rows bounds its contribution."""


def printed(tree: steps.BoundedQuery, dialect: Dialect, schema: EngineSchema, policy: Policy) -> steps.PrintedQuery:
    """Return a tree with its SQL for an engine."""
    renderer = Renderer(dialect, schema, policy, dict(tree.leaves))
    if tree.totals is not None:
        return steps.PrintedQuery(tree, _Printer(renderer, tree, tree.totals).sql())
    if tree.enumeration is None:
        raise TypeError("a statement has totals, or lists public groups")
    return steps.PrintedQuery(tree, _groups_alone(renderer, tree.enumeration))


def clamp(text: str, lower: int | str, upper: int | str) -> str:
    """SQL that clamps a non-NULL value to [lower, upper]."""
    return f"greatest(least({text}, {upper}), {lower})"


def _groups_alone(renderer: Renderer, enumeration: steps.Enumeration) -> str:
    """Only the public keys: a query that costs nothing reads no protected row."""
    columns, listed, order = _listed(renderer, enumeration)
    units = f"{renderer.dialect.whole(0)} AS units"
    return f"SELECT {', '.join([*columns, units])} FROM ({listed}) AS d ORDER BY {order}"


def _listed(renderer: Renderer, enumeration: steps.Enumeration) -> tuple[list[str], str, str]:
    """Every public key as text, the relation of them, and their order."""
    names = [renderer.name(field) for field in enumeration.relation.fields]
    columns = [
        f"{renderer.dialect.as_text(f'd.{name}', key.type)} AS k{place}"
        for place, (name, key) in enumerate(zip(names, enumeration.keys, strict=True))
    ]
    listed = renderer.relation(enumeration.relation, frozenset(enumeration.relation.fields))
    return columns, listed, ", ".join(f"d.{name} NULLS LAST" for name in names)


class _Printer:
    def __init__(self, renderer: Renderer, tree: steps.BoundedQuery, totals: steps.Totals) -> None:
        self._renderer = renderer
        self._dialect = renderer.dialect
        self._totals = totals
        self._enumeration = tree.enumeration
        # A row with the same list several times could exceed the engine's limits.
        self._repeated = tree.repeated
        self._in_pieces = tree.in_pieces
        samplings, self._rows = _beneath(totals.source)
        # Groups that are kept once their rows are summed: what is summed then has their hash.
        self._sampling = next((each for each in samplings if not isinstance(each.input, steps.Rows)), None)
        self._keys = [f"k{index}" for index in range(len(self._rows.keys))]
        self._grouping = ["unit", *self._keys]
        self._types = {"unit": self._rows.unit.type}
        self._types |= {name: key.type for name, key in zip(self._keys, self._rows.keys, strict=True)}
        self._columns: dict[str, str] = {}
        self._values: dict[steps.Value, str] = {}
        self._sums: dict[str, str] = {}
        self._ctes: list[str] = []
        self._from: dict[int, str] = {}
        self._coded: dict[str, str] = {}
        # Cells that are not among the totals, by place, each with the place of the first cell that is equal.
        apart = [place for place, cell in enumerate(totals.cells) if self._is_apart(cell)]
        self._apart = {
            place: next(each for each in apart if totals.cells[each] == totals.cells[place]) for place in apart
        }

    def sql(self) -> str:
        """The whole statement."""
        self._from[id(self._rows)] = self._print_rows(self._rows)
        answer = self._enumerated(self._decoded(self._cells()))
        return f"WITH {', '.join(self._ctes)} {answer}"

    def _is_apart(self, cell: steps.Cell) -> bool:
        return isinstance(cell, steps.Histogram) or (
            isinstance(cell, steps.DistinctTotal) and cell.source is not self._rows
        )

    def _cte(self, name: str, body: str, *, lazy: bool = False) -> str:
        self._ctes.append(self._dialect.cte(name, body, lazy=lazy))
        return name

    def _all(self, bodies: Steps) -> str:
        """The name of the last of several CTEs."""
        return [self._cte(name, body) for name, body in bodies][-1]

    # Values of rows

    def _print_rows(self, rows: steps.Rows) -> str:
        used = frozenset({rows.unit}).union(
            *(fields_in(key) for key in rows.keys), *(_fields(value) for value in rows.values)
        )
        source = self._renderer.relation(rows.relation, used)
        unit = self._renderer.name(rows.unit)
        keys = [f"{self._renderer.expression(key)} AS {name}" for key, name in zip(rows.keys, self._keys, strict=True)]
        for value in rows.values:
            self._value(value)
        columns = [f"{text} AS {name}" for text, name in self._columns.items()]
        body = f"SELECT {', '.join([f'{unit} AS unit', *keys, *columns])} FROM {self._dialect.derived(source)}"
        return self._cte("rows", body, lazy=len(set(self._apart.values())) < 2)

    def _value(self, value: steps.Value) -> str:
        """The column of a value, or an expression over several; equal texts share one column."""
        if value not in self._values:
            self._values[value] = self._written(value)
        return self._values[value]

    def _written(self, value: steps.Value) -> str:
        match value:
            case steps.Plain():
                return self._column(self._renderer.expression(value.expression))
            case steps.Clamped():
                text = self._renderer.expression(value.expression)
                return self._column(self._dialect.on_grid(text, value.expression.type, value.grid))
            case steps.Prepared():
                return self._column(self._renderer.name(value.field))
            case steps.Product():
                return " * ".join(
                    f"({self._value(each)} - {self._dialect.whole(each.grid.centre)})" for each in value.factors
                )
            case _:
                assert_never(value)

    def _column(self, text: str) -> str:
        return self._columns.setdefault(text, f"x{len(self._columns)}")

    def _filter(self, condition: steps.Plain | None) -> str:
        return _filter(None if condition is None else self._value(condition))

    def _count(self, count: steps.Count) -> str:
        value = "*" if count.value is None else self._value(count.value)
        return f"count({value}){self._filter(count.condition)}"

    def _sum(self, total: steps.Sum) -> str:
        return f"{self._dialect.total(self._value(total.value))}{self._filter(total.condition)}"

    def _where(self, value: steps.Value | None, condition: steps.Plain | None) -> str:
        """The condition that a value is there, and that its row meets another."""
        terms = [f"{self._value(value)} IS NOT NULL"] if value is not None else []
        terms += [self._value(condition)] if condition is not None else []
        return " AND ".join(terms)

    # Steps

    def _source(self, step: steps.Step) -> str:
        """The text after FROM for a step; its CTEs are written when it is first read."""
        if id(step) not in self._from:
            self._from[id(step)] = self._printed(step)
        return self._from[id(step)]

    def _printed(self, step: steps.Step) -> str:
        match step:
            case steps.RowsOfMany():
                many = f"SELECT unit FROM rows GROUP BY unit HAVING count(*) > {step.rows}"
                return f"rows WHERE unit IN (SELECT unit FROM {self._cte('many', many)})"
            case steps.GroupSampling(input=steps.Rows()):
                return self._ranked_rows(step)
            case steps.GroupSampling():
                return self._sampled_groups(step)
            case steps.Clamp(input=steps.UnitSums() as sums):
                amounts = self._amounts(step)
                totals = self._sums.values() if self._totals.few is not None else ()
                return self._per_unit(sums, [*totals, *amounts])
            case steps.Clamp(input=steps.RowSampling() as sampling):
                amounts = self._amounts(step)
                columns = ", ".join(["*", *amounts])
                return self._cte("bounded", f"SELECT {columns} FROM {self._shared(sampling, step.amounts)}")
            case steps.RowLimit(input=sums):
                counted = f"least({self._inner('count(*)')}, {step.rows}) AS n"
                return self._per_unit(sums, [counted, *self._sums.values()], shares=True)
        raise TypeError(f"{type(step).__name__} does not stand there")

    def _ranked_rows(self, step: steps.GroupSampling) -> str:
        """Rows of the groups that each unit keeps, ranked before anything is summed."""
        sources = {key: f"rows.{key}" for key in self._keys}
        joins = "".join(self._code(key, sources) for key in self._keys if self._is_coded(key))
        hashed = self._hash("unit", *(f"rows.{key}" for key in self._keys))
        keys = [f"{source} AS {key}" for key, source in sources.items()]
        columns = ", ".join(["unit", *keys, f"{hashed} AS h", *self._columns.values()])
        self._cte("coded", f"SELECT {columns} FROM rows{joins}")
        order = ", ".join(["h", *(f"{key} NULLS LAST" for key in self._keys)])
        self._cte("ranked", f"SELECT *, dense_rank() OVER (PARTITION BY unit ORDER BY {order}) AS r FROM coded")
        return f"ranked WHERE r <= {step.groups}"

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

    def _inner(self, text: str) -> str:
        """The name of a count or a sum of a unit's rows in a group."""
        return self._sums.setdefault(text, f"a{len(self._sums)}")

    def _per_unit(self, sums: steps.UnitSums, added: Sequence[str], *, shares: bool = False) -> str:
        """Each unit's rows in each group, summed, and the steps over these sums."""
        rows = self._source(sums.input)
        names = ", ".join(self._grouping)
        order = f" ORDER BY {names}" if (self._sampling or shares) and self._dialect.orders_groups else ""
        # The hash is the groups' own: by naming it, rows that are ranked by it are in the order of their groups.
        ranked = isinstance(sums.input, steps.GroupSampling)
        groups = names.replace("unit", "unit, h", 1) if ranked and self._dialect.orders_groups else names
        aggregates = [f"{text} AS {name}" for text, name in self._sums.items()]
        self._cte("summed", f"SELECT {', '.join([names, *aggregates])} FROM {rows} GROUP BY {groups}{order}")
        hashed = [f"{self._hash('unit', *self._kept_keys(self._sampling))} AS h"] if self._sampling else []
        return self._cte("per_unit", f"SELECT {', '.join([names, *hashed, *added])} FROM summed")

    def _kept_keys(self, step: steps.GroupSampling) -> list[str]:
        """What is sampled per unit: groups, or whole lists of groups."""
        return self._keys if step.lists is None else [self._keys[place] for place in step.lists]

    def _sampled_groups(self, step: steps.GroupSampling) -> str:
        """Groups that each unit keeps, chosen after its rows are summed."""
        self._source(step.input)
        if self._dialect.ranks_few and step.lists is None:
            return self._all(by_ranking_few(step.groups, self._same_unit))
        return self._all(by_ranking_all(step.groups, self._kept_keys(step), lists=step.lists is not None))

    def _shared(self, step: steps.RowSampling, amounts: Sequence[steps.Amount | None]) -> str:
        """The amounts of a unit, with its share of sampled rows in each group."""
        groups, hashed = self._source(step.input), self._hash("unit")
        carried = [*self._grouping, *self._sums.values()]
        flagged = any(isinstance(amount, steps.SampledRows) for amount in amounts)
        # Nothing would limit the rows that only a second scan finds. With `RowsOfFew`, all units here have many rows.
        apart = self._dialect.computes_ctes_once and self._totals.few is None
        same, dialect = self._same_unit, self._dialect
        return self._all(
            by_shares(groups, step.rows, self._keys, carried, hashed, same, dialect, flagged=flagged, apart=apart)
        )

    def _same_unit(self, left: str, right: str) -> str:
        return self._dialect.same(left, right, self._types["unit"])

    def _with_few(self, source: str, few: steps.RowsOfFew) -> str:
        """What is added to the cells, for units with few rows and for the others.

        All rows are added up, and those of the others are taken off again: to leave them out would take longer.
        """
        cells = {f"p{place}": cell for place, cell in enumerate(few.cells) if not isinstance(cell, steps.RowValues)}
        if not cells:
            return "rows"
        totals = [f"{self._row_total(cell)} AS {name}" for name, cell in cells.items()]
        added = [f"{name} - ({self._row_total(cell, self._inner)}) AS {name}" for name, cell in cells.items()]
        of_many = f"SELECT {', '.join([*self._keys, *added])} FROM {source}"
        of_all = f"SELECT {', '.join([*self._keys, *totals])} FROM rows{_group_by(self._keys)}"
        return self._cte("added", f"{of_many} UNION ALL {of_all}")

    # What one unit adds to one cell

    def _amounts(self, step: steps.Clamp) -> list[str]:
        return [f"{self._amount(each)} AS p{place}" for place, each in enumerate(step.amounts) if each is not None]

    def _amount(self, amount: steps.Amount) -> str:
        limit = "m" if amount.rows is None else str(amount.rows)
        match amount:
            case steps.CountedRows():
                return f"least({self._inner(self._count(amount.count))}, {limit})"
            case steps.SampledRows():
                counted = self._inner(self._count(amount.count))
                # Of a unit that is in one group alone, rows are left out before they are sampled.
                sampled = "sampled OR " if amount.rows is None else ""
                return f"CASE WHEN {sampled}{counted} > {limit} THEN least({counted}, {limit}) ELSE 0 END"
            case steps.ClampedSum():
                total = f"coalesce({self._inner(self._sum(amount.sum))}, 0)"
                low, high = (self._times(amount.rows, end) for end in (amount.lower, amount.upper))
                return f"CAST({clamp(total, low, high)} AS BIGINT)"
            case steps.ScaledSum():
                return self._scaled(amount, limit)
            case _:
                assert_never(amount)

    def _times(self, rows: int | None, limit: int) -> str:
        """A limit on what rows can add; None for a unit's share of them."""
        return f"m * {self._dialect.whole(limit)}" if rows is None else self._dialect.whole(rows * limit)

    def _scaled(self, amount: steps.ScaledSum, limit: str) -> str:
        total = f"coalesce({self._inner(self._sum(amount.sum))}, 0)"
        rows = self._inner(self._count(steps.Count(amount.sum.value, amount.sum.condition)))
        counted = f"least({rows}, {limit})"
        quotient = self._dialect.share(total, limit, f"greatest({rows}, 1)")
        scaled = f"CASE WHEN {rows} > {limit} THEN {quotient} ELSE {total} END"
        low, high = (f"{counted} * {self._dialect.whole(end)}" for end in (amount.grid.lower, amount.grid.upper))
        return f"CAST({clamp(scaled, low, high)} - {counted} * {self._dialect.whole(amount.grid.centre)} AS BIGINT)"

    # Cells

    def _cells(self) -> str:
        """The cells of every group in which there are rows."""
        source = self._source(self._totals.source)
        if self._totals.few is not None:
            source = self._with_few(source, self._totals.few)
        units = {
            steps.Units.ROWS: "count(*)",
            steps.Units.DISTINCT: "count(DISTINCT unit)",
            steps.Units.NONE: self._dialect.whole(0),
        }[self._totals.units]
        totals = [
            f"{self._total(place, cell)} AS p{place}"
            for place, cell in enumerate(self._totals.cells)
            if place not in self._apart
        ]
        columns = ", ".join([*self._keys, f"{units} AS units", *totals])
        # Without keys there is one group, even if there are no rows.
        is_constant = self._totals.few is not None and not self._keys and not totals
        cells = f"SELECT {columns}" if is_constant else f"SELECT {columns} FROM {source}{_group_by(self._keys)}"
        return self._with_apart(cells)

    def _total(self, place: int, cell: steps.Cell) -> str:
        match cell:
            case steps.UnitTotal():
                return _total(f"coalesce({self._dialect.total(f'p{place}')}, 0)")
            case steps.RowCount():
                return self._row_total(cell)
            case steps.RowSum():
                return _total(self._row_total(cell))
            case steps.UnitCount():
                where = self._where(cell.value, cell.condition)
                return "count(DISTINCT unit)" + (f" FILTER (WHERE {where})" if where else "")
            case steps.DistinctTotal():
                condition = None if cell.condition is None else self._value(cell.condition)
                return self._distinct(cell, self._value(cell.value), condition)
        raise TypeError(f"{type(cell).__name__} is not among the totals")

    def _row_total(self, cell: steps.RowCount | steps.RowSum | None, of: Callable[[str], str] = str) -> str:
        """A count or a sum over rows, which may be wider than the cells: how many rows there are has no bound.

        Args:
            cell: What is added up; None where it is nothing.
            of: Gives the SQL of an aggregate; by default, it is computed here.
        """
        if cell is None:
            return "0"
        if isinstance(cell, steps.RowCount):
            return of(self._count(cell.count))
        total = f"coalesce({of(self._sum(cell.sum))}, 0)"
        if cell.centre is not None:
            count = of(self._count(steps.Count(cell.sum.value, cell.sum.condition)))
            total += f" - {self._dialect.wide(cell.centre)} * {count}"
        return total

    def _distinct(self, cell: steps.DistinctTotal, value: str, condition: str | None = None) -> str:
        """The count or sum of distinct values; two values with one square are on different sides of the centre."""
        count = f"count(DISTINCT {value}){_filter(condition)}"
        if cell.total is None:
            return count
        if isinstance(cell.total, steps.Product):
            distance = f"({value} - {self._dialect.whole(cell.total.factors[0].grid.centre)})"
            square = f"{distance} * {distance}"
            total = " + ".join(self._distinct_sum(square, condition, f"{distance} {sign} 0") for sign in (">=", "<"))
        else:
            total = self._distinct_sum(value, condition)
        if cell.centre is not None:
            total += f" - {self._dialect.wide(cell.centre)} * {count}"
        return _total(total)

    def _distinct_sum(self, value: str, *conditions: str | None) -> str:
        """The sum of the distinct values of rows that meet all conditions."""
        return f"coalesce({self._dialect.total(value, distinct=True)}{_filter(*conditions)}, 0)"

    def _with_apart(self, cells: str) -> str:
        """The cells, joined with those that are computed separately."""
        if not self._apart:
            return cells
        for place in dict.fromkeys(self._apart.values()):
            self._print_apart(place, self._totals.cells[place])
        joins, numbers = self._pieces(cells)
        places = range(len(self._totals.cells))
        columns = {place: f"totals.p{place}" for place in places if place not in self._apart}
        for place, table in self._apart.items():
            if place == table:
                joins += f" LEFT JOIN apart{place} ON {self._match(f'apart{place}', 'totals', self._keys)}"
                if self._in_pieces:
                    joins += f" AND {f'apart{place}.piece' if self._is_long(place) else '0'} = {_PIECE}"
            nothing = self._nothing(place)
            columns[place] = nothing if place in self._repeated else f"coalesce(apart{table}.n, {nothing})"
        keys = [f"totals.{key} AS {key}" for key in self._keys]
        cells_in_order = [f"{columns[place]} AS p{place}" for place in places]
        return f"SELECT {', '.join([*keys, 'totals.units AS units', *cells_in_order, *numbers])} FROM totals{joins}"

    def _is_long(self, place: int) -> bool:
        cell = self._totals.cells[place]
        return self._in_pieces and isinstance(cell, steps.Histogram) and cell.size > steps.PIECE

    def _pieces(self, cells: str) -> tuple[str, list[str]]:
        """Print the totals; return what joins the numbers of pieces to them, and the columns that tell rows apart."""
        if not self._in_pieces:
            self._cte("totals", cells)
            return "", []
        number = self._dialect.numbered("", self._keys)
        self._cte("totals", f"SELECT *, {number} AS place FROM {self._dialect.derived(cells)}")
        names, tables = ", ".join([*self._keys, "piece"]), dict.fromkeys(filter(self._is_long, self._apart.values()))
        self._cte("pieces", " UNION ".join(f"SELECT {names} FROM apart{place}" for place in tables))
        joined = f" LEFT JOIN pieces ON {self._match('pieces', 'totals', self._keys)}"
        return joined, [f"{_PIECE} AS piece", "totals.place AS place"]

    def _nothing(self, place: int) -> str:
        """The value for a group without rows."""
        return "''" if isinstance(self._totals.cells[place], steps.Histogram) else "0"

    def _print_apart(self, place: int, cell: steps.Cell) -> None:
        match cell:
            case steps.DistinctTotal(source=steps.ValueSampling() as values):
                counted = ", ".join([*self._keys, f"{self._distinct(cell, 'v')} AS n"])
                source = self._dialect.derived(self._values_of(place, values))
                self._cte(f"apart{place}", f"SELECT {counted} FROM {source}{_group_by(self._keys)}")
            case steps.Histogram(source=steps.ValueSampling() as values):
                self._histogram(place, f"({self._values_of(place, values)})")
            case steps.Histogram():
                where = self._where(cell.value, cell.condition)
                picked = [*self._keys, f"{self._value(cell.value)} AS v"]
                self._histogram(place, f"(SELECT {', '.join(picked)} FROM rows WHERE {where})")
            case _:
                raise TypeError(f"{type(cell).__name__} is among the totals")

    def _values_of(self, place: int, step: steps.ValueSampling) -> str:
        """The values of each group as v: those that are chosen, and those of units with few rows."""
        picked = [f"c.{key} AS {key}" for key in self._keys]
        chosen = f"SELECT {', '.join([*picked, 'v'])} FROM {self._chosen(place, step)}"
        few = self._totals.few.cells[place] if self._totals.few is not None else None
        if not isinstance(few, steps.RowValues):
            return chosen
        columns = ", ".join([*self._keys, f"{self._value(few.value)} AS v"])
        # DuckDB takes twice as long for NOT EXISTS.
        others = "rows LEFT JOIN many ON many.unit = rows.unit"
        where = f"many.unit IS NULL AND {self._where(few.value, few.condition)}"
        return f"{chosen} UNION ALL SELECT {columns} FROM {others} WHERE {where}"

    def _chosen(self, place: int, step: steps.ValueSampling) -> str:
        """The text after FROM for the sampled values of each unit in its kept groups, as v."""
        value, names = self._value(step.value), ", ".join(self._grouping)
        self._types |= {"v": _type(step.value), "k": SqlType.BIGINT}
        where = self._where(step.value, step.condition)
        source = self._dialect.derived(f"SELECT * FROM {self._source(step.input)}")
        if step.distinct:
            listed, tied = f"SELECT DISTINCT {names}, {value} AS v", ["v"]
        else:
            # Rows with equal values are interchangeable.
            number = self._dialect.numbered(f"PARTITION BY {names}, {value}", ())
            listed, tied = f"SELECT {names}, {value} AS v, {number} AS k", ["v", "k"]
        self._cte(f"values{place}", f"{listed} FROM {source} WHERE {where}")
        order = ", ".join([self._hash("unit", *tied), *tied])
        rank = f"row_number() OVER (PARTITION BY {names} ORDER BY {order})"
        self._cte(f"chosen{place}", f"SELECT {names}, v, {rank} AS r FROM values{place}")
        kept = self._source(step.kept)
        limit = "m" if step.rows is None else str(step.rows)
        return f"chosen{place} AS c JOIN {kept} ON {self._match('c', kept, self._grouping)} WHERE c.r <= {limit}"

    def _histogram(self, place: int, rows: str) -> None:
        """The counts of the values v, as a text of value:count, … in order."""
        columns = ", ".join([*self._keys, "v", "count(*) AS m"])
        self._cte(f"counted{place}", f"SELECT {columns} FROM {rows} AS s{_group_by([*self._keys, 'v'])}")
        counted, names = f"counted{place}", list(self._keys)
        if self._is_long(place):
            over = f"PARTITION BY {', '.join(self._keys)} ORDER BY v" if self._keys else "ORDER BY v"
            number = self._dialect.quotient(f"(row_number() OVER ({over}) - 1)", str(steps.PIECE))
            counted, names = f"(SELECT *, CAST({number} AS BIGINT) AS piece FROM {counted}) AS s", [*names, "piece"]
        listed = ", ".join([*names, f"{self._dialect.histogram('v', 'm')} AS n"])
        self._cte(f"apart{place}", f"SELECT {listed} FROM {counted}{_group_by(names)}")

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
        told = ["piece", "place"] if self._in_pieces else []
        return f"SELECT {', '.join([*keys, 'units', *self._names, *told])} FROM cells{joins}"

    @property
    def _names(self) -> list[str]:
        return [f"p{place}" for place in range(len(self._totals.cells))]

    def _enumerated(self, cells: str) -> str:
        """The final SELECT: every public group, with 0 if it has no unit; or the groups in the data."""
        if self._enumeration is None:
            keys = [f"{self._dialect.as_text(key, self._types[key])} AS {key}" for key in self._keys]
            piece, in_order = (["piece"], " ORDER BY place, piece") if self._in_pieces else ([], "")
            found = ", ".join([*keys, "units", *self._names, *piece])
            return f"SELECT {found} FROM {self._dialect.derived(cells)}{in_order}"
        columns, listed, order = _listed(self._renderer, self._enumeration)
        columns.append("coalesce(b.units, 0) AS units")
        columns += [f"coalesce(b.{cell}, {self._nothing(place)}) AS {cell}" for place, cell in enumerate(self._names)]
        if self._in_pieces:
            columns.append("coalesce(b.piece, 0) AS piece")
            order += ", coalesce(b.piece, 0)"
        pairs = zip(self._keys, map(self._renderer.name, self._enumeration.relation.fields), strict=True)
        match = " AND ".join(self._dialect.same(f"b.{key}", f"d.{name}", self._types[key]) for key, name in pairs)
        return f"SELECT {', '.join(columns)} FROM ({listed}) AS d LEFT JOIN ({cells}) AS b ON {match} ORDER BY {order}"


def _beneath(step: steps.Step) -> tuple[list[steps.GroupSampling], steps.Rows]:
    """The steps that sample groups between a step and its rows, and the rows."""
    samplings: list[steps.GroupSampling] = []
    while not isinstance(step, steps.Rows):
        samplings += [step] if isinstance(step, steps.GroupSampling) else []
        step = step.input
    return samplings, step


def _fields(value: steps.Value) -> frozenset[Field]:
    """The fields that a value uses."""
    match value:
        case steps.Prepared():
            return frozenset({value.field})
        case steps.Product():
            return frozenset[Field]().union(*map(_fields, value.factors))
        case _:
            return fields_in(value.expression)


def _type(value: steps.Value) -> SqlType:
    return value.expression.type if isinstance(value, steps.Plain) else SqlType.BIGINT


def _filter(*conditions: str | None) -> str:
    """FILTER for the rows that meet all conditions."""
    told = " AND ".join(each for each in conditions if each is not None)
    return f" FILTER (WHERE {told})" if told else ""


def _total(text: str) -> str:
    """A total as a bigint; sums of bigints are wider, so totals are clamped."""
    return f"CAST({clamp(text, -MAX_TOTAL, MAX_TOTAL)} AS BIGINT)"


def _group_by(keys: list[str]) -> str:
    return f" GROUP BY {', '.join(keys)}" if keys else ""
