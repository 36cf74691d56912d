/** An error with the API's code, and what to do. */
import { Alert, Button, Code, Group, Text } from "@mantine/core";
import { Problem } from "../api/client";
import classes from "./parts.module.css";

const TITLES: Record<string, string> = {
  no_answer: "No answer",
  outcome_unknown: "It is unknown whether this was done",
  query_too_slow: "The database took too long",
  database_unavailable: "The database does not answer",
  unauthenticated: "Signed out",
  rate_limited: "Too many requests",
};

interface Props {
  error: unknown;
  onRetry?: () => void;
  /** Shown in the middle of a view that has nothing else to show. */
  alone?: boolean;
  /** Older data stays below it. */
  kept?: boolean;
}

export function ErrorBox({ error, onRetry, alone = false, kept = false }: Props) {
  const problem = error instanceof Problem ? error : null;
  const title = TITLES[problem?.code ?? ""] ?? (problem === null ? "This view is broken" : "Request failed");
  const detail = problem?.message ?? (error instanceof Error ? error.message : String(error));
  return (
    <Alert color="red" variant="light" title={title} role="alert" className={alone ? classes.alone : undefined}>
      <Text size="sm">{detail}</Text>
      {kept && <Text size="sm">The data below is from before this error and is not updated.</Text>}
      {problem === null && <Text size="sm">Reload the dashboard: its release may differ from that of the API.</Text>}
      <Group mt="xs" gap="sm">
        {problem !== null && <Code>{problem.code}</Code>}
        {onRetry !== undefined && (
          <Button size="compact-xs" variant="default" onClick={onRetry}>
            Try again
          </Button>
        )}
      </Group>
    </Alert>
  );
}
