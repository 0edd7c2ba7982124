"""Engine errors: their texts, and the notices beside them, quote rows; neither client nor log may have them.

The tables are views that fail, and raise notices, over the target's row alone, so every query fails in the middle of a
read. A gateway of its own is asked, and all that it has answered and written is searched.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from dpsql.errors import BackendFailure
from dpsql.ledger import SqliteLedger
from dpsql.wire.scram import make_verifier
from tests.attacks.arena import Arena, Comparison, Verdict, together
from tests.attacks.naive import Refused
from tests.attacks.test_secrets import PASSWORD, SECONDS, Program, port_of, running

CANARY = "canary of the target"
VIEW = """
CREATE VIEW main.people AS SELECT person, CAST({age} AS integer) AS age, city FROM main.told
"""
NOTICE = """
CREATE FUNCTION main.noticed(text) RETURNS text VOLATILE LANGUAGE plpgsql AS
$$ BEGIN RAISE NOTICE '%', $1; RAISE WARNING '%', $1; RETURN $1; END $$
"""
TABLE = (
    "CREATE SCHEMA IF NOT EXISTS main",
    "CREATE TABLE main.told (person integer, city text)",
    f"INSERT INTO main.told VALUES (1, '7'), (2, '8'), (3, '{CANARY}')",
)
# Of Parquet no view can fail: tests/backends/test_duckdb_files.py has a file that does.
STATEMENTS = {
    "duckdb": (*TABLE, VIEW.format(age="city")),
    "postgresql": (*TABLE, NOTICE, VIEW.format(age="main.noticed(city)")),
}
POLICY = """
version = 1
[dataset]
name = "told"
url = "{url}"
schema = "main"
privacy_unit = "person"
reply_quantum = "0 ms"
budget = {{ epsilon = 1000, delta = 1e-2 }}
[roles.analyst]
budget = {{ epsilon = 100, delta = 1e-2 }}
query = {{ epsilon = 1, delta = 1e-6, max_epsilon = 10 }}
[tables.people]
unit_key = "person"
max_rows = 1
[tables.people.columns]
age = {{ type = "integer", lower = 0, upper = 110 }}
city = {{ type = "text" }}
"""
QUESTIONS = (
    "SELECT SUM(age) FROM people",
    "SELECT city, AVG(age) FROM people GROUP BY city",
    "SELECT MEDIAN(age) FROM people",
    "SELECT age, COUNT(*) FROM people GROUP BY age",
    "DECLARE c CURSOR WITH HOLD FOR SELECT MAX(age) FROM people",
    "COPY (SELECT COUNT(age) FROM people WHERE age < 9) TO STDOUT",
)


@contextmanager
def serving(arena: Arena, engine: str) -> Iterator[Program]:
    """A gateway of its own over the views, with a user for each question."""
    folder = arena.folder / f"told-{engine}"
    folder.mkdir()
    url = arena.held(arena.hosts[engine].make(*STATEMENTS[engine]))
    policy, ledger = folder / "told.toml", folder / "ledger.sqlite"
    policy.write_text(POLICY.format(url=url), encoding="utf-8")
    opened = SqliteLedger(ledger)
    for number in range(len(QUESTIONS)):
        opened.add_account(f"user{number}", "analyst", make_verifier(PASSWORD))
    opened.close()
    words = ("-m", "dpsql", "serve", str(policy), "--port", "0", "--ledger", f"sqlite:///{ledger}")
    with running(folder, ledger, *words) as program:
        yield program


def told(port: str, number: int) -> str:
    """All that a client gets for a question, with its notices."""
    heard: list[str] = []
    try:
        place = f"postgresql://user{number}:{PASSWORD}@127.0.0.1:{port}/told"
        with psycopg.connect(place, autocommit=True) as client:
            client.add_notice_handler(lambda notice: heard.append(repr(notice)))
            if QUESTIONS[number].startswith("COPY"):
                with client.cursor() as cursor, cursor.copy(QUESTIONS[number].encode()) as copy:
                    heard += map(str, copy)
            else:
                heard.append(str(client.execute(QUESTIONS[number].encode()).statusmessage))
    except psycopg.Error as error:
        heard.append(f"{error} {error.diag.message_detail} {error.diag.context}")
    return " ".join(heard)


def on_engine(arena: Arena, engine: str) -> Verdict:
    with serving(arena, engine) as program:
        port = port_of(program)
        answers = [told(port, number) for number in range(len(QUESTIONS))]
        program.process.send_signal(signal.SIGTERM)
        program.process.wait(SECONDS)
        log = program.log.read_text(encoding="utf-8")
    assert all(BackendFailure.SENTENCE in answer for answer in answers), answers
    assert log.count("engine query failed") == len(QUESTIONS), log
    telling = [text for text in (*answers, log) if CANARY in text]
    return Verdict(f"{len(telling)} of {len(QUESTIONS) + 1} texts tell", bool(telling))


def naive(arena: Arena) -> Verdict:
    """The naive gateway tells the engine's own words."""
    gateway = arena.naive(True)
    texts = []
    for sql in QUESTIONS[:4]:
        try:
            texts.append(str(gateway.ask(sql.replace("age", "CAST(city AS integer)"))))
        except Refused as refused:
            texts.append(str(refused))
    telling = [text for text in texts if "town" in text or "Nowhere" in text]
    return Verdict(f"{len(telling)} of 4 texts tell", bool(telling))


def compare(arena: Arena) -> Comparison:
    return Comparison(
        "texts of engine errors", naive(arena), together({engine: on_engine(arena, engine) for engine in STATEMENTS})
    )


def test_engine_errors(arena: Arena) -> None:
    compare(arena).check()
