"""Tables whose rows lead to their unit in several ways: each row goes the way that the value of one column says."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpsql.errors import InvalidPolicy
from dpsql.gateway.session import Session
from tests.conftest import silent_engine
from tests.engines import HOSTS, Host
from tests.strategies.keys import Place

POLICY = """
version = 1
[dataset]
name = "hospital"
url = "{url}"
schema = "keys"
privacy_unit = "person"
budget = {{ epsilon = 1e4, delta = 1e-2 }}
[roles.analyst]
budget = {{ epsilon = 1e4, delta = 1e-2 }}
query = {{ epsilon = 1, delta = 1e-6, max_epsilon = 10 }}
[tables.visits]
unit_key = "pid"
max_rows = {most}
columns = {{ visit = {{ type = "integer" }} }}
[tables.drugs]
unit_via = {{ table = "visits", on = {{ visit = "visit" }} }}
columns = {{ drug = {{ type = "integer" }} }}
[tables.claims]
unit_via = [
    {{ table = "visits", on = {{ event = "visit" }}, where = "domain = 'visit'" }},
    {{ table = "drugs", on = {{ event = "drug" }}, where = "domain IN ('drug', 're''fill')" }},
]
max_rows = {most}
columns.cost = {{ type = "integer", lower = 0, upper = 9 }}
columns.domain = {{ type = "text", values = ["visit", "drug", "re'fill", "other"] }}
columns.event = {{ type = "integer" }}
[tables.parts]
unit_via = {{ table = "claims", on = {{ claim = "claim" }} }}
columns.size = {{ type = "integer", lower = 0, upper = 9 }}
"""
DOMAINS = ("visit", "drug", "re'fill", "other", "Visit", None)
Row = tuple[object, ...]


@dataclass(frozen=True)
class World:
    """Rows: of visits person and number; of drugs number and visit; of claims number, domain, event and cost; of parts
    claim and size."""

    visits: Sequence[Row]
    drugs: Sequence[Row]
    claims: Sequence[Row]
    parts: Sequence[Row]

    def owned_claims(self) -> list[tuple[object, Row]]:
        """Each claim with each person that it leads to."""
        by_visit = {(visit, person) for person, visit in self.visits}
        by_drug = {(drug, person) for drug, at in self.drugs for visit, person in by_visit if visit == at}
        ways = {"visit": by_visit, "drug": by_drug, "re'fill": by_drug}
        return [(p, claim) for claim in self.claims for key, p in ways.get(str(claim[1]), set()) if key == claim[2]]

    def owned_parts(self) -> list[tuple[object, Row]]:
        owners = {(claim[0], person) for person, claim in self.owned_claims()}
        return [(person, part) for part in self.parts for claim, person in owners if claim == part[0]]

    def without(self, person: int) -> "World":
        return World([row for row in self.visits if row[0] != person], self.drugs, self.claims, self.parts)

    def answers(self) -> Mapping[str, object]:
        claims, parts = self.owned_claims(), self.owned_parts()
        visits = [(person, visit) for person, visit in self.visits]
        return {
            "SELECT COUNT(*) FROM claims": len(claims),
            "SELECT SUM(cost) FROM claims": sum(int(str(claim[3])) for _, claim in claims),
            "SELECT COUNT(*) FROM claims WHERE domain = 'drug'": sum(claim[1] == "drug" for _, claim in claims),
            "SELECT COUNT(*) FROM claims c JOIN visits v ON c.event = v.visit": sum(
                (person, claim[2]) == visit for person, claim in claims for visit in visits
            ),
            "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM claims c WHERE c.event = v.visit)": sum(
                visit in {(person, claim[2]) for person, claim in claims} for visit in visits
            ),
            "SELECT COUNT(*) FROM parts": len(parts),
            "SELECT SUM(size) FROM parts": sum(int(str(part[1])) for _, part in parts),
            "SELECT SUM(size) FROM parts p JOIN claims c USING (claim)": sum(
                int(str(part[1])) for p, part in parts for q, claim in claims if (p, part[0]) == (q, claim[0])
            ),
        }


def world(seed: int) -> World:
    """Persons share the numbers of visits, drugs and claims, which also lead nowhere."""
    chance = random.Random(seed)
    return World(
        [(chance.randrange(4), chance.randrange(6)) for _ in range(8)],
        [(chance.randrange(6), chance.randrange(7)) for _ in range(8)],
        [(chance.randrange(12), chance.choice(DOMAINS), chance.randrange(7), n % 10) for n in range(30)],
        [(chance.randrange(14), n % 10) for n in range(12)],
    )


@pytest.fixture(params=HOSTS)
def place(request: pytest.FixtureRequest, hosts: Mapping[str, Host], tmp_path: Path) -> Iterator[Place]:
    with hosts[request.param].place(tmp_path) as opened:
        yield opened


def fill(place: Place, data: World) -> None:
    def literal(value: object) -> str:
        return "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"

    place.fresh()
    place.run(
        "CREATE TABLE keys.visits (pid integer, visit integer)",
        "CREATE TABLE keys.drugs (drug integer, visit integer)",
        "CREATE TABLE keys.claims (claim integer, domain varchar, event integer, cost integer)",
        "CREATE TABLE keys.parts (claim integer, size integer)",
        *(
            f"INSERT INTO keys.{table} VALUES ({', '.join(map(literal, row))})"
            for table in ("visits", "drugs", "claims", "parts")
            for row in getattr(data, table)
        ),
    )


def policy_of(place: Place, folder: Path, most: int = 400) -> Path:
    path = folder / "hospital.toml"
    path.write_text(POLICY.format(url=place.url, most=most), encoding="utf-8")
    return path


def rows(session: Session, query: str) -> Sequence[Row]:
    (statement,) = session.parse(query)
    return session.execute(statement).rows


@pytest.mark.parametrize("seed", range(4))
def test_each_row_goes_one_way(place: Place, tmp_path: Path, seed: int) -> None:
    """Rows of no condition, and of keys that lead nowhere, are nobody's."""
    data = world(seed)
    fill(place, data)
    with silent_engine(policy_of(place, tmp_path), tmp_path) as opened:
        session = Session(opened, "ana")
        found = {query: rows(session, query)[0][0] for query in data.answers()}
    assert found == data.answers()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_one_unit_adds_no_more_than_its_rows(place: Place, tmp_path: Path, most: int) -> None:
    """For each person, without whose visits the counts are at most `most` lower, in all groups together."""
    data = world(7)
    found: list[Counter[object]] = []
    for number, each in enumerate([data, *(data.without(person) for person in range(4))]):
        fill(place, each)
        folder = tmp_path / str(number)
        folder.mkdir()
        with silent_engine(policy_of(place, folder, most), folder) as opened:
            session = Session(opened, "ana")
            found.append(Counter({domain: int(str(count)) for domain, count in rows(session, GROUPS)}))
    whole, *others = found
    assert max(sum(abs(whole[key] - less[key]) for key in whole | less) for less in others) == most
    owned = Counter(person for person, _ in data.owned_claims())
    assert sum(whole.values()) == sum(min(most, count) for count in owned.values())


