"""Writes the demo clinic: invented patients, visits and prescriptions, with faulty rows as real tables have them.

Rule 1: the same seed and the same number of patients give the same rows.
Rule 2: random numbers drawn here are data and never noise.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import duckdb
import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = dict[str, NDArray[Any]]

FIRST_DAY: Final = np.datetime64("2020-01-01")
LAST_DAY: Final = np.datetime64("2026-10-31")
DOCTORS: Final = 200
MEAN_VISITS: Final = 20
MAX_VISITS: Final = 300
MEAN_PRESCRIPTIONS: Final = 0.6

SEXES: Final = ("F", "M", "X")

CITIES: Final = {
    "Berlin": 18.0,
    "Hamburg": 10.0,
    "Munich": 8.0,
    "Cologne": 6.0,
    "Frankfurt": 5.0,
    "Stuttgart": 4.5,
    "Leipzig": 4.0,
    "Dresden": 3.5,
    "Hanover": 3.0,
    "Bremen": 2.8,
    "Nuremberg": 2.6,
    "Essen": 2.6,
}
# Small towns, largest first; the last ones have a few patients, one or none.
TOWNS: Final = tuple(
    f"{head}{tail}"
    for tail in ("bach", "hausen", "feld", "dorf", "au", "berg", "heim", "tal", "kirchen", "brunn")
    for head in (
        *("Ahorn", "Amsel", "Birken", "Buchen", "Dachs", "Eichen", "Erlen", "Falken", "Fichten", "Forellen", "Fuchs"),
        *("Hasel", "Hirsch", "Kiefern", "Kranich", "Linden", "Lerchen", "Mühl", "Otter", "Reiher", "Stein", "Tannen"),
        *("Ulmen", "Wacholder"),
    )
)
TOWN_SHARE: Final = 30.0

DOSES: Final = {  # milligrams in one dose
    "acetylsalicylic acid": 100.0,
    "alendronate": 70.0,
    "amlodipine": 5.0,
    "amoxicillin": 500.0,
    "apixaban": 5.0,
    "atorvastatin": 20.0,
    "bisoprolol": 2.5,
    "budesonide": 0.2,
    "cetirizine": 10.0,
    "diclofenac": 50.0,
    "ibuprofen": 400.0,
    "insulin": 3.5,
    "iron": 100.0,
    "levothyroxine": 0.075,
    "metformin": 850.0,
    "pantoprazole": 40.0,
    "paracetamol": 500.0,
    "ramipril": 5.0,
    "salbutamol": 0.1,
    "sertraline": 50.0,
    "sumatriptan": 50.0,
    "tamsulosin": 0.4,
    "vitamin D": 0.025,
}
DRUGS: Final = tuple(DOSES)


class Diagnosis(NamedTuple):
    """A row of icd10, with how often it occurs and what it costs in the invented data.

    Attributes:
        code: ICD-10 code.
        title: Its name, in our own words.
        specialty: The specialty that treats it.
        cost: Typical cost of one visit.
        minutes: Typical length of one visit.
        bands: Its relative frequency among children, adults and seniors.
        men: The share of men among its patients: 0.5 if sex makes no difference.
        drugs: The usual prescription and the other one.
    """

    code: str
    title: str
    specialty: str
    cost: float
    minutes: int
    bands: tuple[float, float, float]
    men: float
    drugs: tuple[str, str]


GENERAL: Final = "general practice"
CARDIO, NEURO, ORTHO, LUNGS = "cardiology", "neurology", "orthopaedics", "pneumology"
INNER, SKIN, MIND, EYES = "internal medicine", "dermatology", "psychiatry", "ophthalmology"
THROAT, SURGERY, WOMEN, URO = "otolaryngology", "surgery", "gynaecology", "urology"
SPECIALTIES: Final = (GENERAL, CARDIO, NEURO, ORTHO, LUNGS, INNER, SKIN, MIND, EYES, THROAT, SURGERY, WOMEN, URO)

DIAGNOSES: Final = (
    Diagnosis("A09", "Stomach flu", GENERAL, 45, 10, (5, 2, 2), 0.5, ("paracetamol", "pantoprazole")),
    Diagnosis("C50", "Breast cancer", WOMEN, 1450, 45, (0, 1, 2), 0.01, ("iron", "vitamin D")),
    Diagnosis("C61", "Prostate cancer", URO, 1100, 40, (0, 0.3, 3), 1, ("tamsulosin", "vitamin D")),
    Diagnosis("E03", "Underactive thyroid", INNER, 70, 15, (0.2, 3, 4), 0.2, ("levothyroxine", "vitamin D")),
    Diagnosis("E10", "Diabetes from youth on (type 1)", INNER, 130, 25, (1, 1, 0.5), 0.5, ("insulin", "metformin")),
    Diagnosis("E11", "Diabetes of later life (type 2)", INNER, 95, 20, (0, 4, 12), 0.55, ("metformin", "insulin")),
    Diagnosis("E66", "Severe overweight", INNER, 60, 20, (1, 2, 1.5), 0.45, ("metformin", "vitamin D")),
    Diagnosis("E78", "Raised blood fats", GENERAL, 55, 10, (0, 3, 6), 0.55, ("atorvastatin", "ramipril")),
    Diagnosis("F32", "Depressive episode", MIND, 150, 50, (0.6, 5, 3), 0.35, ("sertraline", "vitamin D")),
    Diagnosis("F41", "Anxiety", MIND, 140, 50, (1, 4, 2), 0.35, ("sertraline", "bisoprolol")),
    Diagnosis("G43", "Migraine", NEURO, 85, 20, (0.8, 3.5, 1), 0.25, ("sumatriptan", "ibuprofen")),
    Diagnosis("G47", "Disturbed sleep", NEURO, 110, 30, (0.3, 2.5, 3), 0.55, ("vitamin D", "sertraline")),
    Diagnosis("H10", "Inflamed conjunctiva", EYES, 50, 10, (4, 1.5, 1.5), 0.5, ("cetirizine", "amoxicillin")),
    Diagnosis("H25", "Clouded lens of old age", EYES, 900, 40, (0, 0.3, 5), 0.45, ("ibuprofen", "paracetamol")),
    Diagnosis("H66", "Infected middle ear", THROAT, 65, 10, (9, 0.8, 0.5), 0.52, ("amoxicillin", "ibuprofen")),
    Diagnosis("I10", "High blood pressure", CARDIO, 65, 15, (0, 8, 18), 0.52, ("ramipril", "amlodipine")),
    Diagnosis("I20", "Tight chest from the heart", CARDIO, 260, 30, (0, 1, 4), 0.6, ("bisoprolol", "ramipril")),
    Diagnosis(
        "I25", "Narrowed heart vessels", CARDIO, 310, 30, (0, 1, 6), 0.65, ("acetylsalicylic acid", "atorvastatin")
    ),
    Diagnosis("I48", "Irregular heartbeat", CARDIO, 280, 30, (0, 0.8, 5), 0.57, ("apixaban", "bisoprolol")),
    Diagnosis("I50", "Weak heart", CARDIO, 420, 35, (0, 0.5, 5), 0.52, ("bisoprolol", "ramipril")),
    Diagnosis(
        "I63", "Stroke from a blocked vessel", NEURO, 2400, 60, (0, 0.2, 1.5), 0.53, ("apixaban", "atorvastatin")
    ),
    Diagnosis("J00", "Common cold", GENERAL, 35, 8, (14, 7, 4), 0.5, ("paracetamol", "ibuprofen")),
    Diagnosis("J06", "Infected upper airways", GENERAL, 40, 10, (12, 6, 3), 0.5, ("ibuprofen", "amoxicillin")),
    Diagnosis("J18", "Inflamed lungs", LUNGS, 680, 30, (1.2, 0.8, 3), 0.55, ("amoxicillin", "budesonide")),
    Diagnosis("J20", "Acute bronchitis", LUNGS, 60, 12, (6, 4, 4), 0.5, ("amoxicillin", "salbutamol")),
    Diagnosis("J30", "Hay fever", GENERAL, 45, 10, (5, 4, 1), 0.48, ("cetirizine", "budesonide")),
    Diagnosis("J44", "Lasting narrow airways", LUNGS, 190, 25, (0, 1.5, 6), 0.58, ("salbutamol", "budesonide")),
    Diagnosis("J45", "Asthma", LUNGS, 95, 20, (5, 3, 2), 0.47, ("salbutamol", "budesonide")),
    Diagnosis("K21", "Acid reflux", INNER, 75, 15, (0.3, 3, 3.5), 0.5, ("pantoprazole", "paracetamol")),
    Diagnosis("K35", "Inflamed appendix", SURGERY, 2900, 75, (0.6, 0.4, 0.1), 0.54, ("amoxicillin", "ibuprofen")),
    Diagnosis("K80", "Gallstones", SURGERY, 1350, 50, (0, 0.8, 1.5), 0.35, ("ibuprofen", "pantoprazole")),
    Diagnosis("L20", "Itching skin from birth on", SKIN, 70, 15, (5, 1.5, 0.8), 0.47, ("cetirizine", "budesonide")),
    Diagnosis("M17", "Worn knee", ORTHO, 210, 25, (0, 1.5, 8), 0.4, ("diclofenac", "ibuprofen")),
    Diagnosis("M54", "Back pain", ORTHO, 85, 15, (0.8, 10, 8), 0.47, ("ibuprofen", "diclofenac")),
    Diagnosis("M81", "Brittle bones", ORTHO, 120, 20, (0, 0.5, 5), 0.15, ("alendronate", "vitamin D")),
    Diagnosis("N39", "Infected bladder", URO, 55, 12, (1.2, 3, 4), 0.2, ("amoxicillin", "ibuprofen")),
    Diagnosis("N40", "Enlarged prostate", URO, 90, 20, (0, 1, 7), 1, ("tamsulosin", "vitamin D")),
    Diagnosis("O80", "Birth without complications", WOMEN, 2200, 240, (0, 0.8, 0), 0, ("iron", "vitamin D")),
    Diagnosis("S52", "Broken forearm", SURGERY, 780, 45, (2, 0.8, 1.8), 0.48, ("ibuprofen", "diclofenac")),
    Diagnosis("Z00", "Check-up without complaint", GENERAL, 60, 20, (9, 5, 6), 0.45, ("vitamin D", "iron")),
)

# SQL that creates each table and fills it from `drawn`. There are no foreign keys, because faulty rows break them.
TABLES: Final = {
    "icd10": (
        "CREATE TABLE icd10 (code VARCHAR PRIMARY KEY, title VARCHAR)",
        "INSERT INTO icd10 SELECT code, title FROM drawn",
    ),
    "doctors": (
        "CREATE TABLE doctors (doctor_id INTEGER PRIMARY KEY, specialty VARCHAR, city VARCHAR)",
        "INSERT INTO doctors SELECT doctor_id, specialty, city FROM drawn",
    ),
    "patients": (
        "CREATE TABLE patients (patient_id INTEGER PRIMARY KEY, age INTEGER, sex VARCHAR, city VARCHAR, weight DOUBLE)",
        # DuckDB reads numpy's NaN as NULL, so the generator writes NaN as a negative weight.
        """INSERT INTO patients SELECT patient_id, age, sex, city,
             CASE WHEN weight < 0 THEN CAST('NaN' AS DOUBLE) ELSE weight END FROM drawn""",
    ),
    "visits": (
        """CREATE TABLE visits (visit_id INTEGER PRIMARY KEY, patient_id INTEGER, doctor_id INTEGER, visited_on DATE,
             cost DECIMAL(10,2), duration_min INTEGER, icd VARCHAR, city VARCHAR)""",
        """INSERT INTO visits SELECT visit_id, patient_id, doctor_id, CAST(visited_on AS DATE),
             cost, duration_min, icd, city FROM drawn""",
    ),
    "prescriptions": (
        """CREATE TABLE prescriptions (prescription_id INTEGER PRIMARY KEY, visit_id INTEGER, drug VARCHAR,
             dose DOUBLE, boxes SMALLINT)""",
        "INSERT INTO prescriptions SELECT prescription_id, visit_id, drug, dose, boxes FROM drawn",
    ),
}


class Patients(NamedTuple):
    """The patients before faulty values are added; the index is patient_id - 1."""

    age: Integers
    sex: Integers
    city: Integers


class Visits(NamedTuple):
    """The visits before faulty values are added, in order of time; the index is visit_id - 1."""

    patient: Integers
    diagnosis: Integers


def generate_clinic(
    path: Path, *, patients: int = 50_000, seed: int = 2026, progress: Callable[[float], None] | None = None
) -> None:
    """Write the DuckDB file of the demo clinic: about 20 visits a patient, 0.6 prescriptions a visit.

    Some values are NULL, NaN or far out of bounds; some visits have no patient, and some prescriptions no visit. An
    earlier file at `path` is replaced when the new one is complete.

    Args:
        path: The file to write.
        patients: The number of patients; at least 1.
        seed: The seed of the random rows.
        progress: Called with the finished share, from 0.0 up to 1.0.
    """
    report = progress or (lambda share: None)
    rng = np.random.default_rng(seed)
    draft = path.with_name(f"{path.name}.partial")
    draft.unlink(missing_ok=True)
    report(0.0)
    with duckdb.connect(str(draft)) as connection:
        _fill(connection, "icd10", _draw_icd10())
        _fill(connection, "doctors", _draw_doctors(rng))
        people, columns = _draw_patients(rng, patients)
        _fill(connection, "patients", columns)
        report(0.1)
        visits, columns = _draw_visits(rng, people)
        report(0.45)
        _fill(connection, "visits", columns)
        report(0.75)
        columns = _draw_prescriptions(rng, visits)
        report(0.85)
        _fill(connection, "prescriptions", columns)
    draft.replace(path)
    report(1.0)


def _fill(connection: duckdb.DuckDBPyConnection, table: str, columns: Columns) -> None:
    create, insert = TABLES[table]
    connection.execute(create)
    # DuckDB 1 ignores the mask of an array, so the mask is a separate column.
    masks = {f"no {name}": np.ma.getmaskarray(column) for name, column in columns.items()}
    connection.register("arrays", {**{name: np.ma.getdata(column) for name, column in columns.items()}, **masks})
    selected = ", ".join(f'CASE WHEN NOT "no {name}" THEN "{name}" END AS "{name}"' for name in columns)
    connection.execute(f"CREATE TEMP VIEW drawn AS SELECT {selected} FROM arrays")  # noqa: S608 (our own names)
    connection.execute(insert)
    connection.execute("DROP VIEW drawn")
    connection.unregister("arrays")


def _draw_icd10() -> Columns:
    return {
        "code": _texts([row.code for row in DIAGNOSES]),
        "title": _texts([row.title for row in DIAGNOSES]),
    }


def _specialty_of_doctors() -> Integers:
    """Return the specialty of each doctor, sorted; general practice has four times the doctors of any other."""
    places = [0, 0, 0, *range(len(SPECIALTIES))]
    return np.sort(np.resize(np.array(places, dtype=np.int64), DOCTORS))


def _draw_doctors(rng: np.random.Generator) -> Columns:
    return {
        "doctor_id": np.arange(1, DOCTORS + 1),
        "specialty": _texts(SPECIALTIES)[_specialty_of_doctors()],
        "city": _with_nulls(rng, _texts(CITIES)[_choose(rng, list(CITIES.values()), DOCTORS)], 0.01),
    }


def _draw_patients(rng: np.random.Generator, count: int) -> tuple[Patients, Columns]:
    sex = _choose(rng, [51.5, 48.0, 0.5], count)
    generation = _choose(rng, [0.17, 0.55, 0.28], count)
    age = np.select(
        [generation == 0, generation == 1],
        [rng.uniform(0, 18, count), rng.normal(43, 14, count)],
        # Women live longer.
        rng.normal(72, 9, count) + np.where(sex == 0, 2.0, -2.0),
    )
    age = np.clip(age, 0, 103).astype(np.int64)
    town_sizes = 1.0 / np.arange(1, len(TOWNS) + 1) ** 1.6
    city = _choose(rng, [*CITIES.values(), *(town_sizes * TOWN_SHARE / town_sizes.sum())], count)
    grown = np.minimum(age, 18) / 18
    weight = (3.5 + grown * np.where(sex == 1, 79.0, 65.0)) * rng.lognormal(0, 0.17, count)
    columns: Columns = {
        "patient_id": np.arange(1, count + 1),
        "age": _with_nulls(rng, _with_outliers(rng, age, [130, -1]), 0.01),
        "sex": _with_nulls(rng, _texts(SEXES)[sex], 0.005),
        "city": _with_nulls(rng, _texts([*CITIES, *TOWNS])[city], 0.01),
        "weight": _with_nulls(rng, _with_outliers(rng, weight.round(1), [-1, 8150.0, np.inf]), 0.05),
    }
    return Patients(age, sex, city), columns


def _draw_visits(rng: np.random.Generator, people: Patients) -> tuple[Visits, Columns]:
    frailty = rng.lognormal(0, 0.85, len(people.age)) * (0.5 + people.age / 60) * np.where(people.sex == 0, 1.1, 1.0)
    often = np.minimum(rng.poisson(frailty * MEAN_VISITS / frailty.mean()), MAX_VISITS)
    patient = rng.permutation(np.repeat(np.arange(len(people.age)), often))
    count = len(patient)
    diagnosis = _draw_diagnoses(rng, people.age[patient], people.sex[patient])
    cost = _of_diagnoses([row.cost for row in DIAGNOSES])[diagnosis] * (0.75 + people.age[patient] / 140)
    cost = np.minimum(cost * rng.lognormal(-0.08, 0.4, count), 4999.0).round(2)
    minutes = _of_diagnoses([row.minutes for row in DIAGNOSES])[diagnosis] * rng.lognormal(0, 0.3, count)
    # Most visits are in the patient's own city, the others in a large one.
    away = rng.random(count) < 0.15
    city = np.where(away, _choose(rng, list(CITIES.values()), count), people.city[patient])
    columns: Columns = {
        "visit_id": np.arange(1, count + 1),
        "patient_id": _with_nulls(rng, patient + 1, 0.002),
        "doctor_id": _with_nulls(rng, _draw_doctor_ids(rng, diagnosis), 0.005),
        "visited_on": _with_nulls(rng, _draw_days(rng, count).astype("datetime64[us]"), 0.002),
        "cost": _with_nulls(rng, _with_outliers(rng, cost, [99999.99, -50.0]), 0.01),
        "duration_min": _with_nulls(rng, _with_outliers(rng, minutes.astype(np.int64) + 1, [14400, -10]), 0.02),
        "icd": _with_nulls(rng, _with_outliers(rng, _texts([row.code for row in DIAGNOSES])[diagnosis], ["U99"]), 0.01),
        "city": _with_nulls(rng, _texts([*CITIES, *TOWNS])[city], 0.01),
    }
    return Visits(patient, diagnosis), columns


def _draw_diagnoses(rng: np.random.Generator, age: Integers, sex: Integers) -> Integers:
    """Return one diagnosis per visit, which depends on the age and the sex of the patient."""
    bands = np.array([row.bands for row in DIAGNOSES])
    men = _of_diagnoses([row.men for row in DIAGNOSES])
    of_sex = np.stack([1 - men, men, np.minimum(men, 1 - men)])
    band = np.digitize(age, [18, 65])
    diagnosis = np.zeros(len(age), dtype=np.int64)
    for b in range(3):
        for s in range(len(SEXES)):
            here = np.flatnonzero((band == b) & (sex == s))
            diagnosis[here] = _choose(rng, list(bands[:, b] * of_sex[s]), len(here))
    return diagnosis


def _draw_doctor_ids(rng: np.random.Generator, diagnosis: Integers) -> Integers:
    """Return one doctor per visit, of the specialty that treats the diagnosis."""
    specialties = np.arange(len(SPECIALTIES))
    first = np.searchsorted(_specialty_of_doctors(), specialties)
    last = np.searchsorted(_specialty_of_doctors(), specialties, side="right")
    needed = np.array([SPECIALTIES.index(row.specialty) for row in DIAGNOSES])[diagnosis]
    drawn: Integers = rng.integers(first[needed], last[needed]) + 1
    return drawn


def _draw_days(rng: np.random.Generator, count: int) -> NDArray[np.datetime64]:
    """Return the sorted days of the visits: more in winter, few on weekends, more from year to year."""
    days = np.arange(FIRST_DAY, LAST_DAY + 1)
    number = np.arange(len(days))
    winter = 1 + 0.25 * np.cos(2 * np.pi * number / 365.25)
    working = np.where(np.is_busday(days), 1.0, 0.15)
    drawn = np.sort(_choose(rng, list(winter * working * (1 + number / len(days) / 4)), count))
    return days[drawn]


def _draw_prescriptions(rng: np.random.Generator, visits: Visits) -> Columns:
    visit = np.repeat(np.arange(len(visits.patient)), rng.poisson(MEAN_PRESCRIPTIONS, len(visits.patient)))
    count = len(visit)
    choices = np.array([[DRUGS.index(drug) for drug in row.drugs] for row in DIAGNOSES])
    drug = choices[visits.diagnosis[visit], _choose(rng, [0.7, 0.3], count)]
    dose = np.array(list(DOSES.values()))[drug] * np.array([0.5, 1.0, 2.0])[_choose(rng, [2, 7, 1], count)]
    boxes = _choose(rng, [6, 3, 1], count) + 1
    return {
        "prescription_id": np.arange(1, count + 1),
        "visit_id": _with_nulls(rng, _with_outliers(rng, visit + 1, [2_000_000_000]), 0.001),
        "drug": _with_nulls(rng, _texts(DRUGS)[drug], 0.01),
        "dose": _with_nulls(rng, _with_outliers(rng, dose, [-1.0, 1e9, np.inf]), 0.02),
        "boxes": _with_nulls(rng, _with_outliers(rng, boxes, [999, 0]), 0.01),
    }


def _of_diagnoses(values: Sequence[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def _texts(words: Sequence[str] | dict[str, float]) -> NDArray[np.object_]:
    return np.array(list(words), dtype=object)


def _choose(rng: np.random.Generator, weights: Sequence[float], count: int) -> Integers:
    """Return `count` positions in `weights`, each with the probability that its weight gives it."""
    edges = np.cumsum(weights)
    drawn: Integers = np.searchsorted(edges, rng.random(count) * edges[-1], side="right")
    return drawn


def _with_nulls(rng: np.random.Generator, values: NDArray[Any], share: float) -> NDArray[Any]:
    missing = np.zeros(len(values), dtype=np.bool_)
    missing[_places(rng, len(values), share)] = True
    return np.ma.array(values, mask=missing)


def _with_outliers(rng: np.random.Generator, values: NDArray[Any], outliers: Sequence[object]) -> NDArray[Any]:
    spoilt = values.copy()
    for outlier in outliers:
        spoilt[_places(rng, len(values), 0.0001)] = outlier
    return spoilt


def _places(rng: np.random.Generator, count: int, share: float) -> Integers:
    """Return positions among `count` to make dirty: about the share asked for, and one at least."""
    return rng.integers(0, count, 1 + int(share * count))
