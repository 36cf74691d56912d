import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/entities",
    title: "Entities",
    group: "Fan-out",
    order: 1,
    key: "n",
    load: () => import("./EntitiesView"),
    find: (text) => [{ label: `Entities that begin with ${text}`, to: `/entities?q=${encodeURIComponent(text)}` }],
  },
];
