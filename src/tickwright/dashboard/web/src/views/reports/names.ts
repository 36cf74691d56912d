/** The report types by name, for filters and for the form. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";

export function useTypeNames(): string[] {
  const found = useQuery({ queryKey: ["report-types", "names"], queryFn: ({ signal }) => get("/v1/report-types", { query: { limit: 200 }, signal }), staleTime: 30_000 });
  return (found.data?.items ?? []).map((one) => one.name);
}
