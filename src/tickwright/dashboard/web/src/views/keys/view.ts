import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [{ path: "/keys", title: "Keys", group: "Operation", order: 6, key: "k", role: "admin", load: () => import("./KeysView") }];
