"""SmartNoise SQL's answers: python smartnoise_runs.py TASK, a JSON file; prints JSON.

SmartNoise charges every noisy column its whole ε. So a query is priced first, and ε and δ are scaled down until
its own account of the query is the total asked for.
"""

import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import duckdb
from snsql import Privacy, from_connection  # type: ignore[import-not-found]  # it is in another environment


class Cursor:
    """A cursor whose rows are iterated over."""

    def __init__(self, database: Any) -> None:
        self._cursor = database.cursor()

    def execute(self, sql: str) -> None:
        self._cursor.execute(sql)

    @property
    def description(self) -> Any:
        return self._cursor.description

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor.fetchall())


class Connection:
    """DuckDB behind SmartNoise's reader for PostgreSQL, whose SQL it understands."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def cursor(self) -> Cursor:
        return Cursor(self._database)

    def commit(self) -> None:
        """Nothing is written."""

    def rollback(self) -> None:
        """Nothing was written."""


KINDS = {"text": "string", "date": "datetime", "integer": "int", "double": "float"}


def metadata(task: dict[str, Any]) -> dict[str, Any]:
    return {"": {"main": {table["name"]: described(table) for table in task["tables"] if table["unit"]}}}


def described(table: dict[str, Any]) -> dict[str, Any]:
    columns = {
        name: {"type": KINDS[column["type"]]} | {end: column[end] for end in ("lower", "upper") if end in column}
        for name, column in table["columns"].items()
    }
    columns[table["unit"]] = {"type": "int", "private_id": True}
    terms = {"rows": table["rows"], "max_ids": table["max_rows"], "censor_dims": False, "clamp_counts": False}
    return {**terms, "row_privacy": False, "clamp_columns": True, **columns}


def answers(task: dict[str, Any], database: Any, sql: str) -> dict[str, Any]:
    """The answers to one query, each made anew."""
    names = "|".join(table["name"] for table in task["tables"])
    sql = re.sub(rf"\b(FROM|JOIN) ({names})\b", r"\1 main.\2", sql).replace("DATE '", "'")

    def reader(epsilon: float, delta: float) -> Any:
        privacy = Privacy(epsilon=epsilon, delta=delta)
        return from_connection(Connection(database), privacy=privacy, metadata=metadata(task), engine="postgres")

    price, _ = reader(1.0, task["delta"]).get_privacy_cost(sql)
    epsilon = task["epsilon"] / float(price)
    asked = reader(epsilon, task["delta"])
    parsed = asked.parse_query_string(sql)  # once: its parser takes seconds
    begun, runs = time.monotonic(), []
    for _ in range(task["repeats"]):
        rows = asked._execute_ast(parsed)[1:]
        runs.append([[*map(str, row[:-1]), float(row[-1])] for row in rows if row[-1] is not None])
        if time.monotonic() - begun > task["seconds"]:
            break
    return {
        "runs": runs,
        "terms": f"ε = {epsilon:.4g} for each noisy column, by its own account {task['epsilon']:g} in all",
    }


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        task = json.load(file)
    database = duckdb.connect(":memory:")
    for table in task["tables"]:
        database.execute(f"CREATE TABLE {table['name']} AS SELECT * FROM read_parquet(?)", [table["file"]])
    found: dict[str, Any] = {}
    for name, sql in task["queries"].items():
        try:
            found[name] = answers(task, database, sql)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
