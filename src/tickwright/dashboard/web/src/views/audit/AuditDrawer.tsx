/** One action: its differences, and the whole documents below. */
import { Stack } from "@mantine/core";
import type { Schemas } from "../../api/client";
import { Differences } from "../../parts/Differences";
import { EmptyState } from "../../parts/EmptyState";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";

type Line = Schemas["AuditView"];

interface Props {
  id: string;
  line: Line | undefined;
  loaded: boolean;
  onClose: () => void;
}

export function AuditDrawer({ id, line, loaded, onClose }: Props) {
  return (
    <Side open={id !== ""} title={line?.action ?? `Action ${id}`} onClose={onClose} wide>
      {line !== undefined ? <One line={line} /> : loaded ? <EmptyState title={`Action ${id} is not in this list`}>It may be further down, or a filter hides it.</EmptyState> : <Waiting />}
    </Side>
  );
}

function One({ line }: { line: Line }) {
  return (
    <Stack>
      <Facts of={[["Who", line.actor], ["When", <Instant key="at" at={line.at} />], ["Subject", line.subject], ["Action", line.action]]} />
      {line.payload_hidden ? (
        <Json label="before and after" value={null} hidden />
      ) : (
        <>
          <Section title="What changed">
            <Differences
              label="Differences"
              before={{ title: "Before", value: line.before }}
              after={{ title: "After", value: line.after }}
              none="Nothing differs between before and after."
            />
          </Section>
          <Section title="Before">
            <Json label="before" value={line.before} />
          </Section>
          <Section title="After">
            <Json label="after" value={line.after} />
          </Section>
        </>
      )}
    </Stack>
  );
}
