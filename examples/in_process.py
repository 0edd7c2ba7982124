"""The demo clinic, asked in this process: for people who may read the database anyway.

    python examples/in_process.py [demo/clinic.toml]

The ledger is the demo's own, so what the gateway has answered user ana costs nothing here, and the other way round.
"""

import sys
from pathlib import Path

import dpsql

ELDERS = "SELECT sex, COUNT(*) AS patients FROM patients WHERE age > %(age)s GROUP BY sex ORDER BY sex"


def main(policy: Path) -> None:
    """Ask a question with a parameter, and one that is refused."""
    ledger = f"sqlite:///{policy.with_name('ledger.sqlite')}"
    with dpsql.connect(policy, user="ana", ledger=ledger) as connection:
        cursor = connection.cursor()
        cursor.execute(ELDERS, {"age": 60})
        for sex, patients in cursor:
            print(f"{sex}\t{patients}")
        if release := cursor.release:
            print(f"price: {release.cost}, {'given before' if release.reused else 'new'}")
            print(f"left: {release.remaining}; standard errors: {release.error}")
        try:
            cursor.execute("SELECT * FROM patients WHERE age > %(age)s", {"age": 60})
        except dpsql.Error as error:
            print(f"{type(error).__name__} {error.sqlstate}: {error}")
            print(f"hint: {error.hint}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo/clinic.toml"))
