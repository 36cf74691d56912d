/** One line per capability: what waits, what moves, and the way to its view. */
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
  waits: string;
  moves: ReactNode;
  bad: string;
}

export function Capabilities({ overview }: { overview: Overview }) {
  return (
    <Panel title="Capabilities">
      <table className={classes.table} aria-label="Capabilities">
        <thead>
          <tr>
            <th scope="col">Capability</th>
            <th scope="col">Waits</th>
            <th scope="col">Moves</th>
            <th scope="col">Needs attention</th>
          </tr>
        </thead>
        <tbody>
          {lines(overview).map((line) => (
            <tr key={line.name}>
              <th scope="row">
                <Link href={line.to}>{line.name}</Link>
              </th>
              <td>{line.waits}</td>
              <td>{line.moves}</td>
              <td className={line.bad === "" ? undefined : classes.bad}>{line.bad || "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

const all = (...texts: string[]) => texts.filter((text) => text !== "").join(", ");
const speed = (value: number | null) => (value === null ? "–" : `${rate(value)}/s`);

function lines({ jobs, polls, fanout, reports, executions, outbox, dead_letters: dead }: Overview): Line[] {
  const bounded = (number: number) => count(number, jobs.capped_at);
  const some = (number: number, what: string) => (number > 0 ? `${bounded(number)} ${what}` : "");
  const aged = (waiting: number, oldest: number) => (waiting > 0 ? `${bounded(waiting)}, the oldest for ${spoken(oldest)}` : "0");
  const openStopped = reports.waiting + reports.running >= jobs.capped_at; // counted together
  const endedStopped = reports.finished + reports.failed >= jobs.capped_at;
  const fresh = polls.fresh_ratio === null ? "" : `, ${percent(polls.fresh_ratio)} fresh`;
  return [
    {
      name: "Polling",
      to: "/accounts",
      waits: aged(polls.waiting, polls.oldest_s),
      moves: `${speed(polls.answered_per_s)} answered${fresh}`,
      bad: all(some(polls.lagging_accounts, "accounts lag"), some(polls.unplaced, "trackers without a place")),
    },
    {
      name: "Fan-out",
      to: "/entities",
      waits: fanout.queued === null ? "–" : count(fanout.queued),
      moves: `${speed(fanout.called_per_s)} called, ${count(fanout.succeeded)} succeeded in the last minute`,
      bad: all(some(fanout.failed, "failed"), some(fanout.expired, "expired")),
    },
    {
      name: "Reports",
      to: "/reports",
      waits: atLeast(reports.waiting, openStopped),
      moves: `${atLeast(reports.running, openStopped)} run, ${atLeast(reports.finished, endedStopped)} finished in the last hour`,
      bad: reports.failed > 0 || endedStopped ? `${atLeast(reports.failed, endedStopped)} failed in the last hour` : "",
    },
    {
      name: "Campaigns",
      to: "/executions",
      waits: aged(executions.waiting, executions.oldest_s),
      moves: `${bounded(executions.working)} executions at work`,
      bad: some(executions.unreleased, "actions not released"),
    },
    {
      name: "Outbox",
      to: "/outbox",
      waits: aged(outbox.waiting, outbox.oldest_s),
      moves: `${speed(outbox.published_per_s)} published`,
      bad: some(outbox.failing, "destinations fail"),
    },
    {
      name: "Dead letters",
      to: "/dead-letters",
      waits: "",
      moves: "",
      bad: all(some(dead.jobs, "jobs"), some(dead.outbox, "messages"), dead.fanout !== null ? some(dead.fanout, "entity tasks") : fanout.entities > 0 ? "entity tasks unknown" : ""),
    },
  ];
}
