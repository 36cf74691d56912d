/** A share of a whole as a bar; its value is beside it as text. */
import type { Tone } from "./StateBadge";
import classes from "./parts.module.css";

export function Meter({ label, ratio, tone = "busy" }: { label: string; ratio: number; tone?: Tone }) {
  const shown = Math.max(0, Math.min(1, ratio));
  return (
    <div className={classes.meter} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={1} aria-valuenow={shown}>
      <div style={{ width: `${shown * 100}%`, background: `var(--${tone})` }} />
    </div>
  );
}
