# The demo clinic, asked from R:  Rscript examples/analyst.R
# PGHOST, PGPORT, PGDATABASE, PGUSER and PGPASSWORD name the gateway: examples/README.md.
library(DBI)

connection <- dbConnect(RPostgreSQL::PostgreSQL())

# The driver writes the notice, with the price and what is left, to standard error.
elders <- dbGetQuery(
  connection,
  "SELECT sex, COUNT(*) AS patients FROM patients WHERE age > $1 GROUP BY sex ORDER BY sex",
  60
)
print(elders)

# EXPLAIN spends nothing: the price, what is left, and how exact each column is.
plan <- dbGetQuery(connection, "EXPLAIN SELECT sex, AVG(weight) FROM patients GROUP BY sex")
cat(head(plan[[1]], 4), sep = "\n")

# Rows of patients are refused, with a query that would work.
tryCatch(
  dbSendQuery(connection, "SELECT * FROM patients WHERE age > 60"),
  error = function(refused) cat(conditionMessage(refused))
)

invisible(dbDisconnect(connection))
