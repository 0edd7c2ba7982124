"""Build a dashboard over the demo clinic in Apache Superset through its API, and refresh it ten times.

    python examples/superset_dashboard.py "postgresql+psycopg2://ana:…@127.0.0.1:6543/clinic"

Superset is to run at --superset; docs/superset.md says how. It needs `requests` and `psycopg2`, which Superset has.
"""

import argparse
import json
from typing import Any

import psycopg2
import requests

FILTERED = "2021-01-01 : 2026-01-01"


def metric(sql: str) -> dict[str, Any]:
    """An aggregate, named as it is written."""
    return {"expressionType": "SQL", "sqlExpression": sql, "label": sql}


def axis(column: str, **grain: str) -> dict[str, Any]:
    """The column along the x axis."""
    return {"columnType": "BASE_AXIS", "expressionType": "SQL", "sqlExpression": column, "label": column, **grain}


ROWS, PEOPLE = metric("COUNT(*)"), metric("COUNT(DISTINCT patient_id)")

# Title, kind, table; what the chart's form says; the query that Superset's pages make of the form.
CHARTS: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
    ("Patients", "big_number_total", "patients", {"metric": ROWS}, {"metrics": [ROWS]}),
    (
        *("Visits by diagnosis", "echarts_timeseries_bar", "visits"),
        {"x_axis": "icd", "metrics": [ROWS], "x_axis_sort": "COUNT(*)", "x_axis_sort_asc": False},
        {"columns": [axis("icd")], "metrics": [ROWS], "orderby": [[ROWS, False]]},
    ),
    (
        *("Visits by month", "echarts_timeseries_line", "visits"),
        {"x_axis": "visited_on", "time_grain_sqla": "P1M", "metrics": [ROWS]},
        {"columns": [axis("visited_on", timeGrain="P1M")], "metrics": [ROWS], "orderby": [[ROWS, False]]},
    ),
    (
        *("Visits by town", "table", "visits"),
        {"groupby": ["city"], "metrics": [ROWS, PEOPLE], "order_desc": True, "query_mode": "aggregate"},
        {"columns": ["city"], "metrics": [ROWS, PEOPLE], "orderby": [[ROWS, False]]},
    ),
]


class Superset:
    """A session with Superset's API.

    Args:
        url: Where it runs.
        user: A user who may add databases.
        password: The user's.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self._api = f"{url}/api/v1"
        self._http = requests.Session()
        login = self.call("POST", "security/login", username=user, password=password, provider="db")
        self._http.headers["Authorization"] = f"Bearer {login['access_token']}"
        self._http.headers["X-CSRFToken"] = self.call("GET", "security/csrf_token/")["result"]
        self._http.headers["Referer"] = url

    def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """What a call answers; SystemExit with Superset's words where it fails."""
        answer = self._http.request(method, f"{self._api}/{path}", json=body or None, timeout=120)
        if not answer.ok:
            raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    def make(self, kind: str, **fields: Any) -> int:
        """Make a database, dataset, chart or dashboard, and return its number."""
        return int(self.call("POST", f"{kind}/", **fields)["id"])


def build(superset: Superset, uri: str) -> tuple[int, list[int]]:
    """A dashboard with a filter and the charts; their numbers."""
    database = superset.make("database", database_name="clinic", sqlalchemy_uri=uri, expose_in_sqllab=True)
    tables = {
        name: superset.make("dataset", database=database, schema="public", table_name=name)
        for name in ("patients", "visits")
    }
    dashboard = superset.make("dashboard", dashboard_title="Clinic", published=True)
    charts = []
    for title, kind, table, form, query in CHARTS:
        form = {"viz_type": kind, "datasource": f"{tables[table]}__table", "row_limit": 1000, **form}
        query = {"row_limit": 1000, **query}
        if table == "visits":
            within = {"subject": "visited_on", "operator": "TEMPORAL_RANGE", "comparator": FILTERED}
            form["adhoc_filters"] = [{"clause": "WHERE", "expressionType": "SIMPLE", **within}]
            query["filters"] = [{"col": "visited_on", "op": "TEMPORAL_RANGE", "val": FILTERED}]
        context = {"datasource": {"id": tables[table], "type": "table"}, "queries": [query], "form_data": form}
        charts.append(
            superset.make(
                "chart",
                **{"slice_name": title, "viz_type": kind, "datasource_id": tables[table], "datasource_type": "table"},
                **{"params": json.dumps(form), "query_context": json.dumps(context), "dashboards": [dashboard]},
            )
        )
    position, metadata = layout(charts), {"native_filter_configuration": [diagnosis_filter(tables["visits"], charts)]}
    superset.call(
        *("PUT", f"dashboard/{dashboard}"), position_json=json.dumps(position), json_metadata=json.dumps(metadata)
    )
    return dashboard, charts


