"""Databases: rows of a few units, of nobody, and of nowhere, with the values that engines stumble over."""

from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

UNITS = 4
STRANGER = 5
"""The unit that takes another's place under substitute adjacency."""
NAMES = ("'ann'", "'Ann'", "'ann '", "'é'", "'e' || chr(769)", "'stranger'")
"""Text keys of the units: no two are the same to a binary collation."""

_TEXTS = (
    *("NULL", "''", "' '", "'soup'", "'Soup'", "'soup '", "'SOUP'", "'é'", "'e' || chr(769)", "'100%'", "'a_b'"),
    *("'12'", "'1e999'", "'nan'", "'2024-01-05'", "'true'", "'\\'", "'back\\slash'", "chr(0)", "chr(128512)"),
    *("repeat('long', 3000)", "'straße'", "'İ'"),
)
_DOUBLES = (
    *("NULL", "0", "'-0.0'", "0.5", "1.05", "99.95", "-3", "5", "1e6", "'nan'", "'inf'", "'-inf'", "1e308", "-1e308"),
    *("5e-324", "9007199254740993", "-0.30000000000000004"),
)
_DAYS = (
    *("NULL", "'2024-01-01'", "'2024-01-02'", "'2024-01-20'", "'2024-01-21'", "'2000-01-31'", "'2000-02-29'"),
    *("'infinity'", "'-infinity'", "'0001-01-01'", "'9999-12-31'", "DATE '5881580-07-10'", "DATE '5877642-06-25 (BC)'"),
    *("DATE '0044-03-15 (BC)'", "DATE '200000-01-01'"),
)
_MOMENTS = (
    *(
        "NULL",
        "'2024-01-01 00:00:00'",
        "'2024-01-01 10:30:00'",
        "'2024-01-01 23:59:59.999999'",
        "'2024-01-02 08:00:00'",
    ),
    *("'2024-01-03 00:00:00'", "'2024-03-31 02:30:00'", "'infinity'", "'-infinity'", "'9999-12-31 23:59:59.999999'"),
    *("'0001-01-01 00:00:00'", "TIMESTAMP '200000-01-01 00:00:00'", "TIMESTAMP '290308-12-22 (BC) 00:00:00'"),
)
_INTEGERS = ("NULL", "0", "1", "-1", "3", "7", "9", "10", "50", "110", "111", "-50", "2147483647", "-2147483648")
_FLAGS = ("NULL", "true", "false")
_VISITS = ("NULL", "'v0'", "'v1'", "'v2'", "'V1'", "'v1 '", "''", "'nowhere'")

# What a column of a table may hold; the columns that lead to a unit are not here.
_POOLS: dict[str, tuple[tuple[str, ...], ...]] = {
    "people": (
        _INTEGERS,
        ("NULL", "'F'", "'M'", "'X'", "'f'", "'F '", "'?'"),
        _TEXTS,
        _DOUBLES,
        _INTEGERS,
        _DAYS,
        _FLAGS,
        _MOMENTS,
    ),
    "visits": (
        _VISITS,
        ("NULL", "0", "0.01", "49.99", "50", "50.01", "-7", "9999999999.99", "-9999999999.99"),
        (
            "NULL",
            "0",
            "-5",
            "1000",
            "170141183460469231731687303715884105727",
            "-170141183460469231731687303715884105727",
        ),
        ("NULL", "3", "4", "9", "10", "0", "9223372036854775807", "-9223372036854775808", "9007199254740993"),
        _DOUBLES,
        ("NULL", "0", "0.3", "0.45", "1", "'nan'", "'inf'", "1e38", "-1"),
        _DAYS,
        _MOMENTS,
        tuple(f"TIMESTAMPTZ {m}" if m.startswith("'") else m.replace("TIMESTAMP ", "TIMESTAMPTZ ") for m in _MOMENTS),
        ("NULL", "0", "1", "2", "3", "4", "5", "6", "-1"),
        ("NULL", "0.5", "0.6", "0.7", "0.9", "1.0", "1.3", "1.4", "7.7", "-999.9"),
        _TEXTS,
        _FLAGS,
        ("NULL", *(f"'00000000-0000-0000-0000-00000000000{digit}'" for digit in "abc")),
        ("NULL", "'00:00:00'", "'23:59:59.999999'", "'12:00:00'"),
    ),
    "lines": (_VISITS, _TEXTS, ("NULL", "0", "5", "11", "32767", "-32768"), _DOUBLES),
    "stays": (("NULL", "'North'", "'north'", "'NORTH '", "'south'"), _INTEGERS),
    "meals": (("NULL", "0", "1", "2", "3", "4", "77"), _TEXTS, ("NULL", "1.5", "2.00", "2.5", "9999.99", "-1")),
    "cards": (_INTEGERS, ("NULL", "'gold'", "'Gold'", "'tin'")),
    "letters": (_TEXTS[:9], _INTEGERS),
}


