/** One line per capability: its backlog, its throughput, its problems, and a link to its view. */
import type { ReactNode } from "react";
import { Link } from "wouter";
import type { Overview } from "../../app/live";
import { spoken } from "../../parts/Duration";
import { atLeast, count, percent, rate } from "../../parts/Figure";
import { Panel } from "../../parts/Panel";
import classes from "./overview.module.css";

interface Line {
  name: string;
  to: string;
  backlog: string;
  throughput: ReactNode;
  problems: string;
}

export function Capabilities({ overview }: { overview: Overview }) {
  return (
    <Panel title="Capabilities">
      <table className={classes.table} aria-label="Capabilities">
        <thead>
          <tr>
            <th scope="col">Capability</th>
            <th scope="col">Waiting</th>
            <th scope="col">Throughput</th>
            <th scope="col">Needs attention</th>
          </tr>
        </thead>
        <tbody>
          {lines(overview).map((line) => (
            <tr key={line.name}>
              <th scope="row">
                <Link href={line.to}>{line.name}</Link>
              </th>
              <td>{line.backlog}</td>
              <td>{line.throughput}</td>
              <td className={line.problems === "" ? undefined : classes.bad}>{line.problems || "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

const all = (...texts: string[]) => texts.filter((text) => text !== "").join(", ");
const speed = (value: number | null) => (value === null ? "–" : `${rate(value)}/s`);

function lines({ jobs, workflows, polls, fanout, reports, executions, outbox, dead_letters: dead }: Overview): Line[] {
  const bounded = (number: number) => count(number, jobs.capped_at);
  const some = (number: number, what: string) => (number > 0 ? `${bounded(number)} ${what}` : "");
  const aged = (waiting: number, oldest: number) => (waiting > 0 ? `${bounded(waiting)}, the oldest for ${spoken(oldest)}` : "0");
  const openStopped = reports.waiting + reports.running >= jobs.capped_at; // counted together
  const endedStopped = reports.finished + reports.failed >= jobs.capped_at;
  const fresh = polls.fresh_ratio === null ? "" : `, ${percent(polls.fresh_ratio)} fresh`;
  return [
    {
      name: "Workflows",
      to: "/workflows",
      backlog: `${bounded(workflows.running)} running, ${bounded(workflows.waiting_jobs)} jobs wait for others`,
      throughput: `${bounded(workflows.completed)} completed in the last hour`,
      problems: some(workflows.failed, "failed in the last hour"),
    },
    {
      name: "Polling",
      to: "/accounts",
      backlog: aged(polls.waiting, polls.oldest_s),
      throughput: `${speed(polls.answered_per_s)} answered${fresh}`,
      problems: all(some(polls.lagging_accounts, "accounts lag"), some(polls.unplaced, "trackers not placed")),
    },
    {
      name: "Fan-out",
      to: "/entities",
      backlog: fanout.queued === null ? "–" : count(fanout.queued),
      throughput: `${speed(fanout.called_per_s)} called, ${count(fanout.succeeded)} succeeded in the last minute`,
      problems: all(some(fanout.failed, "failed"), some(fanout.expired, "expired")),
    },
    {
      name: "Reports",
      to: "/reports",
      backlog: atLeast(reports.waiting, openStopped),
      throughput: `${atLeast(reports.running, openStopped)} running, ${atLeast(reports.finished, endedStopped)} finished in the last hour`,
      problems: reports.failed > 0 || endedStopped ? `${atLeast(reports.failed, endedStopped)} failed in the last hour` : "",
    },
    {
      name: "Campaigns",
      to: "/executions",
      backlog: aged(executions.waiting, executions.oldest_s),
      throughput: `${bounded(executions.working)} executions running`,
      problems: some(executions.unreleased, "actions not released"),
    },
    {
      name: "Outbox",
      to: "/outbox",
      backlog: aged(outbox.waiting, outbox.oldest_s),
      throughput: `${speed(outbox.published_per_s)} published`,
      problems: some(outbox.failing, "destinations fail"),
    },
    {
      name: "Dead letters",
      to: "/dead-letters",
      backlog: "",
      throughput: "",
      problems: all(some(dead.jobs, "jobs"), some(dead.outbox, "messages"), dead.fanout !== null ? some(dead.fanout, "entity tasks") : fanout.entities > 0 ? "entity tasks unknown" : ""),
    },
  ];
}
