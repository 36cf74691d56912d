/** The result of a dry run: the numbers of clients, ten examples, and clients that could not be judged. Nothing is written. */
import { Button, Group } from "@mantine/core";
import { post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { ErrorBox } from "../../parts/ErrorBox";
import { count, percent } from "../../parts/Figure";
import { Tile, Tiles } from "../../parts/Panel";
import { Json } from "../../parts/Json";
import { useAction } from "../../parts/useAction";
import classes from "./campaigns.module.css";

export type DryRun = Schemas["DryRun"];

/** The dry run of a saved campaign. */
export function DryRunHere({ name }: { name: string }) {
  const may = useMay("operator");
  const run = useAction({ run: () => post("/v1/campaigns/{name}/dry-run", { path: { name }, body: {} }), message: () => null, invalidates: [], quiet: true });
  if (!may) return null;
  return (
    <>
      <Group my="xs">
        <Button variant="default" loading={run.isPending} onClick={() => run.mutate(undefined)}>
          Dry run
        </Button>
        <span className={classes.quiet}>Counts the clients that it would select now; nothing is written and no action is released.</span>
      </Group>
      {run.error !== null && <ErrorBox error={run.error} />}
      {run.data !== undefined && <DryRunResult of={run.data} />}
    </>
  );
}

export function DryRunResult({ of: found }: { of: DryRun }) {
  const share = found.members === 0 ? "of no client" : `${percent(found.selected / found.members)} of ${count(found.members)}`;
  return (
    <div className={classes.dry} role="status" aria-label="Dry run">
      <Tiles>
        <Tile title="Selected" value={count(found.selected)} below={share} />
        <Tile title="Missing a field" value={count(found.missing)} below="not selected" />
        <Tile title="Skipped" value={count(found.skipped)} tone={found.skipped > 0 ? "warn" : undefined} below="could not be judged" />
      </Tiles>
      {found.problems.length > 0 && (
        <ul className={classes.problems} aria-label="Clients that could not be judged">
          {found.problems.map((one, place) => (
            <li key={place}>
              {one["client_id"]}: {one["problem"] ?? one["message"]}
            </li>
          ))}
        </ul>
      )}
      <h3>{found.examples.length === 0 ? "No client to show" : `The first ${found.examples.length} of them`}</h3>
      {found.examples.length > 0 && <Examples of={found.examples} />}
    </div>
  );
}

function Examples({ of: clients }: { of: DryRun["examples"] }) {
  if (clients.every((one) => one.payload_hidden)) {
    return (
      <>
        <p className={classes.quiet}>{clients.map((one) => one.client_id).join(", ")}</p>
        <Json label="clients" value={null} hidden />
      </>
    );
  }
  return <Json label="clients" value={clients.map(({ client_id, client }) => ({ client_id, client }))} />;
}
