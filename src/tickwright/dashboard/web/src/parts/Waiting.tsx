/** The place of something that loads; `lines` makes it as high as what comes. */
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
