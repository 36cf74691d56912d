/** The settings of an account. The effect of a change on the load is shown before it can be saved. */
import { Alert, Button, Group, Stack, TextInput } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { patch, post, type Schemas } from "../../api/client";
import { readNumber } from "../../api/json";
import { useConfirm } from "../../parts/Confirm";
import { ErrorBox } from "../../parts/ErrorBox";
import { count, rate } from "../../parts/Figure";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { minutes } from "./figures";
import { Load } from "./Load";

type Detail = Schemas["AccountDetail"];
type Change = Schemas["AccountChange"];

interface Draft {
  interval: string;
  cap: string;
  age: string;
  objective: string;
}

const TYPING_MS = 350;

export function AccountEdit({ account, onClose }: { account: Detail; onClose: () => void }) {
  const [draft, setDraft] = useState<Draft>(() => draftOf(account));
  const change = changeOf(draft, account);
  const [settled] = useDebouncedValue(JSON.stringify({ interval: change.polling_interval_minutes, cap: change.polls_per_slice_max }), TYPING_MS);
  const preview = usePreview(account, change, settled);
  const confirm = useConfirm();
  const action = useAction({
    run: () => patch("/v1/accounts/{account_id}", { path: { account_id: account.account_id }, body: change }),
    message: (now) => `Account ${now.account_id} is changed; its trackers are moved within minutes.`,
    invalidates: ["accounts"],
    quiet: true,
  });
  const changes = Object.keys(change).length;
  const isSettled = settled === JSON.stringify({ interval: change.polling_interval_minutes, cap: change.polls_per_slice_max });
  async function save(): Promise<void> {
    const load = preview.data;
    const yes = await confirm({
      title: `Change account ${account.account_id}?`,
      text: load === undefined ? null : `${count(load.trackers)} trackers go from ${rate(load.now.polls_per_s)} to ${rate(load.then.polls_per_s)} polls a second, all accounts from ${rate(load.all_now.polls_per_s)} to ${rate(load.all_then.polls_per_s)}.`,
      does: `Change ${changes} setting${changes === 1 ? "" : "s"}`,
      danger: load?.partners.some((one) => one.over && one.all_then > one.all_now) ?? false,
    });
    if (yes) action.mutate(undefined, { onSuccess: onClose });
  }
  const field = (name: keyof Draft, label: string, placeholder?: string) => (
    <TextInput
      label={label}
      w={140}
      inputMode="decimal"
      placeholder={placeholder}
      value={draft[name]}
      onChange={(event) => {
        const value = event.currentTarget.value;
        setDraft((before) => ({ ...before, [name]: value }));
      }}
      data-autofocus={name === "interval" || undefined}
    />
  );
  return (
    <Section title="Edit">
      <Stack gap="sm">
        <Group align="flex-end" gap="sm">
          {field("interval", "Interval, minutes")}
          {field("cap", "Cap per 5 min", "none")}
          {field("age", "Polled for, days")}
          {field("objective", "Objective, %")}
        </Group>
        {changes === 0 ? (
          <Alert variant="light" color="gray">
            Nothing is changed yet. The current interval of the trackers is {minutes(account.placed_interval_minutes)}.
          </Alert>
        ) : preview.error ? (
          <ErrorBox error={preview.error} onRetry={() => void preview.refetch()} />
        ) : preview.data === undefined ? (
          <Waiting lines={5} />
        ) : (
          <Load load={preview.data} busy={!isSettled || preview.isPlaceholderData} />
        )}
        {action.error !== null && <ErrorBox error={action.error} />}
        <Group justify="flex-end" gap="xs">
          <Button variant="default" onClick={onClose}>
            Go back
          </Button>
          <Button onClick={() => void save()} disabled={changes === 0 || !isSettled || preview.data === undefined || preview.isPlaceholderData} loading={action.isPending}>
            Save
          </Button>
        </Group>
      </Stack>
    </Section>
  );
}

function usePreview(account: Detail, change: Change, settled: string) {
  const path = { account_id: account.account_id };
  const { polling_interval_minutes, polls_per_slice_max } = change;
  return useQuery({
    queryKey: ["accounts", "preview", account.account_id, settled],
    queryFn: ({ signal }) => post("/v1/accounts/{account_id}/preview", { path, body: { polling_interval_minutes, polls_per_slice_max }, signal }),
    enabled: Object.keys(change).length > 0,
    placeholderData: keepPreviousData,
  });
}

function draftOf(account: Detail): Draft {
  return {
    interval: `${account.polling_interval_minutes}`,
    cap: `${account.polls_per_slice_max ?? ""}`,
    age: `${account.max_age_days}`,
    objective: `${+(account.freshness_objective * 100).toFixed(2)}`,
  };
}

/** Return only the settings that differ, so that other users' changes stay. Only the cap may be empty. */
function changeOf(draft: Draft, account: Detail): Change {
  const was = draftOf(account);
  const change: Change = {};
  if (draft.interval !== was.interval) change.polling_interval_minutes = needed(draft.interval);
  if (draft.cap !== was.cap) change.polls_per_slice_max = readNumber(draft.cap);
  if (draft.age !== was.age) change.max_age_days = needed(draft.age);
  if (draft.objective !== was.objective) change.freshness_objective = shareOf(needed(draft.objective));
  return change;
}

const needed = (typed: string): number => readNumber(typed) ?? ("" as unknown as number);
const shareOf = (percent: number): number => (typeof percent === "number" ? +(percent / 100).toFixed(4) : percent);
