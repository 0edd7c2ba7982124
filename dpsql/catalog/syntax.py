"""syntax: the tree of a query as PostgreSQL's grammar has it; nothing is looked up yet."""

from dataclasses import dataclass, field
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
    """$1 is index 0; `at` is where it stands."""

    index: int
    at: int = field(compare=False)


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
class CastExpr:
    """expr::type."""

    expr: "Expr"
    to: TypeName


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of ORDER BY."""

    expr: "Expr"
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class WindowDefinition:
    """What stands behind OVER; `base` is the name of another window."""

    base: str | None
    partition: tuple["Expr", ...]
    order: tuple[SortKey, ...]
    frame: str = ""


@dataclass(frozen=True, slots=True)
class CallExpr:
    """A function call, with what may stand in it and behind it."""

    parts: tuple[str, ...]
    args: tuple["Expr", ...]
    at: int
    star: bool = False
    distinct: bool = False
    order: tuple[SortKey, ...] = ()
    filter: Union["Expr", None] = None
    over: WindowDefinition | None = None

    @property
    def name(self) -> str:
        """The name without its schema."""
        return self.parts[-1]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator with one operand or two; LIKE, which is ~~, may have a third, its ESCAPE.

    IS DISTINCT FROM is an operator too.
    """

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
    """IS null, true, false or unknown."""

    expr: "Expr"
    what: str


@dataclass(frozen=True, slots=True)
class Between:
    """BETWEEN."""

    expr: "Expr"
    low: "Expr"
    high: "Expr"


@dataclass(frozen=True, slots=True)
class Among:
    """IN (list)."""

    expr: "Expr"
    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class AmongRows:
    """IN (query)."""

    expr: "Expr"
    query: "ParsedQuery"


@dataclass(frozen=True, slots=True)
class Quantified:
    """expr operator ANY or ALL (array or query)."""

    operator: str
    expr: "Expr"
    over: Union["Expr", "ParsedQuery"]
    every: bool
    at: int


@dataclass(frozen=True, slots=True)
class CaseExpr:
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

    query: "ParsedQuery"


@dataclass(frozen=True, slots=True)
class Row:
    """ROW(…) or (a, b)."""

    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class ExistsExpr:
    """EXISTS (query)."""

    query: "ParsedQuery"


@dataclass(frozen=True, slots=True)
class ScalarExpr:
    """A query that stands for one value."""

    query: "ParsedQuery"


@dataclass(frozen=True, slots=True)
class Subscript:
    """expr[low] or expr[low:high]."""

    expr: "Expr"
    low: Union["Expr", None]
    high: Union["Expr", None] = None
    slice: bool = False


@dataclass(frozen=True, slots=True)
class FieldExpr:
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
    | CastExpr
    | CallExpr
    | Operation
    | Logic
    | Test
    | Between
    | Among
    | AmongRows
    | Quantified
    | CaseExpr
    | ArrayOf
    | ArrayRows
    | Row
    | ExistsExpr
    | ScalarExpr
    | Subscript
    | FieldExpr
    | Collate
)


@dataclass(frozen=True, slots=True)
class SelectItem:
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

    query: "ParsedQuery"
    alias: Alias
    lateral: bool


@dataclass(frozen=True, slots=True)
class CallSource:
    """A function in FROM."""

    call: CallExpr
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
    items: tuple[SelectItem, ...]
    sources: tuple[Source, ...]
    where: Expr | None
    group: tuple[Expr, ...]
    having: Expr | None
    windows: tuple[tuple[str, WindowDefinition], ...]


@dataclass(frozen=True, slots=True)
class ValuesList:
    """VALUES."""

    rows: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True, slots=True)
class CombinedQuery:
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
    query: "ParsedQuery"


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query with what stands around its body."""

    body: "Body"
    ctes: tuple[Cte, ...] = ()
    recursive: bool = False
    order: tuple[SortKey, ...] = ()
    limit: Expr | None = None
    offset: Expr | None = None


Body = Select | ValuesList | CombinedQuery | ParsedQuery
