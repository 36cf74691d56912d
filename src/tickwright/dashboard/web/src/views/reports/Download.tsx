/** Downloads the file of a report by a signed link, which needs no key. */
import { Button } from "@mantine/core";
import { address, get, type Schemas } from "../../api/client";
import { useAction } from "../../parts/useAction";

type Report = Pick<Schemas["ReportView"], "id" | "file" | "status" | "payload_hidden" | "file_expires_at">;

export function Download({ report, small = false }: { report: Report; small?: boolean }) {
  const action = useAction({
    run: () => get("/v1/reports/{report_id}/file", { path: { report_id: report.id } }),
    message: (file) => {
      save(file);
      return `${file.name} is being downloaded`;
    },
    invalidates: [],
  });
  if (report.status !== "finished") return null;
  if (report.payload_hidden) return small ? "hidden" : <span>Hidden: the role of this key may not see the content of files.</span>;
  if (report.file === null) return small ? "removed" : <span>The file has been removed.</span>;
  return (
    <Button
      size={small ? "compact-xs" : "xs"}
      variant={small ? "default" : "filled"}
      loading={action.isPending}
      aria-label={`Download report ${report.id}`}
      onClick={(event) => {
        event.stopPropagation();
        action.mutate(undefined);
      }}
    >
      Download
    </Button>
  );
}

function save(file: Schemas["ReportFile"]): void {
  const link = document.createElement("a");
  link.href = file.url.startsWith("/") ? address(file.url) : file.url;
  link.download = file.name;
  link.rel = "noopener";
  link.click();
}
