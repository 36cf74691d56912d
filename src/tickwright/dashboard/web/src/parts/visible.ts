/**
 * Text of users that would act on the page instead of being read: bidirectional controls turn what stands around them,
 * characters of no width make two names look the same. Each is shown as its code point instead.
 *
 * Every text of the page passes `shown` or `plain`, because `jsx-runtime` makes every element of it.
 */

/** Controls, marks of direction, what has no width, fillers that look like nothing, line ends that are none, tags. */
const ACTS =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e007f}]/u;
const EACH = new RegExp(`(${ACTS.source})`, "u");
const ALL = new RegExp(ACTS.source, "gu");

const named = (character: string) => `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Return a text where only text can stand, such as a tooltip. */
export function plain(text: string): string {
  return ACTS.test(text) ? text.replace(ALL, (character) => `[${named(character)}]`) : text;
}

/** Return the pieces of a text, each second one the name of a code point; `null` where it is harmless as it is. */
export function pieces(text: string): readonly string[] | null {
  if (!ACTS.test(text)) return null;
  return text.split(EACH).map((piece, place) => (place % 2 === 1 ? named(piece) : piece));
}
