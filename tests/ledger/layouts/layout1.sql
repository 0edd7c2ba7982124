-- A ledger of layout 1, written by the code of commit 6932111 and dumped: charges under zcdp, basic and pure budgets,
-- answers had again by their owner and by others, failures and frozen accounts, renewals by days and by months, two
-- caps made one, releases stored and dropped, users removed and added again. layout1.json is what that code said of it.
BEGIN TRANSACTION;
CREATE TABLE accounts (
    name TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    verifier_digest TEXT,
    created TEXT NOT NULL,
    removed INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    frozen INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "accounts" VALUES('ana','analyst','8771bf69cf5c60836c79b23bc695a59e308d3fd138a6358f27a17f21877fd71f','2026-01-15T12:00:00.000000+00:00',0,0,0);
INSERT INTO "accounts" VALUES('ben','guest','efc203edb7305dfa52e923817f4ddc70e3894767fc2853bd91eb4b01ebea16d8','2026-01-15T12:01:00.000000+00:00',0,0,0);
INSERT INTO "accounts" VALUES('cleo','analyst',NULL,'2026-01-15T12:02:00.000000+00:00',0,3,1);
INSERT INTO "accounts" VALUES('dora','guest',NULL,'2026-02-16T14:23:02.000000+00:00',1,0,0);
CREATE TABLE budgets (
    id INTEGER PRIMARY KEY,
    user TEXT,
    dataset TEXT,
    anchor TEXT NOT NULL,
    window_start TEXT NOT NULL,
    spent TEXT NOT NULL,
    charges INTEGER NOT NULL,
    UNIQUE (user, dataset)
);
INSERT INTO "budgets" VALUES(1,'ana','clinic','2026-02-15T14:16:02.000000+00:00','2026-02-15T14:16:02.000000+00:00','{"basic_delta":"0","basic_epsilon":"3/10","delta":"0","pure_epsilon":"3/10","rho":"3/200"}',3);
INSERT INTO "budgets" VALUES(2,NULL,NULL,'2026-01-15T12:10:00.000000+00:00','2026-01-15T12:10:00.000000+00:00','{"basic_delta":"11/100000000","basic_epsilon":null,"delta":"11/100000000","pure_epsilon":null,"rho":"87246793902746283698664651047/500000000000000000000000000000"}',15);
INSERT INTO "budgets" VALUES(3,'ben','clinic','2026-02-16T14:23:02.000000+00:00','2026-02-16T14:23:02.000000+00:00','{"basic_delta":"0","basic_epsilon":"1/50","delta":"0","pure_epsilon":"1/50","rho":"1/5000"}',1);
INSERT INTO "budgets" VALUES(4,'ana','trials','2026-01-15T12:59:00.000000+00:00','2026-01-31T23:00:00.000000+00:00','{"basic_delta":"0","basic_epsilon":"2/5","delta":"0","pure_epsilon":"2/5","rho":"1/25"}',2);
INSERT INTO "budgets" VALUES(6,'cleo','trials','2026-01-15T13:06:00.000000+00:00','2026-01-15T13:06:00.000000+00:00','{"basic_delta":"1/10000000","basic_epsilon":"88888888888888888888888888889/200000000000000000000000000000","delta":"1/10000000","pure_epsilon":"88888888888888888888888888889/200000000000000000000000000000","rho":"30864197530864197530864197531/500000000000000000000000000000"}',1);
INSERT INTO "budgets" VALUES(7,'cleo','wards','2026-01-15T13:13:00.000000+00:00','2026-01-15T13:13:00.000000+00:00','{"basic_delta":"0","basic_epsilon":"1","delta":"0","pure_epsilon":"1","rho":"1/2"}',1);
INSERT INTO "budgets" VALUES(8,NULL,NULL,'2026-01-15T13:13:00.000000+00:00','2026-01-15T13:13:00.000000+00:00','{"basic_delta":"0","basic_epsilon":"1","delta":"0","pure_epsilon":"1","rho":"1/2"}',1);
INSERT INTO "budgets" VALUES(9,'ben','trials','2026-02-15T14:09:02.000000+00:00','2026-02-15T14:09:02.000000+00:00','{"basic_delta":"0","basic_epsilon":"1/5","delta":"0","pure_epsilon":"1/5","rho":"1/50"}',1);
CREATE TABLE caps (
    name TEXT PRIMARY KEY,
    budget INTEGER NOT NULL,
    adjacency TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "caps" VALUES('people',2,'add_remove');
INSERT INTO "caps" VALUES('volunteers',2,'add_remove');
INSERT INTO "caps" VALUES('wards',8,'add_remove');
CREATE TABLE datasets (
    name TEXT PRIMARY KEY,
    cap TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "datasets" VALUES('clinic','people');
INSERT INTO "datasets" VALUES('trials','people');
INSERT INTO "datasets" VALUES('wards','wards');
CREATE TABLE payloads (
    release INTEGER PRIMARY KEY,
    payload BLOB NOT NULL
);
INSERT INTO "payloads" VALUES(17,X'726F7773206F66207433');
INSERT INTO "payloads" VALUES(19,X'726F7773206F662068');
INSERT INTO "payloads" VALUES(20,X'726F7773206F662069');
INSERT INTO "payloads" VALUES(21,X'726F7773206F662061');
CREATE TABLE quarantine (
    key TEXT PRIMARY KEY
) WITHOUT ROWID;
INSERT INTO "quarantine" VALUES('q1');
INSERT INTO "quarantine" VALUES('q2');
INSERT INTO "quarantine" VALUES('q3');
INSERT INTO "quarantine" VALUES('q4');
INSERT INTO "quarantine" VALUES('q5');
INSERT INTO "quarantine" VALUES('q6');
INSERT INTO "quarantine" VALUES('r2');
INSERT INTO "quarantine" VALUES('r3');
CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
);
INSERT INTO "records" VALUES(1,'2026-01-15T12:00:00.000000+00:00','account.added','{"name":"ana","role":"analyst","verifier":"efc203edb7305dfa52e923817f4ddc70e3894767fc2853bd91eb4b01ebea16d8"}','0000000000000000000000000000000000000000000000000000000000000000','96ec0e8483058cffa5c59a593bb0011579f0aad78f59cb4c4b1db709f1cd966d');
INSERT INTO "records" VALUES(2,'2026-01-15T12:01:00.000000+00:00','account.added','{"name":"ben","role":"analyst","verifier":"efc203edb7305dfa52e923817f4ddc70e3894767fc2853bd91eb4b01ebea16d8"}','96ec0e8483058cffa5c59a593bb0011579f0aad78f59cb4c4b1db709f1cd966d','6caaa9ed9b9739664bdafb05d65bd8f58a241d5310e7e8630b0e361021713438');
INSERT INTO "records" VALUES(3,'2026-01-15T12:02:00.000000+00:00','account.added','{"name":"cleo","role":"analyst","verifier":null}','6caaa9ed9b9739664bdafb05d65bd8f58a241d5310e7e8630b0e361021713438','0d7500d0da82fdd2ea747cf5e0e0aa8fb680a1606b3d7ac59d9cb6a8e78b1984');
INSERT INTO "records" VALUES(4,'2026-01-15T12:10:00.000000+00:00','budget.created','{"dataset":"clinic","id":1,"user":"ana"}','0d7500d0da82fdd2ea747cf5e0e0aa8fb680a1606b3d7ac59d9cb6a8e78b1984','5cf6bec7cc41cce4ae1333e7f7aeaa87026346e3a674e76c828a9bdf488bb949');
INSERT INTO "records" VALUES(5,'2026-01-15T12:10:00.000000+00:00','budget.terms','{"budget":1,"dataset":"clinic","limit":{"accountant":"zcdp","delta_conversion":"1/2000000","delta_selection":"1/2000000","epsilon":"2","rho":"834417178336797/10000000000000000"},"new_window":true,"terms":{"accountant":"zcdp","delta":"1/1000000","epsilon":"2","selection_share":"1/2","window":{"days":30,"timezone":"UTC"}}}','5cf6bec7cc41cce4ae1333e7f7aeaa87026346e3a674e76c828a9bdf488bb949','c281e2078d5036c9c03b19d5253e036474be224eb5e43a8b0e8da430cd0ca23d');
INSERT INTO "records" VALUES(6,'2026-01-15T12:10:00.000000+00:00','cap.created','{"adjacency":"add_remove","budget":2,"cap":"people"}','c281e2078d5036c9c03b19d5253e036474be224eb5e43a8b0e8da430cd0ca23d','9bb45f1c58468a31779decfa4aeb119a86ef0ec724ccdd33adc38c3c75fb59ef');
INSERT INTO "records" VALUES(7,'2026-01-15T12:10:00.000000+00:00','dataset.joined','{"cap":"people","dataset":"clinic"}','9bb45f1c58468a31779decfa4aeb119a86ef0ec724ccdd33adc38c3c75fb59ef','ef2a17cb6a0a3a502d00a9e87a62f612dc66f91588de18d367b53e1435c46754');
INSERT INTO "records" VALUES(8,'2026-01-15T12:10:00.000000+00:00','budget.terms','{"budget":2,"dataset":"clinic","limit":{"accountant":"zcdp","delta_conversion":"1/2000000","delta_selection":"1/2000000","epsilon":"20","rho":"463427577999209/100000000000000"},"new_window":false,"terms":{"accountant":"zcdp","delta":"1/1000000","epsilon":"20","selection_share":"1/2","window":null}}','ef2a17cb6a0a3a502d00a9e87a62f612dc66f91588de18d367b53e1435c46754','cf6cca54251e2039ce402c1ce405136f9e9b6f21477ae3c7c192766e2196984d');
INSERT INTO "records" VALUES(9,'2026-01-15T12:10:00.000000+00:00','charge','{"budget":1,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"10"}],"id":1,"key":"a","origin":1}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','cf6cca54251e2039ce402c1ce405136f9e9b6f21477ae3c7c192766e2196984d','975e3e1400dbc859b7389d060ea9c3d289a3a300dfc873c6a3a0f56620c15eb2');
INSERT INTO "records" VALUES(10,'2026-01-15T12:10:00.000000+00:00','release.stored','{"digest":"7975264ee336384831ceb9f0039f75f4be3cf983005769a7aff7a5c1d1820c03","release":1,"size":9}','975e3e1400dbc859b7389d060ea9c3d289a3a300dfc873c6a3a0f56620c15eb2','98a02a2550036c24651d52293a81f670b12b780e8eb6ccce2a2f7009f70b5193');
INSERT INTO "records" VALUES(11,'2026-01-15T12:17:00.000000+00:00','charge','{"budget":1,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"10"}],"id":2,"key":"b","origin":2},{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"gaussian","scale":"100"},{"conversion_delta":"0","delta":"1/100000000","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"selection","scale":"1/20"}],"id":3,"key":"c","origin":3}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','98a02a2550036c24651d52293a81f670b12b780e8eb6ccce2a2f7009f70b5193','adbea5d3084d9187880ec0275a3155e218036ee47701f451bdf696bf5c5daebf');
INSERT INTO "records" VALUES(12,'2026-01-15T12:17:00.000000+00:00','release.stored','{"digest":"fbee26340169969b8cf795e59393c618a811a9d452ad0e9d52dc427f9832a236","release":2,"size":9}','adbea5d3084d9187880ec0275a3155e218036ee47701f451bdf696bf5c5daebf','e12ab7a349e67a80a1a574a8c2145c7c36d0982310d12ad050e2b55e8c56ae31');
INSERT INTO "records" VALUES(13,'2026-01-15T12:17:00.000000+00:00','release.stored','{"digest":"be6b45bec64d43635f38ca590e7430b5f294e316ee012adbb00dc421e4b100e7","release":3,"size":9}','e12ab7a349e67a80a1a574a8c2145c7c36d0982310d12ad050e2b55e8c56ae31','aabe2b9fa90e0e8e822cdc345b58a21fcccd3ff3e8c19398c4bbea138da6ee5d');
INSERT INTO "records" VALUES(14,'2026-01-15T12:24:00.000000+00:00','reuse','{"budget":1,"cap":2,"dataset":"clinic","releases":[],"reused":[1],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','aabe2b9fa90e0e8e822cdc345b58a21fcccd3ff3e8c19398c4bbea138da6ee5d','1cb7c79b7ae6b50aa60106712c0c9e6c356cb0590f332f07cff1ef5d9365a9df');
INSERT INTO "records" VALUES(15,'2026-01-15T12:31:00.000000+00:00','budget.created','{"dataset":"clinic","id":3,"user":"ben"}','1cb7c79b7ae6b50aa60106712c0c9e6c356cb0590f332f07cff1ef5d9365a9df','3fd7f3258f1f427649f7db1ca3611dbbbe182333c0e76b7383ed02759f541450');
INSERT INTO "records" VALUES(16,'2026-01-15T12:31:00.000000+00:00','budget.terms','{"budget":3,"dataset":"clinic","limit":{"accountant":"zcdp","delta_conversion":"1/2000000","delta_selection":"1/2000000","epsilon":"2","rho":"834417178336797/10000000000000000"},"new_window":true,"terms":{"accountant":"zcdp","delta":"1/1000000","epsilon":"2","selection_share":"1/2","window":{"days":30,"timezone":"UTC"}}}','3fd7f3258f1f427649f7db1ca3611dbbbe182333c0e76b7383ed02759f541450','270f3c86a55af7c4884795f84a3f7abf75be0671e91a04ff77ece85d219c71c8');
INSERT INTO "records" VALUES(17,'2026-01-15T12:31:00.000000+00:00','charge','{"budget":3,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"10"}],"id":4,"key":"c1","origin":4},{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"10"}],"id":5,"key":"a","origin":1}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ben","user":"ben"}','270f3c86a55af7c4884795f84a3f7abf75be0671e91a04ff77ece85d219c71c8','17973a0302570a7a051ee28f28ab17d4dbe3ea57182247806b1678ed8e3f95fa');
INSERT INTO "records" VALUES(18,'2026-01-15T12:31:00.000000+00:00','release.stored','{"digest":"757cfb118d0cca653de13f06c4725cd3d940eec0aa4dc20743b6e7a3f52da2ab","release":4,"size":10}','17973a0302570a7a051ee28f28ab17d4dbe3ea57182247806b1678ed8e3f95fa','c6553842390a4ec53b573c3aa80494f22af992d1a996b14d63bfb75f9e693fe0');
INSERT INTO "records" VALUES(19,'2026-01-15T12:38:00.000000+00:00','charge','{"budget":3,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"7"}],"id":6,"key":"3211e21f6ad75be326fd764fab335b8e67b9bd663a7164aec202bb773acefe81","origin":6}],"reused":[5],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ben","user":"ben"}','c6553842390a4ec53b573c3aa80494f22af992d1a996b14d63bfb75f9e693fe0','46c6c1e8e576c90d94ed3a96275af24fe6d50a488299150453f67efd8084d7ad');
INSERT INTO "records" VALUES(20,'2026-01-15T12:38:00.000000+00:00','release.dropped','{"release":1,"size":9}','46c6c1e8e576c90d94ed3a96275af24fe6d50a488299150453f67efd8084d7ad','f909cc641e143638065079ca7c0c14153ecca444c2ccf26ed5ac610ad6d4af41');
INSERT INTO "records" VALUES(21,'2026-01-15T12:38:00.000000+00:00','release.dropped','{"release":2,"size":9}','f909cc641e143638065079ca7c0c14153ecca444c2ccf26ed5ac610ad6d4af41','97ac1da0e431128e259e0233f2453027a54c083533912d0db4cefbce21b58f14');
INSERT INTO "records" VALUES(22,'2026-01-15T12:38:00.000000+00:00','release.stored','{"digest":"0aef5b69e86ccf50f7059a1ab575c65f79a5265393e8a3304e10479c3db67f05","release":6,"size":13}','97ac1da0e431128e259e0233f2453027a54c083533912d0db4cefbce21b58f14','b12015cbe15c28a6df7cf1b3ce82bb98410236902427074ce96f281ba6472e7d');
INSERT INTO "records" VALUES(23,'2026-01-15T12:45:00.000000+00:00','charge','{"budget":1,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"10"}],"id":7,"key":"a","origin":7}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','b12015cbe15c28a6df7cf1b3ce82bb98410236902427074ce96f281ba6472e7d','9e7c59e5fefd8a9fd25a74b52b231a9b04b6b294a65ff9d15418f7d2815e8d92');
INSERT INTO "records" VALUES(24,'2026-01-15T12:45:00.000000+00:00','release.dropped','{"release":3,"size":9}','9e7c59e5fefd8a9fd25a74b52b231a9b04b6b294a65ff9d15418f7d2815e8d92','914ff04c0d12557a59edadbbc11418a47564d859dba03196c78a2a3110d57f7e');
INSERT INTO "records" VALUES(25,'2026-01-15T12:45:00.000000+00:00','release.stored','{"digest":"7975264ee336384831ceb9f0039f75f4be3cf983005769a7aff7a5c1d1820c03","release":7,"size":9}','914ff04c0d12557a59edadbbc11418a47564d859dba03196c78a2a3110d57f7e','c90441c54607e625bd2ec2f3bb1e1fca51477de53397fd7f49ca9672d68ed2e6');
INSERT INTO "records" VALUES(26,'2026-01-15T12:52:00.000000+00:00','charge','{"budget":1,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"10"}],"id":8,"key":"d","origin":8}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','c90441c54607e625bd2ec2f3bb1e1fca51477de53397fd7f49ca9672d68ed2e6','b27d7f557afa2f01526e4d125229baa21cd62427830d574a556d62b1572e8d51');
INSERT INTO "records" VALUES(27,'2026-01-15T12:52:00.000000+00:00','release.dropped','{"release":4,"size":10}','b27d7f557afa2f01526e4d125229baa21cd62427830d574a556d62b1572e8d51','6d0d7e3893708864baedfa448d30df66e25dc6755fc7a6414a722e1985f017d1');
INSERT INTO "records" VALUES(28,'2026-01-15T12:52:00.000000+00:00','release.stored','{"digest":"98c584211c764d1727340b9fea51a4761899f4eab42c2e8597214c8555ee774b","release":8,"size":9}','6d0d7e3893708864baedfa448d30df66e25dc6755fc7a6414a722e1985f017d1','5e056cafb839ae8551e087d8b8b5effc1078146c254f4f710580ab0940516fd9');
INSERT INTO "records" VALUES(29,'2026-01-15T12:59:00.000000+00:00','budget.created','{"dataset":"trials","id":4,"user":"ana"}','5e056cafb839ae8551e087d8b8b5effc1078146c254f4f710580ab0940516fd9','73a1a0bc9ee12911bec148b5f22b7e78436d06799e77ffd9c4ab4d044f39f68f');
INSERT INTO "records" VALUES(30,'2026-01-15T12:59:00.000000+00:00','budget.terms','{"budget":4,"dataset":"trials","limit":{"accountant":"basic","delta_conversion":"0","delta_selection":"1/100000","epsilon":"3","rho":"0"},"new_window":true,"terms":{"accountant":"basic","delta":"1/100000","epsilon":"3","selection_share":"1/2","window":{"days":null,"timezone":"Europe/Berlin"}}}','73a1a0bc9ee12911bec148b5f22b7e78436d06799e77ffd9c4ab4d044f39f68f','7aa96a5ae5bd0d2958c2b732b328d5f4f09b74db962079ed87e35b88aa83e699');
INSERT INTO "records" VALUES(31,'2026-01-15T12:59:00.000000+00:00','cap.created','{"adjacency":"add_remove","budget":5,"cap":"volunteers"}','7aa96a5ae5bd0d2958c2b732b328d5f4f09b74db962079ed87e35b88aa83e699','c66b72c81b3c5aba6bffe2902781144d6708419cac0834121a0a739873e87351');
INSERT INTO "records" VALUES(32,'2026-01-15T12:59:00.000000+00:00','dataset.joined','{"cap":"volunteers","dataset":"trials"}','c66b72c81b3c5aba6bffe2902781144d6708419cac0834121a0a739873e87351','1d991d790e1a5601f880f936a78a4deb1830b36d2a29e36d4a90e61d1bbc1abf');
INSERT INTO "records" VALUES(33,'2026-01-15T12:59:00.000000+00:00','budget.terms','{"budget":5,"dataset":"trials","limit":{"accountant":"zcdp","delta_conversion":"1/2000000","delta_selection":"1/2000000","epsilon":"20","rho":"463427577999209/100000000000000"},"new_window":false,"terms":{"accountant":"zcdp","delta":"1/1000000","epsilon":"20","selection_share":"1/2","window":null}}','1d991d790e1a5601f880f936a78a4deb1830b36d2a29e36d4a90e61d1bbc1abf','44f994139ec22a6dbf52acef26fdfddaa1613da01a95ebc53f7ee8fb00ba4624');
INSERT INTO "records" VALUES(34,'2026-01-15T12:59:00.000000+00:00','charge','{"budget":4,"cap":5,"dataset":"trials","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"3"}],"id":9,"key":"t","origin":9}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','44f994139ec22a6dbf52acef26fdfddaa1613da01a95ebc53f7ee8fb00ba4624','48054c67bd503c3d2842d4cb5e9bd1afdf8355179c8961cf69fdf120816335ea');
INSERT INTO "records" VALUES(35,'2026-01-15T12:59:00.000000+00:00','release.stored','{"digest":"30c343692b9c0d2d0f43284357e47460d2055c43a686959849464fa1994ba6ee","release":9,"size":9}','48054c67bd503c3d2842d4cb5e9bd1afdf8355179c8961cf69fdf120816335ea','0f8be01db0ac14fa76240233fdde04e9f7f42dc449c35a65cdc227a15d2ef0d8');
INSERT INTO "records" VALUES(36,'2026-01-15T13:06:00.000000+00:00','budget.created','{"dataset":"trials","id":6,"user":"cleo"}','0f8be01db0ac14fa76240233fdde04e9f7f42dc449c35a65cdc227a15d2ef0d8','4b6882a0faecb09d6abf2e64266f966fed4b9b32e56f5c021e51c4b217aca416');
INSERT INTO "records" VALUES(37,'2026-01-15T13:06:00.000000+00:00','budget.terms','{"budget":6,"dataset":"trials","limit":{"accountant":"basic","delta_conversion":"0","delta_selection":"1/100000","epsilon":"3","rho":"0"},"new_window":true,"terms":{"accountant":"basic","delta":"1/100000","epsilon":"3","selection_share":"1/2","window":{"days":null,"timezone":"Europe/Berlin"}}}','4b6882a0faecb09d6abf2e64266f966fed4b9b32e56f5c021e51c4b217aca416','e1f996037ced573426f80bff96d606d241a5d8bd932ac9765fbe55261753066a');
INSERT INTO "records" VALUES(38,'2026-01-15T13:06:00.000000+00:00','charge','{"budget":6,"cap":5,"dataset":"trials","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"3"}],"id":10,"key":"t","origin":9},{"events":[{"conversion_delta":"0","delta":"1/10000000","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"selection","scale":"1/9"}],"id":11,"key":"u","origin":11}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- cleo","user":"cleo"}','e1f996037ced573426f80bff96d606d241a5d8bd932ac9765fbe55261753066a','8f0331ea07cfdf1d269321543a4166df97f9850347c6e1d84d59cbf66e489f1a');
INSERT INTO "records" VALUES(39,'2026-01-15T13:06:00.000000+00:00','release.dropped','{"release":6,"size":13}','8f0331ea07cfdf1d269321543a4166df97f9850347c6e1d84d59cbf66e489f1a','459edf4781177df8d0d56c5f318e8a8dafbd1db8ef14b45aa716283d4791e773');
INSERT INTO "records" VALUES(40,'2026-01-15T13:06:00.000000+00:00','release.stored','{"digest":"96b4f02e4dda1ce4638ba2d1fc8991dc6259ce87ae4e4a0b8351a61c77b5f3a0","release":11,"size":9}','459edf4781177df8d0d56c5f318e8a8dafbd1db8ef14b45aa716283d4791e773','3a9fbbde1ea21d7cca858a983afce6310df6404a0ba9de6171d5cf9859a6a971');
INSERT INTO "records" VALUES(41,'2026-01-15T13:13:00.000000+00:00','budget.created','{"dataset":"wards","id":7,"user":"cleo"}','3a9fbbde1ea21d7cca858a983afce6310df6404a0ba9de6171d5cf9859a6a971','47d015aedc2693525797db14d92135bb1f88cdfd346ac05dd1e35dee510f6d4a');
INSERT INTO "records" VALUES(42,'2026-01-15T13:13:00.000000+00:00','budget.terms','{"budget":7,"dataset":"wards","limit":{"accountant":"pure","delta_conversion":"0","delta_selection":"0","epsilon":"4","rho":"0"},"new_window":false,"terms":{"accountant":"pure","delta":"0","epsilon":"4","selection_share":"1/2","window":null}}','47d015aedc2693525797db14d92135bb1f88cdfd346ac05dd1e35dee510f6d4a','1502712cec1f405829cf0ced169f411e0bcafa011d56009ad52142605bd5c633');
INSERT INTO "records" VALUES(43,'2026-01-15T13:13:00.000000+00:00','cap.created','{"adjacency":"add_remove","budget":8,"cap":"wards"}','1502712cec1f405829cf0ced169f411e0bcafa011d56009ad52142605bd5c633','3046727f47fcb6183ddc3947cc8804c3a0a8c3ba1a9c427d7c87d072209d4005');
INSERT INTO "records" VALUES(44,'2026-01-15T13:13:00.000000+00:00','dataset.joined','{"cap":"wards","dataset":"wards"}','3046727f47fcb6183ddc3947cc8804c3a0a8c3ba1a9c427d7c87d072209d4005','30ed012c96a8f4563d54ce6ca107ff18d8fa1fafab2d69925bb3c240265ed881');
INSERT INTO "records" VALUES(45,'2026-01-15T13:13:00.000000+00:00','budget.terms','{"budget":8,"dataset":"wards","limit":{"accountant":"pure","delta_conversion":"0","delta_selection":"0","epsilon":"9","rho":"0"},"new_window":false,"terms":{"accountant":"pure","delta":"0","epsilon":"9","selection_share":"1/2","window":null}}','30ed012c96a8f4563d54ce6ca107ff18d8fa1fafab2d69925bb3c240265ed881','2584362eb9b54bf41b3a84b245e2ac58e9c3b90194fed93ec464c6a449cd019d');
INSERT INTO "records" VALUES(46,'2026-01-15T13:13:00.000000+00:00','charge','{"budget":7,"cap":8,"dataset":"wards","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"1"}],"id":12,"key":"w","origin":12}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- cleo","user":"cleo"}','2584362eb9b54bf41b3a84b245e2ac58e9c3b90194fed93ec464c6a449cd019d','f70200ba0427bd1b9f61250ae65d65b43ee6016e10e035936b54529ee2ed8640');
INSERT INTO "records" VALUES(47,'2026-01-15T13:13:00.000000+00:00','release.dropped','{"release":7,"size":9}','f70200ba0427bd1b9f61250ae65d65b43ee6016e10e035936b54529ee2ed8640','7f6ca28efe5504eefb0362e69af1fab440a01d2b3eec05617ccdf305d9a8a21c');
INSERT INTO "records" VALUES(48,'2026-01-15T13:13:00.000000+00:00','release.stored','{"digest":"1d62361b96a752b9f24649d835c19c7a98e3a847f00e836178c07c82180c5c28","release":12,"size":9}','7f6ca28efe5504eefb0362e69af1fab440a01d2b3eec05617ccdf305d9a8a21c','d874e2f7c32fdc2ced8e0054fe916d8b128abd3b05796e3836daa3649f9b31b0');
INSERT INTO "records" VALUES(49,'2026-01-15T13:20:00.000000+00:00','failure','{"keys":["q1"],"user":"ben"}','d874e2f7c32fdc2ced8e0054fe916d8b128abd3b05796e3836daa3649f9b31b0','1d0942316769f5e97e93a489b6a299cb5eb73233a6708ff226ba3c5e6e7afd27');
INSERT INTO "records" VALUES(50,'2026-01-15T13:27:01.000000+00:00','failure','{"keys":["q2","r2"],"user":"ben"}','1d0942316769f5e97e93a489b6a299cb5eb73233a6708ff226ba3c5e6e7afd27','6d75d30554d2eae74a95f31a5d9bace3bb0bcab0832da967be5e77331fbb544e');
INSERT INTO "records" VALUES(51,'2026-01-15T13:27:02.000000+00:00','failure','{"keys":["q3","r3"],"user":"ben"}','6d75d30554d2eae74a95f31a5d9bace3bb0bcab0832da967be5e77331fbb544e','71f909772c1317f1921d8334ce2198b846bc5a5c605de56c4e88dbdd190e1c33');
INSERT INTO "records" VALUES(52,'2026-01-15T13:27:02.000000+00:00','account.frozen','{"name":"ben"}','71f909772c1317f1921d8334ce2198b846bc5a5c605de56c4e88dbdd190e1c33','e2f56c2b164afa4071d33d8bf8ac78248855990a25e6efbe4ce24b8bad29401a');
INSERT INTO "records" VALUES(53,'2026-01-15T13:34:02.000000+00:00','account.unfrozen','{"name":"ben","reason":"the disk was full"}','e2f56c2b164afa4071d33d8bf8ac78248855990a25e6efbe4ce24b8bad29401a','4d6d256627817fa836c6183a140eec9ca5fe9fece9d8fced42547029b8d2fcd9');
INSERT INTO "records" VALUES(54,'2026-01-15T13:34:02.000000+00:00','failure','{"keys":["q4"],"user":"cleo"}','4d6d256627817fa836c6183a140eec9ca5fe9fece9d8fced42547029b8d2fcd9','d877bc8d6ade29c5b65ba55721c17a2032d079f1749038d7570db4650b722f0f');
INSERT INTO "records" VALUES(55,'2026-01-15T13:34:02.000000+00:00','failure','{"keys":["q5"],"user":"cleo"}','d877bc8d6ade29c5b65ba55721c17a2032d079f1749038d7570db4650b722f0f','b8c39e79824daf7f1ba9b8d5b785ea797b1d601d02235897ba1da90ef5e55cb4');
INSERT INTO "records" VALUES(56,'2026-01-15T13:34:02.000000+00:00','failure','{"keys":["q6"],"user":"cleo"}','b8c39e79824daf7f1ba9b8d5b785ea797b1d601d02235897ba1da90ef5e55cb4','2ab647e1989e2d3319bd6180e2bdc64e97006cdfe5808a788ac383f0fe59623c');
INSERT INTO "records" VALUES(57,'2026-01-15T13:34:02.000000+00:00','account.frozen','{"name":"cleo"}','2ab647e1989e2d3319bd6180e2bdc64e97006cdfe5808a788ac383f0fe59623c','7258f8b348e881623e962c15be2b679caf38629bbcc8d41799843768cc4340a7');
INSERT INTO "records" VALUES(58,'2026-01-15T13:41:02.000000+00:00','charge','{"budget":3,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"10"}],"id":13,"key":"e","origin":13},{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"gaussian","scale":"45"}],"id":14,"key":"f","origin":14}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ben","user":"ben"}','7258f8b348e881623e962c15be2b679caf38629bbcc8d41799843768cc4340a7','09fbe616d1812016dfc943f746ae3916a6c6b6a9e3e6a397b24f1deeaabd8fae');
INSERT INTO "records" VALUES(59,'2026-01-15T13:41:02.000000+00:00','release.dropped','{"release":8,"size":9}','09fbe616d1812016dfc943f746ae3916a6c6b6a9e3e6a397b24f1deeaabd8fae','676269f2243cf0b0db24e0b55f94c583925c77a2f8e90c2f5a9e770fd6f6efbb');
INSERT INTO "records" VALUES(60,'2026-01-15T13:41:02.000000+00:00','release.stored','{"digest":"0f932c19ba35ee7756f4d502ee628d5eaa96e6c9eb2d57bb8ffb01cdb7b8f8ce","release":13,"size":9}','676269f2243cf0b0db24e0b55f94c583925c77a2f8e90c2f5a9e770fd6f6efbb','603b4c34ca0090272fa7f2a70a11ba7aaa4f1d38ac52b53ef86aa4381cb9798e');
INSERT INTO "records" VALUES(61,'2026-01-15T13:41:02.000000+00:00','release.dropped','{"release":9,"size":9}','603b4c34ca0090272fa7f2a70a11ba7aaa4f1d38ac52b53ef86aa4381cb9798e','a46deae91e11a12e8148d900ad576ef1ee0e4fd11f3213e7ba0414913940cb87');
INSERT INTO "records" VALUES(62,'2026-01-15T13:41:02.000000+00:00','release.stored','{"digest":"4be02f93c6467263801b9e686b90fa7f32f9c511b0d49ee1bedf264969892530","release":14,"size":9}','a46deae91e11a12e8148d900ad576ef1ee0e4fd11f3213e7ba0414913940cb87','f860f0996a38def5c3a650c0a23b33c3b87c09588573ee292e7edd8b2dab672a');
INSERT INTO "records" VALUES(63,'2026-02-15T13:48:02.000000+00:00','budget.renewed','{"budget":1,"start":"2026-02-14T12:10:00.000000+00:00"}','f860f0996a38def5c3a650c0a23b33c3b87c09588573ee292e7edd8b2dab672a','56a66757dc4d65b27164517af380c30c3832994544cbd76fbcf9f63133b5a00d');
INSERT INTO "records" VALUES(64,'2026-02-15T13:48:02.000000+00:00','charge','{"budget":1,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"10"}],"id":15,"key":"g","origin":15}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','56a66757dc4d65b27164517af380c30c3832994544cbd76fbcf9f63133b5a00d','cf284803442b3988f57f082133c290f82fe7b6464c512c3672e4cf856f1f75ad');
INSERT INTO "records" VALUES(65,'2026-02-15T13:48:02.000000+00:00','release.dropped','{"release":11,"size":9}','cf284803442b3988f57f082133c290f82fe7b6464c512c3672e4cf856f1f75ad','72e117544c39b24091c66f5c840f8a76473c2f233f15b9fd26c403987279dc7c');
INSERT INTO "records" VALUES(66,'2026-02-15T13:48:02.000000+00:00','release.stored','{"digest":"93b9c106c5bbf1264c32f832006265dc418796b3e8a9199713a8502742cbb6b7","release":15,"size":9}','72e117544c39b24091c66f5c840f8a76473c2f233f15b9fd26c403987279dc7c','91dcedf8432bb456d3dcc9b5365b45fd15ed8d15d7ea0e6ce53cc18e8766ef08');
INSERT INTO "records" VALUES(67,'2026-02-15T13:55:02.000000+00:00','budget.renewed','{"budget":4,"start":"2026-01-31T23:00:00.000000+00:00"}','91dcedf8432bb456d3dcc9b5365b45fd15ed8d15d7ea0e6ce53cc18e8766ef08','13dc601a53347450933adcf3bbac27d9dcd574a6e6b26ba3eca8fe7b7d506e93');
INSERT INTO "records" VALUES(68,'2026-02-15T13:55:02.000000+00:00','charge','{"budget":4,"cap":5,"dataset":"trials","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"5"}],"id":16,"key":"t2","origin":16}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','13dc601a53347450933adcf3bbac27d9dcd574a6e6b26ba3eca8fe7b7d506e93','81b4f813fa5db34d29f6a2a130b7b7ade00286ce9f7b774784907bf5bfc5f9ae');
INSERT INTO "records" VALUES(69,'2026-02-15T13:55:02.000000+00:00','release.dropped','{"release":12,"size":9}','81b4f813fa5db34d29f6a2a130b7b7ade00286ce9f7b774784907bf5bfc5f9ae','3a3c725a852d34bcc81497001410879d45e0ba65c3ac0d60a2e4af6a8af93705');
INSERT INTO "records" VALUES(70,'2026-02-15T13:55:02.000000+00:00','release.stored','{"digest":"fe02f120a17f9540da820b393b9900896adfedda19da6e8e4c8917bb487b82af","release":16,"size":10}','3a3c725a852d34bcc81497001410879d45e0ba65c3ac0d60a2e4af6a8af93705','8cc495abf60dc2ee69267016b12198e39b2c8428d0c5916d171d819e56711de4');
INSERT INTO "records" VALUES(71,'2026-02-15T14:02:02.000000+00:00','cap.merged','{"budget":5,"dataset":"trials","into":2}','8cc495abf60dc2ee69267016b12198e39b2c8428d0c5916d171d819e56711de4','3cc705a3b04a93208ec4bd54f431652f2fb06814ceaf0d16fce0105931466c4d');
INSERT INTO "records" VALUES(72,'2026-02-15T14:02:02.000000+00:00','dataset.joined','{"cap":"people","dataset":"trials"}','3cc705a3b04a93208ec4bd54f431652f2fb06814ceaf0d16fce0105931466c4d','cbaf56eea900b8f47d3006c4578d741efe27f59b03e71558335b583944f5bb44');
INSERT INTO "records" VALUES(73,'2026-02-15T14:02:02.000000+00:00','charge','{"budget":4,"cap":2,"dataset":"trials","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"5"}],"id":17,"key":"t3","origin":17}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','cbaf56eea900b8f47d3006c4578d741efe27f59b03e71558335b583944f5bb44','c6fc0804c340db1c8e78dec2219e36a7c9e588126f51f57b59a270b67f6b646c');
INSERT INTO "records" VALUES(74,'2026-02-15T14:02:02.000000+00:00','release.dropped','{"release":13,"size":9}','c6fc0804c340db1c8e78dec2219e36a7c9e588126f51f57b59a270b67f6b646c','9feecb6c82fc323596006e20b260f21b4104ac6dee46c9fa18c361f733e41cf1');
INSERT INTO "records" VALUES(75,'2026-02-15T14:02:02.000000+00:00','release.stored','{"digest":"ad7c3ac293a7a9f0948bdb31d2b49073700c072d2d53a5882c0ecd391bb14e87","release":17,"size":10}','9feecb6c82fc323596006e20b260f21b4104ac6dee46c9fa18c361f733e41cf1','ccad8211c58a60752299fe4694de8d4099eeb3c0f0f26c2fa20e0ec34c828708');
INSERT INTO "records" VALUES(76,'2026-02-15T14:09:02.000000+00:00','budget.created','{"dataset":"trials","id":9,"user":"ben"}','ccad8211c58a60752299fe4694de8d4099eeb3c0f0f26c2fa20e0ec34c828708','b12ffcbe8e36c237c58c383d2ce3da1964cf0f6fb99a52ae7de8d8847b613760');
INSERT INTO "records" VALUES(77,'2026-02-15T14:09:02.000000+00:00','budget.terms','{"budget":9,"dataset":"trials","limit":{"accountant":"basic","delta_conversion":"0","delta_selection":"1/100000","epsilon":"3","rho":"0"},"new_window":true,"terms":{"accountant":"basic","delta":"1/100000","epsilon":"3","selection_share":"1/2","window":{"days":null,"timezone":"Europe/Berlin"}}}','b12ffcbe8e36c237c58c383d2ce3da1964cf0f6fb99a52ae7de8d8847b613760','50dd1839f2c099203e862d37ccd6741f04b265a7ae88f07f642e4426f34ab5ee');
INSERT INTO "records" VALUES(78,'2026-02-15T14:09:02.000000+00:00','charge','{"budget":9,"cap":2,"dataset":"trials","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"5"}],"id":18,"key":"t3","origin":17}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ben","user":"ben"}','50dd1839f2c099203e862d37ccd6741f04b265a7ae88f07f642e4426f34ab5ee','1d1080fcecd0e79f13d68b01b4f5da61b7e0626ebdbfdb93b12f0fe8fa8755de');
INSERT INTO "records" VALUES(79,'2026-02-15T14:16:02.000000+00:00','budget.terms','{"budget":1,"dataset":"clinic","limit":{"accountant":"zcdp","delta_conversion":"1/2000000","delta_selection":"1/2000000","epsilon":"3","rho":"3514998173787/20000000000000"},"new_window":true,"terms":{"accountant":"zcdp","delta":"1/1000000","epsilon":"3","selection_share":"1/2","window":{"days":null,"timezone":"UTC"}}}','1d1080fcecd0e79f13d68b01b4f5da61b7e0626ebdbfdb93b12f0fe8fa8755de','2c5df337ef0e5ea65f52f6eefec0403d936faf0c2b9d97cb95f875de488b4afd');
INSERT INTO "records" VALUES(80,'2026-02-15T14:16:02.000000+00:00','budget.terms','{"budget":2,"dataset":"clinic","limit":{"accountant":"zcdp","delta_conversion":"1/2000000","delta_selection":"1/2000000","epsilon":"15","rho":"291030739462237/100000000000000"},"new_window":false,"terms":{"accountant":"zcdp","delta":"1/1000000","epsilon":"15","selection_share":"1/2","window":null}}','2c5df337ef0e5ea65f52f6eefec0403d936faf0c2b9d97cb95f875de488b4afd','7f90505e11d703db23c16d5ff98f40d00bddba5eb1bf46fe14e891d8c6634b7d');
INSERT INTO "records" VALUES(81,'2026-02-15T14:16:02.000000+00:00','charge','{"budget":1,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"10"}],"id":19,"key":"h","origin":19}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','7f90505e11d703db23c16d5ff98f40d00bddba5eb1bf46fe14e891d8c6634b7d','bfbc344abc62382d7eac050226563be819ce63063049e401eacbe93f99ef53c7');
INSERT INTO "records" VALUES(82,'2026-02-15T14:16:02.000000+00:00','release.dropped','{"release":14,"size":9}','bfbc344abc62382d7eac050226563be819ce63063049e401eacbe93f99ef53c7','59454a98f75d736bc77f3cc74cbc4a7f3d97f79d6373de8a54486d1e5baaa5fd');
INSERT INTO "records" VALUES(83,'2026-02-15T14:16:02.000000+00:00','release.stored','{"digest":"161fa066d1d1d92fc3fe02de1a71dd74813fb43454c3c11ade9c56de197a751d","release":19,"size":9}','59454a98f75d736bc77f3cc74cbc4a7f3d97f79d6373de8a54486d1e5baaa5fd','e5acde2554bb30b70cef74be36acf7098ccc49027a11d7019f31077554ad8f2f');
INSERT INTO "records" VALUES(84,'2026-02-15T14:16:02.000000+00:00','account.role','{"name":"ben","role":"guest"}','e5acde2554bb30b70cef74be36acf7098ccc49027a11d7019f31077554ad8f2f','565d5a38ef839263c1065a2e39e4cd0361515b32cdf6c2150dc269cbf5087f85');
INSERT INTO "records" VALUES(85,'2026-02-16T14:23:02.000000+00:00','budget.renewed','{"budget":3,"start":"2026-02-14T12:31:00.000000+00:00"}','565d5a38ef839263c1065a2e39e4cd0361515b32cdf6c2150dc269cbf5087f85','37c0de71d6acd9c38cff1553c8d8d83038e986bd36fc28f92db1a7a08b5698b6');
INSERT INTO "records" VALUES(86,'2026-02-16T14:23:02.000000+00:00','budget.terms','{"budget":3,"dataset":"clinic","limit":{"accountant":"pure","delta_conversion":"0","delta_selection":"0","epsilon":"1/10","rho":"0"},"new_window":true,"terms":{"accountant":"pure","delta":"0","epsilon":"1/10","selection_share":"1/2","window":null}}','37c0de71d6acd9c38cff1553c8d8d83038e986bd36fc28f92db1a7a08b5698b6','145ed7dabc6d61327ab7fd583d691238c5992c0774ce38be1bb295fb2fb2c37a');
INSERT INTO "records" VALUES(87,'2026-02-16T14:23:02.000000+00:00','charge','{"budget":3,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"50"}],"id":20,"key":"i","origin":20}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ben","user":"ben"}','145ed7dabc6d61327ab7fd583d691238c5992c0774ce38be1bb295fb2fb2c37a','7d810e7c31ca1404ebff43f3f01f9874980b88cb7051e006f37880a7c0ed5a7a');
INSERT INTO "records" VALUES(88,'2026-02-16T14:23:02.000000+00:00','release.dropped','{"release":15,"size":9}','7d810e7c31ca1404ebff43f3f01f9874980b88cb7051e006f37880a7c0ed5a7a','8fa5bd7b5a3bfd439671abb6cb102d4d373cb153a7620079b1397ee7083c8e8d');
INSERT INTO "records" VALUES(89,'2026-02-16T14:23:02.000000+00:00','release.stored','{"digest":"2df9be45815bc2ef41c5f32a10dfe98ff26d0305c53c9c4af3e8693fd56ed0a6","release":20,"size":9}','8fa5bd7b5a3bfd439671abb6cb102d4d373cb153a7620079b1397ee7083c8e8d','266ab20d0a7861c4cc772b6a978fcae16ae8c2e077f81fbd625a660e68855e65');
INSERT INTO "records" VALUES(90,'2026-02-16T14:23:02.000000+00:00','account.removed','{"name":"ana"}','266ab20d0a7861c4cc772b6a978fcae16ae8c2e077f81fbd625a660e68855e65','52dfce07d1fbf868cdb41719ab81276de658c21ee1e365fe7564d5356fb1dfc4');
INSERT INTO "records" VALUES(91,'2026-02-16T14:23:02.000000+00:00','account.added','{"name":"ana","role":"analyst","verifier":null}','52dfce07d1fbf868cdb41719ab81276de658c21ee1e365fe7564d5356fb1dfc4','627481dffb2f7ec225f81b9241e6e97e6ed1b7263213a10ce42e3ec9b7d0cb3e');
INSERT INTO "records" VALUES(92,'2026-02-16T14:23:02.000000+00:00','account.verifier','{"name":"ana","verifier":"8771bf69cf5c60836c79b23bc695a59e308d3fd138a6358f27a17f21877fd71f"}','627481dffb2f7ec225f81b9241e6e97e6ed1b7263213a10ce42e3ec9b7d0cb3e','3ff5c661e03be323a3279dce1a7b1cdc9f83585382f1b98ffd0d224b267e7cee');
INSERT INTO "records" VALUES(93,'2026-02-16T14:23:02.000000+00:00','account.added','{"name":"dora","role":"guest","verifier":null}','3ff5c661e03be323a3279dce1a7b1cdc9f83585382f1b98ffd0d224b267e7cee','556a00180e1eaf97e04d68708b2347d18bb408830423c5842cd5ad18e0e6821d');
INSERT INTO "records" VALUES(94,'2026-02-16T14:23:02.000000+00:00','account.removed','{"name":"dora"}','556a00180e1eaf97e04d68708b2347d18bb408830423c5842cd5ad18e0e6821d','cde56f6d33914b65278ec574d3cdd421c881c9e96e5c06f79e390f096da0e393');
INSERT INTO "records" VALUES(95,'2026-02-16T14:30:02.000000+00:00','charge','{"budget":1,"cap":2,"dataset":"clinic","releases":[{"events":[{"conversion_delta":"0","delta":"0","l0":1,"l1":1,"l2_squared":1,"linf":1,"mechanism":"laplace","scale":"10"}],"id":21,"key":"a","origin":21}],"reused":[],"sql":"SELECT sex, COUNT(*) FROM patients GROUP BY sex -- ana","user":"ana"}','cde56f6d33914b65278ec574d3cdd421c881c9e96e5c06f79e390f096da0e393','914ef6d93f58eacfb1485f0c0a2e3ce07fb154ca85c6bbd57a70f9cf92312137');
INSERT INTO "records" VALUES(96,'2026-02-16T14:30:02.000000+00:00','release.dropped','{"release":16,"size":10}','914ef6d93f58eacfb1485f0c0a2e3ce07fb154ca85c6bbd57a70f9cf92312137','62fd59577e9945a333a5eaaabdc07f412000a45b17452320a627972aa6614b63');
INSERT INTO "records" VALUES(97,'2026-02-16T14:30:02.000000+00:00','release.stored','{"digest":"7975264ee336384831ceb9f0039f75f4be3cf983005769a7aff7a5c1d1820c03","release":21,"size":9}','62fd59577e9945a333a5eaaabdc07f412000a45b17452320a627972aa6614b63','7c69c272d9308d1fad7d1ef30e2bc998a77f88edfab01e5a7c84b833ea907e86');
CREATE TABLE releases (
    id INTEGER PRIMARY KEY,
    charge INTEGER NOT NULL,
    user TEXT NOT NULL,
    origin INTEGER NOT NULL,
    dataset TEXT NOT NULL,
    key TEXT NOT NULL,
    price TEXT NOT NULL,
    reused INTEGER NOT NULL
);
INSERT INTO "releases" VALUES(1,9,'ana',1,'clinic','a','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8',1);
INSERT INTO "releases" VALUES(2,11,'ana',2,'clinic','b','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8',0);
INSERT INTO "releases" VALUES(3,11,'ana',3,'clinic','c','7f2f06d258f97a40eb50391377293dbff71928c448197661022c0efb83c4300f',0);
INSERT INTO "releases" VALUES(4,17,'ben',4,'clinic','c1','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8',0);
INSERT INTO "releases" VALUES(5,17,'ben',1,'clinic','a','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8',1);
INSERT INTO "releases" VALUES(6,19,'ben',6,'clinic','3211e21f6ad75be326fd764fab335b8e67b9bd663a7164aec202bb773acefe81','34c58f9f9486414ada33e6720b77331356a0170f176479f49691ecb9ffd26b60',0);
INSERT INTO "releases" VALUES(7,23,'ana',7,'clinic','a','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8',0);
INSERT INTO "releases" VALUES(8,26,'ana',8,'clinic','d','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8',0);
INSERT INTO "releases" VALUES(9,34,'ana',9,'trials','t','9d2581a0f5e43fcea562545b5d3a37b87ae3d982645875ff4d3e1c148116abbf',0);
INSERT INTO "releases" VALUES(10,38,'cleo',9,'trials','t','9d2581a0f5e43fcea562545b5d3a37b87ae3d982645875ff4d3e1c148116abbf',0);
INSERT INTO "releases" VALUES(11,38,'cleo',11,'trials','u','a46a311ca3b1c85fdb45d20615a8723601a3fb42ea4554576aa00d4bc32fe49a',0);
INSERT INTO "releases" VALUES(12,46,'cleo',12,'wards','w','cd684eef82eb15d00b280874d340cba13a37e8a892d1b4efd4db8653dbeb12bd',0);
INSERT INTO "releases" VALUES(13,58,'ben',13,'clinic','e','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8',0);
INSERT INTO "releases" VALUES(14,58,'ben',14,'clinic','f','e39003603e3850c4b29db5bb941de2cd1f033a2bf4cf58d8724454f2c2c66dc2',0);
INSERT INTO "releases" VALUES(15,64,'ana',15,'clinic','g','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8',0);
INSERT INTO "releases" VALUES(16,68,'ana',16,'trials','t2','e3af6f1504351a77f1893f03a023685bd9d4c8215eaa33a7ccfc8f253610bcad',0);
INSERT INTO "releases" VALUES(17,73,'ana',17,'trials','t3','e3af6f1504351a77f1893f03a023685bd9d4c8215eaa33a7ccfc8f253610bcad',0);
INSERT INTO "releases" VALUES(18,78,'ben',17,'trials','t3','e3af6f1504351a77f1893f03a023685bd9d4c8215eaa33a7ccfc8f253610bcad',0);
INSERT INTO "releases" VALUES(19,81,'ana',19,'clinic','h','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8',0);
INSERT INTO "releases" VALUES(20,87,'ben',20,'clinic','i','d65e69cf635ba482e957b0bbe5e4841d91c5bb4daefba37c1d8edf71031613bd',0);
INSERT INTO "releases" VALUES(21,95,'ana',21,'clinic','a','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8',0);
CREATE TABLE stored (
    position INTEGER PRIMARY KEY,
    release INTEGER NOT NULL UNIQUE,
    dataset TEXT NOT NULL,
    key TEXT NOT NULL,
    price TEXT NOT NULL,
    digest TEXT NOT NULL,
    size INTEGER NOT NULL,
    UNIQUE (dataset, key, price)
);
INSERT INTO "stored" VALUES(15,17,'trials','t3','e3af6f1504351a77f1893f03a023685bd9d4c8215eaa33a7ccfc8f253610bcad','ad7c3ac293a7a9f0948bdb31d2b49073700c072d2d53a5882c0ecd391bb14e87',10);
INSERT INTO "stored" VALUES(16,19,'clinic','h','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8','161fa066d1d1d92fc3fe02de1a71dd74813fb43454c3c11ade9c56de197a751d',9);
INSERT INTO "stored" VALUES(17,20,'clinic','i','d65e69cf635ba482e957b0bbe5e4841d91c5bb4daefba37c1d8edf71031613bd','2df9be45815bc2ef41c5f32a10dfe98ff26d0305c53c9c4af3e8693fd56ed0a6',9);
INSERT INTO "stored" VALUES(18,21,'clinic','a','2bdc3bf1f8bd3577ffa8ff5eb01bd8f7b190861cae89acaf8b460da580d50ea8','7975264ee336384831ceb9f0039f75f4be3cf983005769a7aff7a5c1d1820c03',9);
CREATE TABLE terms (
    budget INTEGER NOT NULL,
    dataset TEXT NOT NULL,
    terms TEXT NOT NULL,
    fixed TEXT NOT NULL,
    PRIMARY KEY (budget, dataset)
) WITHOUT ROWID;
INSERT INTO "terms" VALUES(1,'clinic','{"accountant":"zcdp","delta":"1/1000000","epsilon":"3","selection_share":"1/2","window":{"days":null,"timezone":"UTC"}}','{"accountant":"zcdp","delta_conversion":"1/2000000","delta_selection":"1/2000000","epsilon":"3","rho":"3514998173787/20000000000000"}');
INSERT INTO "terms" VALUES(2,'clinic','{"accountant":"zcdp","delta":"1/1000000","epsilon":"15","selection_share":"1/2","window":null}','{"accountant":"zcdp","delta_conversion":"1/2000000","delta_selection":"1/2000000","epsilon":"15","rho":"291030739462237/100000000000000"}');
INSERT INTO "terms" VALUES(2,'trials','{"accountant":"zcdp","delta":"1/1000000","epsilon":"20","selection_share":"1/2","window":null}','{"accountant":"zcdp","delta_conversion":"1/2000000","delta_selection":"1/2000000","epsilon":"20","rho":"463427577999209/100000000000000"}');
INSERT INTO "terms" VALUES(3,'clinic','{"accountant":"pure","delta":"0","epsilon":"1/10","selection_share":"1/2","window":null}','{"accountant":"pure","delta_conversion":"0","delta_selection":"0","epsilon":"1/10","rho":"0"}');
INSERT INTO "terms" VALUES(4,'trials','{"accountant":"basic","delta":"1/100000","epsilon":"3","selection_share":"1/2","window":{"days":null,"timezone":"Europe/Berlin"}}','{"accountant":"basic","delta_conversion":"0","delta_selection":"1/100000","epsilon":"3","rho":"0"}');
INSERT INTO "terms" VALUES(6,'trials','{"accountant":"basic","delta":"1/100000","epsilon":"3","selection_share":"1/2","window":{"days":null,"timezone":"Europe/Berlin"}}','{"accountant":"basic","delta_conversion":"0","delta_selection":"1/100000","epsilon":"3","rho":"0"}');
INSERT INTO "terms" VALUES(7,'wards','{"accountant":"pure","delta":"0","epsilon":"4","selection_share":"1/2","window":null}','{"accountant":"pure","delta_conversion":"0","delta_selection":"0","epsilon":"4","rho":"0"}');
INSERT INTO "terms" VALUES(8,'wards','{"accountant":"pure","delta":"0","epsilon":"9","selection_share":"1/2","window":null}','{"accountant":"pure","delta_conversion":"0","delta_selection":"0","epsilon":"9","rho":"0"}');
INSERT INTO "terms" VALUES(9,'trials','{"accountant":"basic","delta":"1/100000","epsilon":"3","selection_share":"1/2","window":{"days":null,"timezone":"Europe/Berlin"}}','{"accountant":"basic","delta_conversion":"0","delta_selection":"1/100000","epsilon":"3","rho":"0"}');
CREATE TABLE totals (
    stored_bytes INTEGER NOT NULL
);
INSERT INTO "totals" VALUES(37);
CREATE TABLE verifiers (
    name TEXT PRIMARY KEY,
    verifier TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "verifiers" VALUES('ana','SCRAM-SHA-256$8192:c2FsdA==$c3RvcmVk:c2VydmVy');
INSERT INTO "verifiers" VALUES('ben','SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy');
CREATE TRIGGER records_keep_updates BEFORE UPDATE ON records
    BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
CREATE TRIGGER records_keep_deletes BEFORE DELETE ON records
    BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
CREATE TRIGGER records_keep_replaces BEFORE INSERT ON records
    WHEN NEW.seq <= (SELECT max(seq) FROM records)
    BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
CREATE UNIQUE INDEX releases_held ON releases (user, origin);
COMMIT;
PRAGMA application_id = 1685091180;
PRAGMA user_version = 1;
