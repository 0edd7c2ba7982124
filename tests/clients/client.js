// Asks a gateway by the package pg and prints what it was answered as one line of JSON.
// Arguments: the modules' folder, the connection string, and the queries as JSON, or "sequelize".
const [modules, dsn, queries] = process.argv.slice(2);
const pg = require(`${modules}/pg`);
const Cursor = require(`${modules}/pg-cursor`);
const { values, counts, elders, codes, rows } = queries === "sequelize" ? {} : JSON.parse(queries);

async function main() {
  const client = new pg.Client({ connectionString: dsn });
  const notices = [];
  client.on("notice", (notice) => notices.push(notice.message));
  await client.connect();
  const found = {};
  found.values = (await client.query({ text: values, rowMode: "array" })).rows[0];
  found.counts = (await client.query({ text: counts, rowMode: "array" })).rows;
  found.elders = (await client.query(elders, [60, "F"])).rows[0].n;
  const listed = await client.query("SELECT COUNT(*) AS n FROM icd10 WHERE code = ANY($1)", [["A09", "C50"]]);
  found.listed = listed.rows[0].n;
  found.named = [];
  for (let number = 0; number < 10; number++) {
    const result = await client.query({ name: "next", text: "SELECT $1::integer + 1 AS n", values: [number] });
    found.named.push(result.rows[0].n);
  }
  const binary = await client.query({ text: "SELECT 1 AS a, 2.5::float8 AS b, true AS c", values: [], binary: true });
  found.binary = binary.rows[0];
  found.several = (await client.query("SELECT 1 AS a; SELECT 2 AS a")).map((result) => result.rows[0].a);
  const cursor = client.query(new Cursor(codes));
  found.first = (await cursor.read(3)).map((row) => row.code);
  found.others = (await cursor.read(1000)).map((row) => row.code);
  await cursor.close();
  await client.query("BEGIN");
  await client.query("SAVEPOINT s");
  await client.query(rows).catch((error) => (found.refused = [error.code, error.hint]));
  await client.query("ROLLBACK TO s");
  found.after = (await client.query("SELECT 1 AS a")).rows[0].a;
  await client.query("COMMIT");
  await client.end();
  found.notices = notices;
  console.log(JSON.stringify(found));
}

async function model() {
  const { Sequelize, DataTypes } = require(`${modules}/sequelize`);
  const sequelize = new Sequelize(dsn, { logging: false });
  await sequelize.authenticate();
  const interface_ = sequelize.getQueryInterface();
  const found = { tables: (await interface_.showAllTables()).map((table) => table.tableName ?? table) };
  found.columns = Object.keys(await interface_.describeTable("patients"));
  const [foreign] = await interface_.getForeignKeyReferencesForTable("visits");
  found.foreign = [foreign.columnName, foreign.referencedTableName, foreign.referencedColumnName];
  const columns = { patient_id: { type: DataTypes.BIGINT, primaryKey: true }, sex: DataTypes.TEXT };
  const patients = sequelize.define("patients", columns, { timestamps: false });
  found.count = await patients.count({ where: { sex: "F" } });
  found.inside = await sequelize.transaction((t) => sequelize.query("SELECT 1 AS a", { transaction: t, plain: true }));
  found.refused = await patients.findAll().catch((error) => error.parent.code);
  await sequelize.close();
  console.log(JSON.stringify(found));
}

(queries === "sequelize" ? model : main)().catch((error) => {
  console.error(error);
  process.exit(1);
});
