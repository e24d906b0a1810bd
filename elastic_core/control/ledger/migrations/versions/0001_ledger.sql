-- The ledger. Instants are Unix seconds. Invariants 1 to 3 of the design are enforced here, whatever code writes.

CREATE TABLE jobs (
    id               text PRIMARY KEY,
    spec             jsonb NOT NULL,
    facts            jsonb NOT NULL,
    state            text NOT NULL,
    lineage          integer NOT NULL,
    head_id          bigint,                  -- newest good checkpoint of the current lineage
    total_samples    bigint NOT NULL,
    submitted_at     double precision NOT NULL,
    finished_at      double precision,
    warm_start       text,
    error            text,
    notes            jsonb NOT NULL,
    results          jsonb NOT NULL
);
CREATE INDEX ix_jobs_active ON jobs (submitted_at) WHERE state = 'active';

CREATE TABLE segments (
    id             text PRIMARY KEY,
    job_id         text NOT NULL REFERENCES jobs (id),
    index          integer NOT NULL,
    lineage        integer NOT NULL,
    state          text NOT NULL,
    attempt        integer NOT NULL,
    failures       integer NOT NULL,          -- attempts in a row without any commit
    epoch          bigint,                    -- of its live or last lease
    follows        text,                      -- the committed segment that created it
    start_step     bigint NOT NULL,
    end_step       bigint,
    end_checkpoint_id bigint,
    created_at     double precision NOT NULL,
    asked_at       double precision,
    granted_at     double precision,
    started_at     double precision,
    ended_at       double precision,
    handed_over    boolean NOT NULL,
    revoked_at     double precision,
    revoked_by     text,                      -- plan | user
    revoke_reason  text,
    end_reason     text,
    grant_reason   text,
    error          text,
    CONSTRAINT uq_segments_job_id_index UNIQUE (job_id, index)
);
-- A job has at most one open segment.
CREATE UNIQUE INDEX uq_segments_open ON segments (job_id)
    WHERE state IN ('created', 'waiting', 'granted', 'running');

CREATE TABLE nodes (
    name                 text PRIMARY KEY,
    type                 text NOT NULL,
    num_slots            integer NOT NULL,
    price_per_slot_hour  double precision NOT NULL,
    present              boolean NOT NULL
);

CREATE TABLE slots (
    id     text PRIMARY KEY,                  -- node:index
    node   text NOT NULL REFERENCES nodes (name),
    index  integer NOT NULL,
    CONSTRAINT uq_slots_node_index UNIQUE (node, index)
);

CREATE SEQUENCE lease_epoch;

CREATE TABLE leases (
    epoch           bigint PRIMARY KEY,
    origin_epoch    bigint NOT NULL,
    job_id          text NOT NULL REFERENCES jobs (id),
    segment_id      text NOT NULL REFERENCES segments (id),
    attempt         integer NOT NULL,
    allocation      jsonb NOT NULL,
    num_slots       integer NOT NULL,
    granted_at      double precision NOT NULL,
    expires_at      double precision NOT NULL,
    started_at      double precision,         -- first heartbeat
    fenced_at       double precision,         -- may write nothing more; its slots are still held
    fence_reason    text,
    released_at     double precision,         -- its slots are free
    release_reason  text,
    written_at      double precision          -- last guarded write: the row that compare-and-set sets
);
CREATE UNIQUE INDEX uq_leases_live_segment ON leases (segment_id) WHERE released_at IS NULL;
CREATE UNIQUE INDEX uq_leases_live_origin ON leases (origin_epoch) WHERE released_at IS NULL;
CREATE INDEX ix_leases_job_id ON leases (job_id, epoch);

CREATE TABLE lease_slots (
    epoch        bigint NOT NULL REFERENCES leases (epoch),
    slot         text NOT NULL REFERENCES slots (id),
    released_at  double precision,
    PRIMARY KEY (epoch, slot)
);
-- Invariant 1, no double spend: a slot is in at most one lease that is not released.
CREATE UNIQUE INDEX uq_lease_slots_held ON lease_slots (slot) WHERE released_at IS NULL;

