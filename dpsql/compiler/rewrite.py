"""rewrite: one aggregation of protected rows into SQL in which every unit's contribution is bounded.

Rule 1: what a unit contributes is a function of the multiset of its rows: counts, exact integer sums, and an order
by a keyed hash that ends in the values themselves.
Rule 2: a step is left out only where the engine's schema, or the number of public groups, makes it void.
Rule 3: cells are integers; totals are clamped to ±2^62, which moves neighbours no further apart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from dpsql.compiler.ir import Expr, Protected, Relation, fields_in
from dpsql.compiler.parts import Contribution, Grid, Part, PartKind
from dpsql.compiler.render import Renderer
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
        ranked: True where a unit could touch more groups than it may.
    """

    protected: Protected
    keys: tuple[Expr, ...]
    parts: tuple[Part, ...]
    contribution: Contribution
    domain: Relation | None
    ranked: bool


def rewrite(bounding: Bounding, renderer: Renderer) -> str:
    """Return engine SQL whose rows are: keys as text, the number of units, then one bigint a part, in key order."""
    return _Rewrite(bounding, renderer).sql()


def clamp(text: str, lower: int | str, upper: int | str) -> str:
    """SQL for a value that is never NULL, moved into [lower, upper]."""
    return f"greatest(least({text}, {upper}), {lower})"


