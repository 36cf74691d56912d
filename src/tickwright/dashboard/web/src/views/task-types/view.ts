import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/task-types",
    title: "Task types",
    group: "Jobs",
    order: 2,
    key: "t",
    load: () => import("./TaskTypesView"),
    find: (text) => [{ label: `Task types with ${text}`, to: `/task-types?text=${encodeURIComponent(text)}` }],
  },
];