CREATE TABLE heartbeats (
    epoch        bigint PRIMARY KEY REFERENCES leases (epoch),
    step         bigint NOT NULL,
    samples      bigint NOT NULL,
    sent_at      double precision NOT NULL,
    received_at  double precision NOT NULL,
    host         text NOT NULL,
    pids         jsonb NOT NULL
);

CREATE TABLE targets (
    job_id       text PRIMARY KEY REFERENCES jobs (id),
    target       jsonb NOT NULL,
    decision_id  bigint NOT NULL,
    waits        text                         -- why a job that wants slots did not get them at the last decision
);

CREATE TABLE observations (
    id                  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id              text NOT NULL REFERENCES jobs (id),
    segment_id          text NOT NULL,
    epoch               bigint NOT NULL REFERENCES leases (epoch),
    lineage             integer NOT NULL,
    step                bigint NOT NULL,
    samples             bigint NOT NULL,
    at                  double precision NOT NULL,
    passes              double precision NOT NULL,  -- over the data set
    num_slots           integer NOT NULL,
    num_nodes           integer NOT NULL,
    type                text NOT NULL,
    global_batch        integer NOT NULL,
    local_batch         integer NOT NULL,
    accumulation        integer NOT NULL,
    step_seconds        double precision NOT NULL,
    sync_seconds        double precision NOT NULL,
    samples_per_second  double precision NOT NULL,
    loss                double precision NOT NULL,
    learning_rate       double precision NOT NULL,
    grad_sqr            double precision,
    grad_var            double precision,
    memory_bytes        bigint NOT NULL,
    metrics             jsonb NOT NULL,
    CONSTRAINT uq_observations_epoch_step UNIQUE (epoch, step)  -- a repeated report adds nothing
);
CREATE INDEX ix_observations_job_id ON observations (job_id, id);

CREATE TABLE checkpoints (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id           text NOT NULL REFERENCES jobs (id),
    lineage          integer NOT NULL,
    step             bigint NOT NULL,
    samples          bigint NOT NULL,
    epoch            bigint NOT NULL REFERENCES leases (epoch),
    segment_id       text NOT NULL REFERENCES segments (id),
    previous_id      bigint REFERENCES checkpoints (id),  -- what its training went on from
    uri              text NOT NULL,
    manifest_sha256  text NOT NULL,
    size_bytes       bigint NOT NULL,
    layout           jsonb NOT NULL,
    metrics          jsonb NOT NULL,
    fingerprints     jsonb NOT NULL,
    timings          jsonb NOT NULL,
    committed_at     double precision NOT NULL,
    final            boolean NOT NULL,
    bad              boolean NOT NULL,
    bad_reason       text,
    swept_at         double precision,
    CONSTRAINT uq_checkpoints_job_id_uri UNIQUE (job_id, uri)
);
CREATE INDEX ix_checkpoints_lineage ON checkpoints (job_id, lineage, step);
ALTER TABLE jobs ADD CONSTRAINT fk_jobs_head_id FOREIGN KEY (head_id) REFERENCES checkpoints (id);

-- Invariant 2, single writer: only the live, unfenced lease of a segment adds checkpoints or observations to it.
-- FOR NO KEY UPDATE: whoever wants to fence the lease waits until the writer has committed, and the other way round.
CREATE FUNCTION refuse_stale_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM leases
        WHERE epoch = NEW.epoch AND segment_id = NEW.segment_id AND job_id = NEW.job_id
          AND released_at IS NULL AND fenced_at IS NULL
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stale epoch: % holds no live lease of segment %', NEW.epoch, NEW.segment_id
            USING ERRCODE = 'EL002';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER checkpoints_single_writer BEFORE INSERT ON checkpoints
    FOR EACH ROW EXECUTE FUNCTION refuse_stale_epoch();
CREATE TRIGGER observations_single_writer BEFORE INSERT ON observations
    FOR EACH ROW EXECUTE FUNCTION refuse_stale_epoch();

