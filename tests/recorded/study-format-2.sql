PRAGMA application_id = 1397507668;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE findings (
    id INTEGER PRIMARY KEY, "check" TEXT NOT NULL, level TEXT NOT NULL, message TEXT NOT NULL,
    next_step TEXT NOT NULL, arm TEXT
);
CREATE TABLE launches (
    id INTEGER PRIMARY KEY, arm TEXT NOT NULL, round INTEGER NOT NULL, command TEXT NOT NULL,
    engine_version TEXT NOT NULL, started_s REAL NOT NULL, ready_s REAL, kv_tokens INTEGER,
    failure TEXT NOT NULL DEFAULT '', log_tail TEXT NOT NULL DEFAULT '', counters TEXT NOT NULL DEFAULT '{}'
, settings TEXT NOT NULL DEFAULT '{}', notices TEXT NOT NULL DEFAULT '[]', usage TEXT NOT NULL DEFAULT '[]');
INSERT INTO "launches" VALUES(1,'baseline',0,'["server"]','fake 1',1.79471660418467187877e+09,1.7947166047896630764e+09,NULL,'','','{"llamacpp:spec_decode_num_accepted_tokens_total":0.0,"llamacpp:spec_decode_num_drafts_total":0.0,"llamacpp:requests_deferred":0.0,"llamacpp:tokens_predicted_total":7680.0,"llamacpp:prompt_tokens_total":16730.0,"llamacpp:n_decode_total":7440.0,"llamacpp:requests_processing":0.0,"llamacpp:spec_decode_num_draft_tokens_total":0.0}','{}','[]','[]');
INSERT INTO "launches" VALUES(2,'ngram-k4',0,'["server"]','fake 1',1.79471660558858561512e+09,1.79471660634361553196e+09,NULL,'','','{"llamacpp:spec_decode_num_accepted_tokens_total":5055.0,"llamacpp:spec_decode_num_drafts_total":2310.0,"llamacpp:requests_deferred":0.0,"llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position=\"2\"}":1090.0,"llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"}":1340.0,"llamacpp:tokens_predicted_total":7680.0,"llamacpp:prompt_tokens_total":16730.0,"llamacpp:n_decode_total":2385.0,"llamacpp:requests_processing":0.0,"llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position=\"3\"}":825.0,"llamacpp:spec_decode_num_draft_tokens_total":8815.0,"llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}":1800.0}','{}','[]','[]');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('engine','{"kind":"fake","settings":{"model":"smollm2-135m","context_tokens":2048,"slots":16,"threads":1,"gpu_layers":null,"kv_type_k":null,"kv_type_v":null,"extra_args":["ttft_s=0.01","tpot_s=0.004","acceptance=0.8","batch_verify_cost=0.03","launch_sd=0.01","noise_sd=0.05"]},"binary":null}');
INSERT INTO "meta" VALUES('goals','{"min_speedup":1.2,"metric":"tpot","slos":[]}');
INSERT INTO "meta" VALUES('plan','{"arms":[{"name":"baseline","speculation":{"kind":"off"}},{"name":"ngram-k4","speculation":{"kind":"ngram","variant":"simple","k":4,"n":12,"min_hits":1}}],"loads":[{"concurrency":1},{"concurrency":2},{"concurrency":4},{"concurrency":8},{"concurrency":16}],"temperatures":[null],"rounds":3,"together":true,"seed":0}');
INSERT INTO "meta" VALUES('provenance','{"speclift_version": "0.1.0", "engine": "fake", "engine_version": "fake 1", "model": "smollm2-135m", "model_sha256": "", "prompts_sha256": "d69bebb5bcc05702e52b6eef8ffdd2de65a932cb9902a1d32ecdde6d1870e252", "seed": 0, "host": {"cpu": "x", "cores": 2}, "commands": [], "argv": []}');
CREATE TABLE records (
    id INTEGER PRIMARY KEY, launch INTEGER NOT NULL REFERENCES launches, arm TEXT NOT NULL,
    round INTEGER NOT NULL, block INTEGER NOT NULL, load TEXT NOT NULL, request_id TEXT NOT NULL,
    segment TEXT NOT NULL, temperature REAL, phase TEXT NOT NULL, outcome TEXT NOT NULL, error TEXT NOT NULL,
    intended_s REAL NOT NULL, sent_s REAL NOT NULL, end_s REAL NOT NULL,
    first_token_s REAL, last_token_s REAL,
    prompt_tokens INTEGER, output_tokens INTEGER, finish_reason TEXT, text BLOB NOT NULL,
    drafted INTEGER, accepted INTEGER, steps TEXT
);
INSERT INTO "records" VALUES(125,1,'baseline',0,0,'{"concurrency":1}','chat-14','chat',0.7,'measured','ok','',1.79471660697520136833e+09,1.79471660697523522371e+09,1.79471660710165071489e+09,1.79471660698558378222e+09,1.7947166071012890339e+09,19,32,'length',X'776F726473',0,0,'[[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0]]');
INSERT INTO "records" VALUES(126,2,'ngram-k4',0,0,'{"concurrency":1}','chat-14','chat',0.7,'measured','ok','',1.79471660710326790812e+09,1.79471660710329604143e+09,1.79471660717335963252e+09,1.79471660711524295811e+09,1.79471660717298960681e+09,19,32,'length',X'776F726473',38,21,'[[4,4],[4,0],[4,1],[4,0],[4,3],[4,4],[4,1],[4,4],[4,2],[2,2]]');
INSERT INTO "records" VALUES(127,2,'ngram-k4',0,1,'{"concurrency":1}','code-editing-06','code-editing',0.0,'measured','ok','',1.79471660717469477658e+09,1.7947166071747262478e+09,1.79471660724305558205e+09,1.79471660718618893624e+09,1.79471660724275207518e+09,61,32,'length',X'776F726473',36,21,'[[4,4],[4,1],[4,1],[4,3],[4,4],[4,2],[4,0],[4,4],[3,1],[1,1]]');
INSERT INTO "records" VALUES(128,1,'baseline',0,1,'{"concurrency":1}','code-editing-06','code-editing',0.0,'measured','ok','',1.79471660724437403677e+09,1.79471660724441099167e+09,1.79471660738900804519e+09,1.79471660726193881036e+09,1.79471660738862609863e+09,61,32,'length',X'776F726473',0,0,'[[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0],[0,0]]');
CREATE TABLE requests (position INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, body TEXT NOT NULL);
INSERT INTO "requests" VALUES(1,'chat-14','{"id":"chat-14","segment":"chat","messages":[{"role":"user","content":"What should I visit in a mid-sized port town if I only have one rainy afternoon and no car?"}],"prompt":null,"temperature":0.7,"top_p":null,"max_tokens":32,"arrival_s":null,"response":null}');
INSERT INTO "requests" VALUES(2,'code-editing-06','{"id":"code-editing-06","segment":"code-editing","messages":[{"role":"user","content":"Convert the print calls below to use the logging module at info level. I want the whole script back.\n\n```python\nimport sys\nfrom pathlib import Path\n\n\ndef main():\n    root = Path(sys.argv[1])\n    print(\"scanning\", root)\n    count = 0\n    for path in root.rglob(\"*.png\"):\n        size = path.stat().st_size\n        if size > 1_000_000:\n            print(\"large image:\", path)\n            count += 1\n    print(\"found\", count)\n\n\nif __name__ == \"__main__\":\n    main()\n```"}],"prompt":null,"temperature":0.0,"top_p":null,"max_tokens":32,"arrival_s":null,"response":null}');
CREATE TABLE turns (
    id INTEGER PRIMARY KEY, launch INTEGER NOT NULL REFERENCES launches, block INTEGER NOT NULL,
    load TEXT NOT NULL, loop_lag_p99_s REAL NOT NULL, cpu_s REAL NOT NULL, wall_s REAL NOT NULL
, counters TEXT NOT NULL DEFAULT '{}', stamp_blur_p99_s REAL NOT NULL DEFAULT 0);
INSERT INTO "turns" VALUES(1,1,0,'{"concurrency":1}',1.03453981001621307667e-03,5.29078599999999177327e-03,1.27483128999756445409e-01,'{}',0.0);
INSERT INTO "turns" VALUES(2,2,0,'{"concurrency":1}',1.38971229964681688637e-03,3.97449099999991339871e-03,7.11965350001264596357e-02,'{}',0.0);
CREATE UNIQUE INDEX measured_once ON records (launch, block, load, request_id, ifnull(temperature, -1))
    WHERE phase = 'measured';
COMMIT;
