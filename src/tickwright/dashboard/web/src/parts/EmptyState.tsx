/** The text of an empty list: why it is empty, and what to do. */
import { Stack, Text, Title } from "@mantine/core";
import type { ReactNode } from "react";

export function EmptyState({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <Stack align="center" gap={4} py={48} px="md" ta="center">
      <Title order={2} size="h3">
        {title}
      </Title>
      {children !== undefined && (
        <Text size="sm" c="dimmed" component="div" maw={520}>
          {children}
        </Text>
      )}
    </Stack>
  );
}
