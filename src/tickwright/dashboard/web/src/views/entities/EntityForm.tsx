/** Makes an entity, or sets it whole; a code that is taken is set, too, so the form that makes one asks first. */
import { Alert, Button, Checkbox, Group, Modal, MultiSelect, Stack, TextInput } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { get, put, type Schemas } from "../../api/client";
import { pretty, readObject } from "../../api/json";
import { useConfirm } from "../../parts/Confirm";
import { ErrorBox } from "../../parts/ErrorBox";
import { JsonField } from "../../parts/JsonField";
import { useAction } from "../../parts/useAction";

interface Props {
  /** The entity to be changed, as it is now; left out, one is made. */
  entity?: Schemas["EntityDetail"];
  onClose: () => void;
}

interface Fields {
  code: string;
  enabled: boolean;
  modules: string[];
  partner: string;
  party: string;
}

function fieldsOf(entity: Schemas["EntityDetail"] | undefined): Fields {
  if (entity === undefined) return { code: "", enabled: true, modules: [], partner: "", party: "{}" };
  return {
    code: entity.code,
    enabled: entity.is_polling_enabled,
    modules: entity.modules.map((one) => one.name),
    partner: entity.partner ?? "",
    party: pretty(entity.party),
  };
}

export function EntityForm({ entity, onClose }: Props) {
  const [opened] = useState(entity?.config_version);
  const [fields, setFields] = useState(() => fieldsOf(entity));
  const change = (more: Partial<Fields>) => setFields((before) => ({ ...before, ...more }));
  const save = useSave(fields, entity === undefined, onClose);
  const party = readObject(fields.party);
  return (
    <Modal opened onClose={onClose} size="lg" title={entity === undefined ? "Create an entity" : `Edit ${entity.code}`} closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event: FormEvent) => {
          event.preventDefault();
          void save.ask();
        }}
      >
        <Stack>
          {entity === undefined && (
            <TextInput label="Code" description="letters, digits, _ . * @ + -" required value={fields.code} onChange={(event) => change({ code: event.currentTarget.value })} data-autofocus />
          )}
          {entity?.config_version !== opened && (
            <Alert variant="light" color="yellow">
              Somebody changed it since this form was opened. What is saved here takes the place of that.
            </Alert>
          )}
          <Modules chosen={fields.modules} onChange={(modules) => change({ modules })} />
          <TextInput label="Partner" description="whose quota its calls count for" placeholder="none" value={fields.partner} onChange={(event) => change({ partner: event.currentTarget.value })} />
          <JsonField
            label="Party"
            description={"JSON; it goes into messages as it is, so a secret is written ${env:NAME}"}
            value={fields.party}
            onChange={(text) => change({ party: text })}
          />
          <Checkbox label="Polling is enabled" checked={fields.enabled} onChange={(event) => change({ enabled: event.currentTarget.checked })} />
          {save.error !== null && <ErrorBox error={save.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Leave it
            </Button>
            <Button type="submit" disabled={party.value === null} loading={save.isPending}>
              {entity === undefined ? "Create 1 entity" : "Set 1 entity"}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

/** Those that there are, and those that the entity has: one that nobody declares any more can be left out, too. */
function Modules({ chosen, onChange }: { chosen: string[]; onChange: (names: string[]) => void }) {
  const found = useQuery({ queryKey: ["fanout", "modules"], queryFn: ({ signal }) => get("/v1/modules", { signal }), staleTime: 30_000 });
  const names = [...new Set([...(found.data?.items ?? []).map((one) => one.name), ...chosen])].sort();
  return (
    <MultiSelect
      label="Modules"
      description="what it is polled for"
      placeholder={chosen.length === 0 ? "polled for nothing" : ""}
      data={names}
      value={chosen}
      onChange={onChange}
      searchable
      nothingFoundMessage="There is no such module"
    />
  );
}

function useSave(fields: Fields, isNew: boolean, onClose: () => void) {
  const confirm = useConfirm();
  const code = fields.code.trim();
  const action = useAction({
    run: async () => {
      const body = {
        party: readObject(fields.party).value ?? {},
        is_polling_enabled: fields.enabled,
        polling_enabled_modules: fields.modules,
        partner: fields.partner.trim() === "" ? null : fields.partner.trim(),
      };
      return put("/v1/entities/{code}", { path: { code }, body });
    },
    told: (stored) => {
      onClose();
      return `${stored.entity.code} ${stored.created ? "is created" : "is set"}`;
    },
    touches: ["fanout"],
    quiet: true,
  });
  /** A put sets what is there: who means to make an entity is not to write over one unseen. */
  async function ask(): Promise<void> {
    const question = { title: "Set 1 entity?", text: `There is an entity ${code} already. Its modules, partner and party become what is written here.`, does: "Set 1 entity", danger: true };
    if (!isNew || !(await isThere(code)) || (await confirm(question))) action.mutate(undefined);
  }
  return { ask, error: action.error, isPending: action.isPending };
}

/** Whether there is one; the first that begins so is itself. What is wrong with a code is said by the put. */
async function isThere(code: string): Promise<boolean> {
  try {
    return (await get("/v1/fanout/entities", { query: { q: code, limit: 1 } })).items[0]?.code === code;
  } catch {
    return false;
  }
}
