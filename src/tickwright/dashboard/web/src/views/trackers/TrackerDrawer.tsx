/** One tracker: its next poll and the reason for its state, its events, and its end. */
import { Button, Group, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { ErrorBox } from "../../parts/ErrorBox";
import { Explain } from "../../parts/Explain";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import classes from "./trackers.module.css";

type Detail = Schemas["TrackerDetail"];

export function TrackerDrawer({ id, onClose }: { id: string; onClose: () => void }) {
  return (
    <Side open={id !== ""} title={`Tracker ${id}`} onClose={onClose}>
      {id !== "" && <Tracker key={id} id={id} />}
    </Side>
  );
}

function Tracker({ id }: { id: string }) {
  const may = useMay("operator");
  const found = useQuery({
    queryKey: ["trackers", "one", id],
    queryFn: ({ signal }) => get("/v1/trackers/{tracker_id}", { path: { tracker_id: id }, signal }),
    refetchInterval: 5_000,
  });
  const tracker = found.data;
  if (tracker === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={12} />;
  return (
    <Stack>
      {found.error !== null && <ErrorBox error={found.error} onRetry={() => void found.refetch()} kept />}
      <Facts of={factsOf(tracker)} />
      <Group gap="xs">
        <Button component={Link} href={`/accounts?account=${encodeURIComponent(tracker.account_id)}`} variant="default">
          Its account
        </Button>
        <Button component={Link} href={`/partners?partner=${encodeURIComponent(tracker.partner)}`} variant="default">
          Its partner
        </Button>
        {may && tracker.ended_at === null && <EndButton tracker={tracker} />}
      </Group>
      <Section title="Why it is in this state">
        <Explain
          queryKey={["trackers", "explain", id, tracker.state, tracker.last_polled_at, tracker.next_poll_at]}
          load={(signal) => get("/v1/trackers/{tracker_id}/explain", { path: { tracker_id: id }, signal })}
        />
      </Section>
      <Section title="Events from polls">
        <Events events={tracker.events} />
      </Section>
    </Stack>
  );
}

function factsOf(tracker: Detail) {
  return [
    ["State", <StateBadge key="state" state={tracker.state} tone={tracker.state === "placed" ? "good" : tracker.state === "ended" ? "idle" : "busy"} />],
    ["Status", tracker.status],
    ["External id", tracker.external_id],
    ["Account", tracker.account_id],
    ["Partner", tracker.partner],
    ["Status since", <Instant key="status" at={tracker.status_at} />],
    ["Last polled", <Instant key="polled" at={tracker.last_polled_at} />],
    ["Next poll", <Instant key="next" at={tracker.next_poll_at} ago />],
    ["Not before", <Instant key="skip" at={tracker.skip_until} />],
    ["Polled until", <Instant key="until" at={tracker.tracking_until} />],
    ["Registered", <Instant key="made" at={tracker.created_at} />],
    ["Ended", <Instant key="ended" at={tracker.ended_at} />],
  ] as const;
}

function Events({ events }: { events: Detail["events"] }) {
  if (events === null) return <p className={classes.none}>Hidden: the role of this key may not see data of partners.</p>;
  if (events.length === 0) return <p className={classes.none}>No event so far.</p>;
  return (
    <ol className={classes.events} reversed>
      {events.toReversed().map((event, place) => (
        <li key={events.length - place}>
          <Instant at={event.at} /> <span>{event.text}</span>
        </li>
      ))}
    </ol>
  );
}

function EndButton({ tracker }: { tracker: Detail }) {
  const confirm = useConfirm();
  const action = useAction({
    run: () => post("/v1/trackers/{tracker_id}/end", { path: { tracker_id: tracker.id } }),
    message: (ended) => `Tracker ${ended.id} is ${ended.outcome === "ended" ? "no longer polled" : "ended already"}.`,
    invalidates: ["trackers"],
  });
  async function ask(): Promise<void> {
    const yes = await confirm({
      title: `End tracker ${tracker.id}?`,
      text: `${tracker.external_id} of ${tracker.partner} is no longer polled, permanently. Its account and its events are kept.`,
      does: "End 1 tracker",
      danger: true,
    });
    if (yes) action.mutate(undefined);
  }
  return (
    <Button variant="default" onClick={() => void ask()} loading={action.isPending}>
      End
    </Button>
  );
}
