/** The parts of a report over time: waiting, running, done. The slowest part of each stage is marked. */
import type { Schemas } from "../../api/client";
import { now, useSecond } from "../../app/clock";
import { spoken } from "../../parts/Duration";
import { bytes, count } from "../../parts/Figure";
import { StateBadge, type Tone } from "../../parts/StateBadge";
import classes from "./reports.module.css";

type Detail = Schemas["ReportDetail"];
type Part = Schemas["PartView"];
const TONES: Record<string, Tone> = { done: "good", failed: "bad", running: "busy", due: "warn", waiting: "idle", dropped: "warn" };

export function Parts({ report }: { report: Detail }) {
  const isOpen = report.finished_at === null;
  const begin = Date.parse(report.created_at);
  const end = isOpen ? now() : Date.parse(report.finished_at ?? report.created_at);
  const length = Math.max(1, end - begin);
  return (
    <>
      {isOpen && <Ticking />}
      <ol className={classes.parts} aria-label="Parts by stage">
        {report.parts.map((part) => (
          <li key={part.listener} data-slowest={part.slowest && !isAlone(part, report.parts)}>
            <Line of={part} slowest={part.slowest && !isAlone(part, report.parts)} />
            <Bar of={part} begin={begin} length={length} />
            {part.error !== null && <p className={classes.partError}>{part.error}</p>}
          </li>
        ))}
      </ol>
    </>
  );
}

/** The only part of a stage is not marked as the slowest. */
const isAlone = (part: Part, all: readonly Part[]): boolean => all.filter((one) => one.stage === part.stage).length === 1;

/** Renders the open parts again each second. */
function Ticking(): null {
  useSecond();
  return null;
}

function Line({ of: part, slowest }: { of: Part; slowest: boolean }) {
  const attempts = part.attempts > 1 ? `${part.attempts} attempts` : "";
  const details = [part.kind, part.required ? "" : "not required", part.rows > 0 ? `${count(part.rows)} rows` : "", part.bytes > 0 ? bytes(part.bytes) : "", attempts, timesOf(part)];
  return (
    <div className={classes.line}>
      <span>
        <b>{part.listener}</b> <span className={classes.quiet}>stage {part.stage}</span> {slowest && <em>slowest of its stage</em>}
      </span>
      <StateBadge state={part.state} tone={TONES[part.state] ?? "idle"} />
      <span className={classes.quiet}>{details.filter(Boolean).join(", ")}</span>
    </div>
  );
}

function timesOf(part: Part): string {
  const waited = part.waited_s === null ? "" : `waited ${spoken(part.waited_s)}`;
  return [waited, part.took_s === null ? "" : `took ${spoken(part.took_s)}`].filter(Boolean).join(", ");
}

function Bar({ of: part, begin, length }: { of: Part; begin: number; length: number }) {
  if (part.asked_at === null) return <div className={classes.bar} />;
  const at = (text: string | null) => (text === null ? begin + length : Date.parse(text));
  const share = (from: number, to: number) => `${(Math.max(0, Math.min(to, begin + length) - from) / length) * 100}%`;
  const [asked, began, done] = [at(part.asked_at), part.began_at === null ? null : at(part.began_at), at(part.done_at)];
  return (
    <div className={classes.bar} role="img" aria-label={`${part.listener}: ${timesOf(part) || "not started"}`}>
      <span style={{ left: share(begin, asked), width: share(asked, began ?? done) }} data-kind="waited" />
      {began !== null && <span style={{ left: share(begin, began), width: share(began, done) }} data-kind={part.state === "failed" ? "failed" : "worked"} />}
    </div>
  );
}
