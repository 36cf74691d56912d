/** The progress of an execution: chunks, clients, pace and estimated end; selected clients and released actions. */
import type { Schemas } from "../../api/client";
import { stringify } from "../../api/json";
import { count, percent, rate } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { Meter } from "../../parts/Meter";
import { Tile, Tiles } from "../../parts/Panel";
import classes from "./executions.module.css";

type Detail = Schemas["ExecutionDetail"];

export function Progress({ of: one }: { of: Detail }) {
  // `progress` of a job is JSON of a user, so every field of this name keeps its digits and may not be a plain number
  const ratio = one.progress === null ? 0 : Number(stringify(one.progress));
  const released = one.actions === 0 ? (one.finished_at === null ? 0 : 1) : one.released / one.actions;
  return (
    <section aria-label="Progress" className={classes.progress}>
      <div>
        <span>{one.progress === null ? "not split into chunks yet" : `${percent(ratio)} read`}</span>
        <span>{`${count(one.chunks_done)} of ${count(one.chunks)} chunks, ${count(one.seen)} of ${count(one.members)} clients`}</span>
      </div>
      <Meter label="Read" ratio={ratio} tone={one.error_message !== null ? "bad" : one.finished_at === null ? "busy" : "good"} />
      <div>
        <span>{one.actions === 0 ? "nothing to release" : `${percent(released)} released`}</span>
        <span>{`${count(one.released)} of ${count(one.actions)} actions, ${count(one.chunks_released)} of ${count(one.chunks)} chunks`}</span>
      </div>
      <Meter label="Released" ratio={released} tone={released < 1 ? "busy" : "good"} />
      <Tiles>
        <Tile title="Selected" value={count(one.selected)} below={one.seen === 0 ? "" : `${percent(one.selected / one.seen)} of those read`} />
        <Tile title="Missing a field" value={count(one.missing)} below="not selected" />
        <Tile title="Skipped" value={count(one.skipped)} tone={one.skipped > 0 ? "warn" : undefined} below="could not be judged" />
        <Tile title="Clients per second" value={one.seen_per_s === null ? "–" : rate(one.seen_per_s)} below={one.eta_at === null ? "" : <>done <Instant at={one.eta_at} ago /></>} />
      </Tiles>
    </section>
  );
}
