"""Write made-up records in the OMOP Common Data Model 5.4 into a DuckDB file, for policies/omop.toml.

    python examples/load_omop.py [TARGET.duckdb] [--persons N]

The same persons come each time: every value is made of the row's number by MD5. The tables have the columns that
examples/omop.sql asks for; the vocabulary is a few lines of `concept`.
"""

import argparse
from pathlib import Path

import duckdb

DEFAULT_TARGET = Path(__file__).parent.parent / "policies" / "omop.duckdb"

# A number below `limit`, of what a row is numbered by and what it is for.
_PICK = "CREATE TEMP MACRO pick(number, what, boundary) AS CAST(md5_number_lower(number || what) % boundary AS INTEGER)"
_CONCEPTS = """
    CREATE TABLE concept (
        concept_id INTEGER PRIMARY KEY, concept_name VARCHAR NOT NULL, domain_id VARCHAR NOT NULL);
    INSERT INTO concept VALUES
        (8507, 'MALE', 'Gender'), (8532, 'FEMALE', 'Gender'),
        (8515, 'Asian', 'Race'), (8516, 'Black or African American', 'Race'), (8527, 'White', 'Race'),
        (9201, 'Inpatient Visit', 'Visit'), (9202, 'Outpatient Visit', 'Visit'),
        (9203, 'Emergency Room Visit', 'Visit'),
        (201826, 'Type 2 diabetes mellitus', 'Condition'), (320128, 'Essential hypertension', 'Condition'),
        (317009, 'Asthma', 'Condition'), (255848, 'Pneumonia', 'Condition'),
        (4329847, 'Myocardial infarction', 'Condition'),
        (1503297, 'metformin', 'Drug'), (1308216, 'lisinopril', 'Drug'), (1154343, 'albuterol', 'Drug'),
        (1713332, 'amoxicillin', 'Drug'),
        (3004249, 'Systolic blood pressure', 'Measurement'), (3004410, 'Hemoglobin A1c', 'Measurement')
"""
_TABLES = (
    """
    CREATE TABLE person (
        person_id INTEGER PRIMARY KEY, gender_concept_id INTEGER, year_of_birth INTEGER NOT NULL,
        race_concept_id INTEGER);
    INSERT INTO person SELECT p, [8507, 8532][1 + pick(p, 'sex', 2)], 1935 + pick(p, 'born', 80),
        [8515, 8516, 8527, 8527][1 + pick(p, 'race', 4)] FROM range(1, $persons + 1) AS rows (p)
    """,
    """
    CREATE TABLE observation_period (
        observation_period_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL,
        observation_period_start_date DATE NOT NULL, observation_period_end_date DATE NOT NULL);
    INSERT INTO observation_period SELECT person_id, person_id, begin, begin + 200 + pick(person_id, 'observed', 1600)
    FROM (SELECT person_id, DATE '2016-01-01' + pick(person_id, 'begin', 1200) AS begin FROM person)
    """,
    """
    CREATE TABLE visit_occurrence (
        visit_occurrence_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL, visit_concept_id INTEGER NOT NULL,
        visit_start_date DATE NOT NULL, visit_end_date DATE NOT NULL);
    INSERT INTO visit_occurrence
    SELECT v, person, kind, day, day + CASE WHEN kind = 9201 THEN 1 + pick(v, 'stay', 14) ELSE 0 END
    FROM (SELECT v, 1 + pick(v, 'who', $persons) AS person, DATE '2016-01-01' + pick(v, 'day', 2900) AS day,
        [9201, 9202, 9202, 9202, 9203][1 + pick(v, 'kind', 5)] AS kind FROM range(1, 6 * $persons + 1) AS rows (v))
    """,
    """
    CREATE TABLE condition_occurrence (
        condition_occurrence_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL, condition_concept_id INTEGER NOT NULL,
        condition_start_date DATE NOT NULL, visit_occurrence_id INTEGER);
    INSERT INTO condition_occurrence SELECT visit_occurrence_id, person_id,
        [201826, 320128, 320128, 317009, 255848, 4329847][1 + pick(visit_occurrence_id, 'ill', 6)], visit_start_date,
        visit_occurrence_id
    FROM visit_occurrence WHERE pick(visit_occurrence_id, 'coded', 3) < 2
    """,
    """
    CREATE TABLE drug_exposure (
        drug_exposure_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL, drug_concept_id INTEGER NOT NULL,
        drug_exposure_start_date DATE NOT NULL, days_supply INTEGER, visit_occurrence_id INTEGER);
    INSERT INTO drug_exposure SELECT condition_occurrence_id, person_id,
        CASE condition_concept_id WHEN 201826 THEN 1503297 WHEN 320128 THEN 1308216 WHEN 317009 THEN 1154343
            ELSE 1713332 END,
        condition_start_date, 7 * (1 + pick(condition_occurrence_id, 'supply', 12)), visit_occurrence_id
    FROM condition_occurrence WHERE pick(condition_occurrence_id, 'treated', 4) < 3
    """,
    """
    CREATE TABLE measurement (
        measurement_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL, measurement_concept_id INTEGER NOT NULL,
        measurement_date DATE NOT NULL, value_as_number DOUBLE);
    INSERT INTO measurement SELECT visit_occurrence_id, person_id, kind, visit_start_date,
        CASE WHEN kind = 3004249 THEN 95 + pick(visit_occurrence_id, 'value', 80)
            ELSE 4.5 + pick(visit_occurrence_id, 'value', 70) / 10 END
    FROM (SELECT visit_occurrence_id, person_id, visit_start_date,
        [3004249, 3004249, 3004410][1 + pick(visit_occurrence_id, 'measured', 3)] AS kind FROM visit_occurrence)
    """,
    """
    CREATE TABLE death (person_id INTEGER PRIMARY KEY, death_date DATE NOT NULL);
    INSERT INTO death SELECT person_id, observation_period_end_date
    FROM observation_period JOIN person USING (person_id)
    WHERE pick(person_id, 'dies', 100) < (2020 - year_of_birth) / 4
    """,
    """
    CREATE TABLE cost (
        cost_id INTEGER PRIMARY KEY, cost_event_id INTEGER NOT NULL, cost_domain_id VARCHAR NOT NULL,
        total_paid DECIMAL(10, 2));
    INSERT INTO cost
    SELECT row_number() OVER (ORDER BY domain, event), event, domain, pick(event, domain, 100) * factor + 0.25
    FROM (SELECT visit_occurrence_id AS event, 'Visit' AS domain,
            CASE visit_concept_id WHEN 9201 THEN 90 ELSE 2 END AS factor
        FROM visit_occurrence UNION ALL SELECT drug_exposure_id, 'Drug', 1 FROM drug_exposure
        UNION ALL SELECT measurement_id, 'Measurement', 1 FROM measurement)
    """,
)


def load(target: Path, persons: int = 2_000) -> None:
    """Write the tables into a new DuckDB file, in place of an earlier one."""
    draft = target.with_name(f"{target.name}.partial")
    draft.unlink(missing_ok=True)
    with duckdb.connect(str(draft)) as connection:
        connection.execute(_PICK)
        for table in (_CONCEPTS, *_TABLES):
            connection.execute(table.replace("$persons", str(persons)))
    draft.replace(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write made-up OMOP records into a DuckDB file.")
    parser.add_argument("target", type=Path, nargs="?", default=DEFAULT_TARGET, help="default: %(default)s")
    parser.add_argument("--persons", type=int, default=2_000, help="default: %(default)s")
    arguments = parser.parse_args()
    load(arguments.target, arguments.persons)
    print(f"{arguments.target}: {arguments.persons} persons")
