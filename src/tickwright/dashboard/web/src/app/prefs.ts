/** The preferences of the dashboard. */
import { stored } from "./stored";

/** Whether instants are shown in local time or in UTC. */
export const zone = stored("zone", ["local", "utc"]);
/** Whether the dashboard updates by itself; `held`: updates are stopped, so that a list does not move. */
export const updating = stored("updating", ["live", "held"]);
