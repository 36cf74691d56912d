import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/workflows",
    title: "Workflows",
    group: "Jobs",
    order: 2,
    key: "v",
    load: () => import("./WorkflowsView"),
    find: (text) => [
      ...(/^\d{1,19}$/.test(text) ? [{ label: `Workflow ${text}`, to: `/workflows/${text}` }] : []),
      { label: `Workflows with ${text} in the name or key`, to: `/workflows?text=${encodeURIComponent(text)}` },
    ],
  },
  { path: "/workflows/:id", title: "Workflow", group: "Jobs", load: () => import("./WorkflowView") },
];
