"""Qrlew's answers: python qrlew_runs.py TASK, a JSON file; prints JSON.

Qrlew rewrites a query into SQL that makes its own noise; that SQL, in PostgreSQL's dialect, is run by DuckDB, and each
run is fresh noise.
"""

import json
import sys
import time
from typing import Any

import duckdb
import sqlalchemy
from pyqrlew import Dataset, Dialect, Relation  # type: ignore[import-not-found]  # it is in another environment

KINDS = {"text": "TEXT", "date": "DATE", "integer": "INTEGER", "double": "DOUBLE"}


def described(task: dict[str, Any], database: Any) -> Any:
    """The tables as Qrlew is told of them: bounds and keys declared, as in dpsql's policy."""
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.begin() as connection:
        for table in task["tables"]:
            columns = {name: KINDS[column["type"]] for name, column in table["columns"].items()}
            columns |= {table["unit"]: "INTEGER"} if table["unit"] else {}
            casts = {"DATE": "VARCHAR", "INTEGER": "BIGINT", "TEXT": "VARCHAR"}
            named = [f"CAST({name} AS {casts.get(kind, kind)})" for name, kind in columns.items()]
            rows = database.execute(f"SELECT {', '.join(named)} FROM {table['name']}").fetchall()
            described = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            connection.exec_driver_sql(f"CREATE TABLE {table['name']} ({described})")
            places = ", ".join("?" for _ in columns)
            connection.exec_driver_sql(f"INSERT INTO {table['name']} VALUES ({places})", rows)
    dataset = Dataset.from_database("peers", engine, None)
    for table in task["tables"]:
        for name, column in table["columns"].items():
            values = column.get("values", [column[end] for end in ("lower", "upper") if end in column])
            if values and column["type"] == "text":
                dataset = dataset.with_possible_values(None, table["name"], name, values)
            elif values:
                dataset = dataset.with_range(None, table["name"], name, min(values), max(values))
    return dataset


def rewritten(task: dict[str, Any], dataset: Any, sql: str) -> tuple[str, Any]:
    relation = Relation.from_query(sql, dataset, Dialect.PostgreSql).rewrite_with_differential_privacy(
        dataset,
        [(table["name"], [], table["unit"]) for table in task["tables"] if table["unit"]],
        {"epsilon": task["epsilon"], "delta": task["delta"]},
        max_multiplicity=float(max(table["max_rows"] for table in task["tables"] if table["name"] in sql)),
        max_multiplicity_share=1.0,
        max_privacy_unit_groups=task["max_groups"],
    )
    return relation.relation().to_query(Dialect.PostgreSql), relation.dp_event().to_dict()


def terms(event: Any) -> str:
    """The mechanisms that Qrlew itself lists."""
    events = event.get("events", [event])
    listed = []
    for each in events:
        if "noise_multiplier" in each:
            listed.append(f"Gaussian, multiplier {each['noise_multiplier']:.3g}")
        else:
            listed.append(f"{each['class_name']} ε = {each.get('epsilon', 0):.3g}")
    return "; ".join(listed)


def answers(task: dict[str, Any], database: Any, dataset: Any, sql: str) -> dict[str, Any]:
    written, event = rewritten(task, dataset, sql)
    begun, runs = time.monotonic(), []
    for _ in range(task["repeats"]):
        rows = database.execute(written).fetchall()
        runs.append([[*map(str, row[:-1]), float(row[-1])] for row in rows if row[-1] is not None])
        if time.monotonic() - begun > task["seconds"]:
            break
    return {"runs": runs, "terms": terms(event)}


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        task = json.load(file)
    database = duckdb.connect(":memory:")
    for table in task["tables"]:
        database.execute(f"CREATE TABLE {table['name']} AS SELECT * FROM read_parquet(?)", [table["file"]])
    dataset = described(task, database)
    found: dict[str, Any] = {}
    for name, sql in task["queries"].items():
        try:
            found[name] = answers(task, database, dataset, sql)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # what Rust panics with is no Exception
            found[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
