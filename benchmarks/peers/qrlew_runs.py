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


def described(task: dict[str, Any], database: Any) -> Any:
    """The table as Qrlew is told of it: bounds and keys declared, as in dpsql's policy."""
    engine = sqlalchemy.create_engine("sqlite://")
    rows = database.execute("SELECT user_id, CAST(day AS VARCHAR), region, income FROM incomes").fetchall()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE incomes (user_id INTEGER, day DATE, region TEXT, income INTEGER)")
        connection.exec_driver_sql("INSERT INTO incomes VALUES (?, ?, ?, ?)", rows)
    dataset = Dataset.from_database("accuracy", engine, None)
    dataset = dataset.with_range(None, "incomes", "income", 0, task["upper"])
    return dataset.with_possible_values(None, "incomes", "region", task["regions"])


def rewritten(task: dict[str, Any], dataset: Any, sql: str) -> tuple[str, Any]:
    relation = Relation.from_query(sql, dataset, Dialect.PostgreSql).rewrite_with_differential_privacy(
        dataset,
        [("incomes", [], "user_id")],
        {"epsilon": task["epsilon"], "delta": task["delta"]},
        max_multiplicity=float(task["max_rows"]),
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
    database.execute("CREATE TABLE incomes AS SELECT * FROM read_parquet(?)", [task["file"]])
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
