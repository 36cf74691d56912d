-- name: expired_files
-- At most $1 expired files, oldest first. Index: reports_expiry.
SELECT id, file_key FROM tickwright.reports
 WHERE file_key IS NOT NULL AND file_expires_at <= now() ORDER BY file_expires_at LIMIT $1;

-- name: forget_files
-- Clear the keys of deleted files; the record keeps the expiry. Index: reports_pkey.
UPDATE tickwright.reports SET file_key = NULL, file_address = NULL WHERE id = ANY ($1::bigint[]) AND file_expires_at <= now();

-- name: reports_to_clear
-- At most $2 reports that ended longer than $1 ago and whose objects are not cleared. Index: reports_clearing.
SELECT id, file_key FROM tickwright.reports
 WHERE cleared_at IS NULL AND finished_at IS NOT NULL AND finished_at <= now() - $1::interval ORDER BY finished_at LIMIT $2;

-- name: note_cleared
-- Mark reports as cleared: no object is left except their files. Index: reports_pkey.
UPDATE tickwright.reports SET cleared_at = clock_timestamp() WHERE id = ANY ($1::bigint[]);

-- name: old_reports
-- At most $2 records without a file that ended longer than $1 ago and were cleared. Index: reports_old.
SELECT id, file_key FROM tickwright.reports
 WHERE file_key IS NULL AND cleared_at IS NOT NULL AND finished_at <= now() - $1::interval ORDER BY finished_at LIMIT $2;

-- name: delete_reports
-- Delete records with their parts. Indexes: reports_pkey, report_parts_pkey, report_data_pkey.
DELETE FROM tickwright.reports WHERE id = ANY ($1::bigint[]) AND file_key IS NULL AND finished_at IS NOT NULL;

-- name: unknown_reports
-- The ids among $1 of deleted reports. An id above the newest is left out: it belongs to another installation, or to a database that was restored
-- from a backup. Index: reports_pkey.
SELECT u.id FROM unnest($1::bigint[]) AS u (id)
 WHERE u.id <= (SELECT max(r.id) FROM tickwright.reports r) AND NOT EXISTS (SELECT FROM tickwright.reports r WHERE r.id = u.id);
