"""Everyday questions in natural SQL, each with the kind of answer that it wants.

An analyst who knows nothing of dpsql would ask them so: no bounds are narrowed, and no price is set.
"""

from typing import NamedTuple


class Question(NamedTuple):
    """A question.

    Attributes:
        kind: What is asked: counts of rows, counts of units, sums, means, or shares.
        sql: The same in SQL. The columns without noise tell its rows apart.
    """

    kind: str
    sql: str


ROWS, UNITS, SUMS, MEANS, SHARES = "counts of rows", "counts of units", "sums", "means", "shares"

CLINIC = (
    Question(ROWS, "SELECT COUNT(*) FROM visits"),
    Question(ROWS, "SELECT DATE_TRUNC('month', visited_on) AS month, COUNT(*) FROM visits GROUP BY 1"),
    Question(ROWS, "SELECT EXTRACT(YEAR FROM visited_on) AS year, COUNT(*) FROM visits GROUP BY 1"),
    Question(ROWS, "SELECT EXTRACT(DOW FROM visited_on) AS day, COUNT(*) FROM visits GROUP BY 1"),
    Question(ROWS, "SELECT icd, COUNT(*) FROM visits GROUP BY icd"),
    Question(ROWS, "SELECT doctor_id, COUNT(*) FROM visits GROUP BY doctor_id"),
    Question(ROWS, "SELECT COUNT(*) FROM visits WHERE icd = 'I10'"),
    Question(ROWS, "SELECT COUNT(*) FROM visits WHERE visited_on >= DATE '2025-01-01'"),
    Question(ROWS, "SELECT COUNT(*) FROM visits WHERE cost > 100"),
    Question(ROWS, "SELECT p.sex, COUNT(*) FROM visits v JOIN patients p USING (patient_id) GROUP BY p.sex"),
    Question(ROWS, "SELECT COUNT(*) FROM visits v JOIN patients p USING (patient_id) WHERE p.sex = 'F'"),
    Question(
        ROWS,
        "SELECT p.age - p.age % 10 AS decade, COUNT(*) FROM visits v JOIN patients p USING (patient_id) "
        "WHERE p.age BETWEEN 0 AND 99 GROUP BY 1",
    ),
    Question(ROWS, "SELECT d.specialty, COUNT(*) FROM visits v JOIN doctors d USING (doctor_id) GROUP BY d.specialty"),
    Question(ROWS, "SELECT i.title, COUNT(*) FROM visits v JOIN icd10 i ON i.code = v.icd GROUP BY i.title"),
    Question(ROWS, "SELECT city, COUNT(*) FROM visits GROUP BY city"),
    Question(ROWS, "SELECT boxes, COUNT(*) FROM prescriptions WHERE boxes BETWEEN 1 AND 3 GROUP BY boxes"),
    Question(UNITS, "SELECT COUNT(*) FROM patients"),
    Question(UNITS, "SELECT sex, COUNT(*) FROM patients GROUP BY sex"),
    Question(UNITS, "SELECT age, COUNT(*) FROM patients GROUP BY age"),
    Question(UNITS, "SELECT city, COUNT(*) FROM patients GROUP BY city"),
    Question(UNITS, "SELECT COUNT(DISTINCT patient_id) FROM visits"),
    Question(UNITS, "SELECT icd, COUNT(DISTINCT patient_id) FROM visits GROUP BY icd"),
    Question(UNITS, "SELECT EXTRACT(YEAR FROM visited_on) AS year, COUNT(DISTINCT patient_id) FROM visits GROUP BY 1"),
    Question(
        UNITS,
        "SELECT p.sex, COUNT(DISTINCT v.patient_id) FROM visits v JOIN patients p USING (patient_id) GROUP BY p.sex",
    ),
    Question(SUMS, "SELECT SUM(cost) FROM visits"),
    Question(SUMS, "SELECT icd, SUM(cost) FROM visits GROUP BY icd"),
    Question(SUMS, "SELECT EXTRACT(YEAR FROM visited_on) AS year, SUM(cost) FROM visits GROUP BY 1"),
    Question(SUMS, "SELECT SUM(boxes) FROM prescriptions"),
    Question(MEANS, "SELECT AVG(age) FROM patients"),
    Question(MEANS, "SELECT sex, AVG(weight) FROM patients GROUP BY sex"),
    Question(MEANS, "SELECT AVG(duration_min) FROM visits"),
    Question(MEANS, "SELECT icd, AVG(cost) FROM visits GROUP BY icd"),
    Question(MEANS, "SELECT p.sex, AVG(v.cost) FROM visits v JOIN patients p USING (patient_id) GROUP BY p.sex"),
    Question(MEANS, "SELECT AVG(n) FROM (SELECT patient_id, COUNT(*) AS n FROM visits GROUP BY patient_id) AS t"),
    Question(SHARES, "SELECT 1.0 * COUNT(*) FILTER (WHERE cost > 100) / COUNT(*) FROM visits"),
    Question(SHARES, "SELECT icd, 1.0 * COUNT(*) FILTER (WHERE cost > 100) / COUNT(*) FROM visits GROUP BY icd"),
    Question(SHARES, "SELECT sex, AVG(CASE WHEN age >= 65 THEN 1 ELSE 0 END) FROM patients GROUP BY sex"),
)

