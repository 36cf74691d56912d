-- What a role that uses plain SQL only must not be able to do.

-- name: forge_an_alert
-- It would forge an alert.
INSERT INTO tickwright.outbox (destination, key, payload) VALUES ('alert:oncall', 'k', '{}');

-- name: forge_an_alert_in_a_list
-- It would forge an alert in a list.
INSERT INTO tickwright.outbox (destination, payload) VALUES ('pg:a', '1'), ('alert:a', '1');

-- name: forge_an_entitys_task
-- It would forge an entity's task.
INSERT INTO tickwright.outbox (destination, key, payload) VALUES ('amqp:tickwright.fanout/task', 'k', '{}');

-- name: forge_an_entitys_task_in_its_queue
-- It would forge an entity's task in its queue.
INSERT INTO tickwright.outbox (destination, key, payload) VALUES ('amqp:/tickwright.fanout', 'k', '{}');

-- name: forge_an_entitys_task_inside_postgresql
-- It would forge an entity's task inside PostgreSQL.
INSERT INTO tickwright.outbox (destination, key, payload) VALUES ('pg:tickwright.fanout', 'k', '{}');

-- name: forge_an_announcement_of_a_report
-- It would forge an announcement of a report.
INSERT INTO tickwright.outbox (destination, key, payload) VALUES ('amqp:tickwright.reports/x', 'k', '{}');

-- name: forge_a_poll
-- It would forge a poll.
INSERT INTO tickwright.outbox (destination, key, payload) VALUES ('kafka:tickwright.polls', 'k', '{}');

-- name: forge_a_trackers_event
-- It would forge a tracker's event.
INSERT INTO tickwright.outbox (destination, key, payload) VALUES ('pg:tickwright.poll-events', 'k', '{}');

-- name: forge_a_message_of_a_configured_prefix
-- It would forge a message of a configured prefix.
INSERT INTO tickwright.outbox (destination, key, payload) VALUES ('kafka:acme.polls', 'k', '{}');

-- name: forge_a_queued_message
-- It would forge a queued message.
INSERT INTO tickwright.messages (topic, message_id, payload) VALUES ('t', 'm', '');

-- name: forge_a_queued_poll
-- It would forge a queued poll.
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids) VALUES (now(), 1, 1, '{1}', '{1}', '{a}');

-- name: delay_or_rank_a_message
-- It would delay or rank a message.
INSERT INTO tickwright.outbox (destination, payload, next_at) VALUES ('pg:a', '1', now());

-- name: number_a_message
-- It would number a message.
INSERT INTO tickwright.outbox (id, destination, payload) OVERRIDING SYSTEM VALUE VALUES (1, 'pg:a', '1');

-- name: read_messages
-- It would read messages.
SELECT payload FROM tickwright.outbox;

-- name: change_messages
-- It would change messages.
UPDATE tickwright.outbox SET destination = 'alert:a';

-- name: delete_messages
-- It would delete messages.
DELETE FROM tickwright.outbox;

-- name: read_keys
-- It would read keys.
TABLE tickwright.api_keys;

-- name: make_a_key
-- It would make a key.
INSERT INTO tickwright.api_keys (name, role, prefix, hash) VALUES ('a', 'admin', 'p', 'h');

-- name: read_secrets_of_task_types
-- It would read secrets of task types.
TABLE tickwright.task_type_secrets;

-- name: read_secrets_of_receivers
-- It would read secrets of receivers.
TABLE tickwright.alert_receiver_secrets;

-- name: read_receivers
-- It would read receivers.
TABLE tickwright.alert_receivers;

-- name: read_the_key_of_links
-- It would read the key of links.
TABLE tickwright.report_links;

-- name: read_targets_of_task_types
-- It would read targets of task types.
SELECT target FROM tickwright.task_types;

-- name: read_settings_of_partners
-- It would read settings of partners.
SELECT settings FROM tickwright.partners;

-- name: read_the_audit_trail
-- It would read the audit trail.
TABLE tickwright.audit;

-- name: read_reports
-- It would read reports.
TABLE tickwright.reports;

