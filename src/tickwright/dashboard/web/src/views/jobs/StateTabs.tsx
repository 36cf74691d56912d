/** The states, each with its number of jobs under the other filters. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { get, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { atLeast } from "../../parts/Figure";
import { useParameterCheck } from "../../parts/ParameterChecks";
import { useUrl } from "../../parts/useUrl";
import { STATES, type Listing } from "./filter";
import classes from "./jobs.module.css";

type Counts = Schemas["JobCounts"];

export function StateTabs({ filter }: { filter: Listing }) {
  const url = useUrl();
  useParameterCheck("state", "State", STATES);
  const held = updating.use() === "held";
  const { status: _, ...others } = filter;
  const found = useQuery({
    queryKey: ["jobs", "counts", others],
    queryFn: ({ signal }) => get("/v1/jobs:counts", { query: others, signal }),
    refetchInterval: held ? false : 5_000,
    placeholderData: keepPreviousData,
  });
  const chosen = url.one("state");
  return (
    <div className={classes.tabs} role="group" aria-label="State">
      {["", ...STATES].map((state) => (
        <button key={state} type="button" className={classes.tab} aria-pressed={chosen === state} onClick={() => url.set({ state })}>
          {state === "" ? "all" : state} {state !== "" && <span>{shown(found.data, state)}</span>}
        </button>
      ))}
    </div>
  );
}

function shown(counts: Counts | undefined, state: string): string {
  const value = counts?.counts[state];
  if (counts === undefined || value === undefined) return "";
  return atLeast(value, counts.at_least.includes(state));
}