class _Rewrite:
    def __init__(self, bounding: Bounding, renderer: Renderer) -> None:
        self._b = bounding
        self._renderer = renderer
        self._keys = [f"k{index}" for index in range(len(bounding.keys))]
        self._columns: dict[str, str] = {}
        self._ctes: list[str] = []

    def sql(self) -> str:
        """The whole statement."""
        b = self._b
        used = frozenset({b.protected.unit}).union(
            *(fields_in(key) for key in b.keys),
            *(fields_in(e) for part in b.parts for e in (part.argument, part.filter) if e is not None),
        )
        source = self._renderer.relation(b.protected.relation, used)
        unit = self._renderer.name(b.protected.unit)
        keys = [f"{self._renderer.expression(key)} AS {name}" for key, name in zip(b.keys, self._keys, strict=True)]
        cells = self._one_row() if b.contribution.one_row else self._many_rows()
        columns = [f"{text} AS {name}" for text, name in self._columns.items()]
        rows = f"rows AS (SELECT {', '.join([f'{unit} AS unit', *keys, *columns])} FROM ({source}))"
        self._ctes.insert(0, rows)
        return f"WITH {', '.join(self._ctes)} {self._enumerated(cells)}"

    # What each row brings

    def _column(self, text: str) -> str:
        """A column of `rows` for an expression, each once."""
        return self._columns.setdefault(text, f"x{len(self._columns)}")

    def _value(self, part: Part) -> str:
        """The argument on its grid, clamped; NULL stays NULL."""
        if part.argument is None or part.grid is None:
            raise TypeError("a sum has an argument and a grid")
        return self._column(_on_grid(self._renderer.expression(part.argument), part.argument.type, part.grid))

    def _where(self, part: Part) -> str:
        if part.filter is None:
            return ""
        return f" FILTER (WHERE {self._column(self._renderer.expression(part.filter))})"

    def _count(self, part: Part) -> str:
        if part.kind is PartKind.MEAN:
            argument = self._value(part)
        else:
            argument = "*" if part.argument is None else self._column(self._renderer.expression(part.argument))
        return f"count({argument}){self._where(part)}"

    # A unit with one row: nothing to bound but the values

    def _one_row(self) -> str:
        cells = [f"{self._plain_total(part)} AS p{index}" for index, part in enumerate(self._b.parts)]
        return f"SELECT {', '.join([*self._keys, 'count(*) AS units', *cells])} FROM rows{self._group_by(self._keys)}"

    def _plain_total(self, part: Part) -> str:
        if part.kind is PartKind.COUNT:
            return self._count(part)
        if part.kind is PartKind.DISTINCT:
            return self._distinct_count(part)
        value = self._value(part)
        total = f"coalesce(sum({value}){self._where(part)}, 0)"
        if part.kind is PartKind.MEAN and part.grid is not None:
            total += f" - {_number(part.grid.centre)} * {self._count(part)}"
        return _total(total)

    def _distinct_count(self, part: Part) -> str:
        if part.argument is None:
            raise TypeError("DISTINCT has an argument")
        return f"count(DISTINCT {self._column(self._renderer.expression(part.argument))}){self._where(part)}"

    # Units with several rows

    def _many_rows(self) -> str:
        parts = list(enumerate(self._b.parts))
        plain = [(index, part) for index, part in parts if part.kind is not PartKind.DISTINCT]
        sums: dict[str, str] = {}

        def inner(text: str) -> str:
            return sums.setdefault(text, f"a{len(sums)}")

        bounded = [f"{self._per_unit(part, inner)} AS p{index}" for index, part in plain]
        grouping = ["unit", *self._keys]
        aggregates = [f"{text} AS {name}" for text, name in sums.items()]
        self._ctes.append(
            f"summed AS (SELECT {', '.join(grouping + aggregates)} FROM rows GROUP BY {', '.join(grouping)})"
        )
        self._ctes.append(f"per_unit AS (SELECT {', '.join(grouping + bounded)} FROM summed)")
        kept = self._kept() if self._b.ranked else "per_unit"
        totals = [f"{_total(f'coalesce(sum(p{index}), 0)')} AS p{index}" for index, _ in plain]
        cells = (
            f"SELECT {', '.join([*self._keys, 'count(*) AS units', *totals])} FROM {kept}{self._group_by(self._keys)}"
        )
        distinct = [(index, part) for index, part in parts if part.kind is PartKind.DISTINCT]
        return self._with_distinct(cells, kept, distinct) if distinct else cells

    def _per_unit(self, part: Part, inner: Callable[[str], str]) -> str:
        """What one unit adds to one cell, clamped to the part's range."""
        if part.kind is PartKind.COUNT or part.grid is None:
            return f"least({inner(self._count(part))}, {part.cap})"
        total = f"coalesce({inner(f'sum({self._value(part)}){self._where(part)}')}, 0)"
        if part.kind is PartKind.SUM:
            return f"CAST({clamp(total, _number(part.lower), _number(part.upper))} AS BIGINT)"
        rows = inner(self._count(part))
        counted = f"least({rows}, {part.cap})"
        scaled = f"CASE WHEN {rows} > {part.cap} THEN {total} * {part.cap} // greatest({rows}, 1) ELSE {total} END"
        low, high = (f"{counted} * {_number(end)}" for end in (part.grid.lower, part.grid.upper))
        return f"CAST({clamp(scaled, low, high)} - {counted} * {_number(part.grid.centre)} AS BIGINT)"

    def _kept(self) -> str:
        order = ", ".join([_keyed_hash(["unit", *self._keys]), *(f"{key} NULLS LAST" for key in self._keys)])
        self._ctes.append(
            f"ranked AS (SELECT *, row_number() OVER (PARTITION BY unit ORDER BY {order}) AS r FROM per_unit)"
        )
        self._ctes.append(f"kept AS (SELECT * FROM ranked WHERE r <= {self._b.contribution.max_groups})")
        return "kept"

    def _with_distinct(self, cells: str, kept: str, distinct: list[tuple[int, Part]]) -> str:
        """Distinct values: each unit brings `cap` of its own, by keyed hash, to each group that it keeps."""
        self._ctes.append(f"cells AS ({cells})")
        joins, columns = [], []
        for index, part in distinct:
            if part.argument is None:
                raise TypeError("DISTINCT has an argument")
            value = self._column(self._renderer.expression(part.argument))
            where = f"{value} IS NOT NULL"
            if part.filter is not None:
                where += f" AND {self._column(self._renderer.expression(part.filter))}"
            grouping = ["unit", *self._keys]
            names = ", ".join(grouping)
            self._ctes.append(f"values{index} AS (SELECT DISTINCT {names}, {value} AS v FROM rows WHERE {where})")
            order = f"{_keyed_hash(['unit', 'v'])}, v"
            self._ctes.append(
                f"chosen{index} AS (SELECT {names}, v, row_number() OVER (PARTITION BY {names} ORDER BY {order}) AS r "
                f"FROM values{index})"
            )
            match = _same(f"c{index}", kept, grouping)
            picked = ", ".join(f"c{index}.{key}" for key in self._keys)
            lead = f"{picked}, " if picked else ""
            self._ctes.append(
                f"distinct{index} AS (SELECT {lead}count(DISTINCT v) AS n FROM chosen{index} AS c{index} "
                f"JOIN {kept} ON {match} WHERE c{index}.r <= {part.cap}{' GROUP BY ' + picked if picked else ''})"
            )
            joins.append(f" LEFT JOIN distinct{index} ON {_same(f'distinct{index}', 'cells', self._keys)}")
            columns.append(f"coalesce(distinct{index}.n, 0) AS p{index}")
        order_of_parts = [
            next((c for c in columns if c.endswith(f" AS p{index}")), f"cells.p{index} AS p{index}")
            for index in range(len(self._b.parts))
        ]
        keys = [f"cells.{key} AS {key}" for key in self._keys]
        return f"SELECT {', '.join([*keys, 'cells.units AS units', *order_of_parts])} FROM cells{''.join(joins)}"

    # All groups

    def _group_by(self, keys: list[str]) -> str:
        return f" GROUP BY {', '.join(keys)}" if keys else ""

    def _enumerated(self, cells: str) -> str:
        """The final SELECT: every public group, zero where nobody is; or the groups there are."""
        domain = self._b.domain
        parts = [f"p{index}" for index in range(len(self._b.parts))]
        if domain is None:
            columns = [f"CAST({key} AS VARCHAR) AS {key}" for key in self._keys] + ["units", *parts]
            order = f" ORDER BY {', '.join(f'b.{key} NULLS LAST' for key in self._keys)}" if self._keys else ""
            return f"SELECT {', '.join(columns)} FROM ({cells}) AS b{order}"
        names = {f"d{index}": self._renderer.name(field) for index, field in enumerate(domain.fields)}
        listed = self._renderer.relation(domain, frozenset(domain.fields))
        columns = [f"CAST(d.{name} AS VARCHAR) AS k{index}" for index, name in enumerate(names.values())]
        columns += [f"coalesce(b.{cell}, 0) AS {cell}" for cell in ("units", *parts)]
        match = " AND ".join(f"b.k{index} IS NOT DISTINCT FROM d.{name}" for index, name in enumerate(names.values()))
        order = ", ".join(f"d.{name} NULLS LAST" for name in names.values())
        return f"SELECT {', '.join(columns)} FROM ({listed}) AS d LEFT JOIN ({cells}) AS b ON {match} ORDER BY {order}"