def layout(charts: list[int]) -> dict[str, Any]:
    """Two rows of two charts."""
    found: dict[str, Any] = {
        "DASHBOARD_VERSION_KEY": "v2",
        "ROOT_ID": {"type": "ROOT", "id": "ROOT_ID", "children": ["GRID_ID"]},
        "GRID_ID": {"type": "GRID", "id": "GRID_ID", "children": ["ROW-0", "ROW-1"], "parents": ["ROOT_ID"]},
    }
    for number, pair in enumerate((charts[:2], charts[2:])):
        row, parents = f"ROW-{number}", ["ROOT_ID", "GRID_ID"]
        names = [f"CHART-{chart}" for chart in pair]
        meta: dict[str, Any] = {"background": "BACKGROUND_TRANSPARENT"}
        found[row] = {"type": "ROW", "id": row, "children": names, "parents": parents, "meta": meta}
        for name, chart, width in zip(names, pair, (4, 8) if number == 0 else (8, 4), strict=True):
            meta = {"chartId": chart, "width": width, "height": 45}
            found[name] = {"type": "CHART", "id": name, "children": [], "parents": [*parents, row], "meta": meta}
    return found


def diagnosis_filter(table: int, charts: list[int]) -> dict[str, Any]:
    """A box beside the dashboard: its values are the policy's, so that listing them is free."""
    return {
        **{"id": "NATIVE_FILTER-icd", "type": "NATIVE_FILTER", "filterType": "filter_select", "name": "Diagnosis"},
        **{"targets": [{"datasetId": table, "column": {"name": "icd"}}], "cascadeParentIds": []},
        **{"scope": {"rootPath": ["ROOT_ID"], "excluded": [charts[0]]}, "defaultDataMask": {"filterState": {}}},
        **{"controlValues": {"multiSelect": True, "enableEmptyFilter": False}},
    }


def spent(uri: str) -> tuple[int, float]:
    """How many releases the user has paid for, and how much of the user's epsilon is spent."""
    with psycopg2.connect(uri.replace("+psycopg2", "")) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM dpsql.releases")
        (releases,) = cursor.fetchone()
        cursor.execute("SELECT epsilon_spent FROM dpsql.budget WHERE scope = 'user'")
        (epsilon,) = cursor.fetchone()
    return releases, epsilon


def main() -> None:
    """Build the dashboard, then load its charts eleven times, and print what was paid after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uri", help="the gateway, as SQLAlchemy takes it")
    parser.add_argument("--superset", default="http://127.0.0.1:8088", help="default: %(default)s")
    parser.add_argument("--user", default="admin", help="default: %(default)s")
    parser.add_argument("--password", default="admin", help="default: %(default)s")
    options = parser.parse_args()
    superset = Superset(options.superset, options.user, options.password)
    print("before:", *spent(options.uri))
    dashboard, charts = build(superset, options.uri)
    print(f"built {options.superset}/superset/dashboard/{dashboard}/:", *spent(options.uri))
    for load in range(11):
        for chart in charts:
            superset.call("GET", f"chart/{chart}/data/?force=true")  # past Superset's own cache
        print("first load:" if load == 0 else f"refresh {load}:", *spent(options.uri))


if __name__ == "__main__":
    main()
