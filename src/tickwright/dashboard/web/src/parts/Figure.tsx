/** Formatted numbers. */
import classes from "./parts.module.css";

const grouped = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 2 });
const share = new Intl.NumberFormat("en-GB", { style: "percent", maximumFractionDigits: 1 });

/** Return a count; one that stopped at `cap` ends with a plus. */
export function count(value: number, cap?: number): string {
  return cap !== undefined && value >= cap ? `${grouped.format(cap)}+` : grouped.format(value);
}

/** Return a count. If the count was `stopped` early, it is a lower bound, and 0 is unknown. */
export function atLeast(value: number, stopped: boolean): string {
  if (!stopped) return count(value);
  return value === 0 ? "unknown" : `${count(value)}+`;
}

/** Return a rate per second. */
export function rate(value: number): string {
  return value !== 0 && Math.abs(value) < 10 ? fine.format(value) : grouped.format(value);
}

/** Return a ratio as a percentage. */
export function percent(ratio: number): string {
  return share.format(ratio);
}

/** Return a size; units of 1,000. */
export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, value < 1 ? 0 : Math.floor(Math.log10(value) / 3));
  return `${rate(value / 1000 ** power)} ${units[power]}`;
}

interface Props {
  value: number | null | undefined;
  as?: "count" | "rate" | "percent" | "bytes";
  cap?: number;
}

export function Figure({ value, as = "count", cap }: Props) {
  if (value == null) return <span className={classes.none}>–</span>;
  const text = { count: () => count(value, cap), rate: () => rate(value), percent: () => percent(value), bytes: () => bytes(value) };
  return <span className={classes.figure}>{text[as]()}</span>;
}
