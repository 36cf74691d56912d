/** Replay: polls that are missing in a range are made again, after a dry run has counted them. */
import { Alert, Button, Checkbox, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { post, type Schemas } from "../../api/client";
import { zone } from "../../app/prefs";
import { useMay } from "../../app/session";
import { Answer } from "../../parts/Answer";
import { useConfirm } from "../../parts/Confirm";
import { Facts } from "../../parts/Facts";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { fieldText } from "../../parts/TimeFilter";
import { useAction } from "../../parts/useAction";
import { useUrl } from "../../parts/useUrl";
import { now } from "../../app/clock";

const HOUR_MS = 3_600_000;

/** The button, and the dialogue, which is open while the URL names a range. */
export function Replay() {
  const url = useUrl();
  if (!useMay("operator")) return null;
  const open = () => url.set({ replay: new Date(now() - HOUR_MS).toISOString().slice(0, 16) + ":00Z", until: new Date(now()).toISOString().slice(0, 16) + ":00Z" }, true);
  const close = () => url.set({ replay: null, until: null });
  return (
    <>
      <Button variant="default" onClick={open}>
        Replay a range
      </Button>
      <Modal opened={url.one("replay") !== ""} onClose={close} title="Replay missing polls" size="lg" closeButtonProps={{ "aria-label": "Close" }}>
        <Range from={url.one("replay")} to={url.one("until")} onClose={close} />
      </Modal>
    </>
  );
}

function Range({ from, to, onClose }: { from: string; to: string; onClose: () => void }) {
  const url = useUrl();
  const [lost, setLost] = useState(false);
  const confirm = useConfirm();
  const body = { from, to, partner: url.one("partner") || null, topic_lost: lost };
  const counted = useQuery({
    queryKey: ["replay", body],
    queryFn: ({ signal }) => post("/v1/slices/replay", { body: { ...body, dry_run: true }, signal }),
    enabled: from !== "" && to !== "",
    staleTime: 0,
  });
  const action = useAction({
    run: () => post("/v1/slices/replay", { body: { ...body, dry_run: false } }),
    message: (done) => `${trackers(done.trackers)} polled again.`,
    invalidates: ["slices", "replay"],
  });
  async function replay(found: Schemas["Replay"]): Promise<void> {
    const yes = await confirm({
      title: `Poll ${trackers(found.trackers)} again?`,
      text: lost
        ? "Polls that were published to Kafka and not read count as lost. If they are in the topic after all, they are made twice."
        : "Only polls without a record that they were made or are on their way. They are paced within each partner's limits.",
      does: `Poll ${trackers(found.trackers)}`,
      danger: lost,
    });
    if (yes) action.mutate(undefined, { onSuccess: onClose });
  }
  return (
    <Stack>
      <Group gap="sm">
        <TimeField label="From" name="replay" at={from} />
        <TimeField label="Before" name="until" at={to} />
      </Group>
      <Checkbox label="The topic has lost its unread polls: count them as missing" checked={lost} onChange={(event) => setLost(event.currentTarget.checked)} />
      <Answer of={counted} lines={4}>
        {(found) => <Counted found={found} />}
      </Answer>
      <Group justify="flex-end" gap="xs">
        <Button variant="default" onClick={onClose}>
          Go back
        </Button>
        <Button disabled={counted.isFetching || counted.isError || !counted.data?.trackers} loading={action.isPending} onClick={() => counted.data && void replay(counted.data)}>
          {counted.data ? `Poll ${trackers(counted.data.trackers)} again` : "Counting"}
        </Button>
      </Group>
    </Stack>
  );
}

const trackers = (number: number) => `${count(number)} tracker${number === 1 ? "" : "s"}`;

function Counted({ found }: { found: Schemas["Replay"] }) {
  const skipped = found.unread_trackers + found.unknown_trackers;
  return (
    <>
      <Facts
        of={[
          ["Missing trackers", count(found.trackers)],
          ["Time slots checked", count(found.turns)],
          ["Minutes with a later poll", count(found.superseded_turns)],
          ["Skipped, may be in Kafka", count(skipped)],
          ["Released until", <Instant key="until" at={found.released_until} />],
        ]}
      />
      {found.trackers === 0 && (
        <Text size="sm" c="dimmed">
          A replay finds nothing missing: every scheduled poll of this range was made, is on its way, or was followed by a later one.
        </Text>
      )}
      {skipped > 0 && (
        <Alert variant="light" color="yellow">
          {trackers(skipped)} skipped, because consumers have not read the batches that may contain their polls. Wait until they have, and count again.
        </Alert>
      )}
    </>
  );
}

function TimeField({ label, name, at }: { label: string; name: string; at: string }) {
  const url = useUrl();
  const shown = zone.use();
  return (
    <TextInput
      type="datetime-local"
      step={60}
      w={200}
      label={`${label}${shown === "utc" ? ", UTC" : ""}`}
      value={fieldText(at, shown)}
      onChange={(event) => {
        const value = event.currentTarget.value;
        const date = new Date(shown === "utc" ? `${value}Z` : value);
        if (value !== "" && !Number.isNaN(date.getTime())) url.set({ [name]: date.toISOString() });
      }}
    />
  );
}