-- Invariant 3, monotone progress: within a lineage neither step nor samples go back, and a new lineage starts at the
-- checkpoint that it was opened from. The same step twice only to end a segment that made no step since the last
-- commit. Checkpoints found corrupt count for nothing: their work has to be done again. The job's row is locked, so
-- that two writers cannot pass the check side by side.
CREATE FUNCTION refuse_regress() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    head record;
BEGIN
    PERFORM 1 FROM jobs WHERE id = NEW.job_id FOR NO KEY UPDATE;
    SELECT max(step) AS step, max(samples) AS samples INTO head FROM checkpoints
        WHERE job_id = NEW.job_id AND NOT bad AND (lineage = NEW.lineage OR id = NEW.previous_id);
    IF head.step IS NULL THEN
        RETURN NEW;
    END IF;
    IF NEW.step > head.step AND NEW.samples > head.samples THEN
        RETURN NEW;
    END IF;
    IF NEW.final AND NEW.step = head.step AND NEW.samples = head.samples THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'regress: step % (% samples) after step % (% samples) in lineage % of job %',
        NEW.step, NEW.samples, head.step, head.samples, NEW.lineage, NEW.job_id
        USING ERRCODE = 'EL003';
END $$;
CREATE TRIGGER checkpoints_monotone BEFORE INSERT ON checkpoints
    FOR EACH ROW EXECUTE FUNCTION refuse_regress();

-- What is committed stays as it was committed: only the marks may change.
CREATE FUNCTION refuse_rewrite() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.job_id, NEW.lineage, NEW.step, NEW.samples, NEW.epoch, NEW.segment_id, NEW.uri, NEW.manifest_sha256)
       IS DISTINCT FROM
       (OLD.job_id, OLD.lineage, OLD.step, OLD.samples, OLD.epoch, OLD.segment_id, OLD.uri, OLD.manifest_sha256)
       OR (OLD.bad AND NOT NEW.bad) THEN
        RAISE EXCEPTION 'checkpoint % is committed: it cannot be rewritten', OLD.id USING ERRCODE = 'EL003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER checkpoints_immutable BEFORE UPDATE ON checkpoints
    FOR EACH ROW EXECUTE FUNCTION refuse_rewrite();

CREATE TABLE decisions (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version   bigint NOT NULL,
    at        double precision NOT NULL,
    trigger   text NOT NULL,
    policy    text NOT NULL,                  -- that made the plan
    wanted    text NOT NULL,                  -- that was asked first
    failure   text,                           -- why it is not the wanted one
    seconds   double precision NOT NULL,
    snapshot  jsonb NOT NULL,
    plan      jsonb NOT NULL,
    actions   jsonb NOT NULL,                 -- grants and revocations that followed at once, in words
    CONSTRAINT uq_decisions_version UNIQUE (version)
);

CREATE TABLE events (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    position    bigint,                       -- given after the commit, see elastic_core.control.ledger.feed
    at          double precision NOT NULL,
    kind        text NOT NULL,
    job_id      text NOT NULL,
    segment_id  text,
    epoch       bigint,
    payload     jsonb NOT NULL
);
CREATE UNIQUE INDEX uq_events_position ON events (position);
CREATE INDEX ix_events_unplaced ON events (id) WHERE position IS NULL;
CREATE INDEX ix_events_segment ON events (segment_id, position);

CREATE SEQUENCE event_position;

CREATE TABLE readers (
    name      text PRIMARY KEY,
    position  bigint NOT NULL
);

CREATE TABLE scheduling (
    id                integer PRIMARY KEY CHECK (id = 1),
    version           bigint NOT NULL,        -- bumped by every scheduling event
    decided_version   bigint NOT NULL,        -- the last one that a plan was written for
    trigger           text NOT NULL,          -- of the last event
    policy            text NOT NULL,          -- whose state this is
    policy_state      jsonb NOT NULL,
    wake_at           double precision
);
INSERT INTO scheduling VALUES (1, 0, 0, '', '', '{}', NULL);
