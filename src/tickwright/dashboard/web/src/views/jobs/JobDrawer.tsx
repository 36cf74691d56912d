/** One job: where it is and why, and what it carries. */
import { Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import { ErrorBox } from "../../parts/ErrorBox";
import { Explain } from "../../parts/Explain";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";

export function JobDrawer({ id, onClose }: { id: string; onClose: () => void }) {
  return (
    <Side open={id !== ""} title={`Job ${id}`} onClose={onClose}>
      {id !== "" && <JobDetail id={id} />}
    </Side>
  );
}

function JobDetail({ id }: { id: string }) {
  const found = useQuery({
    queryKey: ["jobs", "one", id],
    queryFn: ({ signal }) => get("/v1/jobs/{job_id}", { path: { job_id: id }, signal }),
    refetchInterval: 3_000,
  });
  if (found.error) return <ErrorBox error={found.error} onRetry={() => void found.refetch()} />;
  const job = found.data;
  if (job === undefined) return <Waiting />;
  return (
    <Stack>
      <Facts
        of={[
          ["State", <StateBadge key="state" state={job.status} />],
          ["Execute at", <Instant key="at" at={job.execute_at} />],
        ]}
      />
      <Section title="Why it is where it is">
        <Explain
          queryKey={["jobs", "explain", id, job.status]}
          load={(signal) => get("/v1/jobs/{job_id}/explain", { path: { job_id: id }, signal })}
        />
      </Section>
      <Section title="Payload">
        <Json label="payload" value={job.payload} />
      </Section>
    </Stack>
  );
}
