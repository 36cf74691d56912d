/** Why a thing is where it is, as the API explains it. */
import { Code, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import type { Schemas } from "../api/client";
import { Answer } from "./Answer";
import { Instant } from "./Instant";
import classes from "./parts.module.css";

type Told = Pick<Schemas["Explanation"], "summary" | "reasons">;

interface Props {
  /** First the name of the list that it belongs to, so that it is asked again with the list. */
  queryKey: readonly unknown[];
  load: (signal: AbortSignal) => Promise<Told>;
}

export function Explain({ queryKey, load }: Props) {
  const found = useQuery({ queryKey, queryFn: ({ signal }) => load(signal) });
  return (
    <Answer of={found} lines={3}>
      {(told) => <Reasons told={told} />}
    </Answer>
  );
}

const INSTANT = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)/;

/** A sentence of the API, whose instants are in UTC, with them as all others on the page: in the reader's zone. */
function Sentence({ text }: { text: string }) {
  return text.split(INSTANT).map((part, index) => (index % 2 === 1 ? <Instant key={index} at={part} /> : part));
}

function Reasons({ told: { summary, reasons } }: { told: Told }) {
  const first = reasons[0]?.text === summary ? reasons[0] : undefined;
  const rest = first === undefined ? reasons : reasons.slice(1);
  return (
    <div className={classes.explain}>
      <Text size="sm" fw={600}>
        <Sentence text={summary} /> {first !== undefined && <Code>{first.code}</Code>}
      </Text>
      <ol>
        {rest.map((reason) => (
          <li key={reason.code + reason.text}>
            <Sentence text={reason.text} /> <Code>{reason.code}</Code>
          </li>
        ))}
      </ol>
    </div>
  );
}