-- name: add_a_task_type
-- It would add a task type.
INSERT INTO tickwright.task_types (name, target) VALUES ('evil', 'https://evil.example');

-- name: change_a_task_type
-- It would change a task type.
UPDATE tickwright.task_types SET target = 'https://evil.example';

-- name: add_a_partner
-- It would add a partner.
INSERT INTO tickwright.partners (name) VALUES ('evil');

-- name: change_a_partner
-- It would change a partner.
UPDATE tickwright.partners SET settings = '{}';

-- name: change_an_interval
-- It would change an interval.
UPDATE tickwright.polling_schedule_config SET polling_interval_minutes = 1;

-- name: change_a_module
-- It would change a module.
UPDATE tickwright.modules SET interval_seconds = 1;

-- name: give_a_trackers_id
-- It would give a tracker's id.
INSERT INTO tickwright.shipment_polling_tracker (id, account_id, partner) VALUES (9007199254740991, 'a', 'b');

-- name: draw_ids_of_trackers
-- It would draw ids of trackers.
SELECT nextval('tickwright.tracker_ids');

-- name: move_the_ids_of_trackers
-- It would move the ids of trackers.
SELECT setval('tickwright.tracker_ids', 9007199254740991);

-- name: draw_fences
-- It would draw fences.
SELECT nextval('tickwright.fence_seq') FROM generate_series(1, 1000);

-- name: move_the_ids_of_jobs
-- It would move the ids of jobs.
SELECT setval('tickwright.scheduled_tasks_id_seq', 9223372036854775807);

-- name: give_a_jobs_id
-- It would give a job's id.
INSERT INTO tickwright.scheduled_tasks (id, execute_at, task_type) OVERRIDING SYSTEM VALUE VALUES (999, now(), 't');

-- name: insert_a_job_that_is_done
-- It would insert a job that is done.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, status) VALUES (now(), 't', 'completed');

-- name: hold_a_job
-- It would hold a job.
UPDATE tickwright.scheduled_tasks SET owner = 1;

-- name: count_an_edit
-- It would choose the version of a job.
UPDATE tickwright.scheduled_tasks SET edits = 9;

-- name: insert_an_edited_job
-- It would choose the version of a new job.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, edits) VALUES (now(), 't', 9);

-- name: raise_a_fence
-- It would raise a fence.
UPDATE tickwright.scheduled_tasks SET fence = 9;

-- name: write_a_result
-- It would write a result.
UPDATE tickwright.scheduled_tasks SET result = '{}';

-- name: complete_a_job
-- It would complete a job.
UPDATE tickwright.scheduled_tasks SET status = 'completed' WHERE status = 'pending';

-- name: fail_a_job
-- It would fail a job.
UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE status = 'pending';

-- name: strand_a_job
-- It would strand a job.
UPDATE tickwright.scheduled_tasks SET status = 'processing' WHERE status = 'pending';

-- name: release_a_running_job
-- It would release a running job.
UPDATE tickwright.scheduled_tasks SET status = 'pending' WHERE status = 'processing';

-- name: delete_jobs
-- It would delete jobs.
DELETE FROM tickwright.scheduled_tasks;

-- name: empty_the_jobs
-- It would empty the jobs.
TRUNCATE tickwright.scheduled_tasks;

-- name: forge_history
-- It would forge history.
INSERT INTO tickwright.scheduled_tasks_dead (id, execute_at, task_type) OVERRIDING SYSTEM VALUE VALUES (1, now(), 't');

-- name: take_a_key
-- It would take a key.
INSERT INTO tickwright.job_keys (key, job_id) VALUES ('k', 1);

-- name: take_unique_arguments
-- It would keep others from scheduling unique jobs.
INSERT INTO tickwright.job_uniques (digest, job_id) VALUES (sha256('x'), 1);

-- name: make_a_schedule
-- It would make jobs for ever.
INSERT INTO tickwright.schedules (name, task_type, cron) VALUES ('evil', 't', '* * * * *');

