import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.Map;
import java.util.Properties;
import org.postgresql.util.PSQLException;

/**
 * The demo clinic, asked by JDBC: java -cp postgresql.jar examples/Analyst.java
 *
 * <p>PGHOST, PGPORT, PGDATABASE, PGUSER and PGPASSWORD name the gateway: examples/README.md.
 */
public class Analyst {
  private static final String ELDERS =
      "SELECT sex, COUNT(*) AS patients FROM patients WHERE age > ? GROUP BY sex ORDER BY sex";

  /** Asks a question with a parameter, and one that is refused. */
  public static void main(String[] arguments) throws SQLException {
    Map<String, String> env = System.getenv();
    String url = "jdbc:postgresql://%s:%s/%s".formatted(env.get("PGHOST"), env.get("PGPORT"), env.get("PGDATABASE"));
    try (Connection connection = DriverManager.getConnection(url, env.get("PGUSER"), env.get("PGPASSWORD"))) {
      try (var statement = connection.prepareStatement(ELDERS)) {
        statement.setInt(1, 60);
        var rows = statement.executeQuery();
        while (rows.next()) {
          System.out.println(rows.getString("sex") + "\t" + rows.getLong("patients"));
        }
        // Each answer has a notice, with its price, what is left, and how exact it is.
        System.out.println(statement.getWarnings().getMessage());
      }
      try (var statement = connection.createStatement()) {
        statement.executeQuery("SELECT * FROM patients WHERE age > 60");
      } catch (PSQLException error) {
        var told = error.getServerErrorMessage();
        System.out.println(error.getSQLState() + ": " + told.getMessage());
        System.out.println("hint: " + told.getHint());
      }
    }
  }
}
