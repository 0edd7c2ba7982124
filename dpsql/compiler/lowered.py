"""lowered: a relation with its privacy status and the names that stand over its columns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dpsql.compiler.ir import Field, Protected, Relation, Status
from dpsql.compiler.resolve import Source


@dataclass(frozen=True)
class Lowered:
    """A relation with its privacy status and the names that stand over its columns.

    Attributes:
        status: The relation.
        columns: Names and fields, in order; a name may repeat.
        hidden: Keys that lead to the unit and that the policy does not list as columns.
        limited: Places of the columns that are followed by the two limits of their 95 % interval.
        invented: Whether the rows are made up of the policy's bounds and domains.
        schemas: What the schema may be called of a table under its own name; empty for everything else.
    """

    status: Status
    columns: tuple[tuple[str, Field], ...]
    hidden: frozenset[Field] = frozenset()
    limited: tuple[int, ...] = ()
    invented: bool = False
    schemas: frozenset[str] = frozenset()

    def source(self, alias: str) -> Source:
        """The relation as an entry of FROM: what is hidden stays so."""
        shown = tuple((name, field) for name, field in self.columns if field not in self.hidden)
        hidden = tuple((name, field) for name, field in self.columns if field in self.hidden)
        return Source(alias, shown, hidden, schemas=self.schemas)

    @property
    def relation(self) -> Relation:
        """The rows."""
        return self.status.relation


def moved(status: Protected, relation: Relation, renewed: Mapping[Field, Field]) -> Protected:
    """The status of a relation that hands the same rows on under new fields, as far as it hands them on."""
    handed_on = renewed.keys() | ({status.linked} if status.linked is not None else set())
    links = frozenset(
        replace(link, fields=tuple(renewed.get(field, field) for field in link.fields))
        for link in status.links
        if all(field in handed_on for field in link.fields)
    )
    absent = status.absent
    if absent is not None:
        absent = frozenset(renewed[field] for field in absent if field in renewed)
    return replace(status, relation=relation, unit=renewed.get(status.unit, status.unit), links=links, absent=absent)