GERMAN_HEALTH = (
    Question(ROWS, "SELECT COUNT(*) FROM rwm5yr"),
    Question(ROWS, "SELECT year, COUNT(*) FROM rwm5yr GROUP BY year"),
    Question(ROWS, "SELECT female, COUNT(*) FROM rwm5yr GROUP BY female"),
    Question(ROWS, "SELECT edlevel, year, COUNT(*) FROM rwm5yr GROUP BY edlevel, year"),
    Question(ROWS, "SELECT COUNT(*) FROM rwm5yr WHERE docvis = 0"),
    Question(UNITS, "SELECT COUNT(DISTINCT id) FROM rwm5yr"),
    Question(UNITS, "SELECT female, COUNT(DISTINCT id) FROM rwm5yr GROUP BY female"),
    Question(SUMS, "SELECT year, SUM(docvis) FROM rwm5yr GROUP BY year"),
    Question(SUMS, "SELECT SUM(hospvis) FROM rwm5yr"),
    Question(MEANS, "SELECT AVG(hhninc) FROM rwm5yr"),
    Question(MEANS, "SELECT edlevel, AVG(hhninc) FROM rwm5yr GROUP BY edlevel"),
    Question(MEANS, "SELECT female, AVG(docvis) FROM rwm5yr GROUP BY female"),
    Question(MEANS, "SELECT kids, AVG(age) FROM rwm5yr GROUP BY kids"),
    Question(SHARES, "SELECT year, AVG(outwork) FROM rwm5yr GROUP BY year"),
    Question(SHARES, "SELECT female, 1.0 * SUM(self) / COUNT(*) FROM rwm5yr GROUP BY female"),
)

FLIGHTS = (
    Question(ROWS, "SELECT COUNT(*) FROM flights"),
    Question(ROWS, "SELECT origin, COUNT(*) FROM flights GROUP BY origin"),
    Question(ROWS, "SELECT month, COUNT(*) FROM flights GROUP BY month"),
    Question(ROWS, "SELECT carrier, COUNT(*) FROM flights GROUP BY carrier"),
    Question(ROWS, "SELECT hour, COUNT(*) FROM flights GROUP BY hour"),
    Question(ROWS, "SELECT COUNT(*) FROM flights WHERE dep_delay > 60"),
    Question(UNITS, "SELECT COUNT(DISTINCT tailnum) FROM flights"),
    Question(UNITS, "SELECT engines, COUNT(*) FROM planes GROUP BY engines"),
    Question(UNITS, "SELECT manufacturer, COUNT(*) FROM planes GROUP BY manufacturer"),
    Question(SUMS, "SELECT SUM(distance) FROM flights"),
    Question(SUMS, "SELECT origin, SUM(air_time) FROM flights GROUP BY origin"),
    Question(MEANS, "SELECT AVG(dep_delay) FROM flights"),
    Question(MEANS, "SELECT origin, AVG(dep_delay) FROM flights GROUP BY origin"),
    Question(MEANS, "SELECT month, AVG(arr_delay) FROM flights GROUP BY month"),
    Question(SHARES, "SELECT origin, 1.0 * COUNT(dep_delay) / COUNT(*) FROM flights GROUP BY origin"),
)

TPCH = (
    Question(ROWS, "SELECT COUNT(*) FROM orders"),
    Question(ROWS, "SELECT COUNT(*) FROM lineitem"),
    Question(ROWS, "SELECT o_orderpriority, COUNT(*) FROM orders GROUP BY o_orderpriority"),
    Question(ROWS, "SELECT EXTRACT(YEAR FROM o_orderdate) AS year, COUNT(*) FROM orders GROUP BY 1"),
    Question(ROWS, "SELECT l_returnflag, l_linestatus, COUNT(*) FROM lineitem GROUP BY 1, 2"),
    Question(ROWS, "SELECT l_shipmode, COUNT(*) FROM lineitem GROUP BY l_shipmode"),
    Question(UNITS, "SELECT c_mktsegment, COUNT(*) FROM customer GROUP BY c_mktsegment"),
    Question(UNITS, "SELECT n_name, COUNT(*) FROM customer JOIN nation ON n_nationkey = c_nationkey GROUP BY n_name"),
    Question(UNITS, "SELECT COUNT(DISTINCT o_custkey) FROM orders"),
    Question(SUMS, "SELECT SUM(o_totalprice) FROM orders"),
    Question(SUMS, "SELECT l_returnflag, SUM(l_quantity) FROM lineitem GROUP BY l_returnflag"),
    Question(MEANS, "SELECT AVG(c_acctbal) FROM customer"),
    Question(MEANS, "SELECT o_orderpriority, AVG(o_totalprice) FROM orders GROUP BY o_orderpriority"),
    Question(MEANS, "SELECT l_shipmode, AVG(l_quantity) FROM lineitem GROUP BY l_shipmode"),
    Question(SHARES, "SELECT 1.0 * COUNT(*) FILTER (WHERE o_orderstatus = 'F') / COUNT(*) FROM orders"),
)
