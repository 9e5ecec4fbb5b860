"""An auditor inside the console's database: triggers that write down, at each commit, what must never be.

They see every moment, and not only the end of a test: two attempts of a worker that are live at once, a GPU given
twice, room given that there is not, an end state that is overwritten.
"""

VIOLATIONS = "SELECT what, detail FROM audit ORDER BY id"

INSTALL = """
CREATE TABLE audit (id bigserial PRIMARY KEY, at timestamptz DEFAULT clock_timestamp(), what text, detail text);

CREATE FUNCTION audit_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit (what, detail)
    SELECT 'two attempts of a worker are live', format('worker %s: attempts %s', NEW.worker_id, array_agg(number))
    FROM runs_attempt
    WHERE worker_id = NEW.worker_id AND released_at IS NULL AND superseded_at IS NULL HAVING count(*) > 1;

    INSERT INTO audit (what, detail)
    SELECT 'a GPU is given twice', format('machine %s: GPU %s', NEW.machine_id, gpu)
    FROM runs_attempt a CROSS JOIN unnest(a.gpu_indexes) gpu
    WHERE a.machine_id = NEW.machine_id AND a.released_at IS NULL GROUP BY gpu HAVING count(*) > 1;

    INSERT INTO audit (what, detail)
    SELECT 'more room is given than there is',
        format('machine %s: %s mCPU, %s bytes', m.id, sum(a.cpu_milli), sum(a.memory_bytes))
    FROM runs_attempt a JOIN machines_machine m ON m.id = a.machine_id
    WHERE m.id = NEW.machine_id AND a.released_at IS NULL GROUP BY m.id
    HAVING sum(a.cpu_milli) > m.cpu_milli OR sum(a.memory_bytes) > m.memory_bytes;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER audit_attempt AFTER INSERT OR UPDATE ON runs_attempt
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit_attempt();

CREATE FUNCTION audit_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit (what, detail)
    VALUES (
        'an end state is overwritten', format('%s %s: %s became %s', TG_TABLE_NAME, OLD.name, OLD.state, NEW.state)
    );
    RETURN NULL;
END $$;

CREATE TRIGGER audit_worker AFTER UPDATE ON runs_worker FOR EACH ROW
WHEN (OLD.state IN ('Completed', 'Failed', 'Cancelled') AND NEW.state <> OLD.state) EXECUTE FUNCTION audit_end();

CREATE TRIGGER audit_run AFTER UPDATE ON runs_run FOR EACH ROW
WHEN (OLD.state IN ('Completed', 'Failed', 'Cancelled') AND NEW.state <> OLD.state) EXECUTE FUNCTION audit_end();
"""
