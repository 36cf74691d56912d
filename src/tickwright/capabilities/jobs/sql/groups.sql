-- name: hint
-- Let a claim look at these groups: jobs of theirs that this session held have ended.
INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at)
SELECT u.task_type, u.group_key, clock_timestamp() FROM unnest($1::text[], $2::text[]) AS u (task_type, group_key);

-- name: claim
-- Claim due jobs of the groups of one type; the function (0045) says how, and what the rows mean.
SELECT * FROM tickwright.claim_groups($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16::jsonb, $17);
