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
    labels      text COLLATE "C",  -- name=value, each on a line of its own, with a line break before and behind
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

-- Tokens by which clients of a server are known: who, what and where, and a hash of the secret.
CREATE TABLE token (
    id       text   NOT NULL PRIMARY KEY,
    body     text   NOT NULL, -- JSON
    checksum bigint NOT NULL
);

-- What a server keeps beside the runs: limits and pauses of queues, and what was changed by whom.
CREATE TABLE kept (
    kind     text   NOT NULL,
    id       text   NOT NULL,
    body     text   NOT NULL, -- JSON
    checksum bigint NOT NULL,
    PRIMARY KEY (kind, id)
);

-- What nodes know each other by. Whoever only looks has no business here.
CREATE TABLE secret (
    value text NOT NULL
);
INSERT INTO secret VALUES (gen_random_uuid()::text || gen_random_uuid()::text);

-- For people: ids and times as text.
CREATE VIEW runs AS
    SELECT run_text(id) AS run, workflow, version, status, step, key, queue, instant(created_at) AS created,
           instant(updated_at) AS updated, instant(due) AS due, rev, run_text(parent) AS parent,
           trim(labels, E'\n') AS labels
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

-- What was asked by the functions below, inside of the callers' own transactions, and what it was answered. The node that
-- owns shard 0 reads what has become visible since a snapshot, so that whoever commits late is not passed over. An id
-- begins with the instant at which it was made, so that days are ranges of ids: a day whose requests are all answered is
-- dropped whole in the end. Texts are as they were given: nothing in them is escaped.
CREATE SEQUENCE request_number;
CREATE TABLE request (
    id      uuid   NOT NULL PRIMARY KEY,
    number  bigint NOT NULL DEFAULT nextval('request_number'), -- the order in which they were asked
    xid     xid8   NOT NULL DEFAULT pg_current_xact_id(),
    what    text   NOT NULL, -- start, signal or cancel
    asked   text   NOT NULL, -- JSON
    payload text   NOT NULL  -- JSON: the input, or what a signal carries
) PARTITION BY RANGE (id);
CREATE INDEX request_by_xid ON request (xid, number);
CREATE TABLE request_answer (
    id      uuid   NOT NULL PRIMARY KEY,
    at      bigint NOT NULL,
    run     uuid,            -- the run that it is about, if there is one
    code    text   NOT NULL, -- accepted, or why not
    message text
) PARTITION BY RANGE (id);
CREATE TABLE request_other PARTITION OF request DEFAULT;
CREATE TABLE request_answer_other PARTITION OF request_answer DEFAULT;

-- Everything visible in this snapshot has been answered: the highest number counts. Each is inserted, and clears away the
-- one before.
CREATE TABLE intake (
    number   bigint NOT NULL PRIMARY KEY,
    at       bigint NOT NULL,
    snapshot text   NOT NULL
);
INSERT INTO intake VALUES (0, 0, '1:1:');

-- What came of the users' own transactions, written by them: whoever tries again finds what was done.
CREATE TABLE transaction_outcome (
    run      uuid   NOT NULL,
    id       text   COLLATE "C" NOT NULL, -- a hash of the key
    key      text   NOT NULL,
    at       bigint NOT NULL,
    checksum bigint NOT NULL,
    outcome  text   NOT NULL, -- JSON
    PRIMARY KEY (run, id)
);

-- The lowest id of an instant.
CREATE FUNCTION id_at(ms bigint) RETURNS uuid LANGUAGE sql IMMUTABLE
    AS $$ SELECT rpad(lpad(to_hex(ms), 12, '0'), 32, '0')::uuid $$;

-- Makes the days to come, and never the one that is: whoever asks at the same moment would find it half made. It waits for
-- nobody for long, because others would wait behind it.
CREATE FUNCTION make_days(first integer DEFAULT 1) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path FROM CURRENT SET lock_timeout = '200ms' AS $$
DECLARE
    day_ms CONSTANT bigint := 86400000;
    day bigint;
    kind text;
    name text;
