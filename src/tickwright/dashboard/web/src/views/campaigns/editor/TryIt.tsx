/** A dry run of what stands in the form, beside it: nothing is saved and nothing leaves. */
import { Button, Group } from "@mantine/core";
import { post } from "../../../api/client";
import { ErrorBox } from "../../../parts/ErrorBox";
import { useAction } from "../../../parts/useAction";
import { DryRunResult } from "../DryRun";
import classes from "./editor.module.css";
import type { Definition } from "./form";

interface Props {
  definition: Definition;
  /** Whether expression and audience are known to be right. */
  ready: boolean;
}

export function TryIt({ definition, ready }: Props) {
  const { expression, audience } = definition;
  const tried = JSON.stringify([expression, audience]);
  const run = useAction({
    run: async (of: { tried: string; body: Record<string, unknown> }) => ({ tried: of.tried, found: await post("/v1/campaigns:dry-run", { body: of.body }) }),
    told: () => null,
    touches: [],
    quiet: true,
  });
  const isOld = run.variables !== undefined && run.variables.tried !== tried;
  return (
    <>
      <Group gap="xs">
        <Button variant="default" disabled={!ready} loading={run.isPending} onClick={() => run.mutate({ tried, body: { expression, audience } })}>
          Dry run
        </Button>
        <span className={classes.quiet}>{isOld ? "The result below is of another expression or audience." : "Counts whom it would select now; nothing is written."}</span>
      </Group>
      {run.error !== null && <ErrorBox error={run.error} />}
      {run.data !== undefined && <DryRunResult of={run.data.found} />}
    </>
  );
}
