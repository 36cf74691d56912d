/** The names of all partners, for filters; they change rarely. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";

export function usePartnerNames(): string[] {
  const found = useQuery({ queryKey: ["partners", "names"], queryFn: ({ signal }) => get("/v1/partners", { signal }), staleTime: 30_000 });
  return (found.data?.items ?? []).map((partner) => partner.name);
}
