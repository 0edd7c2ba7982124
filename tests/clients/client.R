# Asks a gateway by RPostgreSQL and prints what it was answered, a line for each question: its name, a tab, the rows.
# Arguments: the queries VALUES, COUNTS, CODES and ROWS; the gateway is named by the environment.
library(DBI)
queries <- commandArgs(trailingOnly = TRUE)

tell <- function(name, rows) {
  lines <- do.call(paste, c(lapply(rows, function(column) trimws(format(column, digits = 15))), sep = "|"))
  cat(name, "\t", paste(lines, collapse = ";"), "\n", sep = "")
}

connection <- dbConnect(RPostgreSQL::PostgreSQL())
values <- dbGetQuery(connection, queries[1])
tell("values", values)
tell("classes", as.data.frame(lapply(values, function(column) class(column)[1])))
tell("counts", dbGetQuery(connection, queries[2]))
tell("elders", dbGetQuery(connection, "SELECT COUNT(*) FROM patients WHERE age > $1 AND sex = $2", list(60, "F")))
tell("tables", data.frame(dbListTables(connection)))
tell("fields", data.frame(dbListFields(connection, "patients")))
tell("exists", data.frame(dbExistsTable(connection, "visits"), dbExistsTable(connection, "nothing")))
tell("read", dbReadTable(connection, "doctors")[1:3, ])
result <- dbSendQuery(connection, queries[3])
tell("first", dbFetch(result, 3))
tell("others", dbFetch(result, -1))
invisible(dbClearResult(result))
invisible(dbBegin(connection))
refused <- tryCatch(dbSendQuery(connection, queries[4]), error = conditionMessage)
cat("refused\t", gsub("\n", " ", refused), "\n", sep = "")
invisible(dbRollback(connection))
tell("after", dbGetQuery(connection, "SELECT 1"))
invisible(dbDisconnect(connection))
