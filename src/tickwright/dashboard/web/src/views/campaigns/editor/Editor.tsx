/** The form: settings at the left, expression and dry run at the right. */
import { Button, Group, Textarea, TextInput } from "@mantine/core";
import { useState } from "react";
import { useLocation } from "wouter";
import { post, put } from "../../../api/client";
import { useConfirm } from "../../../parts/Confirm";
import { ErrorBox } from "../../../parts/ErrorBox";
import { useAction } from "../../../parts/useAction";
import { Section } from "../../../parts/View";
import { Calendar } from "./Calendar";
import classes from "./editor.module.css";
import { ExpressionEditor } from "./ExpressionEditor";
import { Choice, Text, wrong } from "./fields";
import { audienceOf, definitionOf, type Fields } from "./form";
import type { Mistake } from "./marks";
import { More } from "./More";
import { TryIt } from "./TryIt";
import { useCheck } from "./useCheck";

const RELEASES = [
  { value: "finished", label: "when all chunks are done" },
  { value: "chunk", label: "chunk by chunk" },
];

interface Props {
  saved: { name: string; version: number } | null;
  begin: Fields;
}

export function Editor({ saved, begin }: Props) {
  const [fields, setFields] = useState(begin);
  const definition = definitionOf(fields);
  const checked = useCheck(definition);
  const mistakes = withAudience(fields, checked.mistakes ?? []);
  const ofExpression = mistakes.filter((one) => one.field === "expression");
  const form = { fields, mistakes, change: (more: Partial<Fields>) => setFields((before) => ({ ...before, ...more })) };
  const known = checked.mistakes !== undefined;
  const selects = known && !mistakes.some((one) => one.field === "expression" || one.field === "audience" || one.field.startsWith("audience."));
  return (
    <div className={classes.layout}>
      <div className={classes.part}>
        <TextInput label="Name" description="letters, digits, _ . -" disabled={saved !== null} value={fields.name} onChange={(event) => form.change({ name: event.currentTarget.value })} />
        <Section title="When">
          <div className={classes.part}>
            <Calendar {...form} />
          </div>
        </Section>
        <Textarea
          label="Audience"
          description="JSON: source with table or query, or file; key; fields with their types"
          classNames={{ input: classes.mono ?? "" }}
          autosize
          minRows={6}
          maxRows={20}
          spellCheck={false}
          value={fields.audience}
          error={wrong(mistakes, "audience")}
          onChange={(event) => form.change({ audience: event.currentTarget.value })}
        />
        <div className={classes.row}>
          <Text {...form} field="target" path="action.target" label="Action" placeholder="python:apply, https://…, kafka:TOPIC" />
          <Choice {...form} field="release" path="action.release" label="Release actions" options={RELEASES} />
        </div>
        <Section title="More">
          <div className={classes.part}>
            <More {...form} />
          </div>
        </Section>
      </div>
      <div className={classes.part}>
        <ExpressionEditor value={fields.expression} onChange={(expression) => form.change({ expression })} mistakes={ofExpression} status={statusOf(known, checked.error, ofExpression.length)} />
        {checked.error !== null && <ErrorBox error={checked.error} />}
        <TryIt definition={definition} ready={selects} />
        <Save saved={saved} fields={fields} known={known} mistakes={mistakes} />
      </div>
    </div>
  );
}

function statusOf(known: boolean, error: Error | null, wrongs: number): string {
  if (error !== null) return "not checked";
  if (!known) return "checking …";
  return wrongs === 0 ? "no mistake" : `${wrongs} mistake${wrongs === 1 ? "" : "s"}`;
}

/** An audience that is not JSON is not sent, and the API only reports it as missing; this shows the JSON error instead. */
function withAudience(fields: Fields, mistakes: readonly Mistake[]): readonly Mistake[] {
  const audience = audienceOf(fields.audience);
  if ("value" in audience) return mistakes;
  return [...mistakes.filter((one) => one.field !== "audience"), { field: "audience", code: "invalid_json", message: audience.problem, line: null, column: null, offset: null }];
}

interface SaveProps {
  saved: Props["saved"];
  fields: Fields;
  known: boolean;
  mistakes: readonly Mistake[];
}

function Save({ saved, fields, known, mistakes }: SaveProps) {
  const confirm = useConfirm();
  const [, go] = useLocation();
  const name = fields.name.trim();
  const save = useAction({
    run: async () => {
      const definition = definitionOf(fields);
      if (saved === null) return { made: await post("/v1/campaigns", { body: { name, ...definition } }), changed: true };
      const stored = await put("/v1/campaigns/{name}", { path: { name }, body: { ...definition, version: saved.version } });
      return { made: stored.campaign, changed: stored.changed };
    },
    message: ({ made, changed }) => {
      go(`/campaigns?name=${encodeURIComponent(made.name)}`);
      return changed ? `${made.name} is version ${made.version}` : `${made.name} is unchanged`;
    },
    invalidates: ["campaigns"],
    quiet: true,
  });
  async function ask(): Promise<void> {
    const text = saved === null ? `${name} is idle until it is started or activated.` : `New executions of ${name} use it; open ones keep their version.`;
    const does = saved === null ? "Create 1 campaign" : `Save version ${saved.version + 1}`;
    if (await confirm({ title: `${does}?`, text, does })) save.mutate(undefined);
  }
  const elsewhere = mistakes.filter((one) => one.field !== "expression").length;
  return (
    <>
      {save.error !== null && <ErrorBox error={save.error} />}
      <Group gap="xs">
        <Button disabled={!known || mistakes.length > 0 || name === ""} loading={save.isPending} onClick={() => void ask()}>
          {saved === null ? "Create" : "Save"}
        </Button>
        <Button variant="default" onClick={() => go(saved === null ? "/campaigns" : `/campaigns?name=${encodeURIComponent(saved.name)}`)}>
          Go back
        </Button>
        {elsewhere > 0 && <span className={classes.quiet}>{elsewhere === 1 ? "1 field is" : `${elsewhere} fields are`} wrong or missing.</span>}
      </Group>
    </>
  );
}