def _on_grid(text: str, sql_type: SqlType, grid: Grid) -> str:
    """A number as a grid value within the grid's limits: clamped first, then rounded, then clamped again."""
    ends = _number(grid.lower), _number(grid.upper)
    if sql_type.is_integer and grid.step == 1:
        return f"CASE WHEN {text} IS NOT NULL THEN {clamp(text, *ends)} END"
    low, high = (_double(end * grid.step) for end in (grid.lower, grid.upper))
    inside = f"{clamp(f'CAST({text} AS DOUBLE)', low, high)} * {_double(1 / grid.step)}"
    return f"CASE WHEN {text} IS NOT NULL THEN {clamp(f'CAST(round({inside}) AS BIGINT)', *ends)} END"


def _double(value: Fraction) -> str:
    return f"CAST('{float(value)!r}' AS DOUBLE)"


def _number(value: int) -> str:
    return f"CAST({value} AS BIGINT)"


def _total(text: str) -> str:
    """A total as a bigint; a sum of bigints is wider, and totals beyond the clamp are not told apart."""
    return f"CAST({clamp(text, -MAX_TOTAL, MAX_TOTAL)} AS BIGINT)"


def _keyed_hash(columns: list[str]) -> str:
    return f"hash(hash({', '.join(columns)}, {SALT}))"


def _same(left: str, right: str, names: list[str]) -> str:
    return " AND ".join(f"{left}.{name} IS NOT DISTINCT FROM {right}.{name}" for name in names) or "TRUE"
