CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE requests (position INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, body TEXT NOT NULL);
CREATE TABLE launches (
    id INTEGER PRIMARY KEY, arm TEXT NOT NULL, round INTEGER NOT NULL, command TEXT NOT NULL,
    engine_version TEXT NOT NULL, started_s REAL NOT NULL, ready_s REAL, kv_tokens INTEGER,
    failure TEXT NOT NULL DEFAULT '', log_tail TEXT NOT NULL DEFAULT '', counters TEXT NOT NULL DEFAULT '{}',
    settings TEXT NOT NULL DEFAULT '{}', notices TEXT NOT NULL DEFAULT '[]', usage TEXT NOT NULL DEFAULT '[]',
    gpu_memory_peak_bytes INTEGER, node TEXT NOT NULL DEFAULT ''
);
CREATE TABLE turns (
    id INTEGER PRIMARY KEY, launch INTEGER NOT NULL REFERENCES launches, block INTEGER NOT NULL,
    load TEXT NOT NULL, loop_lag_p99_s REAL NOT NULL, cpu_s REAL NOT NULL, wall_s REAL NOT NULL,
    counters TEXT NOT NULL DEFAULT '{}', stamp_blur_p99_s REAL NOT NULL DEFAULT 0
);
CREATE TABLE records (
    id INTEGER PRIMARY KEY, launch INTEGER NOT NULL REFERENCES launches, arm TEXT NOT NULL,
    round INTEGER NOT NULL, block INTEGER NOT NULL, load TEXT NOT NULL, request_id TEXT NOT NULL,
    segment TEXT NOT NULL, temperature REAL, phase TEXT NOT NULL, outcome TEXT NOT NULL, error TEXT NOT NULL,
    intended_s REAL NOT NULL, sent_s REAL NOT NULL, end_s REAL NOT NULL,
    first_token_s REAL, last_token_s REAL,
    prompt_tokens INTEGER, output_tokens INTEGER, finish_reason TEXT, text BLOB NOT NULL,
    drafted INTEGER, accepted INTEGER, steps TEXT, repeat INTEGER NOT NULL DEFAULT 0,
    refused TEXT NOT NULL DEFAULT '[]', node TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX measured_once ON records
    (launch, block, load, request_id, ifnull(temperature, -1), repeat) WHERE phase = 'measured';
CREATE TABLE findings (
    id INTEGER PRIMARY KEY, "check" TEXT NOT NULL, level TEXT NOT NULL, message TEXT NOT NULL,
    next_step TEXT NOT NULL, arm TEXT
);
