-- The database's clock, by which leases end: milliseconds since 1970, UTC.
CREATE FUNCTION clock_ms() RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- For people: an instant as a time, where a time can say it.
CREATE FUNCTION instant(ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE
    AS $$ SELECT CASE WHEN ms BETWEEN -62135596800000 AND 253402300799999 THEN to_timestamp(ms / 1000.0) END $$;

-- For people: a run's id as it is written everywhere else.
CREATE FUNCTION run_text(id uuid) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$ SELECT 'run_' || replace(id::text, '-', '') $$;

-- What became true: one row per transition of a run. Rows are inserted and never deleted.
CREATE TABLE journal (
    run      uuid     NOT NULL,
    rev      bigint   NOT NULL, -- the run's revision after this row
    at       bigint   NOT NULL, -- milliseconds since 1970, UTC
    seq      bigint   NOT NULL, -- position in the shard's log
    prior    bigint   NOT NULL, -- position in the log of the run's row before this one, 0 for the first
    checksum bigint   NOT NULL,
    shard    smallint NOT NULL,
    facts    text     NOT NULL, -- JSON list of facts
    PRIMARY KEY (shard, seq)
);

-- One row per run, written behind: it can be deleted and is rebuilt from the journal. In texts a backslash is \\ and a
-- zero byte is \0, because PostgreSQL keeps none.
CREATE TABLE run (
    id          uuid     NOT NULL PRIMARY KEY,
    head        bigint   NOT NULL, -- position of the run's last journal row
    rev         bigint   NOT NULL,
    created_at  bigint   NOT NULL,
    updated_at  bigint   NOT NULL,
    due         bigint,            -- when something happens to it by itself
    eligible_at bigint,            -- its place in its line, with priority and arrival
    arrival     bigint,
    checksum    bigint   NOT NULL,
    version     bigint   NOT NULL,
    priority    integer,
    shard       smallint NOT NULL,
    reservation boolean  NOT NULL, -- holds a key for a run in another shard
    parent      uuid,
    namespace   text COLLATE "C" NOT NULL,
    workflow    text COLLATE "C" NOT NULL,
    queue       text COLLATE "C" NOT NULL,
    status      text COLLATE "C" NOT NULL,
    step        text COLLATE "C",
    key         text COLLATE "C",
    occupies    text COLLATE "C",  -- the business key it holds now
    line        text COLLATE "C",  -- where it waits to be claimed: its concurrency key, or queue, workflow and version
    checkpoint  text NOT NULL      -- the run folded up to rev, JSON
) WITH (fillfactor = 80);
-- Keys may be longer than an ordered index takes.
CREATE INDEX run_by_occupies ON run USING hash (occupies) WHERE occupies IS NOT NULL;
CREATE INDEX run_by_key ON run USING hash (key) WHERE key IS NOT NULL;
CREATE INDEX run_by_due ON run (shard, due, id) WHERE due IS NOT NULL;
CREATE INDEX run_by_line ON run (shard, left(line, 500), priority, eligible_at, arrival, id) WHERE line IS NOT NULL;
CREATE INDEX run_by_status ON run (status, id) WHERE status <> 'done';
CREATE INDEX run_claimed ON run (shard, id) WHERE status = 'executing';
CREATE INDEX run_by_parent ON run (parent) WHERE parent IS NOT NULL;

-- One row per shard, which changes only with its owner: every append locks it, and reads no older version of it.
CREATE TABLE shard (
    id       smallint NOT NULL PRIMARY KEY,
    epoch    bigint   NOT NULL, -- which ownership
    owner    text     COLLATE "C", -- the process that took it and has not released it
    leased   boolean  NOT NULL, -- whether that writes only while its lease lasts
    checksum bigint   NOT NULL
);

-- How far index rows go, and where the log ended then: the row with the highest number counts. Each flush inserts one and
-- clears away the one before, so that none has to look for it among versions that are dead and still there.
CREATE TABLE progress (
    number    bigint   NOT NULL,
    head      bigint   NOT NULL, -- the last position of the log
    last      bigint   NOT NULL, -- the checksum of the row there
    checksum  bigint   NOT NULL, -- of shard, number, head and last
    watermark bigint   NOT NULL, -- index rows are complete up to here; nought is always safe
    mark      bigint   NOT NULL, -- the checksum of the watermark
    shard     smallint NOT NULL,
    PRIMARY KEY (shard, number)
);

-- Who lives, and until when.
CREATE TABLE node (
    process  text    COLLATE "C" NOT NULL PRIMARY KEY,
    node     text    NOT NULL,
    address  text    NOT NULL,
    draining boolean NOT NULL, -- about to leave: wants no shards
    until    bigint  NOT NULL  -- when its lease ends, by clock_ms()
) WITH (fillfactor = 20);

-- Messages between shards, and how far each was consumed: the highest number counts. Both are inserted, and cleared away
-- behind when they are of no use any more.
CREATE TABLE envelope (
    number   bigint   NOT NULL,
    checksum bigint   NOT NULL,
    receiver smallint NOT NULL,
    sender   smallint NOT NULL,
    body     text     NOT NULL,
    PRIMARY KEY (receiver, sender, number)
);
CREATE TABLE envelope_cursor (
    number   bigint   NOT NULL,
    checksum bigint   NOT NULL,
    receiver smallint NOT NULL,
    sender   smallint NOT NULL,
    PRIMARY KEY (receiver, sender, number)
);
CREATE SEQUENCE dead_letter_id;
CREATE TABLE dead_letter (
    id       bigint NOT NULL PRIMARY KEY, -- never used again
    at       bigint NOT NULL,
    checksum bigint NOT NULL,
    node     text   NOT NULL,
    reason   text   NOT NULL,
    body     text   NOT NULL
);

CREATE TABLE setting (
    name     text   NOT NULL PRIMARY KEY,
    value    text   NOT NULL,
    checksum bigint NOT NULL
);

-- What nodes know each other by. Whoever only looks has no business here.
CREATE TABLE secret (
    value text NOT NULL
);
INSERT INTO secret VALUES (gen_random_uuid()::text || gen_random_uuid()::text);

-- For people: ids and times as text.
CREATE VIEW runs AS
    SELECT run_text(id) AS run, workflow, version, status, step, key, queue, instant(created_at) AS created,
           instant(updated_at) AS updated, instant(due) AS due, rev, run_text(parent) AS parent
    FROM run WHERE NOT reservation;
CREATE VIEW history AS
    SELECT run_text(run) AS run, rev, instant(at) AS at, facts, shard, seq FROM journal;
CREATE VIEW nodes AS
    SELECT node, process, address, draining, instant(until) AS until, until > clock_ms() AS living,
           (SELECT count(*) FROM shard s WHERE s.owner = n.process) AS shards
    FROM node n;

-- For people: what happened to a run, in order, by its id as it is written everywhere else. What index rows do not cover
-- yet is looked for at the ends of the logs.
CREATE FUNCTION follow(run_id text) RETURNS TABLE (rev bigint, at timestamptz, fact text, body json)
    LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    WITH RECURSIVE wanted AS (
        SELECT replace(run_id, 'run_', '')::uuid AS id
    ), chain AS (
        SELECT j.* FROM wanted w JOIN run r ON r.id = w.id JOIN journal j ON j.shard = r.shard AND j.seq = r.head
        UNION ALL
        SELECT j.* FROM chain c JOIN journal j ON j.shard = c.shard AND j.seq = c.prior WHERE c.prior < c.seq
    ), late AS (
        SELECT j.* FROM wanted w CROSS JOIN (SELECT shard, max(watermark) AS watermark FROM progress GROUP BY shard) p
        JOIN journal j ON j.shard = p.shard AND j.seq > p.watermark AND j.run = w.id
    ), found AS (
        SELECT * FROM chain UNION SELECT * FROM late
    )
    SELECT j.rev, instant(j.at), coalesce(name.text, f.fact #>> '{}'), f.fact -> name.text
    FROM found j
    CROSS JOIN LATERAL json_array_elements(j.facts::json) WITH ORDINALITY AS f (fact, place)
    LEFT JOIN LATERAL (SELECT json_object_keys(f.fact) AS text WHERE json_typeof(f.fact) = 'object') name ON true
    ORDER BY j.rev, f.place
$$;
