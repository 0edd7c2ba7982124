"""priced: releases with their shares of one price, in the form that is read, under the key that names them for reuse.

Rule: a price is fixed here, before any data is read, and depends on SQL, policy and settings alone.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from dpsql.compiler.plan.prepared_form import PreparedForm, read_form
from dpsql.compiler.plan.pricing import Calibrated, PlannedPrimitive, calibrate
from dpsql.compiler.plan.query_plan import PlannedInput, PlannedRelease
from dpsql.compiler.plan.unpriced import Draft
from dpsql.compiler.scope.catalog import Catalog
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.privacy.cost import Price


def priced(
    drafts: Sequence[Draft], price: Price, catalog: Catalog, settings: QuerySettings
) -> tuple[PlannedRelease, ...]:
    """Return all releases with their shares of one price, inner ones as much as outer ones, in the order of the drafts.

    Raises:
        PolicyViolation: Private keys have no δ to be selected with.
    """
    adjacency, wide_share = catalog.policy.dataset.adjacency, catalog.role.query.wide_share
    plain = [draft.unpriced for draft in drafts]
    either = [d.copied.unpriced if isinstance(d.copied, PreparedForm) else d.unpriced for d in drafts]
    drawn_by = (calibrate(each, price, settings, adjacency, wide_share) for each in (plain, either))
    releases: list[PlannedRelease] = []
    for draft, without, over_copy in zip(drafts, *drawn_by, strict=True):
        copied, form = read_form(draft.copied, over_copy, without, settings.max_error_ratio)
        chosen = draft
        if copied is not None:
            chosen = replace(draft, query=copied.query, unpriced=copied.unpriced, profiled=None)
        drawn = over_copy if copied is not None else without
        releases.append(_release(chosen, _inputs(draft, releases), drawn, form, catalog.policy.fingerprint))
    return tuple(releases)


def _inputs(draft: Draft, releases: Sequence[PlannedRelease]) -> tuple[PlannedInput, ...]:
    return tuple(
        PlannedInput(
            f"input.{index}",
            item.sql,
            item.types,
            single,
            tuple(releases[inner] for inner in item.releases),
            item.public_reads,
        )
        for index, (item, single) in enumerate(draft.inputs)
    )


def _release(
    draft: Draft, inputs: tuple[PlannedInput, ...], drawn: Calibrated, form: str | None, fingerprint: str
) -> PlannedRelease:
    identity = json.dumps(
        [
            fingerprint,
            draft.query.sql,
            [_drawn_as(planned, draft.unpriced.contribution.lists) for planned in drawn.primitives],
            repr(drawn.selection),
            [
                [made.sql, [inner.key for inner in made.releases], [read.sql for read in made.public_reads]]
                for made in inputs
            ],
            *([] if draft.profiled is None else [draft.profiled.profile]),
        ]
    )
    return PlannedRelease(
        draft.query,
        inputs,
        draft.keys,
        drawn.primitives,
        drawn.selection,
        drawn.threshold_primitive,
        draft.unpriced.contribution,
        draft.unpriced.private_keys,
        draft.unpriced.min_units,
        hashlib.sha256(identity.encode()).hexdigest(),
        form,
        draft.profiled,
    )


def _drawn_as(planned: PlannedPrimitive, lists: tuple[int, ...] | None) -> dict[str, object]:
    """All that the law of a primitive's cell depends on, beside the data."""
    event = planned.noise.event.to_json()
    return event | {"choice": repr(planned.noise), "lists": lists} if planned.primitive.is_chosen else event
