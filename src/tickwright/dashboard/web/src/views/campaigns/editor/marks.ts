/**
 * The positions of mistakes in a text: the API counts Unicode code points, a browser counts UTF-16 code units.
 */
import type { Schemas } from "../../../api/client";

export type Mistake = Schemas["Mistake"];

export interface Mark {
  /** In UTF-16 code units; `end` is exclusive. */
  start: number;
  end: number;
  mistakes: readonly Mistake[];
}

/** Return the position of code point number `offset`. */
export function placeOf(text: string, offset: number): number {
  let place = 0;
  for (let left = offset; left > 0 && place < text.length; left--) place += (text.codePointAt(place) ?? 0) > 0xffff ? 2 : 1;
  return place;
}

/** A mark covers the name, number or quoted text that begins at its position, else one character. */
const PIECE = /^(?:[\p{L}\p{N}_]+(?:\.[\p{L}\p{N}_]+)*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|&&|\|\||[=!<>]=|[^\n])/u;

/** Return the marks of a text in order. Mistakes at one position share a mark, and marks do not overlap. */
export function marksOf(text: string, mistakes: readonly Mistake[]): Mark[] {
  const placed = new Map<number, Mistake[]>();
  for (const one of mistakes) {
    if (one.offset == null) continue;
    const place = placeOf(text, one.offset);
    placed.set(place, [...(placed.get(place) ?? []), one]);
  }
  const starts = [...placed.keys()].sort((a, b) => a - b);
  return starts.map((start, index) => {
    const length = PIECE.exec(text.slice(start))?.[0].length ?? 0;
    const end = Math.min(start + length, starts[index + 1] ?? Infinity);
    return { start, end, mistakes: placed.get(start) ?? [] };
  });
}
