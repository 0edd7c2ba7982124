"""The heart: whatever the data, the query and the unit, one unit moves the exact cells by no more than was claimed.

No noise and no statistics: the bounded vectors of two neighbours are fetched and compared in every norm.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from dpsql.compiler.settings import QuerySettings
from dpsql.errors import Error
from dpsql.privacy.sensitivity import Adjacency
from tests.strategies.data import REPLACEMENTS, UNITS, Database, Row, databases
from tests.strategies.distance import assert_neighbours, assert_same
from tests.strategies.queries import SETTINGS_STRATEGY, queries
from tests.strategies.world import SETTINGS, Survey, open_survey

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
PROFILE = settings(
    max_examples=3000 if LONG else 60,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=list(HealthCheck),
)
ASKED = st.lists(st.tuples(queries(), SETTINGS_STRATEGY), min_size=4, max_size=6)
"""Queries with their settings: several of one database, for making a database takes longest."""


@pytest.fixture(scope="module")
def add_remove(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    survey = open_survey(tmp_path_factory.mktemp("add_remove"), "add_remove")
    yield survey
    survey.close()


@pytest.fixture(scope="module")
def substitute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    survey = open_survey(tmp_path_factory.mktemp("substitute"), "substitute")
    yield survey
    survey.close()


def accepted(survey: Survey, asked: list[tuple[str, QuerySettings]]) -> list:
    found = []
    for sql, options in asked:
        try:
            found.append((sql, survey.compile(sql, options).releases))
        except Error as error:
            event(f"refused: {type(error).__name__}")
    return found
