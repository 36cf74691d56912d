/** One dead letter of a queue: its subject, its reason, and its body as text. */
import { Stack, Text } from "@mantine/core";
import { Link } from "wouter";
import { parseUsers, pretty } from "../../api/json";
import { EmptyState } from "../../parts/EmptyState";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { LABELS, type Queued, type QueuedKind } from "./kinds";

interface Props {
  kind: QueuedKind;
  /** The key in the URL; empty if no drawer is open. */
  place: string;
  letter: Queued | undefined;
  loaded: boolean;
  onClose: () => void;
}

export function QueuedDrawer({ kind, place, letter, loaded, onClose }: Props) {
  const { one } = LABELS[kind];
  return (
    <Side open={place !== ""} title={`Dead ${one} ${place}`} onClose={onClose}>
      {letter !== undefined ? <One kind={kind} letter={letter} /> : loaded ? <EmptyState title="It is not in this list">It was requeued, or it is not among the oldest, which are shown.</EmptyState> : <Waiting />}
    </Side>
  );
}

function One({ kind, letter }: { kind: QueuedKind; letter: Queued }) {
  return (
    <Stack>
      <Text size="sm" fw={600} style={{ overflowWrap: "anywhere" }}>
        {letter.error || letter.reason}
      </Text>
      <Facts
        of={[
          ["Reason", letter.reason],
          [LABELS[kind].subject, letter.subject],
          [kind === "fanout" ? "Entity" : "Report", letter.about === null ? null : <About key="about" kind={kind} about={letter.about} />],
          ["Given up", <Instant key="died" at={letter.diedAt} />],
          ["Message id", letter.id],
        ]}
      />
      <Section title="Body">
        <Json label="body" value={letter.body === null ? null : readable(letter.body)} hidden={letter.hidden} verbatim />
      </Section>
    </Stack>
  );
}

function About({ kind, about }: { kind: QueuedKind; about: string }) {
  return <Link href={kind === "fanout" ? `/entities?entity=${encodeURIComponent(about)}` : `/reports?report=${about}`}>{about}</Link>;
}

/** Indented JSON with all digits; a body that is cut off or is not JSON stays as it is. */
function readable(body: string): string {
  try {
    return pretty(parseUsers(body));
  } catch {
    return body;
  }
}
