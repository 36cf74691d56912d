/** The versions of a definition, and the differences of two of them, field by field. */
import { Button, Group, Select } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Differences } from "../../parts/Differences";
import { ErrorBox } from "../../parts/ErrorBox";
import { Instant } from "../../parts/Instant";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";
import { Waiting } from "../../parts/Waiting";
import classes from "./campaigns.module.css";
import { versionOf, versionsOf, type BatchDetail, type Kind } from "./kind";

export function Versions({ kind, batch }: { kind: Kind; batch: BatchDetail }) {
  const url = useUrl();
  const pages = usePages({
    queryKey: [kind, "versions", batch.name, batch.version],
    load: (cursor, signal) => versionsOf(kind, batch.name, cursor, signal),
    every: false,
  });
  if (pages.rows === undefined) return pages.error ? <ErrorBox error={pages.error} onRetry={pages.again} /> : <Waiting lines={2} />;
  const numbers = pages.rows.map((one) => one.version);
  // the newest versions of the list, not that of `batch`, which may be older than the list
  const [from, to] = [Number(url.one("from") || numbers[1]), Number(url.one("to") || numbers[0])];
  return (
    <>
      {pages.error != null && <ErrorBox error={pages.error} onRetry={pages.again} kept />}
      <ul className={classes.versions}>
        {pages.rows.map((one) => (
          <li key={one.version}>
            <span>Version {one.version}</span> <span className={classes.quiet}>{one.made_by},</span> <Instant at={one.made_at} />
          </li>
        ))}
      </ul>
      {pages.hasMore && (
        <Button variant="default" size="compact-xs" onClick={pages.more}>
          Older versions
        </Button>
      )}
      {numbers.length > 1 && (
        <>
          <Group gap="xs" my="xs" align="end">
            <Choice label="From version" value={from} numbers={numbers} onChange={(value) => url.set({ from: value })} />
            <Choice label="to version" value={to} numbers={numbers} onChange={(value) => url.set({ to: value })} />
          </Group>
          <Compared kind={kind} name={batch.name} from={from} to={to} />
        </>
      )}
    </>
  );
}

function Choice({ label, value, numbers, onChange }: { label: string; value: number; numbers: number[]; onChange: (value: string | null) => void }) {
  return <Select label={label} w={120} size="xs" data={numbers.map(String)} value={String(value)} onChange={onChange} allowDeselect={false} />;
}

function Compared({ kind, name, from, to }: { kind: Kind; name: string; from: number; to: number }) {
  const found = useQuery({
    queryKey: [kind, "versions", name, "differences", from, to],
    queryFn: ({ signal }) => Promise.all([versionOf(kind, name, from, signal), versionOf(kind, name, to, signal)]),
    staleTime: Infinity,
  });
  if (found.data === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={2} />;
  return (
    <Differences
      label={`Differences of version ${from} and ${to}`}
      before={{ title: `Version ${from}`, value: found.data[0].definition }}
      after={{ title: `Version ${to}`, value: found.data[1].definition }}
      none="Nothing differs."
    />
  );
}
