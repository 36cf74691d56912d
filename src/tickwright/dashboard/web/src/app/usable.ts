/** Marks when the first view can be used, for benchmarks: `performance.getEntriesByName("usable")`. */
let isMarked = false;

export function markUsable(): void {
  if (isMarked) return;
  isMarked = true;
  performance.mark("usable");
}
