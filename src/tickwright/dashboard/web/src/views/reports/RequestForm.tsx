/** The form that requests a report: a type, and the values of its parameters. */
import { Button, Group, Modal, Select, SimpleGrid, Stack, TextInput } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { get, post } from "../../api/client";
import { readObject } from "../../api/json";
import { ErrorBox } from "../../parts/ErrorBox";
import { JsonField } from "../../parts/JsonField";
import { useAction } from "../../parts/useAction";
import { Waiting } from "../../parts/Waiting";
import { conditionsOf, parametersOf } from "./conditions";
import { useTypeNames } from "./names";

interface Props {
  onClose: () => void;
  onMade: (id: string) => void;
}

export function RequestForm({ onClose, onMade }: Props) {
  const names = useTypeNames();
  const [type, setType] = useState<string | null>(null);
  return (
    <Modal opened onClose={onClose} size="lg" title="Request a report" closeButtonProps={{ "aria-label": "Close" }}>
      <Stack>
        <Select label="Report type" data={names} value={type} onChange={setType} searchable required nothingFoundMessage="There is no report type" />
        {type !== null && <RequestFields key={type} type={type} onClose={onClose} onMade={onMade} />}
      </Stack>
    </Modal>
  );
}

function RequestFields({ type, onClose, onMade }: Props & { type: string }) {
  const found = useQuery({ queryKey: ["report-types", "one", type], queryFn: ({ signal }) => get("/v1/report-types/{name}", { path: { name: type }, signal }) });
  const [typed, setTyped] = useState<Record<string, string>>({});
  const [free, setFree] = useState("{}");
  const [more, setMore] = useState({ requester: "", department: "", max_age: "", format: "" });
  const parameters = found.data === undefined ? undefined : parametersOf(found.data.definition);
  const send = useAction({
    run: async () => {
      const conditions = parameters == null ? (readObject(free).value ?? {}) : conditionsOf(parameters, typed);
      const options = Object.fromEntries(Object.entries(more).filter(([, value]) => value.trim() !== ""));
      return post("/v1/reports", { body: { type, conditions, ...options } });
    },
    message: (made) => {
      onClose();
      onMade(made.id);
      return made.created ? `Report ${made.id} is requested` : `Report ${made.id} exists already and is reused`;
    },
    invalidates: ["reports"],
    quiet: true,
  });
  if (parameters === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={3} />;
  const field = (name: keyof typeof more, label: string, placeholder: string) => (
    <TextInput label={label} placeholder={placeholder} value={more[name]} onChange={(event) => setMore({ ...more, [name]: event.currentTarget.value })} />
  );
  return (
    <form
      onSubmit={(event: FormEvent) => {
        event.preventDefault();
        send.mutate(undefined);
      }}
    >
      <Stack>
        {parameters === null ? (
          <JsonField label="Conditions" description="JSON; this type takes any" minRows={3} value={free} onChange={setFree} />
        ) : (
          <SimpleGrid cols={{ base: 1, xs: 2 }} spacing="sm">
            {parameters.map((one) => (
              <TextInput
                key={one.name}
                label={one.name}
                description={one.type}
                placeholder={one.otherwise}
                required={one.required}
                value={typed[one.name] ?? ""}
                onChange={(event) => setTyped({ ...typed, [one.name]: event.currentTarget.value })}
              />
            ))}
          </SimpleGrid>
        )}
        <SimpleGrid cols={{ base: 1, xs: 2 }} spacing="sm">
          {field("requester", "Requester", "the name of this key")}
          {field("department", "Department", "none")}
          <Select label="Format" data={["csv", "parquet"]} placeholder={found.data?.format ?? ""} clearable value={more.format || null} onChange={(value) => setMore({ ...more, format: value ?? "" })} />
          {field("max_age", "Reuse a finished report up to", "1h")}
        </SimpleGrid>
        {send.error !== null && <ErrorBox error={send.error} />}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Go back
          </Button>
          <Button type="submit" disabled={parameters === null && readObject(free).value === null} loading={send.isPending}>
            Request 1 report
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