GROUPS = "SELECT domain, COUNT(*) FROM claims GROUP BY domain"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("domain varchar", "domain date"), "compared with texts"),
        (
            ("drug integer, visit integer", "drug integer, visit integer, pid bigint"),
            "the paths to the unit end at keys of types",
        ),
        (("domain varchar, ", ""), 'no column "domain"'),
    ],
)
def test_what_the_database_cannot_tell_is_refused(
    place: Place, tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    place.fresh()
    tables = (
        "visits (pid integer, visit integer)",
        "drugs (drug integer, visit integer)",
        CLAIMS,
        "parts (claim integer, size integer)",
    )
    place.run(*(f"CREATE TABLE keys.{table}".replace(*change) for table in tables))
    path = policy_of(place, tmp_path)
    text = path.read_text(encoding="utf-8").replace(
        'columns.domain = { type = "text"', 'columns.other = { type = "text"'
    )
    text = text.replace('columns.other = { type = "text", values = ["visit", "drug", "re\'fill", "other"] }\n', "")
    if "bigint" in change[1]:
        text = text.replace(
            'unit_via = { table = "visits", on = { visit = "visit" } }', 'unit_key = "pid"\nmax_rows = 3'
        )
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidPolicy, match=says), silent_engine(path, tmp_path):
        pass


CLAIMS = "claims (claim integer, domain varchar, event integer, cost integer)"
