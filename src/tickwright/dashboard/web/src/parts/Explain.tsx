/** The API's explanation of a state. */
import { Code, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import type { Schemas } from "../api/client";
import { Answer } from "./Answer";
import { Instant } from "./Instant";
import classes from "./parts.module.css";

type Explained = Pick<Schemas["Explanation"], "summary" | "reasons">;

interface Props {
  /** Begins with the name of the list, so that it is fetched again with the list. */
  queryKey: readonly unknown[];
  load: (signal: AbortSignal) => Promise<Explained>;
}

export function Explain({ queryKey, load }: Props) {
  const found = useQuery({ queryKey, queryFn: ({ signal }) => load(signal) });
  return (
    <Answer of={found} lines={3}>
      {(explained) => <Reasons of={explained} />}
    </Answer>
  );
}

const INSTANT = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)/;

/** A sentence of the API: its instants, which are in UTC, are shown in the chosen time zone. */
function Sentence({ text }: { text: string }) {
  return text.split(INSTANT).map((part, index) => (index % 2 === 1 ? <Instant key={index} at={part} /> : part));
}

function Reasons({ of: { summary, reasons } }: { of: Explained }) {
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
