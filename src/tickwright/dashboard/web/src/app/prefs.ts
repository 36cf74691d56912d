/** The preferences of the page. */
import { stored } from "./stored";

/** Whether instants are shown in the viewer's time or in UTC. */
export const zone = stored("zone", ["local", "utc"]);
/** Whether the page updates by itself; off while somebody reads a list that moves. */
export const updating = stored("updating", ["live", "held"]);
