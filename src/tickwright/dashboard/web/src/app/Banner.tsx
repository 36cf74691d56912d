/** Shows that the figures are stale, since when and why; screen readers announce it. */
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
          Stale since {instantText(staleSince, shown)}. {why ?? "No snapshot was received; the dashboard tries again."} {code !== null && <code>{code}</code>}
        </div>
      )}
    </div>
  );
}
