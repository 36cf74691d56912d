/** One alert: its summary, its facts, and a link to its subject. */
import { Button, Group, Stack, Text } from "@mantine/core";
import { Link } from "wouter";
import type { Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { EmptyState } from "../../parts/EmptyState";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { Acknowledge } from "./Acknowledge";
import { placeOf } from "./places";

type Alert = Schemas["AlertView"];

interface Props {
  id: string;
  alert: Alert | undefined;
  loaded: boolean;
  onClose: () => void;
}

export function AlertDrawer({ id, alert, loaded, onClose }: Props) {
  return (
    <Side open={id !== ""} title={alert?.rule ?? `Alert ${id}`} onClose={onClose}>
      {alert !== undefined ? <One alert={alert} /> : loaded ? <EmptyState title={`Alert ${id} is not in this list`}>Show the resolved alerts, or all.</EmptyState> : <Waiting />}
    </Side>
  );
}

function One({ alert }: { alert: Alert }) {
  const place = placeOf(alert);
  const may = useMay("operator");
  return (
    <Stack>
      <Text size="sm" fw={600} style={{ overflowWrap: "anywhere" }}>
        {alert.summary}
      </Text>
      <Facts
        of={[
          ["State", <StateBadge key="state" state={alert.state} />],
          ["Severity", <StateBadge key="severity" state={alert.severity} />],
          ["Subject", alert.subject],
          ["Fired", <Instant key="fired" at={alert.fired_at} />],
          ["Last seen", <Instant key="seen" at={alert.seen_at} ago />],
          ["Resolved", <Instant key="resolved" at={alert.resolved_at} />],
        ]}
      />
      <Group gap="xs">
        {place !== null && (
          <Button component={Link} href={place.to} variant="default">
            {place.label}
          </Button>
        )}
        {may && alert.state === "firing" && <Acknowledge alert={alert} />}
      </Group>
      {alert.acknowledged_by !== null && (
        <Section title="Acknowledged">
          <Facts of={[["By", alert.acknowledged_by], ["Since", <Instant key="since" at={alert.acknowledged_at} />]]} />
          {alert.acknowledged_note !== null && (
            <Text size="sm" mt="xs" style={{ overflowWrap: "anywhere", whiteSpace: "pre-wrap" }}>
              {alert.acknowledged_note}
            </Text>
          )}
        </Section>
      )}
      <Section title="Facts">
        <Json label="facts" value={alert.facts} />
      </Section>
    </Stack>
  );
}