BEGIN
    FOR day IN SELECT clock_ms() / day_ms + d FROM generate_series(first, 3) d LOOP
        FOREACH kind IN ARRAY ARRAY['request', 'request_answer'] LOOP
            name := kind || '_' || day;
            CONTINUE WHEN to_regclass(format('%I', name)) IS NOT NULL;
            BEGIN
                EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', name, kind);
                EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                    kind, name, id_at(day * day_ms), id_at((day + 1) * day_ms));
            EXCEPTION WHEN check_violation THEN
                -- Some of that day are among the others already, and stay there.
            END;
        END LOOP;
    END LOOP;
END
$$;

-- Drops days that are of no use any more: old ones whose requests are all answered. Whoever is still at it commits before it
-- is looked at, or after, and then the day stays.
CREATE FUNCTION drop_days(days_kept integer DEFAULT 7) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path FROM CURRENT SET lock_timeout = '200ms' AS $$
DECLARE
    day_ms CONSTANT bigint := 86400000;
    oldest CONSTANT bigint := clock_ms() / day_ms - days_kept;
    part record;
    found_one boolean;
BEGIN
    IF days_kept IS NULL OR days_kept < 1 THEN
        RAISE EXCEPTION 'expected at least one day to be kept, found %', coalesce(days_kept::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM request_other o USING request_answer a WHERE o.id = a.id AND o.id < id_at(oldest * day_ms);
    FOR part IN
        SELECT c.relname AS name, substring(c.relname FROM '[0-9]+$')::bigint AS day, p.relname AS parent
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
        WHERE i.inhparent IN ('request'::regclass, 'request_answer'::regclass) AND c.relname ~ '_[0-9]+$'
          AND substring(c.relname FROM '[0-9]+$')::bigint < oldest
        ORDER BY p.relname, c.relname
    LOOP
        EXECUTE format('LOCK TABLE ONLY %I, %I IN ACCESS EXCLUSIVE MODE', part.parent, part.name);
        IF part.parent = 'request' THEN
            EXECUTE format(
                'SELECT EXISTS (SELECT FROM %I r WHERE NOT EXISTS (SELECT FROM request_answer a WHERE a.id = r.id))',
                part.name) INTO found_one;
        ELSE
            SELECT EXISTS (SELECT FROM request r WHERE r.id >= id_at(part.day * day_ms)
                AND r.id < id_at((part.day + 1) * day_ms)) INTO found_one;
        END IF;
        IF NOT found_one THEN
            EXECUTE format('DROP TABLE %I', part.name);
        END IF;
    END LOOP;
    DELETE FROM request_answer_other o WHERE o.id < id_at(oldest * day_ms)
        AND NOT EXISTS (SELECT FROM request r WHERE r.id = o.id);
END
$$;
REVOKE EXECUTE ON FUNCTION make_days, drop_days FROM PUBLIC;
SELECT make_days(0);

-- Notes what is asked and rings for whoever answers; both take effect when the caller commits.
CREATE FUNCTION ask(what text, asked jsonb, payload jsonb) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
    SET search_path FROM CURRENT AS $$
DECLARE
    id CONSTANT text := lpad(to_hex(clock_ms()), 12, '0') || substr(replace(gen_random_uuid()::text, '-', ''), 13);
    bytes CONSTANT bigint := octet_length(payload::text);
BEGIN
    IF bytes > 4194304 THEN
        RAISE EXCEPTION 'the payload is too large: at most 4194304 bytes, found %', bytes
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Keep it elsewhere and give a reference to it.';
    END IF;
    IF octet_length(asked::text) > 65536 THEN
        RAISE EXCEPTION 'what is asked is too large: at most 65536 bytes of names, keys and labels, found %',
            octet_length(asked::text) USING ERRCODE = 'program_limit_exceeded';
    END IF;
    INSERT INTO request (id, what, asked, payload) VALUES (id::uuid, what, asked::text, payload::text);
    PERFORM pg_notify(current_schema(), '');
    RETURN 'req_' || id;
END
$$;
REVOKE EXECUTE ON FUNCTION ask FROM PUBLIC;

CREATE FUNCTION start(
    workflow text, input jsonb DEFAULT 'null', key text DEFAULT NULL, on_conflict text DEFAULT 'reject',
    version integer DEFAULT NULL, queue text DEFAULT NULL, namespace text DEFAULT NULL, priority integer DEFAULT NULL,
    not_before timestamptz DEFAULT NULL, deadline timestamptz DEFAULT NULL,
    concurrency_key text DEFAULT NULL, concurrency_limit integer DEFAULT NULL, labels jsonb DEFAULT NULL
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF coalesce(workflow, '') = '' THEN
        RAISE EXCEPTION 'expected the name of a workflow, found none' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF on_conflict IS NULL OR on_conflict NOT IN ('reject', 'reuse') THEN
        RAISE EXCEPTION 'expected on_conflict to be reject or reuse, found %', coalesce(on_conflict, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (concurrency_key IS NULL) <> (concurrency_limit IS NULL) THEN
        RAISE EXCEPTION 'expected concurrency_key and concurrency_limit together, found one of them'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF labels IS NOT NULL AND (jsonb_typeof(labels) <> 'object'
            OR EXISTS (SELECT FROM jsonb_each(labels) l WHERE jsonb_typeof(l.value) <> 'string')) THEN
        RAISE EXCEPTION 'expected labels as a JSON object of strings, found %', left(labels::text, 100)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN ask('start', jsonb_strip_nulls(jsonb_build_object(
        'workflow', workflow, 'key', key, 'on_conflict', on_conflict, 'version', version, 'queue', queue,
        'namespace', namespace, 'priority', priority,
        'not_before', floor(extract(epoch FROM not_before) * 1000)::bigint,
        'deadline', floor(extract(epoch FROM deadline) * 1000)::bigint,
        'concurrency_key', concurrency_key, 'concurrency_limit', concurrency_limit, 'labels', labels
    )), coalesce(input, 'null'));
END
$$;

CREATE FUNCTION signal(run text, name text, payload jsonb DEFAULT 'null', dedup text DEFAULT NULL) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_run(run);
    IF coalesce(name, '') = '' THEN
        RAISE EXCEPTION 'expected the name of a signal, found none' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN ask('signal', jsonb_strip_nulls(jsonb_build_object('run', run, 'name', name, 'dedup', dedup)),
        coalesce(payload, 'null'));
END
$$;

CREATE FUNCTION cancel(run text, reason text DEFAULT 'cancelled from SQL', with_children boolean DEFAULT false)
    RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_run(run);
    RETURN ask('cancel', jsonb_build_object(
        'run', run, 'reason', coalesce(reason, 'cancelled from SQL'), 'cascade', coalesce(with_children, false)
    ), 'null');
END
$$;

-- A run may be named by its id, or by the request that started it.
CREATE FUNCTION check_run(run text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF run IS NULL OR run !~ '^(run|req)_[0-9a-f]{32}$' THEN
        RAISE EXCEPTION 'expected run_<32 hex digits>, or the req_<32 hex digits> that started it, found %',
            coalesce(left(run, 80), 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- What became of a request: waiting, accepted or refused, with the run it is about.
CREATE FUNCTION request(id text) RETURNS TABLE (status text, run text, code text, message text, answered timestamptz)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF id IS NULL OR id !~ '^req_[0-9a-f]{32}$' THEN
        RAISE EXCEPTION 'expected req_<32 hex digits>, found %', coalesce(left(id, 80), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
        SELECT CASE WHEN a.id IS NULL THEN 'waiting' WHEN a.code = 'accepted' THEN 'accepted' ELSE 'refused' END,
               run_text(a.run), a.code, a.message, instant(a.at)
        FROM request r LEFT JOIN request_answer a ON a.id = r.id
        WHERE r.id = substr(request.id, 5)::uuid;
END
$$;

-- Who may ask is for the owner to say.
REVOKE EXECUTE ON FUNCTION start, signal, cancel, request FROM PUBLIC;
