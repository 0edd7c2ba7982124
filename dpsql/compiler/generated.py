"""generated: how many rows a query makes up of constants, which no table bounds: generate_series and VALUES.

Each by itself is short, but joins multiply them, and each row of a table meets every one of them at the worst.
"""

from typing import Final

from dpsql.compiler.ir import (
    Aggregate,
    Join,
    Relation,
    Release,
    Scan,
    Series,
    SetOperation,
    SystemScan,
    UnitScan,
    Values,
)
from dpsql.compiler.sources import series_length
from dpsql.errors import QueryTooComplex

MAX_GENERATED: Final = 1_000_000


def refuse_too_many(left: Relation, right: Relation, at: int | None) -> None:
    """Check the rows that a join makes up.

    Raises:
        QueryTooComplex: They are too many.
    """
    if generated(left) * generated(right) > MAX_GENERATED:
        raise QueryTooComplex(
            f"generate_series and VALUES make more than {MAX_GENERATED:,} rows here together",
            hint="Make only what is needed: generate_series(1, 12), for example.",
            position=at,
        )


def generated(relation: Relation) -> int:
    """How many rows are made up of constants for each row of the tables; 1 where none are."""
    match relation:
        case Values():
            return max(len(relation.rows), 1)
        case Series():
            return max(series_length(relation.start, relation.stop, relation.unit), 1)
        case Join():
            return generated(relation.left) * generated(relation.right)
        case SetOperation():
            return generated(relation.left) + generated(relation.right)
        case Scan() | UnitScan() | SystemScan() | Release():
            return 1
        case Aggregate() if not relation.keys:
            return 1
        case _:
            return generated(relation.input)
