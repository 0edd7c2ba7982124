-- Twenty questions to records in the OMOP Common Data Model, as policies/omop.toml protects them.

-- How many persons are there, by gender?
SELECT g.concept_name AS gender, COUNT(*) AS persons
FROM person AS p JOIN concept AS g ON g.concept_id = p.gender_concept_id
WHERE g.domain_id = 'Gender'
GROUP BY g.concept_name;

-- By decade of birth?
SELECT year_of_birth / 10 * 10 AS decade, COUNT(*) AS persons FROM person GROUP BY decade ORDER BY decade;

-- By race and gender?
SELECT race_concept_id, gender_concept_id, COUNT(*) AS persons FROM person GROUP BY race_concept_id, gender_concept_id;

-- For how many months are persons observed?
SELECT PERCENTILE_DISC(ARRAY[0.25, 0.5, 0.75])
    WITHIN GROUP (ORDER BY (observation_period_end_date - observation_period_start_date) / 30) AS months
FROM observation_period;

-- How many persons are observed in each year?
SELECT y AS year, COUNT(DISTINCT o.person_id) AS persons
FROM generate_series(2016, 2023) AS y LEFT JOIN observation_period AS o
  ON y BETWEEN EXTRACT(YEAR FROM o.observation_period_start_date) AND EXTRACT(YEAR FROM o.observation_period_end_date)
GROUP BY y ORDER BY y;

-- How many visits of each type begin in each year?
SELECT EXTRACT(YEAR FROM visit_start_date) AS year, visit_concept_id, COUNT(*) AS visits
FROM visit_occurrence GROUP BY year, visit_concept_id;

-- How long do inpatients stay?
SELECT AVG(LEAST(visit_end_date - visit_start_date, 30)) AS days FROM visit_occurrence WHERE visit_concept_id = 9201;

-- Which conditions do most persons have?
SELECT c.concept_name, COUNT(DISTINCT o.person_id) AS persons
FROM condition_occurrence AS o JOIN concept AS c ON c.concept_id = o.condition_concept_id
WHERE c.domain_id = 'Condition' GROUP BY c.concept_name ORDER BY persons DESC LIMIT 3;

-- How old are persons when diabetes is first diagnosed?
SELECT p.gender_concept_id, AVG(EXTRACT(YEAR FROM d.first_day) - p.year_of_birth) AS age
FROM person AS p JOIN (SELECT person_id, MIN(condition_start_date) AS first_day FROM condition_occurrence
    WHERE condition_concept_id = 201826 GROUP BY person_id) AS d ON d.person_id = p.person_id
GROUP BY p.gender_concept_id;

-- How many diagnoses has a person who has any?
SELECT AVG(n) AS average, PERCENTILE_DISC(0.9) WITHIN GROUP (ORDER BY n) AS ninth_decile
FROM (SELECT person_id, COUNT(*) AS n FROM condition_occurrence GROUP BY person_id) AS t;

-- How many drugs are given in each quarter?
SELECT DATE_TRUNC('quarter', drug_exposure_start_date) AS quarter, COUNT(*) AS exposures
FROM drug_exposure WHERE drug_exposure_start_date >= '2020-01-01' GROUP BY quarter ORDER BY quarter;

-- What share of persons with diabetes has metformin?
SELECT COUNT(*) FILTER (WHERE EXISTS (SELECT 1 FROM drug_exposure AS e
    WHERE e.person_id = p.person_id AND e.drug_concept_id = 1503297)) / NULLIF(COUNT(*), 0)::float8 AS share
FROM person AS p
WHERE EXISTS (SELECT 1 FROM condition_occurrence AS o WHERE o.person_id = p.person_id AND o.condition_concept_id = 201826);

-- For how many days are drugs supplied?
SELECT e.drug_concept_id, PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY e.days_supply) AS median
FROM drug_exposure AS e JOIN concept AS c ON c.concept_id = e.drug_concept_id
WHERE c.domain_id = 'Drug'
GROUP BY e.drug_concept_id;

-- In which months is pneumonia diagnosed?
SELECT EXTRACT(MONTH FROM condition_start_date) AS month, COUNT(DISTINCT person_id) AS persons
FROM condition_occurrence WHERE condition_concept_id = 255848 GROUP BY month ORDER BY month;

-- What are usual values of each measurement?
SELECT measurement_concept_id, AVG(value_as_number) AS mean, STDDEV(value_as_number) AS deviation
FROM measurement GROUP BY measurement_concept_id;

-- How many persons die in each year, by age group?
SELECT EXTRACT(YEAR FROM d.death_date) AS year,
    CASE WHEN EXTRACT(YEAR FROM d.death_date) - p.year_of_birth < 65 THEN 'below 65' ELSE '65 and above' END AS age,
    COUNT(*) AS deaths
FROM death AS d JOIN person AS p USING (person_id) GROUP BY 1, 2;

-- What is paid, by domain?
SELECT cost_domain_id, COUNT(*) AS costs, SUM(total_paid) AS paid FROM cost GROUP BY cost_domain_id;

-- What does a visit of each type cost?
SELECT v.visit_concept_id, AVG(c.total_paid) AS paid
FROM cost AS c JOIN visit_occurrence AS v ON v.visit_occurrence_id = c.cost_event_id
WHERE c.cost_domain_id = 'Visit' GROUP BY v.visit_concept_id;

-- What do persons with hypertension cost?
SELECT SUM(c.total_paid) AS paid FROM cost AS c
WHERE EXISTS (SELECT 1 FROM condition_occurrence AS o WHERE o.person_id = c.person_id AND o.condition_concept_id = 320128);

-- After how many stays is a person readmitted within 30 days?
SELECT COUNT(*) AS stays, COUNT(*) FILTER (WHERE since_last <= 30) AS readmissions
FROM (SELECT person_id,
        visit_start_date - LAG(visit_end_date) OVER (PARTITION BY person_id ORDER BY visit_start_date) AS since_last
    FROM visit_occurrence WHERE visit_concept_id = 9201) AS stays;
