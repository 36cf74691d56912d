/**
 * Places the groups of a graph in columns, from left to right, so that few lines cross.
 *
 * The server gives each group its level, the longest way to it; each level that occurs is a column. A line over several
 * columns gets a bend in each, which keeps a place free for it between the boxes. Then the columns are sorted a few
 * times by the mean place of their neighbours, alternately to the left and to the right, and each box is moved towards its
 * neighbours as far as the order allows.
 */
export interface Box {
  id: string;
  level: number;
}
export interface Line {
  from: string;
  to: string;
}
export interface Placed {
  x: number;
  y: number;
}
export interface Route extends Line {
  /** From the right side of a box, over the bends, to the left side of another one. */
  points: Placed[];
}
export interface Layout {
  boxes: Map<string, Placed>;
  routes: Route[];
  width: number;
  height: number;
}

export const BOX = { width: 220, height: 76 } as const;
const GAP = { x: 56, y: 18, bend: 14 } as const;
const MARGIN = 12;
const SWEEPS = 4;
const SETTLINGS = 6;
/** Longer lines are drawn without bends: a graph with many of them would be mostly bends. */
const SPAN_MAX = 12;

interface Spot {
  /** Its box; a bend has none. */
  box: Box | null;
  column: number;
  before: Spot[];
  after: Spot[];
  /** In its column. */
  place: number;
  /** Of its middle. */
  y: number;
}

export function layOut(boxes: readonly Box[], lines: readonly Line[]): Layout {
  const levels = [...new Set(boxes.map((box) => box.level))].sort((a, b) => a - b);
  const columnOf = new Map(levels.map((level, column) => [level, column]));
  const columns: Spot[][] = levels.map(() => []);
  const spots = new Map(boxes.map((box) => [box.id, addSpot(columns, columnOf.get(box.level) ?? 0, box)]));
  const ways = lines.flatMap((line) => {
    const [from, to] = [spots.get(line.from), spots.get(line.to)];
    return from === undefined || to === undefined || to.column <= from.column ? [] : [{ line, way: connect(columns, from, to) }];
  });
  sortColumns(columns);
  settle(columns);
  const all = columns.flat();
  const top = Math.min(0, ...all.map((spot) => spot.y - heightOf(spot) / 2));
  const x = (spot: Spot) => MARGIN + spot.column * (BOX.width + GAP.x);
  const y = (spot: Spot) => MARGIN + spot.y - top;
  return {
    boxes: new Map([...spots].map(([id, spot]) => [id, { x: x(spot), y: y(spot) - BOX.height / 2 }])),
    routes: ways.map(({ line, way }) => ({ ...line, points: way.flatMap((spot, index) => sides(x(spot), y(spot), index, way.length)) })),
    width: 2 * MARGIN + levels.length * (BOX.width + GAP.x) - GAP.x,
    height: MARGIN + Math.max(0, ...all.map((spot) => y(spot) + heightOf(spot) / 2)),
  };
}

/** The points of a line at one of its spots: it leaves the first box at the right, enters the last one at the left, and passes a bend. */
function sides(x: number, y: number, index: number, spots: number): Placed[] {
  const [left, right] = [{ x, y }, { x: x + BOX.width, y }];
  if (index === 0) return [right];
  return index === spots - 1 ? [left] : [left, right];
}

function addSpot(columns: Spot[][], column: number, box: Box | null): Spot {
  const into = columns[column] ?? [];
  const spot: Spot = { box, column, before: [], after: [], place: into.length, y: 0 };
  into.push(spot);
  return spot;
}

/** Return the spots of a new line, with its bends. */
function connect(columns: Spot[][], from: Spot, to: Spot): Spot[] {
  const way = [from];
  if (to.column - from.column <= SPAN_MAX) {
    for (let column = from.column + 1; column < to.column; column += 1) way.push(addSpot(columns, column, null));
  }
  way.push(to);
  let before = from;
  for (const spot of way.slice(1)) {
    before.after.push(spot);
    spot.before.push(before);
    before = spot;
  }
  return way;
}

const heightOf = (spot: Spot) => (spot.box === null ? GAP.bend : BOX.height);
const mean = (spots: readonly Spot[], of: (spot: Spot) => number, otherwise: number) =>
  spots.length === 0 ? otherwise : spots.reduce((sum, spot) => sum + of(spot), 0) / spots.length;

function sortColumns(columns: Spot[][]): void {
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forward = sweep % 2 === 0;
    for (const column of forward ? columns : [...columns].reverse()) {
      const wanted = new Map(column.map((spot) => [spot, mean(forward ? spot.before : spot.after, (one) => one.place, spot.place)]));
      column.sort((a, b) => (wanted.get(a) ?? 0) - (wanted.get(b) ?? 0));
      column.forEach((spot, place) => (spot.place = place));
    }
  }
}

/** Move each spot towards its neighbours, without changing the order in its column. */
function settle(columns: Spot[][]): void {
  for (const column of columns) pack(column, () => 0);
  for (let turn = 0; turn < SETTLINGS; turn += 1) {
    const forward = turn % 2 === 0;
    for (const column of forward ? columns : [...columns].reverse()) {
      pack(column, (spot) => mean(forward ? spot.before : spot.after, (one) => one.y, spot.y));
    }
  }
}

interface Block {
  spots: Spot[];
  /** Where the middle of each is below the block's top. */
  middles: number[];
  height: number;
  /** Where the tops of its spots, as they want to be, would have the block's top: the sum over its spots. */
  wanted: number;
}

/** Place a column as near as possible to where its spots want to be: spots that would overlap become one block, which moves as one. */
function pack(column: readonly Spot[], wanted: (spot: Spot) => number): void {
  const blocks: Block[] = [];
  const topOf = (block: Block) => block.wanted / block.spots.length;
  for (const spot of column) {
    const height = heightOf(spot);
    let block: Block = { spots: [spot], middles: [height / 2], height, wanted: wanted(spot) - height / 2 };
    for (let above = blocks.at(-1); above !== undefined && topOf(block) < topOf(above) + above.height + GAP.y; above = blocks.at(-1)) {
      blocks.pop();
      block = joined(above, block);
    }
    blocks.push(block);
  }
  for (const block of blocks) block.spots.forEach((spot, index) => (spot.y = topOf(block) + (block.middles[index] ?? 0)));
}

function joined(above: Block, below: Block): Block {
  const shift = above.height + GAP.y;
  return {
    spots: [...above.spots, ...below.spots],
    middles: [...above.middles, ...below.middles.map((one) => one + shift)],
    height: shift + below.height,
    wanted: above.wanted + below.wanted - shift * below.spots.length,
  };
}

/** Return the route as the path of an SVG: curves between its points. */
export function pathOf(points: readonly Placed[]): string {
  const [first, ...rest] = points;
  if (first === undefined) return "";
  let at = first;
  return rest.reduce((path, to) => {
    const half = (to.x - at.x) / 2;
    const curve = at.y === to.y ? `L ${to.x} ${to.y}` : `C ${at.x + half} ${at.y}, ${to.x - half} ${to.y}, ${to.x} ${to.y}`;
    at = to;
    return `${path} ${curve}`;
  }, `M ${first.x} ${first.y}`);
}
