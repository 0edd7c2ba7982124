// The demo clinic, asked from Node:  npm install pg && node examples/analyst.js
// PGHOST, PGPORT, PGDATABASE, PGUSER and PGPASSWORD name the gateway: examples/README.md.
const { Client } = require("pg");

const elders = "SELECT sex, COUNT(*) AS patients FROM patients WHERE age > $1 GROUP BY sex ORDER BY sex";

async function main() {
  const client = new Client();
  // Each answer has a notice, with its price, what is left, and how exact it is.
  client.on("notice", (notice) => console.log(notice.message));
  await client.connect();
  try {
    // A count is a bigint, which the driver gives as text.
    console.table((await client.query(elders, [60])).rows);
    await client.query("SELECT * FROM patients WHERE age > $1", [60]).catch((error) => {
      console.log(`${error.code}: ${error.message}\nhint: ${error.hint}`);
    });
  } finally {
    await client.end();
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
