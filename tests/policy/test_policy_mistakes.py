"""Each mistake in a policy file is told by file, line and key, with the line that would be right."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from dpsql.errors import InvalidPolicy
from dpsql.policy import load_policy

GOOD = """\
version = 1

[dataset]
name = "clinic"
url = "duckdb:///clinic.duckdb"
privacy_unit = "patient"
data_version = "2026-11"
budget = { epsilon = 20, delta = 1e-6 }

[roles.analyst]
budget = { epsilon = 5, delta = 1e-6 }
query = { epsilon = 0.1, max_epsilon = 1.0 }
tables = ["patients", "visits"]

[tables.patients]
unit_key = "patient_id"
max_rows = 1
[tables.patients.columns]
age = { type = "integer", lower = 0, upper = 110 }
sex = { type = "text", values = ["F", "M"] }
weight = { type = "double", lower = 1, upper = 300, step = 0.1 }
born = { type = "date", lower = 1900-01-01, upper = 2026-12-31 }

[tables.visits]
unit_key = "patient_id"
max_rows = 50
[tables.visits.columns]
icd = { type = "text", values_from = "icd10.code" }
seen = { type = "timestamptz", lower = 2020-01-01T00:00:00Z, upper = 2026-12-31T23:59:59Z }
arrived = { type = "timestamp", lower = 2020-01-01T00:00:00, upper = 2026-12-31T23:59:59 }
visit_id = { type = "integer" }

[tables.prescriptions]
unit_via = { table = "visits", on = { visit_id = "visit_id" } }
[tables.prescriptions.columns]
drug = { type = "text" }
visit_id = { type = "bigint" }

