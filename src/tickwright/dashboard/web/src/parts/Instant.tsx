/** An instant in the chosen zone; the tooltip has it as ISO 8601 in UTC. `ago` shows the distance from now. */
import { now, useSecond } from "../app/clock";
import { zone } from "../app/prefs";
import classes from "./parts.module.css";
import { spoken } from "./Duration";

interface Props {
  at: string | null | undefined;
  /** Show the distance from now, updated each second. */
  ago?: boolean;
}

export function Instant({ at, ago = false }: Props) {
  const shown = zone.use();
  if (at == null) return <span className={classes.none}>–</span>;
  return (
    <time dateTime={at} title={new Date(at).toISOString()} className={classes.figure}>
      {ago ? <Ago at={at} /> : instantText(at, shown)}
    </time>
  );
}

function Ago({ at }: { at: string }) {
  useSecond();
  const seconds = (now() - Date.parse(at)) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${spoken(seconds)} ago` : `in ${spoken(-seconds)}`;
}

/** Return an instant as text, in local time or UTC. */
export function instantText(at: string | number, shown: "local" | "utc"): string {
  const date = new Date(at);
  const moved = shown === "utc" ? date : new Date(date.getTime() - date.getTimezoneOffset() * 60_000);
  const iso = moved.toISOString();
  const time = iso.slice(11, 19);
  return `${iso.slice(0, 10)} ${time}${shown === "utc" ? " Z" : ""}`;
}