@dataclass(frozen=True)
class Row:
    """A row of a table, of a unit (None: of nobody, or of whoever the parent row says); its other columns are drawn
    from pools by the seed.
    """

    table: str
    unit: int | None
    seed: int

    def values(self, number: int) -> tuple[str, ...]:
        """Its constants; `number` is the row's own, for keys that are unique."""
        chosen = Random(f"{self.table} {self.seed}")
        rest = tuple(chosen.choice(pool) for pool in _POOLS[self.table])
        pid = "NULL" if self.unit is None else str(self.unit)
        match self.table:
            case "visits":
                return (rest[0], pid, *rest[1:])
            case "lines" | "meals":
                return rest
            case "stays":
                return (str(number), pid, *rest)
            case "letters":
                return ("NULL" if self.unit is None else NAMES[self.unit], *rest)
            case _:
                return (pid, *rest)


@dataclass(frozen=True)
class Database:
    """Rows, each with its number: physical order is that of the list."""

    rows: tuple[tuple[int, Row], ...]

    def tables(self) -> dict[str, list[tuple[str, ...]]]:
        """The constants by table; of people one row a unit, as the primary key has it."""
        first: dict[int | None, int] = {}
        for number, row in self.rows:
            if row.table == "people":
                first[row.unit] = min(number, first.get(row.unit, number))
        tables: dict[str, list[tuple[str, ...]]] = {}
        for number, row in self.rows:
            if row.table != "people" or (row.unit is not None and first[row.unit] == number):
                tables.setdefault(row.table, []).append(row.values(number))
        return tables

    def without(self, unit: int) -> "Database":
        """The neighbour that one unit has left, with all its rows in all tables."""
        return Database(tuple((number, row) for number, row in self.rows if row.unit != unit))

    def replaced(self, unit: int, others: tuple[Row, ...]) -> "Database":
        """The neighbour in which a stranger, with rows of its own, has taken a unit's place."""
        arrived = tuple((1000 + number, Row(row.table, STRANGER, row.seed)) for number, row in enumerate(others))
        return Database(self.without(unit).rows + arrived)

    def shuffled(self, seed: int) -> "Database":
        """The same rows in another physical order."""
        rows = list(self.rows)
        Random(seed).shuffle(rows)
        return Database(tuple(rows))


SEEDS = st.integers(0, 400)
_OWN = ("people", "visits", "visits", "visits", "stays", "cards", "letters", "letters")
_ROWS = st.one_of(
    st.builds(Row, st.sampled_from(_OWN), st.sampled_from([0, 0, 0, 1, 2, 3, None]), SEEDS),
    st.builds(Row, st.sampled_from(["lines", "meals"]), st.none(), SEEDS),
)


_BURST = st.tuples(
    st.sampled_from(["visits", "visits", "visits", "lines", "stays", "meals", "cards", "letters", "letters"]),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.integers(1, 25),
    SEEDS,
)


@st.composite
def databases(draw: st.DrawFn) -> Database:
    """Single rows, bursts of one unit's rows, and some rows again."""
    rows = draw(st.lists(_ROWS, min_size=4, max_size=30))
    rows += [Row("people", unit, draw(SEEDS)) for unit in range(UNITS)]
    for table, unit, count, seed in draw(st.lists(_BURST, min_size=1, max_size=7)):
        owner = None if table in ("lines", "meals") else unit
        rows += [Row(table, owner, seed + number) for number in range(count)]
    again = [row for row in rows if row.seed % 5 == 0]
    return Database(tuple(enumerate([*rows, *again])))


REPLACEMENTS = st.lists(st.builds(Row, st.sampled_from(_OWN), st.just(STRANGER), SEEDS), min_size=0, max_size=12).map(
    tuple
)
