/** A length of time in at most two units. */
import classes from "./parts.module.css";

const UNITS: readonly (readonly [string, number])[] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** Return `seconds` as text: `350 ms`, `4.2 s`, `3 min 20 s`, `2 d 4 h`. */
export function spoken(seconds: number): string {
  if (seconds < 0) return `-${spoken(-seconds)}`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`;
  let rest = Math.round(seconds);
  const parts: string[] = [];
  for (const [unit, length] of UNITS) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count > 0) parts.push(`${count} ${unit}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

export function Duration({ seconds }: { seconds: number | null | undefined }) {
  if (seconds == null) return <span className={classes.none}>–</span>;
  return (
    <span className={classes.figure} title={`${seconds} s`}>
      {spoken(seconds)}
    </span>
  );
}
