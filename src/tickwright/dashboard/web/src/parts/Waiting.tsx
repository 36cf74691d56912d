/** A placeholder of `lines` lines while data loads. */
import { Skeleton, Stack } from "@mantine/core";

export function Waiting({ lines = 6 }: { lines?: number }) {
  return (
    <Stack gap="xs" p="md" aria-busy="true" aria-label="Loading" role="status">
      {Array.from({ length: lines }, (_, line) => (
        <Skeleton key={line} height={18} radius="sm" />
      ))}
    </Stack>
  );
}
