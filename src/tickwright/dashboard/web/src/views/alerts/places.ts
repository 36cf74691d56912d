/** The view that shows the subject of an alert, by rule. */
interface Place {
  label: string;
  to: string;
}
type Finder = (subject: string) => Place;

const account: Finder = (subject) => ({ label: `Account ${subject}`, to: `/accounts?account=${encodeURIComponent(subject)}` });
const partner: Finder = (subject) => ({ label: `Partner ${subject}`, to: `/partners?partner=${encodeURIComponent(subject)}` });
const type: Finder = (subject) => ({ label: `Jobs of ${subject}`, to: `/jobs?type=${encodeURIComponent(subject)}` });
const schedule: Finder = (subject) => ({ label: `Schedule ${subject}`, to: `/schedules?name=${encodeURIComponent(subject)}` });
const workflow: Finder = (subject) => ({ label: `Workflow ${subject}`, to: `/workflows/${subject.split("#").at(-1) ?? ""}` });
const workflows: Finder = (subject) => ({ label: `Workflows ${subject}`, to: `/workflows?state=failed&text=${encodeURIComponent(subject)}` });
const view = (label: string, to: string): Finder => () => ({ label, to });

const FINDERS: Record<string, Finder> = {
  account_lag: account,
  freshness_budget: account,
  partner_breaker_open: partner,
  partner_not_callable: partner,
  polls_wait: partner,
  unknown_task_type: type,
  task_type_gone: type,
  schedule_late: schedule,
  schedule_failing: schedule,
  workflow_blocked: workflow,
  workflow_failed: workflows,
  dead_letters: view("Dead letters", "/dead-letters"),
  fanout_dead_letters: view("Dead letters", "/dead-letters"),
  lateness: view("Overview", "/overview"),
  no_live_worker: view("Workers", "/workers"),
  database_slow: view("Workers", "/workers"),
  possible_data_loss: view("Audit", "/audit?action=database.timeline_changed"),
  session_lost: view("Lost workers", "/workers?state=lost"),
  threads_stuck: view("Workers", "/workers"),
  report_calls_stuck: view("Workers", "/workers"),
  scheduler_stopped: view("Leases", "/leases"),
  freshness_unknown: view("Leases", "/leases"),
  outbox_oldest: view("Outbox", "/outbox"),
  outbox_unknown_scheme: view("Outbox", "/outbox"),
  poll_relay_stalled: view("Relays of polls", "/outbox?part=relays"),
  poll_group_lag: view("Partitions of polls", "/outbox?part=partitions"),
  missed_previous_poll: view("Slices", "/slices?figure=late"),
  config_time_miss: view("Leases", "/leases"),
  report_failed: view("Reports", "/reports"),
  report_overdue: view("Reports", "/reports"),
  report_unserved: view("Reports", "/reports"),
  execution_failed: view("Executions", "/executions"),
  execution_backlog: view("Executions", "/executions"),
  execution_stalled: view("Executions", "/executions"),
};

/** Return the view that shows the subject of an alert; `null` if there is none. */
export function placeOf({ rule, subject }: { rule: string; subject: string }): Place | null {
  return FINDERS[rule]?.(subject) ?? null;
}