[tables.icd10]
public = true
[tables.icd10.columns]
code = { type = "text" }
rank = { type = "integer" }
score = { type = "double" }
"""
DRUG = 'drug = { type = "text" }'
AGE = 'age = { type = "integer", lower = 0, upper = 110 }'
SEX = 'sex = { type = "text", values = ["F", "M"] }'
WEIGHT = 'weight = { type = "double", lower = 1, upper = 300, step = 0.1 }'
BORN = 'born = { type = "date", lower = 1900-01-01, upper = 2026-12-31 }'
ICD = 'icd = { type = "text", values_from = "icd10.code" }'
SEEN = 'seen = { type = "timestamptz", lower = 2020-01-01T00:00:00Z, upper = 2026-12-31T23:59:59Z }'
ARRIVED = 'arrived = { type = "timestamp", lower = 2020-01-01T00:00:00, upper = 2026-12-31T23:59:59 }'
VIA = 'unit_via = { table = "visits", on = { visit_id = "visit_id" } }'
CAP = "budget = { epsilon = 20, delta = 1e-6 }"
BUDGET = "budget = { epsilon = 5, delta = 1e-6 }"
QUERY = "query = { epsilon = 0.1, max_epsilon = 1.0 }"
UNIT = 'unit_key = "patient_id"\nmax_rows = 1\n'
URL = 'url = "duckdb:///clinic.duckdb"'
PATIENTS = "tables.patients"
ON_DRUG = "tables.prescriptions.columns.drug"
ON_AGE = "tables.patients.columns.age"
PRIVATE_ONLY = """\
[tables.patients]
unit_key = "patient_id"
max_rows = 1
[tables.patients.columns]
city = { type = "text" }
"""


@dataclass(frozen=True)
class Mistake:
    """A good policy with one text replaced by another, and what must be said about it.

    Attributes:
        old: Text of GOOD; its first place counts.
        new: What stands there instead.
        key: The key that is told.
        what: Part of what is wrong.
        hint: Part of the hint that is expected.
        at: A text on the line that is told; by default "# here", and if there is none the first line of `new`.
    """

    old: str
    new: str
    key: str
    what: str
    hint: str
    at: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.what}"


def drug(new: str, key: str, what: str, hint: str) -> Mistake:
    """Return the mistake of a column that says this."""
    name = f"{ON_DRUG}.{key}" if key and not key.startswith("[") else f"{ON_DRUG}{key}"
    return Mistake(DRUG, f"drug = {{ {new} }}", name, what, hint)


def values(sql_type: str, listed: str, what: str, hint: str) -> Mistake:
    """Return the mistake of a domain whose second value is wrong."""
    return drug(f'type = "{sql_type}", values = [{listed}]', "values[1]", what, hint)


def dataset(line: str, what: str, hint: str) -> Mistake:
    """Return the mistake of a line added to [dataset]."""
    return Mistake(CAP, f"{line}\n{CAP}", f"dataset.{line.partition(' ')[0]}", what, hint)


def url(value: str, what: str, hint: str) -> Mistake:
    return Mistake(URL, f"url = {value}", "dataset.url", what, hint)


def made_of(new: str, key: str, what: str, hint: str) -> Mistake:
    """Return the mistake of files that say this."""
    return Mistake(VIA, f"{VIA}\nfiles = {{ {new} }} # here", f"tables.prescriptions.files{key}", what, hint)


def budget(new: str, key: str, what: str, hint: str) -> Mistake:
    return Mistake(BUDGET, f"budget = {{ {new} }}", f"roles.analyst.budget{key}", what, hint)


def query(new: str, key: str, what: str, hint: str) -> Mistake:
    return Mistake(QUERY, f"query = {{ {new} }}", f"roles.analyst.query{key}", what, hint)


TOP = [
    Mistake("version = 1", "version = 2", "version", "version 1", "needs a newer dpsql"),
    Mistake("version = 1", "version = 0", "version", "version 1", "write: version = 1"),
    Mistake("version = 1", "version = true", "version", "version 1", "write: version = 1"),
    Mistake("version = 1", "version = 1.0", "version", "version 1", "write: version = 1"),
    Mistake("version = 1\n", "", "", "version is missing", "version = 1"),
    Mistake("version = 1", "version = 1\nroels = 2", "roels", "unknown key", 'did you mean "roles"?', at="roels"),
    Mistake("version = 1", "version = 1\nxyz = 2", "xyz", "unknown key", "one of: dataset, groups, roles", at="xyz"),
    Mistake("version = 1", "version = 1\nversion = 1 # here", "", "not valid TOML, column 12", "keep one of both"),
    Mistake("version = 1", "version 1", "", "not valid TOML, column 9", "key = value"),
]
DATASET = [
    Mistake('name = "clinic"\n', "", "dataset", "name is missing", 'name = "clinic"', at="[dataset]"),
    Mistake(f"{URL}\n", "", "dataset", "url is missing", "duckdb:///clinic.duckdb", at="[dataset]"),
    Mistake('privacy_unit = "patient"\n', "", "dataset", "privacy_unit is missing", '"patient"', at="[dataset]"),
    Mistake(CAP, "", "dataset", "budget is missing", "budget = { epsilon = 20, delta = 1e-6 }", at="[dataset]"),
    Mistake(
        'name = "clinic"', "name = 7", "dataset.name", "a text is expected here, not an integer", 'name = "clinic"'
    ),
    Mistake('name = "clinic"', 'name = " "', "dataset.name", "an empty text", 'name = "clinic"'),
    Mistake('name = "clinic"', 'name = "a\\tb"', "dataset.name", "cannot name a dataset", "letters, digits"),
    Mistake('name = "clinic"', f'name = "{"ä" * 32}"', "dataset.name", "longer than 63 bytes", "at most 63 bytes"),
    Mistake('"patient"', '"pa\\u0000t"', "dataset.privacy_unit", "control character", "u0000", at="privacy_unit"),
    Mistake('"2026-11"', "2026", "dataset.data_version", "not an integer", 'data_version = "2026-11"', at="data_ver"),
    Mistake('"2026-11"', "2026-11-01", "dataset.data_version", "not a date", '"2026-11"', at="data_version"),
    dataset('adjacency = "add-remove"', "none of add_remove, substitute", 'did you mean "add_remove"?'),
    dataset('reply_quantum = "5 s"', 'not "N ms"', 'reply_quantum = "100 ms"'),
    dataset('reply_quantum = "60001 ms"', "up to 60000", 'reply_quantum = "100 ms"'),
    dataset("reply_quantum = 5", "a text is expected here", 'reply_quantum = "0 ms"'),
    dataset('timezone = "Europe/Berln"', "not an IANA time zone", 'did you mean "Europe/Berlin"?'),
    dataset('timezone = "localtime"', "not an IANA time zone", 'timezone = "UTC"'),
    dataset('timezone = "../../etc/passwd"', "not an IANA time zone", 'timezone = "UTC"'),
    dataset('schema = "pg_catalog"', "reserved for the gateway", "another schema"),
    dataset('cap = ""', "an empty text", 'cap = "clinic-people"'),
    url(
        '"mysql://root:secret@host/db"',
        "must start with duckdb:///, parquet:///, s3://, postgresql:// or spark://",
        "postgresql://reader@host/db",
    ),
    url(
        '"duckdb"',
        "must start with duckdb:///, parquet:///, s3://, postgresql:// or spark://",
        "duckdb:///clinic.duckdb",
    ),
    url('"duckdb://clinic.duckdb"', "duckdb:/// and a path", "duckdb:///clinic.duckdb"),
    url('"duckdb:///"', "duckdb:/// and a path", "duckdb:///clinic.duckdb"),
    url('"duckdb:///a?read_only=1"', "without parameters", "duckdb:///clinic.duckdb"),
    url('"duckdb:///loop/x"', "cannot be resolved", "duckdb:///clinic.duckdb"),
    url('"postgresql://${DPSQL_UNSET}@host/db"', "${DPSQL_UNSET} is not in the environment", "export DPSQL_UNSET="),
    url('"postgresql://${x y}@host/db"', "must be followed by a name", "${PASSWORD}"),
    url('"postgresql://secret@host/d b"', "must not contain spaces", "%20"),
    url('["postgresql://u:secret@host/db"]', "a text is expected here, not an array", "duckdb:///clinic.duckdb"),
]
NUMBERS = [
    budget(f"epsilon = {number}, delta = 1e-6", ".epsilon", what, "write: epsilon = 5")
    for number, what in [
        ("nan", "not a finite number"),
        ("inf", "not a finite number"),
        ("-inf", "not a finite number"),
        ("1e99999999999999999999", "not a finite number"),
        ("1e-400", "beyond the range"),
        ("1e308", "beyond the range"),
        ("1e99999999", "beyond the range"),
        (f"0x{'f' * 150}", "an integer of 600 bits is beyond the range"),
        ("0", "0 is not between 1e-9 and 1e4"),
        ("-1", "-1 is not between 1e-9 and 1e4"),
        ("1e-10", "1E-10 is not between"),
        ("10001", "10001 is not between"),
        ("true", "a number is expected here, not a boolean"),
        ('"5"', "a number is expected here, not a text"),
        ("12:00:00", "not a time"),
    ]
]
BUDGETS = [
    Mistake(BUDGET, "budget = 5", "roles.analyst.budget", "a table is expected here, not an integer", "epsilon = 5"),
    budget("delta = 1e-6", "", "epsilon is missing", "epsilon = 5"),
    budget("epsilon = 5", "", "delta is missing", "delta = 1e-6"),
    budget("epsilon = 5, delta = 0", ".delta", "zcdp needs a delta above 0", 'accountant = "pure"'),
    budget("epsilon = 5, delta = 0.5", ".delta", "0.5 is not between 1e-20 and 0.1", "delta = 1e-6"),
    budget("epsilon = 5, delta = 1e-21", ".delta", "not between 1e-20 and 0.1", "delta = 1e-6"),
    budget("epsilon = 5, delta = -1e-6", ".delta", "not between", "delta = 1e-6"),
    budget('epsilon = 5, delta = 1e-6, accountant = "pure"', ".delta", "requires", 'delta = 0, or accountant = "zcdp"'),
    budget('epsilon = 5, delta = 1e-6, accountant = "moments"', ".accountant", "none of", "one of"),
    budget('epsilon = 5, delta = 0, accountant = "rdp"', ".delta", "rdp needs a delta above 0", 'accountant = "pure"'),
    budget('epsilon = 5, delta = 0, accountant = "advanced"', ".delta", "advanced needs", 'accountant = "pure"'),
    budget('epsilon = 5, delta = 1e-6, accountant = "rdp", selection_share = 0.5', ".selection_share",
           "the rdp accountant does not split delta", "remove selection_share"),
    budget('epsilon = 5, delta = 1e-6, accountant = "zcpd"', ".accountant", "none of", 'did you mean "zcdp"?'),
    budget('epsilon = 5, delta = 1e-6, window = "1 week"', ".window", '"N days"', 'window = "30 days"'),
    budget('epsilon = 5, delta = 1e-6, window = "0 days"', ".window", '"N days"', 'window = "30 days"'),
    budget('epsilon = 5, delta = 1e-6, window = "3661 days"', ".window", "up to 3660", 'window = "30 days"'),
    budget("epsilon = 5, delta = 1e-6, selection_share = 1", ".selection_share", "0.01 and 0.99", "= 0.5"),
    budget("epsilon = 5, delta = 1e-6, selection_share = 1.5", ".selection_share", "0.01 and 0.99", "= 0.5"),
    budget("epsilon = 5, delta = 1e-6, selection_share = -0.5", ".selection_share", "0.01 and 0.99", "= 0.5"),
    budget('epsilon = 5, accountant = "pure", selection_share = 0.5', ".selection_share", "not split delta", "remove"),
    budget("epsilon = 5, delta = 1e-6, epsilom = 1", ".epsilom", "unknown key", 'did you mean "epsilon"?'),
    Mistake(CAP, CAP[:-2] + ', window = "30 days" }', "dataset.budget.window", "never renews", "remove window"),
    Mistake("[tables.patients]", "[groups.team] # here\n[tables.patients]", "groups.team",
            "budget is missing", "epsilon = 8"),
    Mistake("[tables.patients]", "[groups.team]\nwindow = 3\n[tables.patients]", "groups.team.window", "unknown key",
            "budget", at="window"),
    Mistake("[tables.patients]", f"[groups.team]\n{BUDGET}\ndescription = 3\n[tables.patients]",
            "groups.team.description", "a text is expected here", "The team", at="description"),
    Mistake("[tables.patients]",
            '[groups.team]\nbudget = { epsilon = 5, accountant = "pure" } # here\n[tables.patients]',
            "groups.team.budget", 'accountant "pure" for users of role "analyst"', 'accountant = "zcdp"'),
    Mistake(CAP, 'budget = { epsilon = 20, accountant = "pure" }', "roles.analyst.budget",
            'accountant "zcdp" under a cap with accountant "pure"', 'accountant = "pure"', at=BUDGET),
    Mistake(CAP, CAP[:-2] + ', accountant = "basic" }', "roles.analyst.budget",
            'accountant "zcdp" under a cap with accountant "basic"', 'accountant = "basic"', at=BUDGET),
]  # fmt: skip
QUERIES = [
    query("max_epsilon = 1", "", "epsilon is missing", "epsilon = 0.1"),
    query("epsilon = 6", ".epsilon", "epsilon = 6 exceeds the budget of 5", "epsilon = 0.1"),
    query("epsilon = 0.1, max_epsilon = 0.05", ".max_epsilon", "0.05 is below epsilon = 0.1", "max_epsilon = 0.1"),
    query("epsilon = 0.1, max_epsilon = 1e5", ".max_epsilon", "not between 1e-9 and 1e4", "max_epsilon = 1.0"),
    query("epsilon = 1e-10", ".epsilon", "not between 1e-9 and 1e4", "epsilon = 0.1"),
    query('epsilon = 0.1, mechanism = "gauss"', ".mechanism", "none of auto", 'did you mean "gaussian"?'),
    query("epsilon = 0.1, delta = 1e-6", ".delta", "exceeds the budget's delta", "delta = 5e-10"),
    query("epsilon = 0.1, delta = 1", ".delta", "1 is not between", "delta = 1e-9"),
    Mistake(f"{BUDGET}\n{QUERY}", 'budget = { epsilon = 5, accountant = "pure" }\n'
            'query = { epsilon = 0.1, mechanism = "gaussian" }', "roles.analyst.query.mechanism",
            "the pure accountant does not support Gaussian noise", 'mechanism = "laplace"', at="query"),
    Mistake(f"{BUDGET}\n{QUERY}", 'budget = { epsilon = 5, delta = 0, accountant = "basic" }\n'
            'query = { epsilon = 0.1, mechanism = "gaussian" }', "roles.analyst.query.mechanism",
            "Gaussian noise costs delta", 'mechanism = "laplace"', at="query"),
    Mistake(f"{BUDGET}\n{QUERY}", 'budget = { epsilon = 5, accountant = "pure" }\n'
            "query = { epsilon = 0.1, delta = 1e-9 }",
            "roles.analyst.query.delta", "requires delta = 0", "delta = 0", at="query"),
    Mistake(f"{BUDGET}\n{QUERY}", "budget = { epsilon = 5, delta = 1e-6, selection_share = 0 }\n"
            "query = { epsilon = 0.1, delta = 1e-9 }", "roles.analyst.query.delta",
            "exceeds the budget's delta for private keys", "a selection_share", at="query"),
]  # fmt: skip
ROLES = [
    Mistake(BUDGET, "", "roles.analyst", "budget is missing", "budget = { epsilon = 5", at="[roles.analyst]"),
    Mistake(QUERY, "", "roles.analyst", "query is missing", "query = { epsilon = 0.1", at="[roles.analyst]"),
    Mistake('["patients", "visits"]', "[]", "roles.analyst.tables", "an empty array", '"patients"', at="tables = []"),
    Mistake('["patients", "visits"]', '"visits"', "roles.analyst.tables", "an array is expected", "[", at="tables = "),
    Mistake('["patients", "visits"]', '["patients",\n"visit"] # here', "roles.analyst.tables[1]",
            '"visit" is not a table of this policy', 'did you mean "visits"?'),
    Mistake('["patients", "visits"]', '["visits", "visits"]', "roles.analyst.tables[1]", "stands twice",
            "remove one", at="tables = "),
    Mistake("[roles.analyst]", '[roles."a\\nb"]', 'roles."a\\nb"', "cannot name a role", "letters"),
]  # fmt: skip
TABLES = [
    Mistake(UNIT, "", PATIENTS, "needs unit_key or unit_via", 'unit_key = "COLUMN", the column', at="patients]"),
    Mistake(UNIT, f"{UNIT}{VIA}\n", f"{PATIENTS}.unit_via", "cannot be used together", "keep unit_key", at=VIA),
    Mistake(UNIT, 'unit_key = "id"\n', PATIENTS, "max_rows is missing", "max_rows = N", at="patients]"),
    *(
        Mistake("public = true", f"public = true\n{line} # here", f"tables.icd10.{key}", "no unit", f"remove {key}")
        for key, line in [
            ("unit_key", 'unit_key = "patient_id"'),
            ("unit_via", VIA),
            ("max_rows", "max_rows = 1"),
            ("max_groups", "max_groups = 1"),
            ("max_rows_per_group", "max_rows_per_group = 1"),
            ("min_units", "min_units = 10"),
        ]
    ),
    Mistake("public = true", "public = 1", "tables.icd10.public", "true or false is expected here", "public = true"),
    Mistake("max_rows = 1\n", "max_rows = 0\n", f"{PATIENTS}.max_rows", "0 is not between 1", "max_rows = 50"),
    Mistake("max_rows = 1\n", "max_rows = true\n", f"{PATIENTS}.max_rows", "number is expected", "max_rows = 50"),
    Mistake("max_rows = 1\n", "max_rows = 1.5\n", f"{PATIENTS}.max_rows", "number is expected", "max_rows = 50"),
    Mistake("max_rows = 50", "max_rows = 5_000_000_000", "tables.visits.max_rows", "between 1 and", "max_rows = 50"),
    Mistake(UNIT, f"{UNIT}max_row = 1 # here\n", f"{PATIENTS}.max_row", "unknown key", 'mean "max_rows"'),
    Mistake("[tables.patients]", "[tables.Visits]\npublic = true\n[tables.patients]", "tables.visits",
            '"visits" and "Visits" are the same table', "keep one", at="[tables.visits]"),
    Mistake("[tables.patients]", '[tables."main.visits"]\npublic = true\n[tables.patients]', "tables.visits",
            'the same table as "main.visits"', "keep one", at="[tables.visits]"),
    Mistake("[tables.patients]", '[tables."a.b.c"]\npublic = true\n[tables.patients]', 'tables."a.b.c"',
            "is not a table name", '[tables."sales.orders"]', at="a.b.c"),
    Mistake("[tables.patients]", '[tables." .c"]\npublic = true\n[tables.patients]', 'tables." .c"',
            "is not a table name", '[tables."sales.orders"]', at=" .c"),
    Mistake("[tables.patients]", '[tables."dpsql.c"]\npublic = true\n[tables.patients]', 'tables."dpsql.c"',
            "reserved for the gateway", "another schema", at="dpsql.c"),
    Mistake(AGE, f"{AGE}\nAGE = {{ type = 'integer' }}", "tables.patients.columns.AGE", "the same column", "keep one",
            at="AGE ="),
    Mistake(AGE, AGE + '\nPatient_ID = { type = "double" }', f"{PATIENTS}.unit_key",
            "double precision, whose values have no canonical form", "integer, text or uuid", at="unit_key"),
    Mistake('unit_key = "patient_id"', 'unit_key = "patient\\u0007"', f"{PATIENTS}.unit_key", "control character",
            "remove"),
]  # fmt: skip
UNIT_VIA = [
    Mistake(VIA, f'unit_via = {{ {new} }}', f"tables.prescriptions.unit_via{key}", what, hint)
    for new, key, what, hint in [
        ('table = "visits"', "", "on is missing", 'on = { visit_id = "visit_id" }'),
        ('on = { visit_id = "visit_id" }', "", "table is missing", 'table = "visits"'),
        ('table = "visit", on = { visit_id = "visit_id" }', ".table", "is not a table", 'did you mean "visits"?'),
        ('table = "icd10", on = { visit_id = "rank" }', ".table", "is public, so it has no unit", "one of: patients"),
        ('table = "visits", on = {}', ".on", "on must name at least one column", "visit_id"),
        ('table = "visits", on = { visit_id = 7 }', ".on.visit_id", "a text is expected", 'visit_id = "visit_id"'),
        ('table = "visits", on = { drug = "visit_id" }', ".on.drug", "text and integer", "of one type"),
        ('table = "patients", on = { x = "weight" }', ".on.x", '"x" and "weight" are double precision', "of one type"),
        ('table = "patients", on = { visit_id = "weight" }', ".on.visit_id", "bigint and double", "of one type"),
        ('table = "prescriptions", on = { visit_id = "visit_id" }', ".table",
         'forms a circle: "prescriptions" → "prescriptions"', "needs a unit_key"),
    ]
] + [
    Mistake("[tables.visits]\n" + UNIT.replace("1", "50"),
            '[tables.visits]\nunit_via = { table = "prescriptions", on = { visit_id = "visit_id" } }\nmax_rows = 50\n',
            "tables.prescriptions.unit_via.table", 'circle: "visits" → "prescriptions" → "visits"', "unit_key", at=VIA),
]  # fmt: skip
WAY = 'table = "visits", on = { visit_id = "visit_id" }'
SEVERAL_WAYS = [
    Mistake(VIA, f"unit_via = {new}", f"tables.prescriptions{key}", what, hint)
    for new, key, what, hint in [
        ("[]", ".unit_via", "an empty array", "unit_via = "),
        (f"[{{ {WAY} }}]", ".unit_via[0]", "one of several ways needs a condition", "domain = 'visit'"),
        (f"""[{{ {WAY}, where = "a = 1" }}, {{ {WAY} }}]""", ".unit_via[1]", "needs a condition", "where ="),
        (f"""[{{ {WAY}, where = "a = 1" }}, {{ {WAY}, where = "b = 2" }}]""", ".unit_via[1].where",
         "about the values of one column", "compare one column"),
        (f"""[{{ {WAY}, where = "a = 1" }}, {{ {WAY}, where = "a = '1'" }}]""", ".unit_via[1].where",
         "about the values of one column", "compare one column"),
        (f"""[{{ {WAY}, where = "a = 1" }}, {{ {WAY}, where = "a IN (2, 1)" }}]""", ".unit_via[1].where",
         "1 is in two conditions", "let each value go one way"),
        (f"""[{{ {WAY}, where = "a IN ('x', 'x')" }}]""", ".unit_via[0].where", "'x' is in two conditions", "one way"),
        (f"""{{ {WAY}, where = "a IN (1, '1')" }}""", ".unit_via.where", "texts and numbers", "write texts, or"),
        (f"""{{ {WAY}, where = "drug = 1" }}""", ".unit_via.where",
         '"drug" is text, and is compared with whole numbers', "texts with texts"),
        *(
            (f"""{{ {WAY}, where = "{where}" }}""", ".unit_via.where", "a condition compares a column", "IN ('visit'")
            for where in ("a", "a = b", "a <> 1", "a = 1 OR b = 2", "a IN ()", "1 = 1", "a = 1.5", "lower(a) = 'x'",
                          "a = 'x", "NOT a = 1", "a IN (1,)", "a = 9999999999999999999", "a = NULL", "TRUE")
        ),
    ]
] + [
    Mistake(VIA, f"""unit_via = [{{ {WAY}, where = "a = 1" }}, {{ {WAY}, where = "a = 2" }}]""", "tables.prescriptions",
            "max_rows is missing", "max_rows = N", at="[tables.prescriptions]"),
]  # fmt: skip
COLUMNS = [
    drug("nullable = true", "", "type is missing", 'type = "integer"'),
    drug('type = "text", nullable = 1', "nullable", "true or false", "nullable = false"),
    drug('type = "text", description = 1', "description", "a text is expected", "kg at first visit"),
    drug('type = "text", valeus = ["a"]', "valeus", "unknown key", 'did you mean "values"'),
    drug('type = "intger"', "type", '"intger" is not a type', '"integer"'),
    drug('type = "decimal(10,2)"', "type", "not a type", 'without a length: type = "decimal"'),
    drug('type = "string"', "type", "not a type", 'type = "text"'),
    drug('type = "anyarray"', "type", "not a type", "one of: bigint"),
    drug(f'type = "text{"[]" * 300}"', "type", "not a type", "one of: bigint"),
    drug('type = "geometry"', "type", "not a type", "one of: bigint, boolean"),
    drug('type = "text", lower = 0, upper = 1', "lower", "text has no lower and upper", "values = [...]"),
    drug('type = "boolean", lower = 0, upper = 1', "lower", "boolean has no lower", "remove both"),
    drug('type = "time", lower = 0, upper = 1', "lower", "only numbers, dates and timestamps", "remove both"),
    drug('type = "decimal", lower = 0', "lower", "lower without upper", "upper = "),
    drug('type = "decimal", upper = 0', "upper", "upper without lower", "lower = "),
    drug('type = "decimal", lower = 9, upper = 0.5', "lower", "9 is above upper = 0.5", "lower = 0.5, upper = 9"),
    drug('type = "decimal", lower = "0", upper = 1', "lower", "a number is expected here", "lower = 0"),
    drug('type = "integer", lower = 0.5, upper = 2', "lower", "not an integer", "lower = 0, or type"),
    drug('type = "smallint", lower = 0, upper = 40000', "upper", "beyond smallint", "between -32768 and 32767"),
    drug('type = "smallint", lower = -32769, upper = 1', "lower", "beyond smallint", "between -32768 and 32767"),
    drug('type = "double", lower = nan, upper = 1', "lower", "not a finite number", "lower = 0"),
    drug('type = "text", step = 1', "step", "text has no step", "remove step"),
    drug('type = "date", step = 1', "step", "date has no step", "remove step"),
    drug('type = "double", step = 0', "step", "step = 0 is not above 0", "step = 0.01"),
    drug('type = "double", step = -1', "step", "not above 0", "step = 0.01"),
    drug('type = "integer", step = 0.5', "step", "not an integer", "step = 0"),
    drug('type = "double", lower = 0, upper = 1e9, step = 1e-8', "step", "more than 2^53 steps", "step = 0.000001"),
    Mistake(BORN, 'born = { type = "date", lower = "1900-01-01", upper = 2026-12-31 }',
            f"{PATIENTS}.columns.born.lower", "a date is expected here", "write without quotes: lower = 2020-01-01"),
    Mistake(BORN, "born = { type = 'date', lower = 1900-01-01T00:00:00, upper = 2026-12-31 }",
            f"{PATIENTS}.columns.born.lower", "a date is expected here", "lower = 2020-01-01"),
    Mistake(BORN, "born = { type = 'date', lower = 2026-12-31, upper = 1900-01-01 }", f"{PATIENTS}.columns.born.lower",
            "is above upper = 1900-01-01", "lower = 1900-01-01, upper = 2026-12-31"),
    Mistake(ARRIVED, "arrived = { type = 'timestamp', lower = 2020-01-01T00:00:00, upper = 2026-12-31 }",
            "tables.visits.columns.arrived.upper", "a date with a time is expected here", "T00:00:00"),
    Mistake(ARRIVED, "arrived = { type = 'timestamp', lower = 2020-01-01T00:00:00Z, upper = 2026-12-31T00:00:00 }",
            "tables.visits.columns.arrived.lower", "has no offset", "lower = 2020-01-01T00:00:00"),
    Mistake(SEEN, "seen = { type = 'timestamptz', lower = 0001-01-01T00:00:00+14:00, upper = 2026-12-31T00:00:00Z }",
            "tables.visits.columns.seen.lower", "outside the years 1 to 9999", "2020-01-01T00:00:00Z"),
    Mistake(SEEN, "seen = { type = 'timestamptz', lower = 2020-01-01T00:00:00+02:00, upper = 2019-12-31T21:59:59Z }",
            "tables.visits.columns.seen.lower", "is above upper", "upper = 2020-01-01T00:00:00+02:00"),
]  # fmt: skip
DOMAINS = [
    drug('type = "text", values = []', "values", "an empty array", 'values = ["F", "M", "X"]'),
    drug('type = "text", values = "a"', "values", "an array is expected here, not a text", "values = ["),
    drug('type = "text", values = ["a"], values_from = "icd10.code"', "values_from", "used together", "remove one"),
    values("text", '"a", 1', "a value of type text is expected here", 'values = ["F", "M", "X"]'),
    values("text", '"a", "a"', '"a" stands twice', "remove one of the two"),
    values("text", '"a", "\\u0000"', "a value of type text", "values = ["),
    values("char", '"a", "a  "', "stands twice", "remove one"),
    values("integer", '1, "1"', "a number is expected here, not a text", "values = [1, 2, 3]"),
    values("integer", "1, true", "not a boolean", "values = [1, 2, 3]"),
    values("integer", "1, 1.5", "not an integer", "value = 2"),
    values("smallint", "1, 32768", "beyond smallint", "wider type"),
    values("decimal", "1, 1.00", "1.00 stands twice", "remove one"),
    values("boolean", "true, 1", "true or false is expected", "values = [true, false]"),
    values("date", '2020-01-01, "2020-01-02"', "a date is expected", "values = [2020-01-01, 2020-01-02]"),
    values("date", "2020-01-01, 2020-01-02T00:00:00", "a date is expected", "values = [2020-01-01"),
    values("uuid", '"123e4567-e89b-12d3-a456-426614174000", "x"', '"x" is not a uuid', "values = ["),
    values("uuid", '"123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000"', "twice", "remove"),
    drug('type = "integer", lower = 0, upper = 5, values = [1, 6]', "values[1]", "6 is outside lower", "widen"),
    drug('type = "integer", lower = 0, upper = 5, values = [1, -1]', "values[1]", "-1 is outside lower", "widen"),
    drug("type = 'date', lower = 2020-01-01, upper = 2020-12-31, values = [2020-01-01, 2021-01-01]", "values[1]",
         "2021-01-01 is outside", "widen"),
    drug('type = "double", values = [1.5]', "values", "cannot have a domain", 'type = "decimal"'),
    drug('type = "json", values = ["a"]', "values", "cannot have a domain", "remove"),
    drug('type = "text[]", values = ["a"]', "values", "cannot have a domain", "remove"),
    drug('type = "real", values_from = "icd10.rank"', "values_from", "cannot have a domain", "decimal"),
    drug('type = "text", values_from = "code"', "values_from", "is not of the form table.column", '"icd10.code"'),
    drug('type = "text", values_from = "icd.code"', "values_from", '"icd" is not a table', 'did you mean "icd10"?'),
    drug('type = "text", values_from = "patients.sex"', "values_from", "is not public", "one of: icd10"),
    drug('type = "text", values_from = "icd10.kode"', "values_from", 'no column "kode"', 'did you mean "code"?'),
    drug('type = "integer", values_from = "icd10.score"', "values_from", "integer here, but double", "one type"),
    drug('type = "integer", values_from = "icd10.code"', "values_from", "integer here, but text", "one type"),
    Mistake('rank = { type = "integer" }', 'rank = { type = "integer", values_from = "icd10.rank" }',
            "tables.icd10.columns.rank.values_from", "rows of a public table are its domain", "remove values_from"),
    Mistake(SEX, 'sex = { type = "text", values = [\n  "F",\n  "M",\n  "F", # here\n] }',
            "tables.patients.columns.sex.values[2]", '"F" stands twice', "remove one of the two"),
]  # fmt: skip
PARQUET = 'format = "parquet", paths = ["a.parquet"]'
COST = 'columns = { cost = "decimal(10,2)" }'
FILES = [
    made_of('paths = ["a.parquet"]', "", "format is missing", 'format = "parquet"'),
    made_of('format = "parquet"', "", "paths is missing", 'paths = ["visits/*.parquet"]'),
    made_of('format = "orc", paths = ["a.orc"]', ".format", "none of parquet, csv, json", "one of: csv, delta"),
    made_of('format = "delta", paths = ["a", "b"]', ".paths", "is one folder", 'paths = ["visits"]'),
    made_of('format = "delta", paths = ["a/*"]', ".paths", "is one folder", 'paths = ["visits"]'),
    made_of(
        'format = "delta", paths = ["a"], hive = { y = "date" }', ".hive", "record their partitions", "remove hive"
    ),
    made_of('format = "iceberg", paths = ["a", "b"]', ".paths", "is one metadata file", "v3.metadata.json"),
    made_of('format = "csv", paths = ["a.csv"]', "", "csv files have no types, so columns is required", COST),
    made_of('format = "json", paths = ["a.json"], hive = { y = "date" }', "", "json files have no types", COST),
    made_of('format = "parquet", paths = []', ".paths", "an empty array", 'paths = ["visits/*.parquet"]'),
    *(
        made_of(
            f'format = "parquet", paths = ["{path}"]', ".paths[0]", "is not a path below the folder", "* is any name"
        )
        for path in ("/etc/passwd", "../a", "a/../b", "a//b", "a/**", "a**/b", "a?", "a[1]", "{a,b}", "./a")
    ),
    made_of(f'{PARQUET}, columns = {{ c = "decimal" }}', ".columns.c", "without its digits", 'c = "decimal(10,2)"'),
    made_of(f'{PARQUET}, columns = {{ c = "decimal(39,2)" }}', ".columns.c", "beyond decimal(38,38)", "decimal(10,2)"),
    made_of(f'{PARQUET}, columns = {{ c = "numeric(2,3)" }}', ".columns.c", "beyond decimal(38,38)", "decimal(10,2)"),
    made_of(f'{PARQUET}, columns = {{ c = "strin" }}', ".columns.c", '"strin" is not a type', "one of: bigint"),
    made_of(f'{PARQUET}, columns = {{ c = "json" }}', ".columns.c", "cannot be read from text", 'c = "text"'),
    made_of(
        f'{PARQUET}, columns = {{ c = "text" }}, hive = {{ C = "date" }}', ".hive", '"C" is also in columns', "keep"
    ),
    Mistake(
        URL,
        'url = "parquet:///data"\nspill = "data/spilt" # here',
        "dataset.spill",
        "in the folder of the data",
        "/var/tmp",
    ),
    Mistake(
        URL,
        'url = "postgresql://r@h/d"\nspill = "x" # here',
        "dataset.spill",
        "for DuckDB, which runs in",
        "remove spill",
    ),
    Mistake(URL, f'{URL}\nspill = "loop/x" # here', "dataset.spill", "cannot be resolved", "/var/tmp/dpsql"),
    Mistake(URL, 'url = "parquet:///"', "dataset.url", "a url of Parquet is parquet:/// and a path", "duckdb:///"),
]
ALL = [
    *FILES,
    *TOP,
    *DATASET,
    *NUMBERS,
    *BUDGETS,
    *QUERIES,
    *ROLES,
    *TABLES,
    *UNIT_VIA,
    *SEVERAL_WAYS,
    *COLUMNS,
    *DOMAINS,
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


def refusal(folder: Path, text: str) -> InvalidPolicy:
    file = folder / "policy.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidPolicy) as caught:
        load_policy(file)
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    return caught.value


def test_the_policy_without_a_mistake_is_valid(folder: Path) -> None:
    (folder / "policy.toml").write_text(GOOD)
    load_policy(folder / "policy.toml")


@pytest.mark.parametrize("mistake", ALL, ids=str)
def test_mistake(folder: Path, mistake: Mistake) -> None:
    assert mistake.old in GOOD
    text = GOOD.replace(mistake.old, mistake.new, 1)
    error = refusal(folder, text)
    at = mistake.at or ("# here" if "# here" in text else mistake.new.partition("\n")[0])
    line = f":{text.count(chr(10), 0, text.index(at)) + 1}" if at else ""
    key = f"{mistake.key}: " if mistake.key else ""
    assert error.message.startswith(f"{folder / 'policy.toml'}{line}: {key}"), error.message
    assert mistake.what in error.message, error.message
    assert mistake.hint in (error.hint or ""), error.hint


def test_no_role(folder: Path) -> None:
    before, _, after = GOOD.partition("[roles.analyst]")
    error = refusal(folder, f"{before}[roles]\n[tables{after.partition('[tables')[2]}")
    assert "policy.toml:10: roles: at least one role is required" in error.message
    assert "[roles.analyst]" in (error.hint or "")


def private_only(cap: str, budget: str, query: str) -> str:
    """Return a policy whose only key is private."""
    head = GOOD.partition("[roles")[0].replace(CAP, f"budget = {{ {cap} }}")
    return f"{head}[roles.analyst]\nbudget = {{ {budget} }}\nquery = {{ {query} }}\n{PRIVATE_ONLY}"


PLAIN, ZCDP = "epsilon = 0.1", "epsilon = 5, delta = 1e-6"


@pytest.mark.parametrize(
    ("cap", "budget", "query", "key"),
    [
        (ZCDP, 'epsilon = 5, accountant = "pure"', PLAIN, "roles.analyst.budget"),
        (ZCDP, 'epsilon = 5, delta = 0, accountant = "basic"', PLAIN, "roles.analyst.budget"),
        (ZCDP, "epsilon = 5, delta = 1e-6, selection_share = 0", PLAIN, "roles.analyst.budget"),
        ("epsilon = 5, delta = 1e-6, selection_share = 0", ZCDP, PLAIN, "dataset.budget"),
        (ZCDP, ZCDP, "epsilon = 0.1, delta = 0", "roles.analyst.query.delta"),
    ],
)
def test_no_delta_where_all_keys_are_private(folder: Path, cap: str, budget: str, query: str, key: str) -> None:
    error = refusal(folder, private_only(cap, budget, query))
    assert f"{key}: " in error.message
    assert "every group key of these tables is private" in error.message
    assert "delta" in (error.hint or "")


def test_no_protected_table(folder: Path) -> None:
    text = private_only(ZCDP, ZCDP, PLAIN).replace('unit_key = "patient_id"\nmax_rows = 1', "public = true")
    error = refusal(folder, text)
    assert "tables: no table is protected" in error.message
    assert "unit_key" in (error.hint or "")


def test_a_chain_too_long(folder: Path) -> None:
    links = [f'[tables.t{n}]\nunit_via = {{ table = "t{n + 1}", on = {{ a = "b" }} }}\n' for n in range(16)]
    text = GOOD + "".join(links) + '[tables.t16]\nunit_key = "u"\nmax_rows = 1\n'
    error = refusal(folder, text)
    assert "tables.t15.unit_via.table: more than 16 tables to the unit" in error.message
    (folder / "policy.toml").write_text(text.replace(links[0], ""))
    load_policy(folder / "policy.toml")


def test_too_many_ways(folder: Path) -> None:
    """Two ways at each of seven tables are 128."""
    ways = "unit_via = [{}]\nmax_rows = 9\n".format
    way = """{{ table = "t{}", on = {{ a = "b" }}, where = "c = {}" }}""".format
    links = [f"[tables.t{n}]\n" + ways(", ".join(way(n + 1, value) for value in (0, 1))) for n in range(7)]
    text = GOOD + "".join(links) + '[tables.t7]\nunit_key = "u"\nmax_rows = 1\n'
    assert "tables.t0.unit_via: more than 64 ways to the unit" in refusal(folder, text).message
    (folder / "policy.toml").write_text(text.replace(links[0], ""))
    load_policy(folder / "policy.toml")


def test_too_many_tables(folder: Path) -> None:
    def policy(count: int) -> str:
        return GOOD + "".join(f"[tables.t{n}]\npublic = true\n" for n in range(count - GOOD.count("[tables.") // 2))

    error = refusal(folder, policy(1601))
    assert "tables: more than 1600 tables" in error.message
    assert "split the policy" in (error.hint or "")
    (folder / "policy.toml").write_text(policy(1600))
    load_policy(folder / "policy.toml")


def test_a_server_reads_no_files(folder: Path) -> None:
    text = GOOD.replace(URL, 'url = "postgresql://reader@host/db"')
    error = refusal(folder, text.replace(VIA, f"{VIA}\nfiles = {{ {PARQUET} }}"))
    assert "tables.prescriptions.files: PostgreSQL does not read files" in error.message
    assert error.hint is not None and 'url = "parquet:///data"' in error.hint


@pytest.mark.parametrize("name", ["a*b", "a//b", "a?", "[a]"])
def test_a_name_of_a_table_that_is_no_name_of_a_file(folder: Path, name: str) -> None:
    text = GOOD.replace(URL, 'url = "parquet:///data"').replace("[tables.icd10", f'[tables."{name}"')
    text = text.replace('values_from = "icd10.code"', 'values = ["A"]')
    error = refusal(folder, text)
    assert "cannot be part of a file name" in error.message
