/** The current calls of a partner: quota, outcomes, breaker, quiet hours, waiting polls. */
import { Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { get, type Schemas } from "../../api/client";
import { spoken } from "../../parts/Duration";
import { ErrorBox } from "../../parts/ErrorBox";
import { Facts } from "../../parts/Facts";
import { count, percent, rate } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { Meter } from "../../parts/Meter";
import { StateBadge } from "../../parts/StateBadge";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { QuotaBar } from "./QuotaBar";
import { stateOf } from "./state";
import classes from "./partners.module.css";

type Partner = Schemas["PartnerView"];
type Figures = Schemas["PartnerFigures"];
/** Calls are counted between two requests; processes report theirs every two seconds. */
const EVERY_MS = 3_000;

export function PartnerNow({ partner, children }: { partner: Partner; children: ReactNode }) {
  const { name } = partner;
  const found = useQuery({
    queryKey: ["partners", "figures", name],
    queryFn: ({ signal }) => get("/v1/partners/{name}/figures", { path: { name }, signal }),
    refetchInterval: EVERY_MS,
  });
  const figures = found.data;
  if (figures === undefined) {
    return (
      <Stack>
        {children}
        {found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={10} />}
      </Stack>
    );
  }
  return (
    <Stack>
      {found.error !== null && <ErrorBox error={found.error} onRetry={() => void found.refetch()} kept />}
      <Facts
        of={[
          ["State", <StateBadge key="state" {...stateOf(partner, figures)} />],
          ["Until", <Instant key="until" at={figures.state_until} ago />],
          ["Called by", partner.called_by ?? "none"],
          ["Waiting polls", `${count(figures.waiting.polls)}${figures.waiting.capped ? "+" : ""}`],
          ["Oldest waiting since", <Instant key="oldest" at={figures.waiting.oldest_at} ago />],
          ["Held by consumers", count(figures.waiting.in_hand)],
        ]}
      />
      {children}
      <Section title="Quota">
        <Quota figures={figures} />
      </Section>
      <Section title="Calls of the last five minutes">
        <Calls figures={figures} />
      </Section>
      <Section title="Breaker and quiet hours">
        <Facts of={stops(figures)} />
      </Section>
      {figures.last_error !== null && (
        <Section title="Last error">
          <p className={classes.error}>
            <Instant at={figures.last_error_at} /> {figures.last_error}
          </p>
        </Section>
      )}
    </Stack>
  );
}

function Quota({ figures }: { figures: Figures }) {
  const { quota, shares } = figures;
  const budgets = quota.budgets.map((budget) => `${count(budget.calls)} in ${spoken(budget.window_s)}`).join(", ");
  return (
    <Stack gap="xs">
      <div className={classes.bars}>
        <QuotaBar name={figures.name} quota={quota} />
        {quota.concurrency !== null && (
          <span className={classes.quota}>
            <span>{percent(quota.granted / quota.concurrency)}</span>
            <Meter label="Concurrent calls granted" ratio={quota.granted / quota.concurrency} />
            <span className={classes.none}>of {count(quota.concurrency)} concurrent</span>
          </span>
        )}
      </div>
      <Facts
        of={[
          ["Calls per second", quota.calls_per_s === null ? null : rate(quota.calls_per_s)],
          ["Allowed", budgets || "no limit"],
          ["Concurrent calls", quota.concurrency === null ? "no limit" : `${count(quota.granted)} of ${count(quota.concurrency)} granted`],
          ...shares.map((share) => [share.name, `${count(share.granted)} concurrent`] as const),
        ]}
      />
    </Stack>
  );
}

function Calls({ figures: { at, calls } }: { figures: Figures }) {
  if (calls === null) {
    return (
      <p className={classes.none}>
        No figures were requested for five minutes, so calls are counted from <Instant at={at} /> on; the first figures follow in a few seconds.
      </p>
    );
  }
  return (
    <Facts
      of={[
        ["Answered", count(calls.answered)],
        ["Throttled (429)", withShare(calls.throttled, calls.throttled_share)],
        ["Failed", withShare(calls.failed, calls.failed_share)],
        ["Counted since", <Instant key="since" at={calls.since_at} ago />],
      ]}
    />
  );
}

const withShare = (value: number, share: number | null) => (share === null ? count(value) : `${count(value)}, ${percent(share)}`);

function stops({ breaker, quiet, blocked_until }: Figures) {
  return [
    ["Breaker", <StateBadge key="breaker" state={breaker.state} />],
    ["Since", <Instant key="since" at={breaker.since} ago />],
    ["Open until", <Instant key="until" at={breaker.until} ago />],
    ["Times opened in a row", count(breaker.opened_times)],
    ["Failing since", <Instant key="failing" at={breaker.failing_since} ago />],
    ["Failed in its window", `${count(breaker.window_failed)} of ${count(breaker.window_failed + breaker.window_answered)}`],
    ["Retry-After until", <Instant key="blocked" at={blocked_until} ago />],
    ["Quiet until", <Instant key="quiet" at={quiet.until} />],
    ["Next quiet hours", <Instant key="next" at={quiet.next_from} />],
    ["Next quiet hours end", <Instant key="ends" at={quiet.next_until} />],
  ] as const;
}
