/** Dead letters by kind, and their requeue. */
import { SegmentedControl } from "@mantine/core";
import { useOverview } from "../../app/live";
import { count } from "../../parts/Figure";
import { CheckedParameter } from "../../parts/ParameterChecks";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { kindOf, LABELS, type Kind } from "./kinds";
import { QueuedLetters } from "./QueuedLetters";
import { StoredLetters } from "./StoredLetters";

const KINDS: readonly Kind[] = ["job", "outbox", "fanout", "reports"];
/** The overview counts dead letters up to this number. */
const COUNTED_MAX = 10_000;

export default function DeadLettersView() {
  const url = useUrl();
  const kind = kindOf(url.one("kind"));
  const dead = useOverview((overview) => overview.dead_letters);
  const numbers: Record<Kind, number | null> = { job: dead?.jobs ?? null, outbox: dead?.outbox ?? null, fanout: dead?.fanout ?? null, reports: null };
  const tabs = KINDS.map((value) => {
    const number = numbers[value];
    return { value, label: number === null || number === 0 ? LABELS[value].label : `${LABELS[value].label} ${count(number, COUNTED_MAX)}` };
  });
  const change = (value: string) => url.set({ kind: value === "job" ? null : value, subject: null, letter: null });
  return (
    <View title="Dead letters">
      <CheckedParameter name="kind" label="Kind" possible={KINDS} />
      <SegmentedControl aria-label="Kind" style={{ alignSelf: "flex-start", maxWidth: "100%", overflowX: "auto" }} value={kind} onChange={change} data={tabs} />
      {kind === "job" || kind === "outbox" ? <StoredLetters key={kind} kind={kind} /> : <QueuedLetters key={kind} kind={kind} />}
    </View>
  );
}
