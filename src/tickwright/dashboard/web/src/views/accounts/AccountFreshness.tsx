/** The freshness of an account: its objective, the error budget that is left, and the burn rate. */
import { Stack } from "@mantine/core";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { get, type Schemas } from "../../api/client";
import { Answer } from "../../parts/Answer";
import { Chart } from "../../parts/Chart";
import { Facts } from "../../parts/Facts";
import { count, percent, rate } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { Meter } from "../../parts/Meter";
import classes from "./accounts.module.css";
import { budgetTone, exact } from "./figures";

type Detail = Schemas["AccountDetail"];
type Freshness = Schemas["Freshness"];
type Counts = Schemas["FreshCounts"];

export function AccountFreshness({ account }: { account: Detail }) {
  const fresh = account.freshness;
  return (
    <Stack>
      <Budget fresh={fresh} />
      <Facts
        of={[
          ["Objective", exact(fresh.objective)],
          ["Last interval", shareOf(fresh.recent)],
          ["Last 31 days", shareOf(fresh.month)],
          ["Judged until", <Instant key="until" at={fresh.judged_until} />],
          ["Greatest lag", fresh.lag_ratio === null ? null : `${fresh.lag_ratio.toFixed(2)} intervals`],
          ["Stale since", <Instant key="stale" at={fresh.stale_since} />],
        ]}
      />
      {fresh.burn.length > 0 && <Burn burn={fresh.burn} />}
      <Series id={account.account_id} objective={fresh.objective} />
    </Stack>
  );
}

function shareOf(counts: Counts): string | null {
  return counts.share === null ? null : `${percent(counts.share)} of ${count(counts.polls)}`;
}

function Budget({ fresh }: { fresh: Freshness }) {
  const left = fresh.error_budget_left;
  if (left === null) return <div className={classes.none}>No poll of this account is judged yet; that takes 1.1 intervals.</div>;
  const allowed = Math.floor(fresh.month.polls * (1 - fresh.objective));
  return (
    <div className={classes.budget}>
      <div>
        <span>
          Error budget of the month: <b>{left < 0 ? `overdrawn by ${percent(-left)}` : `${percent(left)} left`}</b>
        </span>
        <span>
          {count(fresh.month.polls - fresh.month.fresh)} stale of {count(allowed)} allowed
        </span>
      </div>
      <Meter label="Error budget left" ratio={left < 0 ? 1 : left} tone={budgetTone(left)} />
    </div>
  );
}

/** At a rate of 1 the budget lasts for a month exactly. */
function Burn({ burn }: { burn: Freshness["burn"] }) {
  return (
    <div className={classes.scroll}>
      <table className={classes.small} aria-label="Burn rates">
        <thead>
          <tr>
            <th scope="col">Window</th>
            <th scope="col" data-align="right">Polls</th>
            <th scope="col" data-align="right">Stale</th>
            <th scope="col" data-align="right">Burn rate</th>
            <th scope="col" data-align="right">Short window</th>
            <th scope="col" data-align="right">Alert above</th>
            <th scope="col" data-align="right">Budget used</th>
          </tr>
        </thead>
        <tbody>
          {burn.map((one) => (
            <tr key={one.window}>
              <td>{one.window}</td>
              <td data-align="right">{count(one.polls)}</td>
              <td data-align="right">{count(one.polls - one.fresh)}</td>
              <td data-align="right" data-tone={one.burning ? "bad" : undefined}>
                {one.rate === null ? "–" : `${rate(one.rate)}${one.burning ? ", burning" : ""}`}
              </td>
              <td data-align="right">{one.short_rate === null ? "–" : `${rate(one.short_rate)} in ${one.short_window}`}</td>
              <td data-align="right">{one.threshold}</td>
              <td data-align="right">{one.budget_used === null ? "–" : percent(one.budget_used)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const HOURS = 24;

function Series({ id, objective }: { id: string; objective: number }) {
  const found = useQuery({
    queryKey: ["accounts", "series", id],
    queryFn: ({ signal }) => get("/v1/accounts/{account_id}/freshness", { path: { account_id: id }, query: { hours: HOURS }, signal }),
    placeholderData: keepPreviousData,
    refetchInterval: 60_000,
  });
  const slices = useMemo(() => (found.data?.slices ?? []).filter((slice) => slice.minutes < 1440), [found.data]);
  const at = useMemo(() => slices.map((slice) => Date.parse(slice.from_at) / 1000), [slices]);
  const lines = useMemo(
    () => [
      { name: "stale", color: "bad", values: slices.map((slice) => (slice.polls === 0 ? null : 1 - slice.fresh / slice.polls)), fill: true },
      { name: "allowed", color: "idle", values: slices.map(() => 1 - objective) },
    ],
    [slices, objective],
  );
  return (
    <Answer of={found} lines={5}>
      {() => at.length >= 2 && <Chart label={`Share of stale polls of ${id} in slices of five minutes`} at={at} lines={lines} format={percent} />}
    </Answer>
  );
}
