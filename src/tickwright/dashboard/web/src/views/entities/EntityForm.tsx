/** Creates an entity, or replaces all its fields. If the code of a new entity exists, the form asks before it replaces that entity. */
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
  /** The entity to change, in its current state; left out, one is created. */
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
              This entity was changed after this form was opened. Saving the form replaces that change.
            </Alert>
          )}
          <Modules chosen={fields.modules} onChange={(modules) => change({ modules })} />
          <TextInput label="Partner" description="its calls use this partner's quota" placeholder="none" value={fields.partner} onChange={(event) => change({ partner: event.currentTarget.value })} />
          <JsonField
            label="Party"
            description={"JSON; messages contain it as it is, so write a secret as ${env:NAME}"}
            value={fields.party}
            onChange={(text) => change({ party: text })}
          />
          <Checkbox label="Polling is enabled" checked={fields.enabled} onChange={(event) => change({ enabled: event.currentTarget.checked })} />
          {save.error !== null && <ErrorBox error={save.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Go back
            </Button>
            <Button type="submit" disabled={party.value === null} loading={save.isPending}>
              {entity === undefined ? "Create 1 entity" : "Save 1 entity"}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

/** The modules that exist and those of the entity: a module that no longer exists can be removed. */
function Modules({ chosen, onChange }: { chosen: string[]; onChange: (names: string[]) => void }) {
  const found = useQuery({ queryKey: ["fanout", "modules"], queryFn: ({ signal }) => get("/v1/modules", { signal }), staleTime: 30_000 });
  const names = [...new Set([...(found.data?.items ?? []).map((one) => one.name), ...chosen])].sort();
  return (
    <MultiSelect
      label="Modules"
      description="what it is polled for"
      placeholder={chosen.length === 0 ? "none" : ""}
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
    message: (stored) => {
      onClose();
      return `${stored.entity.code} ${stored.created ? "is created" : "is saved"}`;
    },
    invalidates: ["fanout"],
    quiet: true,
  });
  /** A PUT replaces an existing entity, so a new entity with the code of another needs a confirmation. */
  async function ask(): Promise<void> {
    const question = { title: "Replace 1 entity?", text: `The entity ${code} exists. Its modules, partner and party are replaced by those of this form.`, does: "Replace 1 entity", danger: true };
    if (!isNew || !(await exists(code)) || (await confirm(question))) action.mutate(undefined);
  }
  return { ask, error: action.error, isPending: action.isPending };
}

/** Whether an entity has this code: it is the first one of those that begin with it. The PUT reports an invalid code. */
async function exists(code: string): Promise<boolean> {
  try {
    return (await get("/v1/fanout/entities", { query: { q: code, limit: 1 } })).items[0]?.code === code;
  } catch {
    return false;
  }
}
