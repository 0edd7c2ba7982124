"""syntax: the tree of a query as PostgreSQL's grammar has it; nothing is looked up yet."""

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type as written; `parts` may be qualified, and `array` is true behind []."""

    parts: tuple[str, ...]
    modifiers: tuple[int, ...] = ()
    array: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant; `kind` is string, integer, numeric, bool or null."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """$1 is index 0."""

    index: int


@dataclass(frozen=True, slots=True)
class Name:
    """A column, qualified or not."""

    parts: tuple[str, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Star:
    """All columns, or those of one relation."""

    qualifier: tuple[str, ...] = ()
    at: int = 0


@dataclass(frozen=True, slots=True)
class Cast:
    """expr::type."""

    expr: "Expr"
    to: TypeName


@dataclass(frozen=True, slots=True)
class Order:
    """One key of ORDER BY."""

    expr: "Expr"
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Window:
    """What stands behind OVER; `base` is the name of another window."""

    base: str | None
    partition: tuple["Expr", ...]
    order: tuple[Order, ...]
    frame: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A function call, with what may stand in it and behind it."""

    parts: tuple[str, ...]
    args: tuple["Expr", ...]
    at: int
    star: bool = False
    distinct: bool = False
    order: tuple[Order, ...] = ()
    filter: Union["Expr", None] = None
    over: Window | None = None

    @property
    def name(self) -> str:
        """The name without its schema."""
        return self.parts[-1]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator with one operand or two."""

    operator: str
    operands: tuple["Expr", ...]
    at: int


@dataclass(frozen=True, slots=True)
class Logic:
    """and, or, not."""

    word: str
    operands: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Test:
    """IS [NOT] null, true, false or unknown."""

    expr: "Expr"
    what: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Distinctness:
    """IS [NOT] DISTINCT FROM."""

    left: "Expr"
    right: "Expr"
    negated: bool


@dataclass(frozen=True, slots=True)
class Between:
    """[NOT] BETWEEN."""

    expr: "Expr"
    low: "Expr"
    high: "Expr"
    negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    """[NOT] LIKE or ILIKE; `escape` is None for a backslash."""

    expr: "Expr"
    pattern: "Expr"
    escape: Union["Expr", None]
    ignore_case: bool
    negated: bool


@dataclass(frozen=True, slots=True)
class Among:
    """[NOT] IN (list)."""

    expr: "Expr"
    items: tuple["Expr", ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class AmongRows:
    """[NOT] IN (query)."""

    expr: "Expr"
    query: "Query"
    negated: bool


@dataclass(frozen=True, slots=True)
class Quantified:
    """expr operator ANY or ALL (array or query)."""

    operator: str
    expr: "Expr"
    over: Union["Expr", "Query"]
    every: bool
    at: int


@dataclass(frozen=True, slots=True)
class Case:
    """CASE."""

    operand: Union["Expr", None]
    branches: tuple[tuple["Expr", "Expr"], ...]
    default: Union["Expr", None]


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """ARRAY[…]."""

    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """ARRAY(query)."""

    query: "Query"


@dataclass(frozen=True, slots=True)
class Row:
    """ROW(…) or (a, b)."""

    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Exists:
    """EXISTS (query)."""

    query: "Query"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A query that stands for one value."""

    query: "Query"


@dataclass(frozen=True, slots=True)
class Subscript:
    """expr[low] or expr[low:high]."""

    expr: "Expr"
    low: Union["Expr", None]
    high: Union["Expr", None] = None
    slice: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """(expr).name."""

    expr: "Expr"
    name: str


@dataclass(frozen=True, slots=True)
class Collate:
    """expr COLLATE name."""

    expr: "Expr"
    collation: tuple[str, ...]


Expr = (
    Constant
    | Parameter
    | Name
    | Star
    | Cast
    | Call
    | Operation
    | Logic
    | Test
    | Distinctness
    | Between
    | Like
    | Among
    | AmongRows
    | Quantified
    | Case
    | ArrayOf
    | ArrayRows
    | Row
    | Exists
    | Scalar
    | Subscript
    | Field
    | Collate
)


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of SELECT's list."""

    expr: Expr
    alias: str | None


@dataclass(frozen=True, slots=True)
class Alias:
    """AS name (columns)."""

    name: str | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSource:
    """A relation in FROM."""

    parts: tuple[str, ...]
    alias: Alias
    at: int


@dataclass(frozen=True, slots=True)
class QuerySource:
    """A query in FROM."""

    query: "Query"
    alias: Alias
    lateral: bool


@dataclass(frozen=True, slots=True)
class CallSource:
    """A function in FROM."""

    call: Call
    alias: Alias
    ordinality: bool


@dataclass(frozen=True, slots=True)
class JoinSource:
    """A join; `kind` is inner, left, right, full or cross."""

    kind: str
    left: "Source"
    right: "Source"
    on: Expr | None
    using: tuple[str, ...]
    natural: bool


Source = TableSource | QuerySource | CallSource | JoinSource


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT; `distinct` is None, () for DISTINCT, or the keys of DISTINCT ON."""

    distinct: tuple[Expr, ...] | None
    items: tuple[Item, ...]
    sources: tuple[Source, ...]
    where: Expr | None
    group: tuple[Expr, ...]
    having: Expr | None
    windows: tuple[tuple[str, Window], ...]


@dataclass(frozen=True, slots=True)
class Values:
    """VALUES."""

    rows: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True, slots=True)
class SetOperation:
    """UNION, INTERSECT or EXCEPT."""

    word: str
    all: bool
    left: "Body"
    right: "Body"


@dataclass(frozen=True, slots=True)
class Cte:
    """One entry of WITH."""

    name: str
    columns: tuple[str, ...]
    query: "Query"


@dataclass(frozen=True, slots=True)
class Query:
    """A query with what stands around its body."""

    body: "Body"
    ctes: tuple[Cte, ...] = ()
    recursive: bool = False
    order: tuple[Order, ...] = ()
    limit: Expr | None = None
    offset: Expr | None = None


Body = Select | Values | SetOperation | Query
