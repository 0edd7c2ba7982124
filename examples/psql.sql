-- The demo clinic, asked by psql:  psql -X -f examples/psql.sql
-- examples/README.md says how to start the gateway and which variables name it.
\set ON_ERROR_STOP on
\set QUIET on
\set age 60
\pset null '(not told)'
\pset footer off

\echo 'What the question would cost and how exact it would be; EXPLAIN reads no row and spends nothing.'
EXPLAIN SELECT sex, COUNT(*) AS patients FROM patients WHERE age > :age GROUP BY sex ORDER BY sex
\g (tuples_only=on) | head -n 4

\echo 'The answer. A notice says what it did cost: nothing, if this user was given it before.'
SELECT sex, COUNT(*) AS patients FROM patients WHERE age > :age GROUP BY sex ORDER BY sex;

\echo 'What stands above an answer is free: the share of each sex is computed from the same counts.'
SET dpsql.notices = off;
SELECT sex, ROUND(100.0 * patients / SUM(patients) OVER (), 1) AS percent
FROM (SELECT sex, COUNT(*) AS patients FROM patients WHERE age > :age GROUP BY sex) AS elders ORDER BY sex;

\echo 'Rows of patients are refused, with a query that would work.'
\set ON_ERROR_STOP off
SELECT * FROM patients WHERE age > :age;
\set ON_ERROR_STOP on
\echo 'SQLSTATE' :LAST_ERROR_SQLSTATE

\echo 'What is left.'
SELECT epsilon_limit, epsilon_remaining, queries_that_fit FROM dpsql.budget;