-- name: edit_a_schedule
-- It would change when an operator's jobs run.
UPDATE tickwright.schedules SET cron = '* * * * *';

-- name: finish_a_job_by_its_function
-- It would finish a job by its function.
SELECT tickwright.keep_job(t) FROM tickwright.scheduled_tasks t;

-- name: number_an_account
-- It would number an account.
SELECT tickwright.account_number('evil');

-- name: number_a_partner
-- It would number a partner.
SELECT tickwright.partner_number('evil');

-- name: grant_itself_rights
-- It would grant itself rights.
SELECT tickwright.grant_app_role(current_user);

-- name: allow_itself_a_destination
-- It would allow itself a destination.
DELETE FROM tickwright.reserved_prefixes;

-- name: make_a_table_in_the_schema
-- It would make a table in the schema.
CREATE TABLE tickwright.evil (a integer);

-- name: make_a_function_in_the_schema
-- It would make a function in the schema.
CREATE FUNCTION tickwright.evil() RETURNS integer LANGUAGE sql RETURN 1;

-- name: change_a_function
-- It would change a function.
ALTER FUNCTION tickwright.is_ours() SECURITY DEFINER;

-- name: take_a_trigger_away
-- It would take a trigger away.
ALTER TABLE tickwright.outbox DISABLE TRIGGER ALL;

-- name: skip_triggers
-- It would skip triggers.
SET session_replication_role = replica;

-- name: become_the_owner
-- It would become the owner.
SET ROLE postgres;

-- name: become_the_owner_for_the_session
-- It would become the owner for the session.
SET SESSION AUTHORIZATION postgres;

-- name: use_a_registering_trigger
-- It would use a registering trigger.
CREATE TEMP TABLE t (id bigint);
CREATE TRIGGER a AFTER DELETE ON t FOR EACH ROW EXECUTE FUNCTION tickwright.forget_tracker();

-- name: use_a_finishing_trigger
-- It would use a finishing trigger.
CREATE TEMP TABLE t (id bigint);
CREATE TRIGGER a AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION tickwright.retire_job();

-- name: use_a_trigger_of_keys
-- It would use a trigger of keys.
CREATE TEMP TABLE t (id bigint);
CREATE TRIGGER a AFTER DELETE ON t FOR EACH ROW EXECUTE FUNCTION tickwright.end_job();

-- name: read_a_later_releases_table
-- It would read a later release's table.
TABLE tickwright.later;

-- name: write_a_later_releases_table
-- It would write a later release's table.
INSERT INTO tickwright.later VALUES (1);

-- name: run_a_program
-- It would run a program.
COPY (SELECT 1) TO PROGRAM 'true';

-- name: read_a_file
-- It would read a file.
SELECT pg_read_file('/etc/hostname');

-- name: delete_a_tracker_without_its_function
-- It would lock its table, too: the right is the same.
DELETE FROM tickwright.shipment_polling_tracker;

-- name: delete_an_entity_without_its_function
-- It would lock its table, too: the right is the same.
DELETE FROM tickwright.entities;

-- name: lock_everything_behind_trackers
-- It would stop polling for as long as it likes.
DO 'BEGIN LOCK TABLE tickwright.shipment_polling_tracker IN ACCESS EXCLUSIVE MODE; END';

-- name: lock_all_entities
-- It would stop fan-out for as long as it likes.
DO 'BEGIN LOCK TABLE tickwright.entities IN SHARE UPDATE EXCLUSIVE MODE; END';

-- name: lock_all_jobs
-- It would stop workers for as long as it likes.
DO 'BEGIN LOCK TABLE tickwright.scheduled_tasks IN SHARE MODE; END';

-- name: lock_the_outbox
-- It would stop relays for as long as it likes.
DO 'BEGIN LOCK TABLE tickwright.outbox IN SHARE MODE; END';

-- name: lock_the_turns_of_entities
-- It would stop the runs of entities.
SELECT FROM tickwright.fanout_turns FOR KEY SHARE;

-- name: lock_the_ledger_of_slices
-- It would stop polls.
SELECT FROM tickwright.poll_slices FOR KEY SHARE;
