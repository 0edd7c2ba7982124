"""The shop's catalog, and a gateway over the clinic whose backend answers nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpsql.backends import open_backend
from dpsql.catalog.catalog import Catalogs
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.policy import load_policy
from tests.conftest import MakeEngine
from tests.wire.catalog.shops import Visitors, shop_policy
from tests.wire.conftest import RunningServer


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitors]:
    """The shop's catalog as the role analyst sees it."""
    visitors = Visitors(shop_policy(tmp_path_factory.mktemp("shop")))
    yield visitors
    visitors.close()


class SilentBackend:
    """A backend that knows its schema and refuses everything else."""

    def __init__(self, policy: Path) -> None:
        opened = open_backend(load_policy(policy))
        self.schema = opened.schema
        opened.close()

    def check(self, *_: object) -> None:
        raise AssertionError("the engine was asked to check")

    def fetch(self, *_: object) -> None:
        raise AssertionError("the engine was read")

    def close(self) -> None:
        pass


@pytest.fixture
def silent_engine(make_engine: MakeEngine, clinic_policy: Path) -> Engine:
    """The clinic's engine over a backend that must not be asked."""
    return make_engine(clinic_policy, backend=SilentBackend(clinic_policy))


@pytest.fixture
def catalogs(silent_engine: Engine) -> Iterator[Catalogs]:
    """The clinic's catalogs."""
    made = Catalogs({"clinic": silent_engine})
    yield made
    made.close()


@pytest.fixture
def gateway(serve: Callable[..., RunningServer], silent_engine: Engine, catalogs: Catalogs) -> RunningServer:
    """A running gateway: user ana, password secret, database clinic."""

    def open_session(user: str, database: str) -> Session:
        return Session(silent_engine, user, catalogs.provider(database, user))

    return serve(open_session=open_session)
