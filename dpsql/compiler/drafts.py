"""drafts: the engine queries of a query's releases, bounded, each after those it needs; not yet priced.

Rule 1: equal releases are one: made once, paid once, the same wherever the query names them.
Rule 2: what a release needs of other releases is made first, by post-processing, and read as a table of unknown rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpsql.compiler.bound import Bounds, bounds_of, interval
from dpsql.compiler.catalog import Catalog
from dpsql.compiler.contributions import contribution_of, in_any_groups, of_lists
from dpsql.compiler.copied import Copied, Copies
from dpsql.compiler.cuts import cuts, made_first
from dpsql.compiler.domain import enumerate_keys
from dpsql.compiler.engines import DIALECTS, POST_PROCESSING
from dpsql.compiler.ir import Call, Cast, Expr, Relation, Release
from dpsql.compiler.lowering import Fields
from dpsql.compiler.outputs import Output
from dpsql.compiler.part_list import PartList
from dpsql.compiler.parts import Contribution
from dpsql.compiler.planned import PublicRead
from dpsql.compiler.pricing import Unpriced
from dpsql.compiler.public_reads import public_read
from dpsql.compiler.released import ReleasedLeaf, input_leaf, text_leaf, to_text
from dpsql.compiler.render import Leaf, Renderer
from dpsql.compiler.responses import Responses
from dpsql.compiler.rewrite import Bounding, rewrite
from dpsql.compiler.settings import QuerySettings
from dpsql.compiler.visible import weights
from dpsql.errors import PolicyViolation
from dpsql.privacy.picking import Places
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class InputDraft:
    """An input of a release; `releases` are the indexes of those it is made of."""

    sql: str
    types: tuple[SqlType, ...]
    releases: tuple[int, ...]
    public_reads: tuple[PublicRead, ...]

    @property
    def width(self) -> int:
        """How many columns it is handed over in; one tells its number of rows where it has none."""
        return max(1, len(self.types))


@dataclass(frozen=True)
class Draft:
    """A bounded engine query, not yet priced; each input comes with whether it stands for one value.

    `copied` is the query over a bounded copy, or why there is none; None where nothing was prepared.
    """

    sql: str
    inputs: tuple[tuple[InputDraft, bool], ...]
    keys: int
    unpriced: Unpriced
    copied: Copied | str | None

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes two drafts one: what is read, and which ranks or groups are chosen of it."""
        chosen = tuple((part.rank, part.places) for part in self.unpriced.parts)
        return self.sql, self.inputs, chosen, self.unpriced.contribution.lists


