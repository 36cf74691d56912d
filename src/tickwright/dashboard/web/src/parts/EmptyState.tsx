/** Nothing is here, why that is so, and what to do about it. */
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
