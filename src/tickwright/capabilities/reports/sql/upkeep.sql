-- name: expired_files
-- At most $1 files that are not kept any more, oldest first. Index: reports_expiry.
SELECT id, file_key FROM tickwright.reports
 WHERE file_key IS NOT NULL AND file_expires_at <= now() ORDER BY file_expires_at LIMIT $1;

-- name: forget_files
-- Their objects are gone; the record still says until when there was a file. Index: reports_pkey.
UPDATE tickwright.reports SET file_key = NULL, file_address = NULL WHERE id = ANY ($1::bigint[]) AND file_expires_at <= now();

-- name: reports_to_clear
-- At most $2 reports that have been over for $1, and whose objects nobody has looked at since. Index: reports_clearing.
SELECT id, file_key FROM tickwright.reports
 WHERE cleared_at IS NULL AND finished_at IS NOT NULL AND finished_at <= now() - $1::interval ORDER BY finished_at LIMIT $2;

-- name: note_cleared
-- Nothing is left of them but their file. Index: reports_pkey.
UPDATE tickwright.reports SET cleared_at = clock_timestamp() WHERE id = ANY ($1::bigint[]);

-- name: old_reports
-- At most $2 records without a file that ended longer than $1 ago, and whose objects were cleared. Index: reports_old.
SELECT id FROM tickwright.reports
 WHERE file_key IS NULL AND cleared_at IS NOT NULL AND finished_at <= now() - $1::interval ORDER BY finished_at LIMIT $2;

-- name: delete_reports
-- With their parts. Indexes: reports_pkey, report_parts_pkey, report_data_pkey.
DELETE FROM tickwright.reports WHERE id = ANY ($1::bigint[]) AND file_key IS NULL AND finished_at IS NOT NULL;

-- name: unknown_reports
-- Which of these ids were reports and are none any more. One above the newest is nobody's of us: another installation's, or of a
-- database that was restored from a backup. Index: reports_pkey.
SELECT u.id FROM unnest($1::bigint[]) AS u (id)
 WHERE u.id <= (SELECT max(r.id) FROM tickwright.reports r) AND NOT EXISTS (SELECT FROM tickwright.reports r WHERE r.id = u.id);
