/** Sign-in with an API key. The key is sent to the server once; the session is a cookie that no script can read. */
import { Button, Paper, PasswordInput, Stack, Text, Title } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { post } from "../api/client";
import { ErrorBox } from "../parts/ErrorBox";
import classes from "./app.module.css";
import { Mark } from "./Mark";
import { begin } from "./queries";

export function SignIn() {
  const [key, setKey] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const queries = useQueryClient();

  async function submit(event: FormEvent) {
    event.preventDefault();
    setBusy(true);
    try {
      const session = await post("/v1/session", { body: { key: key.trim() } });
      begin(queries, session);
    } catch (problem) {
      setError(problem);
    } finally {
      setBusy(false);
    }
  }

  return (
    <main className={classes.signIn}>
      <Paper component="form" onSubmit={(event: FormEvent) => void submit(event)} withBorder p="xl" radius="md" w={380} maw="100%">
        <Stack gap="md">
          <Title order={1} size="h3" className={classes.brand}>
            <Mark /> Tickwright
          </Title>
          <PasswordInput
            label="API key"
            placeholder="tw_…"
            autoComplete="current-password"
            autoFocus
            required
            value={key}
            onChange={(event) => setKey(event.currentTarget.value)}
          />
          {error !== null && <ErrorBox error={error} />}
          <Button type="submit" loading={busy}>
            Sign in
          </Button>
          <Text size="xs" c="dimmed">
            Create a key with <code>tickwright keys create NAME --role viewer</code>; <code>tickwright up</code> prints one.
          </Text>
        </Stack>
      </Paper>
    </main>
  );
}
