/** One action: its differences first, the whole documents below. */
import { Stack } from "@mantine/core";
import type { Schemas } from "../../api/client";
import { EmptyState } from "../../parts/EmptyState";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import classes from "./audit.module.css";
import { differencesOf, SHOWN_MAX } from "./differences";

type Line = Schemas["AuditView"];

interface Props {
  id: string;
  line: Line | undefined;
  asked: boolean;
  onClose: () => void;
}

export function AuditDrawer({ id, line, asked, onClose }: Props) {
  return (
    <Side open={id !== ""} title={line?.action ?? `Action ${id}`} onClose={onClose} wide>
      {line !== undefined ? <One line={line} /> : asked ? <EmptyState title={`Action ${id} is not in this list`}>It may be further down, or a filter leaves it out.</EmptyState> : <Waiting />}
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
            <Differences line={line} />
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

function Differences({ line }: { line: Line }) {
  const all = differencesOf(line.before, line.after);
  if (all.length === 0) return <p className={classes.quiet}>Nothing differs between before and after.</p>;
  return (
    <div className={classes.scroll}>
      <table className={classes.table} aria-label="Differences">
        <thead>
          <tr>
            <th scope="col">Word</th>
            <th scope="col">Before</th>
            <th scope="col">After</th>
          </tr>
        </thead>
        <tbody>
          {all.map((one) => (
            <tr key={one.place}>
              <th scope="row">{one.place || "all"}</th>
              <td>{one.before === null ? <span className={classes.quiet}>–</span> : <del>{one.before}</del>}</td>
              <td>{one.after === null ? <span className={classes.quiet}>–</span> : <ins>{one.after}</ins>}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {all.length >= SHOWN_MAX && <p className={classes.quiet}>These are the first {SHOWN_MAX}; the whole documents stand below.</p>}
    </div>
  );
}
