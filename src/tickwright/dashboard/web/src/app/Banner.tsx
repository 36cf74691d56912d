/** Says that what is shown is old, since when and why; the only part of the page that speaks up by itself. */
import { instantText } from "../parts/Instant";
import classes from "./app.module.css";
import { useFreshness } from "./live";
import { zone } from "./prefs";

export function Banner() {
  const { staleSince, why, code, source } = useFreshness();
  const shown = zone.use();
  const isStale = staleSince !== null && source !== "held";
  return (
    <div aria-live="polite" style={{ flex: "none" }}>
      {isStale && (
        <div className={classes.banner} data-testid="stale">
          Stale since {instantText(staleSince, shown)}. {why ?? "No snapshot came; it is asked for again."} {code !== null && <code>{code}</code>}
        </div>
      )}
    </div>
  );
}
