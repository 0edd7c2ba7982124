import java.sql.Connection;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;

/** Asks a gateway by JDBC and prints what it was answered, a line for each question: its name, a tab, the rows. */
public class Client {
  /** Arguments: the address, and the queries VALUES, COUNTS, CODES and ROWS. */
  public static void main(String[] args) throws SQLException {
    try (Connection connection = DriverManager.getConnection(args[0], "ana", "secret")) {
      queries(connection, args[1], args[2]);
      browsing(connection);
      cursors(connection, args[3]);
      transactions(connection, args[4]);
    }
  }

  private static void queries(Connection connection, String values, String counts) throws SQLException {
    try (Statement statement = connection.createStatement()) {
      tell("counts", statement.executeQuery(counts));
      System.out.println("warning\t" + statement.getWarnings().getMessage());
      statement.execute("SELECT 1; SELECT 2");
      tell("first", statement.getResultSet());
      statement.getMoreResults();
      tell("second", statement.getResultSet());
    }
    try (PreparedStatement prepared = connection.prepareStatement(values)) {
      for (int run = 0; run < 10; run++) { // from the sixth on, the driver has results in binary
        tell("values", prepared.executeQuery());
      }
    }
    String elders = "SELECT COUNT(*) AS n FROM patients WHERE age > ? AND sex = ?";
    try (PreparedStatement prepared = connection.prepareStatement(elders)) {
      System.out.println("types\t" + prepared.getParameterMetaData().getParameterTypeName(1) + "|"
          + prepared.getParameterMetaData().getParameterTypeName(2) + "|" + prepared.getMetaData().getColumnTypeName(1));
      for (int run = 0; run < 10; run++) {
        prepared.setInt(1, 60);
        prepared.setString(2, "F");
        tell("elders", prepared.executeQuery());
      }
    }
    try (PreparedStatement prepared = connection.prepareStatement("SELECT COUNT(*) FROM icd10 WHERE code = ANY(?)")) {
      for (int run = 0; run < 10; run++) {
        prepared.setArray(1, connection.createArrayOf("text", new Object[] {"A09", "C50"}));
        tell("listed", prepared.executeQuery());
      }
    }
    try (PreparedStatement prepared = connection.prepareStatement("SELECT ?::date, ?::numeric, ?::timestamptz")) {
      for (int run = 0; run < 10; run++) {
        prepared.setDate(1, Date.valueOf("2024-02-29"));
        prepared.setBigDecimal(2, new java.math.BigDecimal("12.50"));
        prepared.setObject(3, java.time.OffsetDateTime.parse("2024-02-29T12:30:00Z"));
        tell("parameters", prepared.executeQuery());
      }
    }
  }

  private static void browsing(Connection connection) throws SQLException {
    var catalog = connection.getMetaData();
    System.out.println("product\t" + catalog.getDatabaseProductName() + " " + catalog.getDatabaseProductVersion());
    tell("tables", catalog.getTables(null, "public", "%", new String[] {"TABLE"}), "TABLE_NAME", "REMARKS");
    tell("columns", catalog.getColumns(null, "public", "patients", "%"), "COLUMN_NAME", "TYPE_NAME", "IS_NULLABLE");
    tell("key", catalog.getPrimaryKeys(null, "public", "patients"), "COLUMN_NAME", "PK_NAME");
    tell("references", catalog.getImportedKeys(null, "public", "visits"), "PKTABLE_NAME", "FKCOLUMN_NAME");
    tell("referred", catalog.getExportedKeys(null, "public", "patients"), "FKTABLE_NAME");
    tell("indexes", catalog.getIndexInfo(null, "public", "patients", false, true), "INDEX_NAME");
    tell("schemas", catalog.getSchemas(), "TABLE_SCHEM");
    tell("databases", catalog.getCatalogs(), "TABLE_CAT");
    catalog.getTypeInfo().close();
    catalog.getFunctions(null, null, "%").close();
    catalog.getTablePrivileges(null, "public", "patients").close();
  }

  private static void cursors(Connection connection, String codes) throws SQLException {
    connection.setAutoCommit(false);
    try (Statement statement = connection.createStatement()) {
      statement.setFetchSize(7); // by portals that are suspended
      tell("fetched", statement.executeQuery(codes));
      statement.setMaxRows(2);
      tell("limited", statement.executeQuery(codes));
    }
    connection.commit();
  }

  private static void transactions(Connection connection, String rows) throws SQLException {
    connection.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
    connection.setReadOnly(true);
    System.out.println("serializable\t" + (connection.getTransactionIsolation() == Connection.TRANSACTION_SERIALIZABLE));
    Savepoint savepoint = connection.setSavepoint("s");
    try (Statement statement = connection.createStatement()) {
      statement.executeQuery(rows);
    } catch (SQLException error) {
      System.out.println("refused\t" + error.getSQLState() + "|" + error.getMessage().replace("\n", " "));
    }
    connection.rollback(savepoint);
    tell("after", connection.createStatement().executeQuery("SELECT 1"));
    connection.rollback();
    System.out.println("valid\t" + connection.isValid(5));
  }

  /** Prints the rows, all columns of them or those named: columns between bars, rows between semicolons. */
  private static void tell(String name, ResultSet rows, String... columns) throws SQLException {
    StringBuilder told = new StringBuilder(name).append('\t');
    String between = "";
    while (rows.next()) {
      told.append(between);
      int count = columns.length > 0 ? columns.length : rows.getMetaData().getColumnCount();
      for (int column = 0; column < count; column++) {
        told.append(column > 0 ? "|" : "");
        told.append(columns.length > 0 ? rows.getString(columns[column]) : rows.getString(column + 1));
      }
      between = ";";
    }
    rows.close();
    System.out.println(told);
  }
}
