/** A dry run of the form's content: nothing is saved and no action is released. */
import { Button, Group } from "@mantine/core";
import { post } from "../../../api/client";
import { ErrorBox } from "../../../parts/ErrorBox";
import { useAction } from "../../../parts/useAction";
import { DryRunResult } from "../DryRun";
import classes from "./editor.module.css";
import type { Definition } from "./form";

interface Props {
  definition: Definition;
  /** Expression and audience were checked and have no mistake. */
  ready: boolean;
}

export function TryIt({ definition, ready }: Props) {
  const { expression, audience } = definition;
  const tried = JSON.stringify([expression, audience]);
  const run = useAction({
    run: async (of: { tried: string; body: Record<string, unknown> }) => ({ tried: of.tried, found: await post("/v1/campaigns:dry-run", { body: of.body }) }),
    message: () => null,
    invalidates: [],
    quiet: true,
  });
  const isOld = run.variables !== undefined && run.variables.tried !== tried;
  return (
    <>
      <Group gap="xs">
        <Button variant="default" disabled={!ready} loading={run.isPending} onClick={() => run.mutate({ tried, body: { expression, audience } })}>
          Dry run
        </Button>
        <span className={classes.quiet}>{isOld ? "The result below is of another expression or audience." : "Counts the clients that it would select now; nothing is written."}</span>
      </Group>
      {run.error !== null && <ErrorBox error={run.error} />}
      {run.data !== undefined && <DryRunResult of={run.data.found} />}
    </>
  );
}
