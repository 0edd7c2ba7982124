-- A dashboard's charts over the demo's tables, as Superset 6.1 writes them: its forms of big numbers, bars, tables and time series
-- were recorded at a PostgreSQL server. The filters are set one after another, and taken away at the end.

SELECT
  COUNT(*) AS count
FROM main.patients
LIMIT 1000;

SELECT
  sex AS sex,
  COUNT(*) AS count,
  AVG(weight) AS "AVG(weight)"
FROM main.patients
GROUP BY
  sex
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  age AS age,
  COUNT(*) AS count
FROM main.patients
GROUP BY
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  sex AS sex,
  age AS age,
  COUNT(*) AS count
FROM main.patients
GROUP BY
  sex,
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('F')
LIMIT 1000;

SELECT
  sex AS sex,
  COUNT(*) AS count,
  AVG(weight) AS "AVG(weight)"
FROM main.patients
WHERE
  sex IN ('F')
GROUP BY
  sex
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('F')
GROUP BY
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  sex AS sex,
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('F')
GROUP BY
  sex,
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('M')
LIMIT 1000;

SELECT
  sex AS sex,
  COUNT(*) AS count,
  AVG(weight) AS "AVG(weight)"
FROM main.patients
WHERE
  sex IN ('M')
GROUP BY
  sex
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('M')
GROUP BY
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  sex AS sex,
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('M')
GROUP BY
  sex,
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('F', 'M')
LIMIT 1000;

SELECT
  sex AS sex,
  COUNT(*) AS count,
  AVG(weight) AS "AVG(weight)"
FROM main.patients
WHERE
  sex IN ('F', 'M')
GROUP BY
  sex
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('F', 'M')
GROUP BY
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  sex AS sex,
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('F', 'M')
GROUP BY
  sex,
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.patients
WHERE
  age >= 18
  AND age <= 110
LIMIT 1000;

SELECT
  sex AS sex,
  COUNT(*) AS count,
  AVG(weight) AS "AVG(weight)"
FROM main.patients
WHERE
  age >= 18
  AND age <= 110
GROUP BY
  sex
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  age >= 18
  AND age <= 110
GROUP BY
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  sex AS sex,
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  age >= 18
  AND age <= 110
GROUP BY
  sex,
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.patients
WHERE
  age >= 65
  AND age <= 110
LIMIT 1000;

SELECT
  sex AS sex,
  COUNT(*) AS count,
  AVG(weight) AS "AVG(weight)"
FROM main.patients
WHERE
  age >= 65
  AND age <= 110
GROUP BY
  sex
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  age >= 65
  AND age <= 110
GROUP BY
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  sex AS sex,
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  age >= 65
  AND age <= 110
GROUP BY
  sex,
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('F')
  AND age >= 65
  AND age <= 110
LIMIT 1000;

SELECT
  sex AS sex,
  COUNT(*) AS count,
  AVG(weight) AS "AVG(weight)"
FROM main.patients
WHERE
  sex IN ('F')
  AND age >= 65
  AND age <= 110
GROUP BY
  sex
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('F')
  AND age >= 65
  AND age <= 110
GROUP BY
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  sex AS sex,
  age AS age,
  COUNT(*) AS count
FROM main.patients
WHERE
  sex IN ('F')
  AND age >= 65
  AND age <= 110
GROUP BY
  sex,
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.patients
LIMIT 1000;

SELECT
  sex AS sex,
  COUNT(*) AS count,
  AVG(weight) AS "AVG(weight)"
FROM main.patients
GROUP BY
  sex
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  age AS age,
  COUNT(*) AS count
FROM main.patients
GROUP BY
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  sex AS sex,
  age AS age,
  COUNT(*) AS count
FROM main.patients
GROUP BY
  sex,
  age
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  DATE_TRUNC('MONTH', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2020-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2027-01-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('MONTH', visited_on)
LIMIT 1000;

SELECT
  DATE_TRUNC('QUARTER', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2020-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2027-01-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('QUARTER', visited_on)
LIMIT 1000;

SELECT
  DATE_TRUNC('YEAR', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2020-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2027-01-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('YEAR', visited_on)
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.visits
WHERE
  visited_on >= TO_DATE('2020-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2027-01-01', 'YYYY-MM-DD')
LIMIT 1000;

SELECT
  icd AS icd,
  COUNT(*) AS count
FROM main.visits
WHERE
  visited_on >= TO_DATE('2020-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2027-01-01', 'YYYY-MM-DD')
GROUP BY
  icd
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  DATE_TRUNC('MONTH', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2024-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2025-01-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('MONTH', visited_on)
LIMIT 1000;

SELECT
  DATE_TRUNC('QUARTER', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2024-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2025-01-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('QUARTER', visited_on)
LIMIT 1000;

SELECT
  DATE_TRUNC('YEAR', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2024-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2025-01-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('YEAR', visited_on)
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.visits
WHERE
  visited_on >= TO_DATE('2024-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2025-01-01', 'YYYY-MM-DD')
LIMIT 1000;

SELECT
  icd AS icd,
  COUNT(*) AS count
FROM main.visits
WHERE
  visited_on >= TO_DATE('2024-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2025-01-01', 'YYYY-MM-DD')
GROUP BY
  icd
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  DATE_TRUNC('MONTH', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2024-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2024-07-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('MONTH', visited_on)
LIMIT 1000;

SELECT
  DATE_TRUNC('QUARTER', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2024-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2024-07-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('QUARTER', visited_on)
LIMIT 1000;

SELECT
  DATE_TRUNC('YEAR', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2024-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2024-07-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('YEAR', visited_on)
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.visits
WHERE
  visited_on >= TO_DATE('2024-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2024-07-01', 'YYYY-MM-DD')
LIMIT 1000;

SELECT
  icd AS icd,
  COUNT(*) AS count
FROM main.visits
WHERE
  visited_on >= TO_DATE('2024-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2024-07-01', 'YYYY-MM-DD')
GROUP BY
  icd
ORDER BY
  count DESC
LIMIT 1000;

SELECT
  DATE_TRUNC('MONTH', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2020-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2027-01-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('MONTH', visited_on)
LIMIT 1000;

SELECT
  DATE_TRUNC('QUARTER', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2020-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2027-01-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('QUARTER', visited_on)
LIMIT 1000;

SELECT
  DATE_TRUNC('YEAR', visited_on) AS visited_on,
  COUNT(*) AS count,
  AVG(cost) AS "AVG(cost)"
FROM main.visits
WHERE
  visited_on >= TO_DATE('2020-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2027-01-01', 'YYYY-MM-DD')
GROUP BY
  DATE_TRUNC('YEAR', visited_on)
LIMIT 1000;

SELECT
  COUNT(*) AS count
FROM main.visits
WHERE
  visited_on >= TO_DATE('2020-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2027-01-01', 'YYYY-MM-DD')
LIMIT 1000;

SELECT
  icd AS icd,
  COUNT(*) AS count
FROM main.visits
WHERE
  visited_on >= TO_DATE('2020-01-01', 'YYYY-MM-DD')
  AND visited_on < TO_DATE('2027-01-01', 'YYYY-MM-DD')
GROUP BY
  icd
ORDER BY
  count DESC
LIMIT 1000;
