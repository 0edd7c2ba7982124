"""The demo clinic, asked from Python over the network.

    python examples/network.py

PGHOST, PGPORT, PGDATABASE, PGUSER and PGPASSWORD name the gateway: examples/README.md.
"""

import psycopg
from psycopg.errors import Diagnostic

ELDERS = "SELECT sex, COUNT(*) AS patients FROM patients WHERE age > %s GROUP BY sex ORDER BY sex"


def tell(notice: Diagnostic) -> None:
    """Print a notice: each answer has one, with its price, what is left, and how exact it is."""
    print(notice.message_primary)


def main() -> None:
    """Ask a question with a parameter, and one that is refused."""
    with psycopg.connect() as connection:
        connection.add_notice_handler(tell)
        for sex, patients in connection.execute(ELDERS, [60]):
            print(f"{sex}\t{patients}")
        try:
            connection.execute("SELECT * FROM patients WHERE age > %s", [60])
        except psycopg.Error as error:
            print(f"{type(error).__name__} {error.sqlstate}: {error.diag.message_primary}")
            print(f"hint: {error.diag.message_hint}")


if __name__ == "__main__":
    main()
