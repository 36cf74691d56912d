/** The figures of jobs. */
import type { Overview } from "../../app/live";
import { atLeast, count, rate } from "../../parts/Figure";
import { spoken } from "../../parts/Duration";
import { Tile, Tiles } from "../../parts/Panel";

type Jobs = Overview["jobs"];

const WHY: Record<string, string> = {
  nothing_due: "nothing is due",
  capped: "too many to count",
  not_catching_up: "the backlog does not shrink",
  measuring: "being measured",
};
const LATE_S = 2;
const UNCOUNTED = "some task types are not counted";

export function JobTiles({ jobs }: { jobs: Jobs }) {
  const ended = jobs.finished_per_s;
  const late = jobs.lateness;
  return (
    <Tiles>
      <Tile
        title="Due"
        to="/jobs?state=pending"
        value={amount(jobs, jobs.due)}
        below={jobs.due > 0 ? `the oldest for ${spoken(jobs.oldest_due_s)}` : jobs.partial ? UNCOUNTED : "no job waits for a worker"}
        tone={jobs.oldest_due_s > 60 ? "bad" : undefined}
      />
      <Tile title="Caught up in" value={caughtUp(jobs)} below={change(jobs)} tone={jobs.not_caught_up === "not_catching_up" ? "warn" : undefined} />
      <Tile
        title="Lateness p99"
        value={late === null ? "–" : bucket(late.p99_s)}
        below={late === null ? "no start in the last minute" : `p50 ${bucket(late.p50_s)}, ${count(late.starts)} starts`}
        tone={late !== null && (late.p99_s === null || late.p99_s > LATE_S) ? "warn" : undefined}
      />
      <Tile title="Started per s" to="/jobs?state=processing" value={perSecond(jobs.started_per_s)} below={`${count(jobs.running)} running now`} />
      <Tile
        title="Completed per s"
        to="/jobs?state=completed"
        value={perSecond(ended?.completed ?? null)}
        below={ended === null ? "" : `${rate(ended.retried ?? 0)} retried, ${rate(ended.cancelled ?? 0)} cancelled`}
      />
      <Tile
        title="Failed per s"
        to="/jobs?state=failed"
        value={perSecond(ended?.failed ?? null)}
        below={ended === null ? "" : `${rate(ended.given_back ?? 0)} released`}
        tone={(ended?.failed ?? 0) > 0 ? "bad" : undefined}
      />
      <Tile title="Upcoming" to="/jobs?state=pending" value={amount(jobs, jobs.waiting)} below={jobs.partial ? UNCOUNTED : "not due yet"} />
    </Tiles>
  );
}

const amount = (jobs: Jobs, value: number) => (jobs.partial ? atLeast(value, true) : count(value, jobs.capped_at));
const perSecond = (value: number | null) => (value === null ? "–" : rate(value));
const bucket = (seconds: number | null) => (seconds === null ? "over 1 h" : `≤ ${spoken(seconds)}`);

function caughtUp(jobs: Jobs): string {
  if (jobs.caught_up_in_s !== null) return spoken(jobs.caught_up_in_s);
  return jobs.not_caught_up === "nothing_due" ? "now" : "–";
}

function change(jobs: Jobs): string {
  if (jobs.not_caught_up !== null) return WHY[jobs.not_caught_up] ?? "";
  return jobs.due_changes_per_s === null ? "" : `${rate(jobs.due_changes_per_s)} due per second`;
}