@dataclass
class Drafts:
    """Bounds the releases of one query.

    Attributes:
        drafts: The engine queries bounded so far, each after those it needs.
        leaves: The releases bounded so far, each in its canonical form, with the index of its draft.
    """

    catalog: Catalog
    fields: Fields
    settings: QuerySettings
    drafts: list[Draft] = field(default_factory=list)
    leaves: dict[Release, tuple[int, ReleasedLeaf]] = field(default_factory=dict)

    def bound(self, release: Release) -> int:
        """Return the index of a release's engine query, which is bounded after those it needs."""
        if release in self.leaves:
            return self.leaves[release][0]
        protected, keys = release.protected, release.aggregate.keys
        domain = enumerate_keys(keys, protected.relation, self.catalog, self.fields) if keys else None
        listed, groups = domain if domain is not None else (None, None)
        private = bool(keys) and domain is None
        inputs, leaves = self._inputs(made_first(release.aggregate, listed))
        part_list = PartList(protected, self._contribution(release, groups))
        outputs = self._outputs(release, part_list, private)
        parts, contribution = tuple(part_list.parts), part_list.contribution
        if domain is not None:
            contribution = in_any_groups(contribution, parts, groups)
        bounds = bounds_of(protected.relation)
        fine = any(_is_fine(key, bounds) for key in keys)
        unpriced = Unpriced(parts, contribution, private, weights(parts, outputs))
        bounding = Bounding(protected, keys, parts, contribution, listed, fine, private)
        copied = Copies(self.catalog, self.fields, self.settings).of(release, bounding, outputs, leaves, groups)
        schema, policy = self.catalog.schema, self.catalog.policy
        sql = rewrite(bounding, Renderer(DIALECTS[schema.engine], schema, policy, leaves))
        index = self._index(Draft(sql, inputs, len(keys), unpriced, copied))
        self.leaves[release] = index, ReleasedLeaf(release, outputs, private)
        return index

    def _index(self, draft: Draft) -> int:
        """Where a draft stands, or one that is the same."""
        alike = (i for i, other in enumerate(self.drafts) if other.identity == draft.identity)
        index = next(alike, len(self.drafts))
        self.drafts += [draft] if index == len(self.drafts) else []
        return index

    def _contribution(self, release: Release, groups: int | None) -> Contribution:
        if release.picks is None:
            return contribution_of(release, groups, self.settings)
        aggregate = release.aggregate
        lists = tuple(place for place, each in enumerate(aggregate.key_fields) if each not in release.picked_fields)
        keys = tuple(aggregate.keys[place] for place in lists)
        domain = enumerate_keys(keys, release.protected.relation, self.catalog, self.fields) if keys else None
        return of_lists(release, lists, domain[1] if domain is not None else None, self.settings)

    def _outputs(self, release: Release, part_list: PartList, private: bool) -> tuple[Output, ...]:
        """What is made of the cells, which are added to the list."""
        calls = release.aggregate.aggregates
        responses = Responses.of(release)
        responses.check(private_keys=private)
        if release.picks is None:
            outputs: tuple[Output, ...] = tuple(responses.output(part_list, call) for call in calls)
            if self.catalog.role.query.bias_share and part_list.parts:
                part_list.count_cuts()
            return outputs
        if private or not release.aggregate.keys:
            raise _nothing_public()
        responses.refuse_picks()
        places = Places(release.picks.count, release.picks.least)
        return tuple(part_list.picked(call, places) for call in calls)

    # What is made first

    def _inputs(
        self, relations: Mapping[Relation, bool]
    ) -> tuple[tuple[tuple[InputDraft, bool], ...], dict[Relation, Leaf]]:
        """What is made before an engine query, each once, and where the engine finds it."""
        dialect = DIALECTS[self.catalog.schema.engine]
        inputs: dict[InputDraft, bool] = {}
        leaves: dict[Relation, Leaf] = {}
        for relation, single in relations.items():
            draft = self._input(relation)
            inputs[draft] = single or inputs.get(draft, False)
            index = list(inputs).index(draft)
            table = dialect.input_table(index, sum(each.width for each in list(inputs)[:index]), len(draft.types))
            leaves[relation] = input_leaf(relation.fields, dialect, table)
        return tuple(inputs.items()), leaves

    def _input(self, relation: Relation) -> InputDraft:
        leaves: dict[Relation, Leaf] = {}
        releases: list[int] = []
        public: list[PublicRead] = []
        for cut in cuts(relation):
            if isinstance(cut, Release):
                leaves[cut] = self._released(cut, releases)
            else:
                public.append(public_read(cut, f"q{len(public)}", self.catalog))
                leaves[cut] = text_leaf(cut.fields, public[-1].table)
        renderer = Renderer(POST_PROCESSING, self.catalog.schema, self.catalog.policy, leaves)
        text = renderer.relation(relation, frozenset(relation.fields))
        items = [f"{to_text(renderer.name(f), f.type)} AS v{i}" for i, f in enumerate(relation.fields)]
        sql = f"SELECT {', '.join(items) or '1 AS one'} FROM ({text})"
        types = tuple(field.type for field in relation.fields)
        return InputDraft(sql, types, tuple(releases), tuple(public))

    def _released(self, release: Release, releases: list[int]) -> Leaf:
        """A release as an input reads it; its index is added to those that the input needs."""
        index = self.bound(release)
        if index not in releases:
            releases.append(index)
        return self.leaves[release][1].at(f"r{releases.index(index)}", None, release)


def _nothing_public() -> PolicyViolation:
    return PolicyViolation(
        "there is no public list of values to choose from",
        hint="Choose a column whose values the policy declares, and group by such columns; "
        "or count, which selects private groups: SELECT x, COUNT(*) FROM … GROUP BY x ORDER BY 2 DESC LIMIT 1",
    )


def _is_fine(key: Expr, bounds: Bounds) -> bool:
    """True where a key has so many values that most rows of a unit have one of their own.

    Measured on DuckDB 2.0 with a million rows: ranking rows wins from about three pairs (unit, key) in four rows.
    """
    if key.type.is_moment:
        inner = key.argument if isinstance(key, Cast) else key
        return not (isinstance(inner, Call) and inner.function in ("date_trunc_year", "date_trunc_quarter"))
    if not key.type.is_number:
        return False
    found = interval(key, bounds)
    return found.lower is None or found.upper is None or found.upper - found.lower > 1000
