/** Which rows are chosen. */
import { useMemo, useState } from "react";

export interface Selection {
  has: (id: string) => boolean;
  ids: readonly string[];
  toggle: (id: string) => void;
  put: (ids: readonly string[], chosen: boolean) => void;
  clear: () => void;
}

export function useSelection(): Selection {
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  return useMemo(() => {
    const put = (ids: readonly string[], isChosen: boolean) =>
      setChosen((before) => {
        const next = new Set(before);
        for (const id of ids) {
          if (isChosen) next.add(id);
          else next.delete(id);
        }
        return next;
      });
    return {
      has: (id) => chosen.has(id),
      ids: [...chosen],
      toggle: (id) => put([id], !chosen.has(id)),
      put,
      clear: () => setChosen(new Set()),
    };
  }, [chosen]);
}
