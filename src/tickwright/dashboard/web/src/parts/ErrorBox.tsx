/** What went wrong, with the code that the API gives it, and what to do. */
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
  /** Stands in the middle of the view, where nothing else is. */
  alone?: boolean;
  /** Below it is what came before: old, and still more than nothing. */
  kept?: boolean;
}

export function ErrorBox({ error, onRetry, alone = false, kept = false }: Props) {
  const problem = error instanceof Problem ? error : null;
  const title = TITLES[problem?.code ?? ""] ?? (problem === null ? "This view is broken" : "That did not work");
  const detail = problem?.message ?? (error instanceof Error ? error.message : String(error));
  return (
    <Alert color="red" variant="light" title={title} role="alert" className={alone ? classes.alone : undefined}>
      <Text size="sm">{detail}</Text>
      {kept && <Text size="sm">What is below came before that, and is not renewed.</Text>}
      {problem === null && <Text size="sm">Reload: this page may be of another release than the API.</Text>}
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
