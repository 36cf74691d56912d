-- name: audit
-- Write one row of the audit trail, in the transaction of the action.
INSERT INTO tickwright.audit (actor, action, subject, before, after) VALUES ($1, $2, $3, $4::jsonb, $5::jsonb) RETURNING id;

-- name: audit_progress
-- Update what an import has committed so far, in the transaction that commits it. Index: audit_pkey.
UPDATE tickwright.audit SET after = $2::jsonb WHERE id = $1;
